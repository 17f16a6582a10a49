"""REST for GPU time: who used how much of which GPU type, as JSON or CSV."""

import io
from dataclasses import replace
from typing import Any

from django.utils import timezone
from rest_framework import serializers
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from metrics.gpu_time import usage
from metrics.gpu_time.usage import DIMENSIONS, Period, UsageScope
from metrics.models import UsageDay
from scheduling.queries.names import cluster_names, gpu_type_names
from tenants.api.base import View
from tenants.api.filters import asked_for
from tenants.api.problems import bad_query
from tenants.api.schema import Shape
from tenants.models import User
from tenants.names import Names, tenant_names
from tenants.permissions import access_of
from tenants.selectors import subtree_ids
from tenants.web.csv_files import write_csv

DEFAULT_BY = "tenant,gpu_type"
QUERY = {
    "since": (
        "First day in UTC, e.g. 2030-01-31, or a number of days up to today, e.g. 30d. Default: "
        "the first of this month."
    ),
    "until": "Last day in UTC, included. Default: today.",
    "by": (
        f"Group rows by any of {', '.join(DIMENSIONS)}, separated by commas (default {DEFAULT_BY})."
    ),
    "tenant": "Name of a tenant; includes all tenants below it.",
    "gpu_type": "GPU type; default: all.",
    "cluster": "Name of a cluster; default: all.",
}


class CSVRenderer(BaseRenderer):
    """Renders the items only; a problem document stays JSON."""

    media_type = "text/csv"
    format = "csv"

    def render(self, data: Any, _media_type: str | None = None, context: Any = None) -> bytes:
        if context["response"].exception:
            return bytes(JSONRenderer().render(data))
        out = io.StringIO()
        write_csv(out, *usage.as_table(data["by"], data["items"]))
        return out.getvalue().encode()


class AmountSerializer(serializers.Serializer[Any]):
    gpu_hours = serializers.FloatField(help_text="GPU-hours allocated.")
    lost_gpu_hours = serializers.FloatField(
        help_text="GPU-hours of work lost to preemption: work since the last checkpoint."
    )
    pods_started = serializers.IntegerField(help_text="Pods that began to hold GPUs.")
    measured_gpu_hours = serializers.FloatField(
        allow_null=True,
        help_text="GPU-hours allocated for which Prometheus says how busy the GPUs were. null: "
        "none, or `by` has user or kind.",
    )
    idle_gpu_hours = serializers.FloatField(
        allow_null=True,
        help_text="Part of `measured_gpu_hours` in which nothing ran on the GPUs; null if that "
        "is null.",
    )


class RowSerializer(AmountSerializer):
    """A row has the dimensions that `by` names. `user` null: no user of Kant submitted the jobs."""

    borrowed_gpu_hours = serializers.FloatField(
        allow_null=True,
        help_text="GPU-hours that the tenant and all tenants below it held above its guarantee; "
        "do not add them up over tenants. null: the row begins before `borrowed_from`, the "
        "request is for one cluster, or `by` has no tenant, or has user, kind or cluster, which "
        "have no quota.",
    )
    tenant = serializers.CharField(required=False)
    user = serializers.CharField(required=False, allow_null=True)
    gpu_type = serializers.CharField(required=False)
    kind = serializers.CharField(required=False)
    cluster = serializers.CharField(required=False)
    day = serializers.DateField(required=False)
    month = serializers.CharField(required=False, help_text="E.g. 2030-01.")


class UsageSerializer(serializers.Serializer[Any]):
    """GPU time of a period. Every job counts in one row, for its own tenant."""

    since = serializers.DateField()
    until = serializers.DateField(help_text="Last day, included; today counts up to now.")
    complete_from = serializers.DateField(
        allow_null=True,
        help_text="First day for which Kant has data; null = it has every day.",
    )
    borrowed_from = serializers.DateField(
        allow_null=True,
        help_text="First day with data on borrowing; null = it has every day.",
    )
    by = serializers.ListField(child=serializers.ChoiceField(list(DIMENSIONS)))
    items = RowSerializer(many=True)
    total = AmountSerializer()


def period_of(query: Any) -> Period:
    try:
        return usage.period_of(
            query.get("since", ""), query.get("until", ""), timezone.now().date()
        )
    except usage.WrongPeriod as error:
        raise bad_query(error.parameter, str(error)) from None


def by_of(text: str) -> tuple[str, ...]:
    """Return the dimensions that a text names; raise a Problem for an unknown or repeated one."""
    names = tuple(text.split(","))
    for name in names:
        if name not in DIMENSIONS:
            known = ", ".join(DIMENSIONS)
            raise bad_query(
                "by", f"{name[:40]!r} is none of {known}; separate several with commas."
            )
        if names.count(name) > 1:
            raise bad_query("by", f"“{name}” is given twice. Give it once.")
    return names


def scope_of(user: User, query: Any) -> UsageScope:
    """Return the scope that a query string names, limited to what the user may see; raise a
    Problem."""
    tenants, cluster = access_of(user).visible_tenants(), None
    if name := query.get("tenant", ""):
        tenants = frozenset(subtree_ids(asked_for("tenant", name, tenant_names(user)).pk))
    if name := query.get("cluster", ""):
        cluster = asked_for("cluster", name, cluster_names()).pk
    if gpu_type := query.get("gpu_type", ""):
        asked_for("gpu_type", gpu_type, used_gpu_type_names())
    return UsageScope(period_of(query), tenants, gpu_type, cluster)


def used_gpu_type_names() -> Names:
    """The GPU types that exist, and those that were used."""
    known = gpu_type_names()
    return replace(known, sources=(*known.sources, (UsageDay.objects.all(), "gpu_model")))


class UsageView(View):
    """GPU-hours by tenant, user, GPU type, kind of job, cluster, day or month, for the tenants that
    you may see; as CSV with `Accept: text/csv`."""

    renderer_classes = [JSONRenderer, CSVRenderer]
    shapes = {"GET": Shape(UsageSerializer, texts=QUERY, csv=True)}
    query = {"GET": frozenset(QUERY)}

    def get(self, request: Request) -> Response:
        by = by_of(request.query_params.get("by", DEFAULT_BY))
        scope = scope_of(self.actor, request.query_params)
        try:
            rows = usage.usage(scope, by, timezone.now(), usage.MOST_ROWS)
        except usage.TooManyUsageRows as error:
            raise bad_query("by", str(error)) from None
        known = usage.days_known()
        return Response(
            {
                "since": scope.period.since.isoformat(),
                "until": scope.period.until.isoformat(),
                "complete_from": known.complete_from,
                "borrowed_from": known.borrowed_from,
                "by": by,
                "items": usage.items(by, rows),
                "total": usage.measures(usage.total_of(rows.values())),
            }
        )
