"""Why a job cannot start, as far as counts tell: a few sums over the free-capacity index."""

from scheduling.engine.admission.candidates import Candidate, ask_of
from scheduling.engine.demand.never import needs_of
from scheduling.engine.demand.shapes import narrowed, wish_of
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.quota.borrowing import Refusal
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import MILLI, PodSetSpec
from scheduling.engine.verdict import Reason, Verdict, counted, gpus


def why_by_count(state: SchedulerState, candidate: Candidate) -> Verdict | None:
    """Return InsufficientGpus or FragmentedCapacity with numbers; None if the counts suffice."""
    job = candidate.job
    least = wish_of(job, candidate.counts).least
    models = tuple(s.gpu_models[0] if s.gpus else "" for s in job.pod_sets)
    counts = tuple(
        max(n, 1) if most else 0 for n, most in zip(least, candidate.counts, strict=True)
    )
    for model, milli in sorted(needs_of(job, models, counts, state.pools).items()):
        free = state.cluster.free_milli(model)
        if free < milli:
            return _too_few(model, milli, free)
    for s, n, most in zip(job.pod_sets, least, candidate.counts, strict=True):
        if s.gpus and most and s.gpu_milli == MILLI and not s.gpu_memory_mib:
            fit = _pods_by_gpus(state, s)
            if fit < max(n, 1):
                return _in_pieces(state, s, max(n, 1), fit)
    return None


def never_by_count(state: SchedulerState, candidate: Candidate) -> bool:
    """Return whether the candidate's pools have too few GPUs for it even when all are free."""
    job = candidate.job
    least = wish_of(job, candidate.counts).least
    return any(
        s.gpus and most and state.pools.pods_at_most(s, s.gpu_models[0]) < max(n, 1)
        for s, n, most in zip(job.pod_sets, least, candidate.counts, strict=True)
    )


def refused_pool(state: SchedulerState, record: JobRecord) -> Refusal | None:
    """Return the quota that keeps the job, for now, from GPU models that could hold it."""
    job, ask = record.job, ask_of(state, record)
    book, non_preemptible = state.book, not job.preemptible
    for way in ask.ways:
        if never_by_count(state, Candidate(narrowed(job, way.models), ask.wish.most, way.gang)):
            continue
        for demand in way.starts:
            refusal = book.refusal_of(job.tenant, demand, non_preemptible=non_preemptible)
            if refusal and book.could_ever(job.tenant, demand, non_preemptible=non_preemptible):
                return refusal
    return None


def _pods_by_gpus(state: SchedulerState, s: PodSetSpec) -> int:
    """Return how many pods of the set the wholly free GPUs of all nodes hold."""
    pool = state.cluster.index.pools.get(s.gpu_models[0])
    if pool is None:
        return 0
    return sum(nodes.bit_count() * (free // s.gpus) for free, nodes in enumerate(pool.bits))


def _too_few(model: str, asked: int, free: int) -> Verdict:
    return Verdict(
        Reason.INSUFFICIENT_GPUS,
        f"Needs {gpus(asked, model)} at once; {free / MILLI:g} "
        f"{'is' if 0 < free <= MILLI else 'are'} free.",
        {"gpu_model": model, "asked": asked / MILLI, "free": free / MILLI},
        ("wait until jobs end", "ask for fewer GPUs or another GPU model"),
    )


def only_spares(state: SchedulerState) -> Verdict:
    """Return the reason of a job that only the spare nodes could hold."""
    spares = sum(state.policy.spare_nodes.values())
    return Verdict(
        Reason.INSUFFICIENT_GPUS,
        f"The free nodes are kept as spares ({spares} in all).",
        {"spare_nodes": spares},
        ("wait until jobs end", "keep fewer spare nodes"),
    )


def _in_pieces(state: SchedulerState, s: PodSetSpec, pods: int, fit: int) -> Verdict:
    model = s.gpu_models[0]
    free = state.cluster.free_milli(model)
    but = f"on nodes with room for only {fit}" if fit else "no node has room for one"
    return Verdict(
        Reason.FRAGMENTED_CAPACITY,
        f"Needs {counted(pods, 'pod', 'pods')} of {counted(s.gpus, 'GPU', 'GPUs')}. "
        f"{gpus(free, model)} {'is' if 0 < free <= MILLI else 'are'} free, but {but}.",
        {
            "gpu_model": model,
            "asked": pods * s.gpus,
            "free": free / MILLI,
            "pods_asked": pods,
            "pods_that_fit": fit,
        },
        ("wait until jobs end", f"ask for pods of fewer than {s.gpus} GPUs"),
    )
