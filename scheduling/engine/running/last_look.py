"""What is remembered of the last look for replicas to move."""

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Look:
    """`seen`: what was occupied after it (`Memo.occupied`); while that is the same, and nothing was
    told of nodes and jobs, there is nothing to find before `min_runtime_ends_at`, when the minimum
    run time of a pod ends. Whatever happens, there is no other look before `next_at`."""

    seen: tuple[int, int] | None = None
    min_runtime_ends_at: float = math.inf
    next_at: float = -math.inf
