"""Make, change, hold or release queues while jobs wait and run: no job loses its position."""

from collections.abc import Iterator

from scheduling.engine.deltas import QueuesChanged
from scheduling.engine.lifecycle import held_queues
from scheduling.engine.lifecycle.places import place
from scheduling.engine.lifecycle.policy_change import regroup
from scheduling.engine.memo import GREW
from scheduling.engine.outcome import Outcome
from scheduling.engine.queue.queues import Queues
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import BEYOND, JobRequest


def take_over(state: SchedulerState, told: QueuesChanged, out: Outcome) -> None:
    """Schedule by these queues from now on."""
    before, now = state.queues, out.now
    if told == before.told:
        return
    queues = state.queues = Queues()
    queues.replace(told)
    if not queues.go_on_from(before):
        for job, model, milli in _held_now(state, queues.tenants):
            queues.change(job, model, milli)
    for name in sorted(before.held.keys() - queues.held.keys()):
        held_queues.release(state, name, now)
    for name in sorted(queues.held.keys() - before.held.keys()):
        held_queues.hold(state, name, now)
    for name in sorted(queues.held.keys() & before.held.keys()):
        if queues.held[name].summary != before.held[name].summary:
            held_queues.tell_anew(state, name)
    by_users = {name for name, queue in queues.known.items() if queue.fair_users}
    split = by_users.symmetric_difference(
        name for name, queue in before.known.items() if queue.fair_users
    )
    if split:
        mine = [r for r in state.jobs.values() if (r.job.tenant, r.job.queue) in split]
        regroup(state, mine, now)
        held_queues.scatter(state)
    in_order = {name for name, queue in queues.known.items() if queue.fifo}
    if turned := in_order.symmetric_difference(
        name for name, queue in before.known.items() if queue.fifo
    ):
        place(state, [r for r in state.jobs.values() if (r.job.tenant, r.job.queue) in turned], out)
    names = before.known.keys() | queues.known.keys()
    changed = {n[0] for n in names if before.known.get(n) != queues.known.get(n)}
    if told.held_elsewhere != before.told.held_elsewhere:
        changed |= queues.tenants
    for eq_class in state.queue.eq_classes:
        if eq_class.tenant in changed:
            eq_class.forget()  # limits may allow more or less now
    for record in state.growing.values():
        if record.job.tenant in changed:
            state.memo.forget(GREW, record)


def _held_now(
    state: SchedulerState, tenants: frozenset[str]
) -> Iterator[tuple[JobRequest, str, float]]:
    """Yield (job, GPU model, milli) of all that jobs of these tenants hold."""
    for record in state.jobs.values():
        if not record.pods or record.job.tenant not in tenants:
            continue
        places = state.cluster.held_by(record.job.id)
        for pod, (model, milli) in record.pods.items():
            beyond = places[pod].placement.beyond
            if milli:
                yield record.job, model, milli + beyond / BEYOND
