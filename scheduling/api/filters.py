"""Query parameters of the lists. A value that cannot be understood is an error, never ignored."""

from typing import Any

import django_filters as filters
from django.db.models import QuerySet

from scheduling.engine.states import REASON_LENGTH, JobState
from scheduling.engine.types import JobKind
from scheduling.models import Job, NodeRecord, Placement
from scheduling.models.jobs import PlacementState
from scheduling.selectors import accepting, in_tenant, matching
from tenants.api.filters import (
    AnyOf,
    FilterSet,
    Flag,
    Moment,
    Number,
    OneOf,
    tenant_asked_for,
)
from tenants.permissions import access_of

MAX_GPUS = 10**9


class JobFilter(FilterSet):
    tenant = filters.CharFilter(
        method="in_tenant",
        max_length=63,
        label="Jobs of this tenant and of all tenants below it; refused where you may see no such.",
    )
    user = filters.CharFilter(
        method="of_user", max_length=150, label="Name of the submitter; “me” = you."
    )
    cluster = filters.CharFilter("cluster__name", max_length=63, label="Name of a cluster.")
    state = AnyOf(JobState)
    kind = OneOf(JobKind)
    reason = filters.CharFilter("reason", max_length=REASON_LENGTH, label="Reason code.")
    gpu_type = filters.CharFilter(
        method="accepting", max_length=63, label="Jobs that accept this GPU type by name."
    )
    name = filters.CharFilter("name", max_length=63, label="The whole name.")
    min_gpus = filters.NumberFilter(
        method="at_least", min_value=0, max_value=MAX_GPUS, label="GPUs of all pods, at least."
    )
    array = filters.UUIDFilter("array_id", label="Jobs of this array.")
    held = Flag("held", label="true or false.")
    submitted_after = Moment("submitted_at", "gt", label="Time, e.g. 2030-01-31T12:00:00Z.")
    submitted_before = Moment("submitted_at", "lt", label="Time, e.g. 2030-01-31T12:00:00Z.")
    q = filters.CharFilter(
        method="matching", max_length=100, label="Part of the name, or the beginning of the id."
    )

    class Meta:
        model = Job
        fields: list[str] = []

    def in_tenant(self, rows: QuerySet[Job], _: str, name: str) -> QuerySet[Job]:
        return in_tenant(rows, tenant_asked_for(access_of(self.request.user), name).name)

    def of_user(self, rows: QuerySet[Job], _: str, name: str) -> QuerySet[Job]:
        if name == "me":
            return rows.filter(user=self.request.user)
        return rows.filter(user__username=name)

    def accepting(self, rows: QuerySet[Job], _: str, model: str) -> QuerySet[Job]:
        return accepting(rows, model)

    def at_least(self, rows: QuerySet[Job], _: str, gpus: Any) -> QuerySet[Job]:
        return rows.filter(gpu_milli__gte=int(gpus * 1000))

    def matching(self, rows: QuerySet[Job], _: str, text: str) -> QuerySet[Job]:
        return matching(rows, text)


class PodFilter(FilterSet):
    state = AnyOf(PlacementState)
    attempt = Number("attempt", max_value=2**31 - 1)
    node = filters.CharFilter("node", max_length=253, label="Name of the node.")

    class Meta:
        model = Placement
        fields: list[str] = []


class NodeFilter(FilterSet):
    gpu_type = filters.CharFilter("gpu_model", max_length=63)
    scope = filters.CharFilter("scope", max_length=63, label="Shard that owns the node now.")
    leaf = filters.CharFilter("leaf", max_length=253)
    spine = filters.CharFilter("spine", max_length=253)
    zone = filters.CharFilter("zone", max_length=32)
    schedulable = Flag("schedulable", label="true or false.")
    q = filters.CharFilter("name", "icontains", max_length=253, label="Part of the name.")

    class Meta:
        model = NodeRecord
        fields: list[str] = []
