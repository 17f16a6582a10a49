"""One walk over the queue, as the rules about blocked jobs know it."""

from dataclasses import dataclass, field
from typing import Final

from scheduling.engine.outcome import Outcome
from scheduling.engine.queue.reservations import Reservations
from scheduling.engine.queue.standings import Standings
from scheduling.engine.queue.waiting import EquivalenceClass
from scheduling.engine.state import SchedulerState

ANYBODY: Final = ""  # of no tenant


@dataclass(slots=True, eq=False)
class Walk:
    """The state, what blocked jobs have closed so far (`way`), and what is decided.

    `standings`: the shares as the walk began. `in_line`: by GPU model where it is nobody's turn yet
    the first class of all that found no room, and the first of each tenant that has several queues.
    `waits_for`: by tenant and queue the queues that had too much, which wait for it.
    """

    state: SchedulerState
    way: Reservations
    out: Outcome
    standings: Standings | None
    in_line: dict[tuple[str, str], EquivalenceClass] = field(default_factory=dict)
    waits_for: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)


def begin_walk(state: SchedulerState, way: Reservations, out: Outcome) -> Walk:
    """A walk that has asked nobody yet."""
    return Walk(state, way, out, state.usage.standings)
