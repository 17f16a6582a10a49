"""REST for the five metrics: a summary over a window, and the recorded samples."""

from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from metrics import definitions, selectors
from metrics.samples import past
from metrics.samples.held import uses_at
from metrics.selectors import MetricScope
from metrics.simulate.inputs import length_of
from scheduling.models import Cluster, Job
from scheduling.queries.names import cluster_names, gpu_type_names
from scheduling.queries.selectors import complete_from
from tenants.api.base import OperatorsOnly, View
from tenants.api.filters import MomentField, asked_for
from tenants.api.problems import bad_query
from tenants.api.schema import Shape

SCOPE = {
    "cluster": "Name of a cluster; default: all.",
    "gpu_type": "GPU type; default: all.",
    "window": "Length of the window up to `at`, or to now: 90s, 15m, 24h, 7d (default 24h).",
    "at": "Time in the past for which to show the state, e.g. 2030-01-31T12:00:00Z; default: now.",
}


def window_of(text: str) -> timedelta:
    """Parse '90s', '15m', '24h', '7d' as a length; raise a Problem that names the parameter."""
    length = length_of(text)
    if length is None:
        raise bad_query(
            "window", f"{text[:40]!r} is no window; write 90s, 15m, 24h or 7d, at most 366d."
        )
    return length


def scope_of(query: Any) -> MetricScope:
    """Return the scope that a query string names; raise a Problem."""
    now, cluster = timezone.now(), None
    if name := query.get("cluster", ""):
        cluster = asked_for("cluster", name, cluster_names())
    if gpu_type := query.get("gpu_type", ""):
        asked_for("gpu_type", gpu_type, gpu_type_names())
    at = instant_of(query, now, cluster)
    until = at or now
    return MetricScope(
        cluster=cluster,
        gpu_model=gpu_type,
        since=until - window_of(query.get("window", "24h")),
        until=until,
        past=at is not None,
    )


def instant_of(query: Any, now: datetime, cluster: Cluster | None) -> datetime | None:
    """Return the past instant that `at` names; None = now. Raises a Problem."""
    try:
        at: datetime | None = MomentField(required=False).clean(query.get("at", ""))
        return None if at is None else past.checked(at, now, cluster)
    except ValidationError as error:
        raise bad_query("at", error.messages[0]) from None
    except past.NotKept as error:
        raise bad_query("at", str(error)) from None


class CurveSerializer(serializers.Serializer[Any]):
    """A distribution of waiting times; a gang counts once, other jobs pod by pod."""

    jobs = serializers.IntegerField()
    waiting = serializers.IntegerField()
    mean_s = serializers.FloatField(allow_null=True)
    p50_s = serializers.FloatField(allow_null=True)
    p90_s = serializers.FloatField(allow_null=True)
    p99_s = serializers.FloatField(allow_null=True)


class WaitsSerializer(CurveSerializer):
    """Waiting times of some jobs: all the time they had no place."""

    first_start = CurveSerializer(
        required=False,
        help_text="Wait until the first start; missing in samples from older versions of Kant.",
    )


class WaitSerializer(WaitsSerializer):
    size = serializers.CharField()


class QualitySerializer(serializers.Serializer[Any]):
    size = serializers.CharField()
    jobs = serializers.IntegerField()
    node_deviation = serializers.FloatField()
    group_deviation = serializers.FloatField()


class MetricsSerializer(serializers.Serializer[Any]):
    """The five metrics of one scope."""

    cluster = serializers.CharField(allow_null=True)
    gpu_type = serializers.CharField(allow_null=True)
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    complete_from = serializers.DateTimeField(
        allow_null=True,
        help_text="Jobs that ended before this time are deleted and not counted here; null = no "
        "job was ever deleted.",
    )
    gar = serializers.FloatField(allow_null=True)
    sor = serializers.FloatField(allow_null=True)
    sor_recorded_s = serializers.FloatField()
    gfr = serializers.FloatField(allow_null=True)
    allocated_gpus = serializers.FloatField()
    available_gpus = serializers.FloatField()
    excluded_gpus = serializers.FloatField()
    nodes = serializers.IntegerField()
    fragmented_nodes = serializers.IntegerField()
    largest_gang_leaf = serializers.IntegerField()
    largest_gang_any = serializers.IntegerField()
    pending_jobs = serializers.IntegerField()
    jobs = serializers.DictField(child=serializers.IntegerField())
    jwtd = WaitSerializer(many=True)
    jtted = QualitySerializer(many=True)


class SampleSerializer(serializers.Serializer[Any]):
    """One recorded instant of a pool; in GPUs, not milli-GPU."""

    at = serializers.DateTimeField()
    cluster = serializers.CharField(source="cluster.name")
    gpu_type = serializers.CharField(source="gpu_model")
    allocated_gpus = serializers.SerializerMethodField()
    available_gpus = serializers.SerializerMethodField()
    fragmented_nodes = serializers.IntegerField()
    nodes = serializers.IntegerField()
    pending_jobs = serializers.IntegerField()

    def get_allocated_gpus(self, sample: Any) -> float:
        return float(sample.allocated_milli / definitions.MILLI)

    def get_available_gpus(self, sample: Any) -> float:
        return float(sample.available_milli / definitions.MILLI)


class SamplesSerializer(serializers.Serializer[Any]):
    items = SampleSerializer(many=True)


def summary(scope: MetricScope) -> dict[str, Any]:
    """Return the five metrics of a scope as one document."""
    use = definitions.pool_use(uses_at(scope.cluster, scope.until, scope.gpu_model))
    occupation, recorded = selectors.sor(scope)
    return {
        "cluster": scope.cluster.name if scope.cluster else None,
        "gpu_type": scope.gpu_model or None,
        "since": scope.since,
        "until": scope.until,
        "complete_from": complete_from(),
        "gar": use.gar,
        "sor": occupation,
        "sor_recorded_s": recorded.total_seconds(),
        "gfr": use.gfr,
        "allocated_gpus": use.allocated_milli / definitions.MILLI,
        "available_gpus": use.available_milli / definitions.MILLI,
        "excluded_gpus": use.excluded_milli / definitions.MILLI,
        "nodes": use.nodes,
        "fragmented_nodes": use.fragmented,
        "largest_gang_leaf": use.largest_gang_leaf,
        "largest_gang_any": use.largest_gang_any,
        "pending_jobs": _waiting(scope).count(),
        "jobs": past.jobs_by_state_then(scope.cluster, scope.since, scope.until)
        if scope.past
        else selectors.jobs_by_state(scope.cluster, scope.since),
        "jwtd": [
            {"size": size, **of_size.row()} for size, of_size in selectors.waits(scope).items()
        ],
        "jtted": selectors.jtted(scope),
    }


def _waiting(scope: MetricScope) -> QuerySet[Job]:
    if scope.past:
        return past.waiting_then(scope.cluster, scope.until, scope.gpu_model)
    return selectors.waiting_jobs(scope.cluster, scope.gpu_model)


class MetricsView(View):
    """GAR, SOR, GFR, JWTD and JTTED of a cluster and GPU type, over a window that ends now or at an
    earlier instant. For operators."""

    permission_classes = [OperatorsOnly]
    shapes = {"GET": Shape(MetricsSerializer, texts=SCOPE)}
    query = {"GET": frozenset(SCOPE)}

    def get(self, request: Request) -> Response:
        return Response(MetricsSerializer(summary(scope_of(request.query_params))).data)


class SamplesView(View):
    """The recorded samples of a pool in a window, oldest first, thinned to at most 600. For
    operators."""

    permission_classes = [OperatorsOnly]
    shapes = {"GET": Shape(SamplesSerializer, texts=SCOPE)}
    query = {"GET": frozenset(SCOPE)}

    def get(self, request: Request) -> Response:
        scope = scope_of(request.query_params)
        return Response(SamplesSerializer({"items": selectors.samples(scope)}).data)
