"""What is remembered of the last look for replicas to move."""

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Look:
    """`seen`: what the cluster was after it (`ClusterState.stamp`); while it is the same, and
    nothing was told of nodes and jobs, there is nothing to find before `ripe_at`, when the time of
    protection of a pod ends. Whatever happens, there is no other look before `next_at`."""

    seen: tuple[int, int] | None = None
    min_runtime_ends_at: float = math.inf
    next_at: float = -math.inf
