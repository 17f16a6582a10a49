"""REST for the global queue of a cluster."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.api.filters import GlobalQueueFilter
from scheduling.models import Cluster, Job
from scheduling.queries.queues.global_queue import Place, global_queue, scopes_of, shard_names
from scheduling.queries.selectors import cluster_by_name
from tenants.api.base import ListView
from tenants.api.fields import Gpus
from tenants.api.pagination import CursorPagination, bad_cursor, limit_of
from tenants.api.problems import bad_query
from tenants.api.schema import Shape
from tenants.database.keyset import BadCursor, packed, unpacked


class PlaceOutput(serializers.Serializer[Any]):
    """A job that waits its turn.

    `position`: its place among all waiting jobs, from 1, as in `explain`. `head_of`: the GPU types
    for which it is first. `job`, `name`, `tenant`, `queue`, `user` and `message` are null if you
    may not see its tenant.
    """

    position = serializers.IntegerField(source="number")
    scope = serializers.CharField(source="job.scope")
    priority = serializers.IntegerField(source="job.priority")
    gpus = Gpus(source="job.gpu_milli")
    gpu_types = serializers.SerializerMethodField()
    head_of = serializers.ListField(child=serializers.CharField(), source="heads")
    submitted_at = serializers.DateTimeField(source="job.submitted_at")
    reason = serializers.CharField(source="job.reason")
    message = serializers.CharField(source="job.message", allow_null=True)
    job = serializers.UUIDField(source="job.pk", allow_null=True)
    name = serializers.CharField(source="job.name", allow_null=True)
    tenant = serializers.CharField(source="job.tenant.name", allow_null=True)
    queue = serializers.CharField(source="job.queue", allow_null=True)
    user = serializers.CharField(source="job.user.username", allow_null=True, default=None)

    def get_gpu_types(self, place: Place) -> list[str]:
        sets = place.job.pod_sets.all()
        return list(dict.fromkeys(model for each in sets for model in each.gpu_models))

    def to_representation(self, place: Place) -> dict[str, Any]:
        body: dict[str, Any] = super().to_representation(place)
        if not place.visible:
            body |= dict.fromkeys(HIDDEN)
        return body


HIDDEN = ("message", "job", "name", "tenant", "queue", "user")


class OrderPagination(CursorPagination):
    """Pages of an order that no fields define.

    A page starts after the last job of the previous page, wherever that job is by then; if it no
    longer waits, at the place that it had.
    """

    def paginate_queryset(
        self,
        queryset: Any,
        request: Request,
        view: Any = None,  # noqa: ARG002
    ) -> list[Any]:
        self.request = request
        limit, cursor = limit_of(request), request.query_params.get("cursor")
        begin = 0 if cursor is None else _behind(queryset, cursor)
        page = list(queryset[begin : begin + limit])
        more = len(queryset) > begin + limit
        self.next_cursor = packed([page[-1][0], str(page[-1][1])]) if more else None
        return page


def _behind(numbered: Sequence[tuple[int, UUID]], cursor: str) -> int:
    try:
        number, job = unpacked(cursor, 2)
        last = UUID(job)
    except (BadCursor, ValueError, TypeError, AttributeError):
        raise bad_cursor() from None
    if type(number) is not int:
        raise bad_cursor()
    at = next((i for i, (_, each) in enumerate(numbered) if each == last), None)
    if at is not None:
        return at + 1
    return next((i for i, (place, _) in enumerate(numbered) if place >= number), len(numbered))


class GlobalQueueView(ListView):
    """All jobs that wait their turn on a cluster, in the order of its scheduler.

    In a divided cluster each shard has its own queue; without `scope` the answer is that of the
    first.
    """

    shapes = {"GET": Shape(PlaceOutput, many=True)}

    filterset_class = GlobalQueueFilter
    queryset = Job.objects.none()
    serializer_class = PlaceOutput
    pagination_class = OrderPagination

    def get(self, request: Request, name: str) -> Response:
        cluster = cluster_by_name(name)
        queue = global_queue(cluster, self._scope(cluster))
        jobs = self.filter_queryset(queue.standing.jobs)
        numbered = queue.numbered(jobs if "gpu_type" in request.query_params else None)
        places = queue.places(self.actor, self.paginate_queryset(numbered) or ())
        return self.get_paginated_response(PlaceOutput(places, many=True).data)

    def _scope(self, cluster: Cluster) -> str:
        scopes = scopes_of(cluster)
        asked = self.request.query_params.get("scope", "")
        names = shard_names(scopes)
        if asked and asked not in names:
            raise bad_query("scope", names.refusal(asked))
        return asked or (scopes[0] if scopes else "")
