"""The last search for pods to move, and the budget for moves."""

import math
from dataclasses import dataclass, field

from scheduling.engine.deltas import MovesBefore
from scheduling.engine.types import MILLI

KEPT_S = 6 * 3600.0


@dataclass(slots=True)
class MoveBudget:
    """The GPU-seconds of work that moves may still lose (`left_gpu_s`).

    The budget grows by a share of the GPU-seconds that jobs use, up to the income of `KEPT_S`
    seconds. A new state starts with an empty budget, or with what earlier states left of it.
    """

    left_gpu_s: float = 0.0
    used_milli: int = 0
    at: float | None = None

    def pass_time(self, now: float, used_milli: int, share: float) -> None:
        """Add the income since the last call; from now on, jobs use `used_milli` GPU-milli.

        `share`: the share of used GPU time that moves may lose.
        """
        if self.at is not None:
            income = self.used_milli / MILLI * share
            self.left_gpu_s = min(self.left_gpu_s + income * (now - self.at), income * KEPT_S)
        self.at, self.used_milli = now, used_milli

    def spend(self, gpu_s: float) -> None:
        self.left_gpu_s -= gpu_s

    @classmethod
    def after(cls, before: MovesBefore, share: float) -> "MoveBudget":
        """Return the budget that earlier states left, assuming that it was empty to begin with.

        They may really have had more, since their record covers only a limited time.
        """
        return cls(max(0.0, before.used_gpu_s * share - before.lost_gpu_s))


@dataclass(slots=True)
class Look:
    """When to search for moves again.

    `seen`: what was occupied after the last search (`Memo.occupied`). While that is the same, and
    no delta concerned nodes or jobs, another search finds nothing before `again_at`, when the min
    runtime of a pod ends or the budget has grown. In any case, there is none before `next_at`.
    """

    seen: tuple[int, int] | None = None
    again_at: float = math.inf
    next_at: float = -math.inf
    budget: MoveBudget = field(default_factory=MoveBudget)
