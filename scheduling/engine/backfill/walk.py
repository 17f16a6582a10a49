"""The state of one walk over the queue, for the rules about blocked jobs."""

from dataclasses import dataclass, field
from typing import Final

from scheduling.engine.outcome import Outcome
from scheduling.engine.queue.reservations import Reservations
from scheduling.engine.queue.standings import Standings
from scheduling.engine.queue.waiting import EquivalenceClass
from scheduling.engine.state import SchedulerState

ANYBODY: Final = ""  # in place of a tenant: of any tenant


@dataclass(slots=True, eq=False)
class Walk:
    """The scheduler state, what blocked jobs have closed so far (`way`), and the decisions (`out`).

    `standings`: the shares at the beginning of the walk. `in_line`: for GPU models without a turn,
    the first class that found no room, over all tenants and for each tenant with several queues.
    `waits_for`: by tenant and queue, the queues that had too much and wait for it.
    """

    state: SchedulerState
    way: Reservations
    out: Outcome
    standings: Standings | None
    in_line: dict[tuple[str, str], EquivalenceClass] = field(default_factory=dict)
    waits_for: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)


def begin_walk(state: SchedulerState, way: Reservations, out: Outcome) -> Walk:
    """Return a walk in which no class was asked yet."""
    return Walk(state, way, out, state.usage.standings)
