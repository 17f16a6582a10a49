"""Find jobs that can never run as they are; they are told so at once and never block others."""

import math
from collections.abc import Mapping

from scheduling.engine.demand.cpu_jobs import too_large_without_gpus
from scheduling.engine.demand.model_choices import Search, options_of
from scheduling.engine.demand.pools import Pools
from scheduling.engine.demand.shapes import beyond_choices, choices, wish_of
from scheduling.engine.placement.excess import Excess, excess_over
from scheduling.engine.placement.request import misconfigured
from scheduling.engine.placement.strategies.by_name import STRATEGIES
from scheduling.engine.quota.book import QuotaBook
from scheduling.engine.types import BEYOND, MILLI, JobRequest, PodSetSpec
from scheduling.engine.verdict import Reason, Verdict, counted, gpus


def never(
    job: JobRequest, pools: Pools, book: QuotaBook, strategy: str, levels: tuple[str, ...]
) -> Verdict | None:
    """Return why the job can never start on this cluster with these quotas; None if it can.

    `strategy`: the policy's strategy for the job's kind. `levels`: the cluster's topology levels.
    """
    if wrong := _misconfigured(job, book, strategy, levels):
        return wrong
    if job.without_gpus:
        apart = all(s.avoids_gpus for s in job.pod_sets)
        return too_large_without_gpus(job, pools) if apart else None
    return _no_such_model(job, pools) or _too_large(job, pools, book)


def demand_of(
    job: JobRequest, models: tuple[str, ...], counts: tuple[int, ...], pools: Pools
) -> dict[str, int]:
    """Return the GPU-milli by model that quota counts for `counts` pods of each set.

    `models`: the GPU model of each set. Shares by memory are added up exactly, then rounded up.
    """
    asked: dict[str, int] = {}
    for s, model, count in zip(job.pod_sets, models, counts, strict=True):
        if s.gpus and count:
            asked[model] = asked.get(model, 0) + count * pools.exactly_per_pod(s, model)
    return {model: -(-exactly // BEYOND) for model, exactly in asked.items()}


def needs_of(
    job: JobRequest, models: tuple[str, ...], counts: tuple[int, ...], pools: Pools
) -> dict[str, int]:
    """Return the GPU-milli by model that must at least be free for `counts` pods of each set.

    This never exceeds `demand_of`, which is what quota must allow wherever the pods go.
    """
    needed: dict[str, int] = {}
    for s, model, count in zip(job.pod_sets, models, counts, strict=True):
        if s.gpus and count:
            needed[model] = needed.get(model, 0) + count * pools.least_per_pod(s, model)
    return needed


def _misconfigured(
    job: JobRequest, book: QuotaBook, strategy: str, levels: tuple[str, ...]
) -> Verdict | None:
    wanted = (job.required_level, job.preferred_level)
    if job.tenant not in book.tenants:
        problem = f"tenant {job.tenant!r} is not known; submit it for a known tenant"
    else:
        how = job.strategy or strategy
        problem = misconfigured(job.pod_sets, wanted, how, tuple(STRATEGIES), levels)
        problem = problem or wrong_times(job)
    if not problem:
        return None
    return Verdict(Reason.MISCONFIGURED, problem, remedies=("correct the job and submit it again",))


def wrong_times(job: JobRequest) -> str:
    """Say what is wrong with the times of the job, which are not in its shape; "" if nothing is."""
    if not math.isfinite(job.submitted_at):
        return "the submission time is not a number; submit the job again"
    if job.declared_s is not None and not job.declared_s > 0:
        return f"declared_s is {job.declared_s}; declare the run time in seconds above 0"
    return ""


def _no_such_model(job: JobRequest, pools: Pools) -> Verdict | None:
    known = pools.models()
    for s in job.pod_sets:
        if s.gpus and not any(m in known for m in s.gpu_models or known):
            wanted = ", ".join(s.gpu_models) or "any GPU"
            return Verdict(
                Reason.NO_MATCHING_GPU_TYPE,
                f"No node has the GPU model of pod set {s.name!r}: {wanted}.",
                {"wanted": wanted, "cluster_has": ", ".join(known) or "none"},
                (f"choose one of {', '.join(known)}",) if known else (),
            )
    return None


def _too_large(job: JobRequest, pools: Pools, book: QuotaBook) -> Verdict | None:
    for s in job.pod_sets:
        if s.gpus and (verdict := _pod_too_large(s, pools)):
            return verdict
    least = _least(job)
    if beyond_choices(job, pools.models()) and _some_choice(job, least, pools, book):
        return None
    refused: Verdict | None = None
    for models in choices(job, pools.models()):
        too_many = _beyond_capacity(job, models, least, pools)
        verdict = too_many or _beyond_quota(job, demand_of(job, models, least, pools), book)
        if verdict is None:
            return None
        # Of several reasons, prefer quota: somebody can do something about it.
        if refused is None or refused.reason is Reason.EXCEEDS_CAPACITY:
            refused = verdict
    return refused


def _some_choice(job: JobRequest, least: tuple[int, ...], pools: Pools, book: QuotaBook) -> bool:
    """Whether some combination of GPU models is within capacity and quota, or may be."""

    def fits(model: str, exactly: int) -> bool:
        milli = -(-exactly // BEYOND)
        most = book.ceiling(job.tenant, model, non_preemptible=not job.preemptible)
        there = pools.unlike(model) or milli <= pools.capacity(model) * MILLI
        return there and milli <= most

    search = Search(options_of(job, pools.models(), least, pools), fits)
    return next(iter(search), None) is not None or not search.complete


def _least(job: JobRequest) -> tuple[int, ...]:
    """Return the fewest pods per set with which the job starts; one pod if it is no gang."""
    wish = wish_of(job, tuple(s.count for s in job.pod_sets))
    if job.gang:
        return wish.least
    first = next(i for i, s in enumerate(job.pod_sets) if s.gpus)
    return tuple(int(i == first) for i in range(len(job.pod_sets)))


def _pod_too_large(s: PodSetSpec, pools: Pools) -> Verdict | None:
    models = [m for m in s.gpu_models or pools.models() if m in pools.models()]
    if by_gpus := [m for m in models if pools.pods_at_most(s, m)]:
        found = [excess_over(s, pools.most_beside(m)) for m in by_gpus]
        excess = [beyond for beyond in found if beyond is not None]
        return None if len(excess) < len(found) else _beyond_nodes(s, excess[0])
    largest = max(pools.largest_node(m) for m in models)
    if s.gpu_memory_mib:
        return Verdict(
            Reason.EXCEEDS_CAPACITY,
            f"A pod of {s.name!r} needs {s.gpu_memory_mib} MiB of one GPU; no GPU has as much.",
            {"pod_set": s.name, "memory_mib": s.gpu_memory_mib},
            ("ask for less GPU memory",),
        )
    return Verdict(
        Reason.EXCEEDS_CAPACITY,
        f"A pod of {s.name!r} needs {s.gpus} GPUs; the largest node has {largest}.",
        {"pod_set": s.name, "gpus_per_pod": s.gpus, "largest_node": largest},
        (f"ask for at most {counted(largest, 'GPU', 'GPUs')} in a pod and for more pods",),
    )


def _beyond_nodes(s: PodSetSpec, excess: Excess) -> Verdict:
    return Verdict(
        Reason.EXCEEDS_CAPACITY,
        f"A pod of {s.name!r} needs {excess.asked} {excess.words}; a node has {excess.left}.",
        {"pod_set": s.name, **excess.evidence},
        (excess.remedy,),
    )


def _beyond_capacity(
    job: JobRequest, models: tuple[str, ...], least: tuple[int, ...], pools: Pools
) -> Verdict | None:
    for s, model, count in zip(job.pod_sets, models, least, strict=True):
        if s.gpus and count > (fit := pools.pods_at_most(s, model)):
            return Verdict(
                Reason.EXCEEDS_CAPACITY,
                f"Needs {counted(count, 'pod', 'pods')} of {s.gpus} {model} each; the whole pool "
                f"holds {fit}.",
                {"gpu_model": model, "pods": count, "pods_that_fit_the_pool": fit},
                (f"ask for at most {counted(fit, 'pod', 'pods')}",),
            )
    for model, milli in sorted(needs_of(job, models, least, pools).items()):
        installed = pools.capacity(model)
        if milli > installed * MILLI:
            return Verdict(
                Reason.EXCEEDS_CAPACITY,
                f"Needs {gpus(milli, model)}; the cluster has {installed}.",
                {"gpu_model": model, "asked": milli / MILLI, "installed": installed},
                (f"ask for at most {counted(installed, 'GPU', 'GPUs')}",),
            )
    return None


def _beyond_quota(job: JobRequest, asked: Mapping[str, int], book: QuotaBook) -> Verdict | None:
    tenant = job.tenant
    for model, milli in sorted(asked.items()):
        ceiling = book.ceiling(tenant, model)
        if milli > ceiling:
            if not book.chain(tenant, model):
                text = f"Tenant {tenant} has no quota for {model}."
            else:
                text = (
                    f"Needs {gpus(milli, model)}; tenant {tenant} can never hold more "
                    f"than {gpus(ceiling, model)}, borrowing included."
                )
            return Verdict(
                Reason.EXCEEDS_MAX_QUOTA,
                text,
                {"gpu_model": model, "asked": milli / MILLI, "ceiling": ceiling / MILLI},
                ("ask for a larger quota or borrow limit", "make the job smaller"),
            )
        most = ceiling if job.preemptible else book.ceiling(tenant, model, non_preemptible=True)
        if milli > most:
            return Verdict(
                Reason.EXCEEDS_MAX_QUOTA,
                f"Needs {gpus(milli, model)} and is not preemptible. Such jobs cannot "
                f"borrow here, and tenant {tenant} is guaranteed {most / MILLI:g}.",
                {"gpu_model": model, "asked": milli / MILLI, "guaranteed": most / MILLI},
                ("submit it as preemptible", "ask for a larger quota", "make the job smaller"),
            )
    return None
