"""Who holds GPUs now, and who asks for more."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.db.models import QuerySet, Sum

from scheduling.engine.types import NO_GPUS
from scheduling.models import Cluster, NodeRecord, Placement
from scheduling.models.held import HELD
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.queries.standing.waiting import ASKED_MILLI, waiting_sets

ANY_TYPE = ""  # for jobs that accept any GPU type


class HolderOf(StrEnum):
    """What a row stands for."""

    TENANT = "tenant"
    USER = "user"
    JOB = "job"


class HolderOrder(StrEnum):
    """Which rows come first: those with the most of this, or the first name."""

    HELD = "held"
    ASKED = "asked"
    SHARE = "share"
    NAME = "name"


COLUMNS = {
    HolderOf.TENANT: ("job__tenant__name",),
    HolderOf.USER: ("job__tenant__name", "job__user__username"),
    HolderOf.JOB: ("job__tenant__name", "job__user__username", "job__name", "job_id"),
}


@dataclass(frozen=True, slots=True)
class TypeStanding:
    """The GPUs of a type on all nodes examined; `held_milli`: by anyone."""

    gpu_type: str
    gpus: int
    healthy: int
    held_milli: int


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """A tenant, a user of it or a job, and a GPU type; `name` and `job` only for jobs.

    `held_milli`: what its pods hold. `asked_milli`: what its waiting jobs ask for, by the first
    type that they accept (ANY_TYPE = any). `share`: of all GPUs of the type.
    """

    tenant: str
    user: str | None
    name: str | None
    job: str | None
    gpu_type: str
    held_milli: float
    asked_milli: int
    share: float | None

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which it is sorted."""
        return (self.tenant, self.user or "", self.name or "", self.gpu_type, self.job or "")


@dataclass(frozen=True, slots=True)
class GpuStanding:
    """The first `holders` of `count`, and the GPU types."""

    types: list[TypeStanding]
    holders: list[GpuHolder]
    count: int


def standing(
    of: HolderOf,
    order: HolderOrder,
    limit: int,
    *,
    tenants: Collection[int] | None,
    cluster: Cluster | None = None,
    gpu_type: str | None = None,
) -> GpuStanding:
    """Return the first `limit` holders, in three statements.

    `tenants`: by primary key, None = all; `cluster` and `gpu_type`: None = any.
    """
    types = _types(cluster, gpu_type)
    gpus = {one.gpu_type: one.gpus for one in types}
    held = _sums(_placements(cluster), tenants, COLUMNS[of])
    asked = asked_for(cluster, tenants, COLUMNS[of])
    keys = (key for key in held | asked if gpu_type is None or key[-1] == gpu_type)
    found = [_holder(key, held[key], asked[key], gpus.get(key[-1], 0)) for key in keys]
    found.sort(key=lambda one: one.names)
    if order is not HolderOrder.NAME:
        found.sort(key=lambda one: _amount(one, order), reverse=True)
    return GpuStanding(types, found[:limit], len(found))


Key = tuple[Any, ...]  # the columns of a holder, and the GPU type


def _holder(key: Key, held: float, asked: int, gpus: int) -> GpuHolder:
    *columns, model = key
    tenant, user, name, job = (*columns, None, None, None)[:4]  # as in `COLUMNS`
    share = held / (1000 * gpus) if gpus else None
    return GpuHolder(tenant, user, name, job and str(job), model, held, asked, share)


def _amount(holder: GpuHolder, order: HolderOrder) -> float:
    if order is HolderOrder.ASKED:
        return holder.asked_milli
    return holder.held_milli if order is HolderOrder.HELD else (holder.share or 0.0)


def _types(cluster: Cluster | None, gpu_type: str | None) -> list[TypeStanding]:
    rows = NodeRecord.objects.exclude(gpu_model=NO_GPUS).order_by("gpu_model")
    if cluster is not None:
        rows = rows.filter(cluster=cluster)
    if gpu_type is not None:
        rows = rows.filter(gpu_model=gpu_type)
    sums = (Sum("gpus"), Sum("healthy_gpus"), Sum("allocated_milli"))
    return [TypeStanding(*row) for row in rows.values_list("gpu_model").annotate(*sums)]


def _placements(cluster: Cluster | None) -> QuerySet[Placement]:
    rows = Placement.objects.filter(state__in=LIVE_PLACEMENTS).exclude(gpu_model=NO_GPUS)
    return rows if cluster is None else rows.filter(job__cluster=cluster)


def _sums(
    rows: QuerySet[Placement], tenants: Collection[int] | None, columns: Iterable[str]
) -> Counter[Key]:
    if tenants is not None:
        rows = rows.filter(job__tenant__in=tenants)
    sums = rows.order_by().values_list(*columns, "gpu_model").annotate(milli=Sum(HELD))
    return Counter({tuple(key): milli for *key, milli in sums})


def asked_for(
    cluster: Cluster | None, tenants: Collection[int] | None, columns: Iterable[str]
) -> Counter[Key]:
    """Return the milli-GPU that waiting jobs ask for, by these columns and GPU type.

    The GPU type is the first that a pod set accepts.
    """
    rows = waiting_sets(cluster, tenants).filter(gpus__gt=0).values_list(*columns, "gpu_models")
    found: Counter[Key] = Counter()
    for *key, models, amount in rows.annotate(milli=Sum(ASKED_MILLI)):
        found[*key, models[0] if models else ANY_TYPE] += amount
    return found
