"""Hold a queue and release it: thousands of waiting jobs at once, class by class.

While their queue is held, jobs are in no class, like jobs that are held themselves. Their class is
set aside with them, so that a release need not find the class of each job again. A job that
something happens to in the meantime leaves its class (`SchedulerState.enqueue`).
"""

from scheduling.engine.memo import IN_VAIN
from scheduling.engine.queue.order import OrderKey
from scheduling.engine.queue.queues import QueueName
from scheduling.engine.queue.waiting import EquivalenceClass
from scheduling.engine.state import SchedulerState


def hold(state: SchedulerState, name: QueueName, now: float) -> None:
    """Take the waiting jobs of a queue that is held now out of everybody's way."""
    state.displaced_out += 1
    mine = [c for c in state.queue.eq_classes if (c.tenant, c.queue) == name]
    found = state.aside_of.setdefault(name, [])
    for eq_class in mine:
        state.queue.set_aside(eq_class)
        found.append(eq_class)
        state.set_aside.append(eq_class)
        for key in eq_class.jobs:
            state.jobs[key.job_id].set_aside()
    for job_id, record in list(state.turns.items()):
        if record.aside is not None:
            del state.turns[job_id]  # other jobs may use the nodes meanwhile
            state.turns_aside.add(job_id)
    for record in list(state.promised.values()):
        if (record.job.tenant, record.job.queue) == name and record.started_at is None:
            state.drop_promise(record, now)


def tell_anew(state: SchedulerState, name: QueueName) -> None:
    """Tell the waiting jobs of a held queue why it is held now."""
    for record in state.jobs.values():
        if _waits_in(record.job.tenant, record.job.queue, name) and record.started_at is None:
            record.tell_anew()
            state.parked.append(record.job.id)


def release(state: SchedulerState, name: QueueName, now: float) -> None:
    """Put the jobs of a queue back where they belong."""
    for eq_class in state.aside_of.pop(name, ()):
        goes_on = _goes_on(eq_class)
        jobs: list[OrderKey] = []
        for key in eq_class.jobs:
            record = state.jobs.get(key.job_id)
            had_turn = key.job_id in state.turns_aside
            state.turns_aside.discard(key.job_id)
            if record is None or record.aside is not eq_class:
                continue  # something happened to the job meanwhile
            record.scattered()
            if had_turn and record.turn is not None and state.takes_turns:
                state.turns[key.job_id] = record  # `_keep` ends it if another job has the turn now
            if not goes_on:
                state.enqueue(record, now)
                continue
            jobs.append(key)
            record.goes_on(eq_class, now)
            if record.found:
                state.memo.forget_all(IN_VAIN, record)
            if state.dependencies.any_doomed:
                state.doom(record, None)
        if jobs:
            state.queue.bring_back(eq_class, jobs)
    for job_id in state.kept_of.pop(name, ()):
        kept = state.jobs.get(job_id)
        if kept is None or (kept.job.tenant, kept.job.queue) != name or kept.eq_class is not None:
            continue
        kept.take_turn(None)
        runs = kept.started_at is not None and kept.job.gang
        if not (runs or kept.left or kept.nomination is not None):
            state.enqueue(kept, now)


def scatter(state: SchedulerState) -> None:
    """Dissolve the classes that were set aside: each job finds its own class when it is released.

    Called when other jobs have become equivalent to each other.
    """
    for name, eq_classes in state.aside_of.items():
        kept = state.kept_of.setdefault(name, {})
        for eq_class in eq_classes:
            for key in eq_class.jobs:
                record = state.jobs.get(key.job_id)
                if record is not None and record.aside is eq_class:
                    record.scattered()
                    kept[key.job_id] = None
                    state.parked.append(key.job_id)  # it may not have been told yet
    state.aside_of.clear()


def _goes_on(eq_class: EquivalenceClass) -> bool:
    """Return whether the jobs of the class are equivalent for as long as they do not change.

    They are not if the class belongs to one job, or depends on how long its jobs have waited.
    """
    return len(eq_class.key) == 2 and isinstance(eq_class.key[1], tuple)


def _waits_in(tenant: str, queue: str, name: QueueName) -> bool:
    return queue == name[1] and tenant == name[0]
