"""Find the waiting job that triggers an engine defect, so that all others are still scheduled."""

from collections.abc import Iterable, Sequence

from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.deltas import Delta, JobSubmitted


def culprit(deltas: Sequence[Delta], now: float) -> str | None:
    """Return the waiting job that alone makes the first cycle over `deltas` raise, or None.

    None means that the error needs several jobs together, or none at all.

    `deltas` are everything that a new session knows, so each try starts from an empty state.
    """
    suspects = [d.job.id for d in deltas if isinstance(d, JobSubmitted)]
    if _raises(without(deltas, suspects), now):
        return None
    fixed = frozenset(suspects)
    while len(suspects) > 1:
        middle = len(suspects) // 2
        for part in (suspects[:middle], suspects[middle:]):
            if _raises(without(deltas, fixed.difference(part)), now):
                suspects = part
                break
        else:
            return None
    return suspects[0] if suspects else None


def without(deltas: Iterable[Delta], jobs: Iterable[str]) -> list[Delta]:
    """Return `deltas` as if these jobs had not been submitted."""
    left_out = frozenset(jobs)
    return [d for d in deltas if not (isinstance(d, JobSubmitted) and d.job.id in left_out)]


def _raises(deltas: Iterable[Delta], now: float) -> bool:
    try:
        run_cycle(SchedulerState(), deltas, now)
    except Exception:  # any error: the caller logs the first one with its trace
        return True
    return False
