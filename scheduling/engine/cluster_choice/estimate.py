"""Estimate when a job would start on a cluster, from cheap sums. Pure functions.

The estimate is made before any scheduler has seen the job, so it may be wrong. What the engine says
about the job later can still move it (`services.cluster_choice.moves`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduling.engine.native import copied_by_fields
from scheduling.engine.quota.book import QuotaBook
from scheduling.engine.types import MILLI, PodSetSpec
from scheduling.engine.verdict import Reason, counted, gpus

# Reasons of jobs that wait for places. Other jobs wait for quota, for a time or for people, and
# take no places meanwhile.
FOR_PLACES = (
    Reason.PENDING_EVALUATION,
    Reason.INSUFFICIENT_GPUS,
    Reason.FRAGMENTED_CAPACITY,
    Reason.INSUFFICIENT_CPU_OR_MEMORY,
    Reason.WAITING_FOR_PREEMPTION,
    Reason.RESERVED_FOR_HEAD,
    Reason.BEHIND_IN_QUEUE,
)


class FreeNodes(NamedTuple):
    """What is free on equal nodes of one network group: `nodes` nodes with `free_gpus` GPUs each.

    `milli`, `cpu_milli`: free GPU-milli and milli-CPU of all these nodes. `model`: "" = nodes
    without GPUs.
    """

    model: str
    group: str
    free_gpus: int
    nodes: int
    milli: int
    cpu_milli: int


class Queued(NamedTuple):
    """What waiting jobs that go first still need.

    `amount`: GPU-milli of one of `models` (() = of any model); for jobs without GPUs, milli-CPU.
    """

    models: tuple[str, ...]
    amount: int


class ReturnedGpus(NamedTuple):
    """GPU-milli of a model that running jobs release at `at` (seconds since the epoch)."""

    model: str
    at: float
    milli: int


@dataclass(frozen=True, slots=True)
class Supply:
    """What a cluster has for a job now: free nodes that it may use, and what waits before it.

    `queued`: what waiting jobs with GPUs need. `cpu_queued`: milli-CPU that waiting jobs without
    GPUs need.
    """

    rooms: tuple[FreeNodes, ...] = ()
    queued: tuple[Queued, ...] = ()
    cpu_queued: int = 0


@dataclass(frozen=True, slots=True)
class PodsOfJob:
    """What a job requests.

    `level`: the network level whose groups matter to it, "" = none. `within`: whether its pods must
    be inside one group.
    """

    pod_sets: tuple[PodSetSpec, ...]
    gang: bool
    level: str = ""
    within: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """Whether a job would start now, and what it lacks.

    `why`: why it does not start now; "" = it does. `groups`: as in `ClusterOutlook`. `room`: what
    is left of its models, in GPU-milli, or milli-CPU. `lacks`: {GPU model: GPU-milli that must be
    released first}; None if that alone would not let it start.
    """

    why: str
    groups: int = 0
    room: float = 0.0
    lacks: Mapping[str, int] | None = None

    @property
    def starts_now(self) -> bool:
        return not self.why


copied_by_fields(Supply, PodsOfJob, Estimate)


def estimate(asked: PodsOfJob, supply: Supply, refused: Mapping[str, str]) -> Estimate:
    """Estimate whether the job starts now.

    `refused`: by GPU model, why quota allows no more of it now.
    """
    if not any(s.gpus for s in asked.pod_sets):
        return _without_gpus(asked, supply)
    left = _free(supply)
    free = dict(left)
    ahead = Counter[str]()
    for each in supply.queued:
        for model in each.models or free:
            ahead[model] += each.amount
    groups, lacks, whys = 0, Counter[str](), list[str]()
    for s in _with_gpus(asked):
        models = [m for m in s.gpu_models or sorted(free, key=lambda m: (-free[m], m)) if m in free]
        open_models = [m for m in models if m not in refused]
        if not open_models:
            return Estimate(next((refused[m] for m in models), "it has none of its GPUs"))
        need = (s.least if asked.gang else 1) * s.milli_per_pod
        ways = {m: _fit(asked, s, [r for r in supply.rooms if r.model == m]) for m in open_models}
        best = next((m for m in open_models if ways[m] and left[m] - ahead[m] >= need), "")
        if best:
            groups += ways[best]
        else:
            best = max(open_models, key=lambda m: left[m] - ahead[m])
            lacks[best] += max(need + ahead[best] - left[best], MILLI)
            whys.append(_why(best, left[best], ahead[best]))
        left[best] -= need
    wanted = {m for s in _with_gpus(asked) for m in s.gpu_models or free}
    room = float(sum(left[m] - ahead[m] for m in wanted & free.keys()))
    if not asked.level:
        groups = 0
    return Estimate("; ".join(dict.fromkeys(whys)), groups, room, dict(lacks) or None)


def refused_by(
    book: QuotaBook, tenant: str, asked: PodsOfJob, *, non_preemptible: bool
) -> dict[str, str]:
    """Return, by GPU model, why quota refuses the job now."""
    known = {account.gpu_model for account in book.accounts()}
    needs = Counter[str]()
    for s in asked.pod_sets:
        for model in (s.gpu_models or known) if s.gpus else ():
            needs[model] += (s.least if asked.gang else 1) * s.milli_per_pod
    found = {}
    for model, milli in needs.items():
        no = book.refusal(tenant, model, milli, non_preemptible=non_preemptible)
        if no is not None:
            found[model] = f"quota leaves {tenant} {gpus(no.allowed, model)} now"
    return found


def start_after(lacks: Mapping[str, int] | None, endings: Iterable[ReturnedGpus]) -> float | None:
    """Return when running jobs will have released what is lacking, as declared; None = unknown."""
    if not lacks:
        return None
    missing, at = dict(lacks), 0.0
    for ending in sorted(endings, key=lambda e: e.at):
        if missing.get(ending.model, 0) > 0:
            missing[ending.model] -= ending.milli
            if missing[ending.model] <= 0:
                at = max(at, ending.at)
    return at if all(amount <= 0 for amount in missing.values()) else None


def _with_gpus(asked: PodsOfJob) -> list[PodSetSpec]:
    """Return the pod sets with GPUs that must start; if the job is no gang, the first suffices."""
    sets = [s for s in asked.pod_sets if s.gpus]
    return sets if asked.gang else sets[:1]


def _free(supply: Supply) -> dict[str, int]:
    found = Counter[str]()
    for room in supply.rooms:
        if room.model:
            found[room.model] += room.milli
    return dict(found)


def _fit(asked: PodsOfJob, s: PodSetSpec, rooms: Sequence[FreeNodes]) -> int:
    """Return the fewest groups over which the pods fit now; 0 = they do not fit."""
    need = s.least if asked.gang else 1
    by_group = Counter[str]()
    for room in rooms:
        if s.is_share:
            # A share by memory may be small, so assume that any room fits; the engine decides.
            by_group[room.group] += room.milli // (1 if s.gpu_memory_mib else s.milli_per_pod)
        else:
            by_group[room.group] += room.nodes * (room.free_gpus // s.gpus)
    if asked.within:
        size = s.slice_size or need
        whole = sum(pods // size for group, pods in by_group.items() if group)
        return 1 if whole * size >= need else 0
    found = groups = 0
    for pods in sorted(by_group.values(), reverse=True):
        if found >= need:
            break
        found, groups = found + pods, groups + 1
    return groups if found >= need else 0


def _why(model: str, free: int, ahead: int) -> str:
    if ahead > 0:
        return f"behind {counted(ahead / MILLI, 'GPU', 'GPUs')} of {model} that others wait for"
    if free <= 0:
        return f"no {model} GPU is free"
    return f"{counted(free / MILLI, 'GPU', 'GPUs')} of {model} free, not as the job needs them"


def _without_gpus(asked: PodsOfJob, supply: Supply) -> Estimate:
    sets = asked.pod_sets if asked.gang else asked.pod_sets[:1]
    need = sum((s.least if asked.gang else 1) * s.cpu_milli for s in sets)
    free = sum(room.cpu_milli for room in supply.rooms) - supply.cpu_queued
    why = "" if free >= need else f"{max(free, 0) / MILLI:g} CPU cores are free of {need / MILLI:g}"
    return Estimate(why, 0, float(free - need))
