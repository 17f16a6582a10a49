"""Step 1 of a cycle: apply what changed. A delta about an unknown job changes nothing."""

from typing import assert_never

from scheduling.engine import deltas as d
from scheduling.engine.admission.limits import watch_run_limit
from scheduling.engine.cluster.cluster import PodKey
from scheduling.engine.demand.cpu_jobs import kept_off_gpus
from scheduling.engine.lifecycle.learned import learn
from scheduling.engine.lifecycle.places import stood_before
from scheduling.engine.lifecycle.policy_change import follow
from scheduling.engine.lifecycle.queue_change import take_over
from scheduling.engine.outcome import Outcome
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.preemption_delay import delay_of
from scheduling.engine.running.last_look import MoveBudget
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import JobRequest


def apply(state: SchedulerState, delta: d.Delta, out: Outcome) -> None:
    """Apply one delta; pods that lost their node or device are added to `out.lost`."""
    cluster, memo = state.cluster, state.memo
    match delta:
        case d.JobSubmitted(job, not_before, held):
            known = job.id in state.jobs
            record = _asks_for(state, job, out)
            if known:
                record.submitted(not_before, held=held)
            else:
                state.count_asked(job)
                since = min(out.now, max(job.submitted_at, not_before))
                record.submitted(not_before, held=held, waits_since=since)
            if record.nomination is not None and state.kept_back(record, out.now):
                state.drop_promise(record, out.now)
            state.enqueue(record, out.now)
            if not known:
                return
        case d.JobChanged(job):
            if job.id not in state.jobs:
                return
            state.enqueue(_asks_for(state, job, out), out.now)
        case d.JobEnded(job_id, succeeded):
            if job_id in state.jobs:
                state.forget(state.jobs[job_id], out.now, succeeded=succeeded)
            elif not succeeded:
                state.dependencies.failed_before(job_id)
        case d.NodeChanged(node):
            state.pools.upsert(node)
            before = memo.places
            _lost(state, cluster.upsert_node(node), out)
            state.dirty |= memo.places != before
            return
        case d.NodeRemoved(name):
            state.pools.remove(name)
            _lost(state, cluster.remove_node(name), out)
        case d.NeighbourChanged(name, neighbour):
            cluster.neighbour(name, neighbour)
        case d.OtherPodChanged(uid, node_name, gpus, cpu_milli, memory_mib, extended, rules):
            before = memo.nodes
            cluster.upsert_other_pod(uid, node_name, gpus, cpu_milli, memory_mib, extended, rules)
            if state.policy.spare_nodes and memo.nodes != before:
                cluster.widened()  # the node is no spare any more: there may be room beside the pod
        case d.OtherPodRemoved(uid):
            cluster.remove_other_pod(uid)
        case d.TenantsChanged():
            protected = state.book.min_runtimes
            state.book.replace(delta.tenants, delta.quotas, delta.used_elsewhere)
            state.book.jobs_elsewhere = delta.jobs_elsewhere
            if state.book.min_runtimes != protected:
                state.preemptible_jobs.forget()
                state.queue.plan_anew()
                _tell_anew(state)
        case d.QueuesChanged():
            take_over(state, delta, out)
        case d.OtherScopesChanged(held, gpus):
            state.usage.change_elsewhere(held)
            state.gpus_elsewhere = dict(gpus)
        case d.PolicyChanged(policy):
            times = state.policy.min_runtime_s, delay_of(state.policy)
            if times != (policy.min_runtime_s, delay_of(policy)):
                _tell_anew(state)
            follow(state, policy, out)
        case d.JobRestored():
            _job_restored(state, delta, out.now)
        case d.JobHistory():
            _job_history(state, delta, out)
        case d.PastUse(held):
            state.usage.remember(held)
        case d.MovesBefore():
            state.look.budget = MoveBudget.after(delta, state.policy.defrag_loss)
        case d.QueueDebts(owed, at):
            state.queues.remember(owed, max(0.0, out.now - at))
        case d.PodsRunning():
            _pods_running(state, delta)
            return
        case d.PodHoldsMore(job_id, pod_set, ordinal, extended):
            known = job_id in state.jobs
            asked = state.jobs[job_id].job.pod_sets[pod_set].extended if known else {}
            cluster.holds((job_id, pod_set, ordinal), asked, extended)
        case d.PodEnded():
            _pod_ended(state, delta, out.now)
        case d.PodRequeued():
            _pod_requeued(state, delta, out.now)
        case d.JobRequeued():
            _job_requeued(state, delta, out)
        case d.Checkpointed(job_id, at):
            if job_id in state.jobs:
                state.jobs[job_id].saved(at)
            return
        case d.RunTimesLearned():
            learn(state, delta, out)
            return
        case d.DisruptionBudget(job_id, allowed):
            if job_id in state.jobs:
                record = state.jobs[job_id]
                more = record.allow_disruptions(allowed)
                state.preemptible_jobs.touch(record)
                if more:
                    state.queue.plan_anew()
        case _:
            assert_never(delta)
    state.dirty = True
    state.look.seen = None


def _asks_for(state: SchedulerState, job: JobRequest, out: Outcome) -> JobRecord:
    """Give a job this request from now on; return its record."""
    before, job = state.jobs.get(job.id), kept_off_gpus(job, state.policy.cpu_jobs_on_gpu_nodes)
    resized = before is not None and before.job.pod_sets != job.pod_sets
    record = state.record(job)
    if record.started_at is not None:
        state.queue.plan_anew()  # whether it may be preempted may have changed
        watch_run_limit(state, record, out.now)
    elif job.id in state.displaced:
        state.queue.plan_anew()  # it comes back with another request
    if resized:
        state.cluster.follow_rules(job)
        record.tell_anew()
        state.drop_expected(record)
        if record.nomination is not None:
            state.drop_promise(record, out.now)  # it was for another number of pods
    return record


def _tell_anew(state: SchedulerState) -> None:
    """Have waiting jobs told new numbers at once.

    These are the times at which their victims are no longer protected, and from which they preempt.
    """
    for eq_class in state.queue.eq_classes:
        state.jobs[eq_class.head].tell_soon()


def _lost(state: SchedulerState, pods: tuple[PodKey, ...], out: Outcome) -> None:
    """Report lost pods; a place that was only promised is no loss."""
    for key in pods:
        record = state.jobs.get(key[0])
        nomination = record.nomination if record is not None else None
        if record is None or nomination is None:
            out.lost.append(key)
        elif any((p.pod_set, p.ordinal) == key[1:] for p in nomination.placements):
            state.drop_promise(record, out.now)
        elif key[1:] in record.pods:
            out.lost.append(key)


def _job_restored(state: SchedulerState, delta: d.JobRestored, now: float) -> None:
    record = state.record(kept_off_gpus(delta.job, state.policy.cpu_jobs_on_gpu_nodes))
    state.give_back_all(record)
    record.restored(delta.ended)
    known = tuple(p for p in delta.placements if 0 <= p.pod_set < len(delta.job.pod_sets))
    for p in known:
        state.cluster.book(delta.job, p)
    state.hold(record, known, delta.started_at)
    if delta.placed_at:
        for p, at in zip(delta.placements, delta.placed_at, strict=True):
            later = not record.job.gang or at > delta.started_at
            if later and (p.pod_set, p.ordinal) in record.pods:
                record.placed_later((p.pod_set, p.ordinal), at)
                state.placed.note(record.job.id, at, state.running)
    if state.told_of_runs:
        _note_runs(record, delta)
        state.preemptible_jobs.touch(record)
    state.evict(record, tuple(pod for pod in delta.leaving if pod in record.pods), whole=False)
    watch_run_limit(state, record, now)
    state.enqueue(record, now)


def _note_runs(record: JobRecord, delta: d.JobRestored) -> None:
    placed_at = delta.placed_at or (delta.started_at,) * len(delta.placements)
    times = zip(delta.placements, delta.running_at or placed_at, strict=True)
    for p, at in times:
        if at is not None:
            record.runs((p.pod_set, p.ordinal), at)


def _job_history(state: SchedulerState, delta: d.JobHistory, out: Outcome) -> None:
    record = state.jobs.get(delta.job_id)
    if record is None:
        return
    record.happened_before(delta, out.now)
    stood_before(state, delta, out)
    state.preemptible_jobs.touch(record)
    state.queue.plan_anew()
    state.queue.remove(record)
    record.asks_for(record.job, front=delta.front)
    state.enqueue(record, out.now)


def _pods_running(state: SchedulerState, delta: d.PodsRunning) -> None:
    record = state.jobs.get(delta.job_id)
    if record is None:
        return
    for pod in delta.pods or tuple(record.pods):
        record.runs(pod, delta.at)
    policy, least = state.policy, state.min_runtime_of(record.job)
    matters = bool(policy.preemption) or policy.consolidation or policy.defragments
    if not (matters and least) or record.started_at is None:
        return
    if record.job.gang and not record.job.elastic and len(record.runs_since) < len(record.pods):
        return  # its minimum run time begins when the last of its pods runs
    state.preemptible_jobs.touch(record)
    state.queue.plan_anew()
    state.wake_at(max(state.cluster.now, delta.at + least))


def _pod_ended(state: SchedulerState, delta: d.PodEnded, now: float) -> None:
    record = state.jobs.get(delta.job_id)
    where = (delta.pod_set, delta.ordinal)
    if record is not None and where in record.leaving:
        state.gone(record, where)
        state.enqueue(record, now)
        return
    if record is None or where not in record.pods:
        return
    state.give_back(record, (where,))
    record.pod_ended(where)
    if record.eq_class is not None or record.job.id in state.growing:
        state.enqueue(record, now)  # it lacks other pods than before


def _pod_requeued(state: SchedulerState, delta: d.PodRequeued, now: float) -> None:
    record = state.jobs.get(delta.job_id)
    where = (delta.pod_set, delta.ordinal)
    if record is None:
        return
    if where in record.leaving:
        state.gone(record, where)
    elif where in record.pods:
        state.give_back(record, (where,))
    else:
        return
    record.put_off(delta.not_before)
    record.avoid(delta.avoided_nodes, now + state.policy.blame_s)
    state.enqueue(record, now)


def _job_requeued(state: SchedulerState, delta: d.JobRequeued, out: Outcome) -> None:
    record = state.jobs.get(delta.job_id)
    if record is None:
        return
    state.queue.remove(record)
    if record.left and record.nomination is not None:  # it moves, and its new places stay booked
        state.gone(record)
        record.requeued(delta.not_before, front=delta.front)
        return
    state.give_back_all(record)
    state.gone(record)
    record.requeued(delta.not_before, front=delta.front)
    record.avoid(delta.avoided_nodes, out.now + state.policy.blame_s)
    out.block(record, None)
    state.enqueue(record, out.now)
