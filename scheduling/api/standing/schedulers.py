"""REST for how schedulers are doing."""

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.models import Cluster
from scheduling.queries.names import cluster_names
from scheduling.queries.standing.schedulers import LedScope, scheduler_states
from tenants.api.base import View
from tenants.api.filters import asked_for
from tenants.api.schema import Shape
from tenants.errors import NotAllowed

QUERY = {"cluster": "Name of a cluster; default: all active clusters."}


class FailureOutput(serializers.Serializer[Any]):
    """Requests to the Kubernetes API with this result since the scheduler took the lead."""

    effect = serializers.CharField()
    result = serializers.CharField()
    count = serializers.IntegerField()


class BacklogOutput(serializers.Serializer[Any]):
    effects = serializers.IntegerField()
    news = serializers.IntegerField()
    rows = serializers.BooleanField()


class SchedulerOutput(serializers.Serializer[Any]):
    """The scheduler of a shard, or of the whole cluster if `scope` is empty.

    - `holder`: the process that leads, empty = none; `since`: when it took the lead.
    - `lease_until`: when its lease runs out unless it renews it; `token` grows with each change of
      the leader.
    - `over_seconds`: the period that the next fields are about. `passes`: how many passes changed
      something; `pass_seconds`: their mean duration, null if there was none; `binds_per_second`;
      `failed`: requests; `busy`, `decide` (in the engine), `write` (in the database): parts of the
      time, from 0 to 1.
    - `backlog`: `effects` requested from the Kubernetes API that have not ended, `news` of the
      cluster not yet taken in, and whether `rows` that people wrote are waiting.
    - `failures`, `work`: counts since it took the lead.
    - `advice`: sentences on what is stuck or too slow, and what to do.
    """

    cluster = serializers.CharField(source="cluster.name")
    scope = serializers.CharField(source="leader.scope")
    holder = serializers.CharField(source="leader.holder")
    token = serializers.IntegerField(source="leader.token")
    since = serializers.DateTimeField(allow_null=True)
    lease_until = serializers.DateTimeField(source="leader.until", allow_null=True)
    nodes = serializers.IntegerField(source="leader.nodes")
    over_seconds = serializers.FloatField(source="over_s")
    passes = serializers.IntegerField()
    pass_seconds = serializers.FloatField(source="pass_s", allow_null=True)
    binds_per_second = serializers.FloatField(source="binds_a_s")
    failed = serializers.IntegerField()
    busy = serializers.FloatField()
    decide = serializers.FloatField()
    write = serializers.FloatField()
    backlog = BacklogOutput(source="leader.backlog")
    failures = serializers.SerializerMethodField()
    work = serializers.DictField(child=serializers.IntegerField(), source="leader.pace.work")
    advice = serializers.ListField(child=serializers.CharField(), source="waits")

    @extend_schema_field(FailureOutput(many=True))
    def get_failures(self, state: LedScope) -> list[dict[str, Any]]:
        names = ("effect", "result", "count")
        return [dict(zip(names, one, strict=True)) for one in state.failures]


class SchedulersOutput(serializers.Serializer[Any]):
    items = SchedulerOutput(many=True)


class SchedulersView(View):
    """Who leads each cluster and each of its shards, how busy that scheduler is, and its backlog.

    For operators.
    """

    shapes = {"GET": Shape(SchedulersOutput, texts=QUERY)}
    query = {"GET": frozenset(QUERY)}

    def get(self, request: Request) -> Response:
        if not self.actor.is_operator:
            raise NotAllowed(
                "Schedulers work for all tenants together; only operators may read this."
            )
        name = request.query_params.get("cluster", "")
        chosen = [asked_for("cluster", name, cluster_names())] if name else Cluster.objects.all()
        body = {"items": scheduler_states(list(chosen), timezone.now())}
        return Response(SchedulersOutput(body).data)
