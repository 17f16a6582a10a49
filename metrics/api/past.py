"""REST for the past: a cluster's nodes and its queue at an earlier instant."""

from typing import Any

from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from metrics.api.views import instant_of
from metrics.samples.held import HeldOverTime, nodes_of
from metrics.samples.past import kept_from, queue_then
from scheduling.queries.names import gpu_type_names
from scheduling.queries.selectors import cluster_by_name
from tenants.api.base import OperatorsOnly, View
from tenants.api.fields import Gpus
from tenants.api.filters import asked_for
from tenants.api.problems import bad_query
from tenants.api.schema import Shape

QUERY = {
    "at": "Time in the past, e.g. 2030-01-31T12:00:00Z. Required.",
    "gpu_type": "GPU type; default: all.",
}


class NodeThenOutput(serializers.Serializer[Any]):
    """A node; `allocated` is as of then, all else as it is now."""

    name = serializers.CharField()
    gpu_type = serializers.CharField()
    leaf = serializers.CharField()
    gpus = serializers.IntegerField()
    allocated = Gpus()


class WaitingThenOutput(serializers.Serializer[Any]):
    """A job that waited then, and the reason that it had been given; empty = none yet."""

    job = serializers.UUIDField(source="pk")
    name = serializers.CharField()
    tenant = serializers.CharField(source="tenant.name")
    gpus = Gpus(source="gpu_milli")
    priority = serializers.IntegerField()
    submitted_at = serializers.DateTimeField()
    reason = serializers.SerializerMethodField()

    def get_reason(self, job: Any) -> str:
        return job.told or ""


class PastOutput(serializers.Serializer[Any]):
    """A cluster at an earlier instant.

    `kept_from`: the records are complete from then on. `waiting`: the first waiting jobs, by
    priority and submission; `waiting_jobs`: their total number, which asked for `waiting_gpus`.
    """

    at = serializers.DateTimeField()
    kept_from = serializers.DateTimeField()
    nodes = NodeThenOutput(many=True)
    waiting = WaitingThenOutput(many=True)
    waiting_jobs = serializers.IntegerField()
    waiting_gpus = Gpus()


class PastView(View):
    """What a cluster's nodes held at an earlier instant, and the first 50 jobs that waited then.
    For operators. The metrics of that instant: `GET /api/v1/metrics?at=`."""

    permission_classes = [OperatorsOnly]
    shapes = {"GET": Shape(PastOutput, texts=QUERY)}
    query = {"GET": frozenset(QUERY)}

    def get(self, request: Request, name: str) -> Response:
        cluster, query = cluster_by_name(name), request.query_params
        at = instant_of(query, timezone.now(), cluster)
        if at is None:
            raise bad_query("at", "Give a time, e.g. 2030-01-31T12:00:00Z.")
        if gpu_type := query.get("gpu_type", ""):
            asked_for("gpu_type", gpu_type, gpu_type_names())
        rows = nodes_of(cluster)
        uses = HeldOverTime(cluster, rows, [at]).node_uses() if rows else []
        nodes = [
            {
                "name": row.name,
                "gpu_type": row.gpu_model,
                "leaf": row.leaf,
                "gpus": row.gpus,
                "allocated": round(use.allocated_milli),
            }
            for row, use in zip(rows, uses, strict=True)
            if gpu_type in ("", row.gpu_model)
        ]
        queue = queue_then(cluster, at, gpu_type)
        waited = queue.by_model.get(gpu_type)
        body = {
            "at": at,
            "kept_from": kept_from(cluster),
            "nodes": nodes,
            "waiting": queue.jobs,
            "waiting_jobs": waited.jobs if waited else 0,
            "waiting_gpus": waited.milli if waited else 0,
        }
        return Response(PastOutput(body).data)
