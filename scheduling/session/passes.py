"""What one pass of a session writes and does, in parts that are committed one after another."""

from collections.abc import Set
from dataclasses import dataclass

from scheduling.kube.seam import Effect
from scheduling.session.memory.live import Writes


@dataclass(slots=True)
class Pass:
    """What one pass decided at `at`. Its writes come first, then its effects without stale jobs.

    `later` has the decisions about further jobs, written and done afterwards: transactions stay
    short, and the first pods are bound while the next are written.
    """

    writes: Writes
    effects: list[Effect]
    at: float
    later: "Pass | None" = None


def split(writes: Writes, effects: list[Effect], at: float, size: int) -> Pass:
    """Split the work so that each part places at most `size` jobs.

    All that concerns one job stays together and in order.
    """
    placed = list(dict.fromkeys(job.id for job, _ in writes.intents))
    if len(placed) <= size:
        return Pass(writes, effects, at)
    rest = set(placed[size:])
    later = Writes(
        transitions=[t for t in writes.transitions if t.job_id in rest],
        intents=[i for i in writes.intents if i[0].id in rest],
        staying=[s for s in writes.staying if s.job_id in rest],
    )
    writes.transitions = [t for t in writes.transitions if t.job_id not in rest]
    writes.intents = [i for i in writes.intents if i[0].id not in rest]
    writes.staying = [s for s in writes.staying if s.job_id not in rest]
    mine = [e for e in effects if not is_about(e, rest)]
    theirs = [e for e in effects if is_about(e, rest)]
    return Pass(writes, mine, at, split(later, theirs, at, size))


def is_about(effect: Effect, jobs: Set[str]) -> bool:
    """Whether the effect is for one of these jobs."""
    key = effect.key
    return isinstance(key, tuple) and bool(key) and key[0] in jobs
