"""Step 1 of a cycle: apply what changed. A delta about an unknown job changes nothing."""

from typing import assert_never

from scheduling.engine import deltas as d
from scheduling.engine.queueing.state import Outcome, SchedulerState


def apply(state: SchedulerState, delta: d.Delta, out: Outcome) -> None:
    """Apply one delta; pods that lost their node or device are noted in `out.lost`."""
    cluster = state.cluster
    match delta:
        case d.NodeChanged(node):
            state.pools.upsert(node)
            before = cluster.version
            out.lost.extend(cluster.upsert_node(node))
            state.dirty |= cluster.version != before
            return
        case d.NodeRemoved(name):
            state.pools.remove(name)
            out.lost.extend(cluster.remove_node(name))
        case d.OtherPodChanged(uid, node_name, gpus, cpu_milli, memory_mib):
            cluster.upsert_other_pod(uid, node_name, gpus, cpu_milli, memory_mib)
        case d.OtherPodRemoved(uid):
            cluster.remove_other_pod(uid)
        case d.TenantsChanged():
            state.book.replace(delta.tenants, delta.quotas, delta.used_elsewhere)
        case d.PolicyChanged(policy):
            state.policy = policy
            state.queue.forget_verdicts()
        case d.JobSubmitted():
            record = state.record(delta.job)
            record.held, record.not_before = delta.held, delta.not_before
            state.enqueue(record, out.now)
        case d.JobRestored():
            _job_restored(state, delta, out.now)
        case d.PodEnded():
            _pod_ended(state, delta, out.now)
        case d.JobEnded(job_id):
            if job_id in state.jobs:
                state.forget(state.jobs[job_id])
        case d.JobRequeued():
            _job_requeued(state, delta, out.now)
        case _:
            assert_never(delta)
    state.dirty = True


def _job_restored(state: SchedulerState, delta: d.JobRestored, now: float) -> None:
    record = state.record(delta.job)
    state.give_back_all(record)
    record.ended = set(delta.ended)
    known = tuple(p for p in delta.placements if 0 <= p.pod_set < len(delta.job.pod_sets))
    for p in known:
        state.cluster.book(delta.job, p)
    state.hold(record, known, delta.started_at)
    state.enqueue(record, now)


def _pod_ended(state: SchedulerState, delta: d.PodEnded, now: float) -> None:
    record = state.jobs.get(delta.job_id)
    where = (delta.pod_set, delta.ordinal)
    if record is None or where not in record.pods:
        return
    state.give_back(record, *where)
    record.ended.add(where)
    if record.lane is not None:
        state.enqueue(record, now)  # it misses other pods than before


def _job_requeued(state: SchedulerState, delta: d.JobRequeued, now: float) -> None:
    record = state.jobs.get(delta.job_id)
    if record is None:
        return
    state.queue.remove(record)
    state.give_back_all(record)
    record.ended.clear()
    record.reserved = False
    record.verdict = record.blocked_since = None
    record.not_before = delta.not_before
    until = now + state.policy.blame_s
    record.blamed.update(dict.fromkeys(delta.blamed, until))
    state.enqueue(record, now)
