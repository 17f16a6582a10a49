"""What a cycle returns. Deciding has already changed the engine's state; the shell acts on it."""

from dataclasses import dataclass

from scheduling.engine.types import PodPlacement
from scheduling.engine.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Started:
    """Pods that got their place now. A gang comes whole; other jobs may come in several parts.

    `borrowed`: (gpu model, milli) of this part that exceeds the tenant's own quota.
    `complete`: every pod of the job (or of its wish) now has a place.
    """

    job_id: str
    placements: tuple[PodPlacement, ...]
    borrowed: tuple[tuple[str, int], ...] = ()
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Waiting:
    """The reason of a waiting job, reported only when it changed."""

    job_id: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class CycleResult:
    """Everything one cycle decided, in decision order.

    `quota_reserved` / `quota_lost`: jobs that newly passed, or no longer pass, static quota
    admission. `lost`: (job id, pod set, ordinal) of pods whose node or device is gone or bad.
    """

    started: tuple[Started, ...] = ()
    quota_reserved: tuple[str, ...] = ()
    quota_lost: tuple[str, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    lost: tuple[tuple[str, int, int], ...] = ()
    considered: int = 0
