"""REST for replays of a cluster's history under another policy."""

import uuid

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from metrics.api.replay_serializers import ReplayInput, ReplayOutput, ReplayWithResultOutput
from metrics.models import Replay, ReplayState
from metrics.replays import services
from scheduling.models import Cluster
from scheduling.queries.names import cluster_names
from tenants.api.base import ListView, OperatorsOnly, View, location, rehearsed, shown
from tenants.api.filters import AnyOf, FilterSet, Named
from tenants.api.idempotency import idempotent
from tenants.api.schema import Shape
from tenants.errors import Invalid


class ReplayFilter(FilterSet):
    cluster = Named(
        "cluster__name",
        names=lambda *_: cluster_names(),
        max_length=63,
        label="Name of a cluster.",
    )
    state = AnyOf(ReplayState.values)

    class Meta:
        model = Replay
        fields: list[str] = []


class ReplaysView(ListView):
    """Replays of clusters' histories under another policy or with other nodes, newest first,
    without their results. For operators. They are computed one at a time."""

    permission_classes = [OperatorsOnly]
    shapes = {
        "GET": Shape(ReplayOutput, many=True),
        "POST": Shape(ReplayOutput, ReplayInput, creates=True),
    }

    page_order = ("-created_at", "-id")
    filterset_class = ReplayFilter
    serializer_class = ReplayOutput

    def get_queryset(self) -> QuerySet[Replay]:
        return services.replays()

    def get(self, _request: Request) -> Response:
        return self.page(ReplayOutput)

    @idempotent()
    def post(self, _request: Request) -> Response:
        given = self.body(ReplayInput)
        name = given.pop("cluster")
        cluster = Cluster.objects.filter(name=name).first()
        if cluster is None:
            detail = f"There is no cluster “{name}”. GET /api/v1/clusters lists them."
            raise Invalid.field("cluster", detail)
        replay = services.create_replay(self.actor, cluster, **given, dry_run=self.dry_run)
        body = shown(ReplayOutput, replay)
        if self.dry_run:
            return rehearsed("create", body)
        return Response(body, 201, headers=location(self.request, "api-replay", replay.pk))


class ReplayView(View):
    """One replay, with its result once it is done. For operators."""

    permission_classes = [OperatorsOnly]
    shapes = {"GET": Shape(ReplayWithResultOutput)}

    def get(self, _request: Request, replay_id: uuid.UUID) -> Response:
        return Response(shown(ReplayWithResultOutput, services.replay_by_id(replay_id)))


class ReplayCancelView(View):
    """Cancels a replay that waits or runs."""

    permission_classes = [OperatorsOnly]
    shapes = {"POST": Shape(ReplayOutput)}

    @idempotent()
    def post(self, _request: Request, replay_id: uuid.UUID) -> Response:
        replay = services.replay_by_id(replay_id)
        return self.updated(
            ReplayOutput, services.cancel_replay(self.actor, replay, dry_run=self.dry_run)
        )
