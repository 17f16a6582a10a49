"""Query parameters of lists. An unknown value is an error; it is never ignored."""

from typing import Any
from uuid import UUID

import django_filters as filters
from django.db.models import QuerySet

from scheduling.engine.states import REASON_LENGTH, JobState
from scheduling.engine.types import JobKind
from scheduling.models import (
    Job,
    JobTemplate,
    NodeRecord,
    Placement,
    PlanOrder,
    PlanOrderState,
    SchedulerLease,
)
from scheduling.models.jobs import PlacementState
from scheduling.queries.names import (
    cluster_names,
    gpu_type_names,
    queue_names,
    reason_names,
    submitter_names,
)
from scheduling.queries.selectors import accepting, in_tenant, matching, visible_jobs
from tenants.api.filters import (
    AnyOf,
    FilterSet,
    FlagFilter,
    MomentFilter,
    Named,
    NumberFilter,
    OneOf,
    of_tenant,
)
from tenants.api.problems import bad_query
from tenants.names import Names

MAX_GPUS = 10**9


class JobFilter(FilterSet):
    tenant = of_tenant(
        method="in_tenant", label="Only jobs of this tenant and all tenants below it."
    )
    user = Named(
        method="of_user",
        names=submitter_names,
        max_length=150,
        label="User name of the submitter; “me” = you.",
    )
    cluster = Named(
        "cluster__name",
        names=lambda *_: cluster_names(),
        max_length=63,
        label="Name of a cluster.",
    )
    queue = Named("queue", names=queue_names, max_length=63, label="Name of a queue.")
    state = AnyOf(JobState)
    kind = OneOf(JobKind)
    reason = Named(
        "reason",
        names=lambda _, jobs: reason_names(jobs),
        max_length=REASON_LENGTH,
        label="Reason code; pods may also have codes from the kubelet.",
    )
    gpu_type = Named(
        method="accepting",
        names=lambda *_: gpu_type_names(),
        max_length=63,
        label="Only jobs that name this GPU type.",
    )
    name = filters.CharFilter(method="named", max_length=63, label="The full name.")
    min_gpus = filters.NumberFilter(
        method="at_least",
        min_value=0,
        max_value=MAX_GPUS,
        label="Fewest GPUs of all pods together.",
    )
    max_gpus = filters.NumberFilter(
        method="at_most", min_value=0, max_value=MAX_GPUS, label="Most GPUs of all pods together."
    )
    array = filters.UUIDFilter(method="in_array", label="Only jobs of this array.")
    held = FlagFilter("held", label="true or false.")
    submitted_after = MomentFilter("submitted_at", "gt", label="Time, e.g. 2030-01-31T12:00:00Z.")
    submitted_before = MomentFilter("submitted_at", "lt", label="Time, e.g. 2030-01-31T12:00:00Z.")
    q = filters.CharFilter(
        method="matching", max_length=100, label="Part of the name, or the start of the id."
    )

    class Meta:
        model = Job
        fields: list[str] = []

    def in_array(self, rows: QuerySet[Job], _: str, array_id: UUID) -> QuerySet[Job]:
        if not visible_jobs(self.request.user).filter(array_id=array_id).exists():
            raise bad_query("array", f"There is no array {array_id} that you may see.")
        return rows.filter(array_id=array_id)

    def in_tenant(self, rows: QuerySet[Job], _: str, name: str) -> QuerySet[Job]:
        return in_tenant(rows, name)

    def of_user(self, rows: QuerySet[Job], _: str, name: str) -> QuerySet[Job]:
        if name == "me":
            return rows.filter(user=self.request.user)
        return rows.filter(user__username=name)

    def accepting(self, rows: QuerySet[Job], _: str, model: str) -> QuerySet[Job]:
        return accepting(rows, model)

    def named(self, rows: QuerySet[Job], _: str, name: str) -> QuerySet[Job]:
        # `icontains` makes the index for parts of names apply.
        return rows.filter(name=name, name__icontains=name)

    def at_least(self, rows: QuerySet[Job], _: str, gpus: Any) -> QuerySet[Job]:
        return rows.filter(gpu_milli__gte=int(gpus * 1000))

    def at_most(self, rows: QuerySet[Job], _: str, gpus: Any) -> QuerySet[Job]:
        return rows.filter(gpu_milli__lte=int(gpus * 1000))

    def matching(self, rows: QuerySet[Job], _: str, text: str) -> QuerySet[Job]:
        return matching(rows, text)


def node_names(_: Any, pods: QuerySet[Placement]) -> Names:
    return Names("node", ((NodeRecord.objects.all(), "name"), (pods, "node")))


class PodFilter(FilterSet):
    state = AnyOf(PlacementState)
    attempt = NumberFilter("attempt", max_value=2**31 - 1)
    node = Named("node", names=node_names, max_length=253, label="Name of the node.")

    class Meta:
        model = Placement
        fields: list[str] = []


def scope_names(_: Any, nodes: QuerySet[NodeRecord]) -> Names:
    """Return the names of shards, also of those that have no node at the moment."""
    return Names("scope", ((nodes, "scope"), (SchedulerLease.objects.all(), "scope")))


class NodeFilter(FilterSet):
    gpu_type = Named("gpu_model", names=lambda *_: gpu_type_names(), max_length=63)
    scope = Named(
        "scope", names=scope_names, max_length=63, label="Shard that the node belongs to now."
    )
    leaf = Named("leaf", names=lambda _, nodes: Names("leaf", ((nodes, "leaf"),)), max_length=253)
    spine = Named(
        "spine", names=lambda _, nodes: Names("spine", ((nodes, "spine"),)), max_length=253
    )
    zone = Named("zone", names=lambda _, nodes: Names("zone", ((nodes, "zone"),)), max_length=63)
    schedulable = FlagFilter("schedulable", label="true or false.")
    q = filters.CharFilter("name", "icontains", max_length=253, label="Part of the name.")

    class Meta:
        model = NodeRecord
        fields: list[str] = []


class PlanOrderFilter(FilterSet):
    state = AnyOf(PlanOrderState)

    class Meta:
        model = PlanOrder
        fields: list[str] = []


class TemplateFilter(FilterSet):
    tenant = of_tenant("tenant__name")
    name = filters.CharFilter("name", max_length=63, label="The full name.")

    class Meta:
        model = JobTemplate
        fields: list[str] = []


class GlobalQueueFilter(FilterSet):
    gpu_type = Named(
        method="accepting",
        names=lambda *_: gpu_type_names(),
        max_length=63,
        label="Only jobs that name this GPU type.",
    )
    scope = filters.CharFilter(
        method="of_shard", max_length=63, label="Name of a shard of the cluster."
    )

    class Meta:
        model = Job
        fields: list[str] = []

    def accepting(self, rows: QuerySet[Job], _: str, model: str) -> QuerySet[Job]:
        return accepting(rows, model)

    def of_shard(self, rows: QuerySet[Job], _: str, name: str) -> QuerySet[Job]:
        return rows.filter(scope=name)
