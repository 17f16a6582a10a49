"""What is remembered of the last look for pods to move, and what moves may still cost."""

import math
from dataclasses import dataclass, field

from scheduling.engine.deltas import MovesBefore
from scheduling.engine.types import MILLI

KEPT_S = 6 * 3600.0


@dataclass(slots=True)
class MoveBudget:
    """GPU-seconds of work that moves may still lose (`left_gpu_s`): a share of those that jobs use,
    at most what has come in `KEPT_S`. A new state begins with none, or with what those before it
    left."""

    left_gpu_s: float = 0.0
    used_milli: int = 0
    at: float | None = None

    def pass_time(self, now: float, used_milli: int, share: float) -> None:
        """So much is used from now on; what was since the last time adds to the budget."""
        if self.at is not None:
            income = self.used_milli / MILLI * share
            self.left_gpu_s = min(self.left_gpu_s + income * (now - self.at), income * KEPT_S)
        self.at, self.used_milli = now, used_milli

    def spend(self, gpu_s: float) -> None:
        self.left_gpu_s -= gpu_s

    @classmethod
    def after(cls, before: MovesBefore, share: float) -> "MoveBudget":
        """What those before left of it, as if it had been empty when what is known begins: they
        may have had more."""
        return cls(max(0.0, before.used_gpu_s * share - before.lost_gpu_s))


@dataclass(slots=True)
class Look:
    """`seen`: what was occupied after it (`Memo.occupied`); while that is the same, and nothing was
    told of nodes and jobs, there is nothing to find before `again_at`, when the minimum run time of
    a pod ends or more may be spent. Whatever happens, there is no other look before `next_at`."""

    seen: tuple[int, int] | None = None
    again_at: float = math.inf
    next_at: float = -math.inf
    budget: MoveBudget = field(default_factory=MoveBudget)
