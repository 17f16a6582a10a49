"""Tell running elastic gangs why they got no more pods.

As for waiting jobs, a different reason is told at once and new numbers only once in a while. Growth
is tried whenever anything changes, so what would be no news is not even worked out.
"""

from collections.abc import Callable, Sequence

from scheduling.engine.admission.candidates import Candidate
from scheduling.engine.admission.counts import only_spares
from scheduling.engine.admission.limits import queue_is_full
from scheduling.engine.admission.start import SPARES_ONLY
from scheduling.engine.decisions import Waiting
from scheduling.engine.demand.requested import Demand
from scheduling.engine.outcome import Outcome
from scheduling.engine.placement import PlacementFailure
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.quota.borrowing import Kept
from scheduling.engine.reasons.quota import quota_verdict
from scheduling.engine.reasons.tell import worth_telling
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import MILLI, NO_GPUS, JobRequest
from scheduling.engine.verdict import Reason, Verdict, gpus

BACKING_OFF = frozenset({Reason.BACKING_OFF})
BEHIND = frozenset({Reason.BEHIND_IN_QUEUE})
BY_QUOTA = frozenset(
    {Reason.WAITING_FOR_QUOTA, Reason.BORROW_LIMIT_REACHED, Reason.QUEUE_LIMIT_REACHED}
)


def stays(
    record: JobRecord, kind: frozenset[Reason], why: Callable[[], Verdict], out: Outcome
) -> None:
    """Report why a gang stays as it is, if that is news. `kind`: the reasons `why` may return."""
    known = record.verdict
    soon = out.now < record.verdict_at + out.refresh_s
    if known is not None and known.reason in kind and soon:
        return
    verdict = why()
    if worth_telling(known, record.verdict_at, verdict, out):
        record.tell(verdict, out.now)
        out.staying[record.job.id] = Waiting(record.job.id, verdict)


def backs_off(record: JobRecord) -> Verdict:
    text = "A pod failed; Kant tries more pods after a pause."
    return Verdict(Reason.BACKING_OFF, text, {"not_before": record.not_before})


def behind(state: SchedulerState, job: JobRequest, wanted: Sequence[str]) -> Verdict:
    """Return the reason of a gang for which waiting jobs go first on all that it could grow on."""
    way, model = state.queue_reservations, wanted[0]
    head = way.heads.get(model)
    ahead = way.pools.get(model) or way.queues.get((job.tenant, job.queue, model))
    ahead = ahead or way.accounts.get((job.tenant, model))
    ahead = ahead or (head.job_id if head is not None else "")
    text = f"A job that waits for {model} GPUs, or for the quota, comes first."
    if model == NO_GPUS:
        text = "A job that waits for nodes without GPUs comes first."
        return Verdict(Reason.BEHIND_IN_QUEUE, text, {"ahead": ahead})
    return Verdict(Reason.BEHIND_IN_QUEUE, text, {"ahead": ahead, "gpu_model": model})


def by_quota(state: SchedulerState, job: JobRequest, missing: Demand, kept: Kept) -> Verdict:
    """Return the reason of a gang whose quota or queue allows none of the missing pods."""
    refusal = state.book.refusal_of(job.tenant, missing, kept, non_preemptible=not job.preemptible)
    if refusal is not None:
        verdict = quota_verdict(state.book, job.tenant, refusal)
    else:
        no = state.queues.beyond(job, missing)
        assert no is not None
        verdict = queue_is_full(job, no)
    return Verdict(verdict.reason, verdict.summary, verdict.evidence)


def no_room(state: SchedulerState, candidate: Candidate, failure: PlacementFailure) -> Verdict:
    """Return the reason of a gang whose missing pods find no place though quota allows them.

    `missing_pods` in the evidence is their number.
    """
    if failure is SPARES_ONLY:
        verdict = only_spares(state)
        return Verdict(verdict.reason, verdict.summary, verdict.evidence)
    missing: dict[str, int | float | str] = {"missing_pods": sum(candidate.counts)}
    for s, n in zip(candidate.job.pod_sets, candidate.counts, strict=True):
        if not (s.gpus and n):
            continue
        model, pods = s.gpu_models[0], s.slice_size or 1
        needs = pods * state.pools.least_per_pod(s, model)
        free = state.cluster.free_milli(model)
        numbers = missing | {
            "asked": needs / MILLI,
            "free": free / MILLI,
            "gpu_model": model,
        }
        if free < needs:
            which = "its next pod needs" if pods == 1 else f"its next {pods} pods need"
            text = f"{free / MILLI:g} of the {gpus(needs, model)} that {which} are free."
            return Verdict(Reason.INSUFFICIENT_GPUS, text, numbers)
        text = (
            f"{gpus(free, model)} {'is' if 0 < free <= MILLI else 'are'} free, but no pod of "
            "this job can use them: they are in pieces that are too small, outside its group, "
            "without enough CPU or memory, or on nodes that are reserved, draining or avoided."
        )
        return Verdict(Reason.FRAGMENTED_CAPACITY, text, numbers)
    if candidate.job.without_gpus:
        text = "No node without GPUs has the CPU or memory that its next pod needs."
        return Verdict(Reason.INSUFFICIENT_CPU_OR_MEMORY, text, missing)
    text = "No node has the CPU, memory or devices that its next pod needs."
    return Verdict(Reason.FRAGMENTED_CAPACITY, text, missing)
