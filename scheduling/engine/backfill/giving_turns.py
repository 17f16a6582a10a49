"""Keep nodes for the jobs that have a turn, where shares decide (fair_turns.py: which jobs)."""

from scheduling.engine.admission.candidates import pools_wanted
from scheduling.engine.admission.limits import over_job_limit
from scheduling.engine.backfill.fair_turns import choose, comes_before, stands
from scheduling.engine.backfill.walk import ANYBODY, Walk
from scheduling.engine.memo import SETTLED
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.reservations import Head
from scheduling.engine.queue.waiting import EquivalenceClass
from scheduling.engine.reasons.behind import has_turn
from scheduling.engine.reasons.tell import tell


def line_up(walk: Walk, eq_class: EquivalenceClass) -> None:
    """Handle a class that finds no room.

    If its first job has a turn, keep its nodes. If nobody has the turn of a pool, line the class up
    to be the next.
    """
    state, record = walk.state, walk.state.jobs[eq_class.head]
    capped = eq_class.never is not None or eq_class.refusal is not None
    if not state.takes_turns or record.job.without_gpus:
        return
    if capped or over_job_limit(state, record) is not None:
        state.drop_turn(record)
        return
    pools = [m for m in sorted(pools_wanted(state, record)) if m not in walk.way.heads]
    if record.job.id in state.turns:
        _keep(walk, eq_class, record, pools)
        return
    of_queues = eq_class.tenant if eq_class.tenant in state.queues.ordered else ANYBODY
    for key in [(model, whose) for model in pools for whose in (ANYBODY, of_queues)]:
        if _next_in_line(walk, key) is None:
            walk.in_line[key] = eq_class


def give_turns(walk: Walk, eq_class: EquivalenceClass) -> None:
    """Give a turn to each job ahead that found no room and comes before this class."""
    state, standings, by = walk.state, walk.standings, walk.state.jobs[eq_class.head]
    if eq_class.never is not None or eq_class.refusal is not None:
        return
    wanted = sorted(pools_wanted(state, by))
    for key in [(model, whose) for model in wanted for whose in (ANYBODY, by.job.tenant)]:
        ahead = _next_in_line(walk, key)
        record = state.jobs[ahead.head] if ahead is not None else None
        if ahead is None or record is None or key[0] in walk.way.heads:
            continue
        if comes_before(state, standings, record, by):
            lines = [line for line, other in walk.in_line.items() if other is ahead]
            pools = {model for model, _ in lines}.difference(walk.way.heads)
            _keep(walk, ahead, record, sorted(pools))
            if record.job.id in state.turns:
                state.dirty = True  # it now goes first of its priority
                if record.turn and record.verdict:
                    told = has_turn(record.verdict, len(record.turn.nodes))
                    tell(record, told, walk.out)
            for line in lines:
                del walk.in_line[line]


def _next_in_line(walk: Walk, key: tuple[str, str]) -> EquivalenceClass | None:
    """Return the class that found no room first.

    Skip a class that has no jobs any more: services that lacked pods and lost all others to a
    preemption in the meantime.
    """
    ahead = walk.in_line.get(key)
    if ahead is not None and not ahead.jobs:
        del walk.in_line[key]
        return None
    return ahead


def _keep(walk: Walk, eq_class: EquivalenceClass, record: JobRecord, pools: list[str]) -> None:
    """Keep nodes for the job, which has the turn; choose anew if they have not emptied in time."""
    state, standings, now = walk.state, walk.standings, walk.out.now
    if record.turn is None or not stands(state, record.turn, now):
        taken = frozenset[str]().union(*[head.nodes for head in walk.way.heads.values()])
        record.take_turn(turn := choose(state, standings, record, taken, now))
        if turn.nodes:
            state.wake_at(turn.until)
    if record.turn is None or not (record.turn.nodes and pools):
        state.turns.pop(record.job.id, None)
        return
    state.turns[record.job.id] = record
    head = Head(record.job.id, False, None, record.turn.nodes)
    walk.way.heads.update(dict.fromkeys(pools, head))
    walk.way.add((*pools, head), record.key)
    state.memo.forget(SETTLED, eq_class)
