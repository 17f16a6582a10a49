"""REST for why GPUs are waited for."""

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.queries.names import cluster_names, gpu_type_names
from scheduling.queries.standing.pending import pending
from tenants.api.base import View
from tenants.api.fields import Gpus
from tenants.api.filters import asked_for
from tenants.api.schema import Shape
from tenants.names import tenant_names
from tenants.permissions import access_of
from tenants.selectors import subtree_ids

QUERY = {
    "tenant": "Name of a tenant; with all below it.",
    "gpu_type": "GPU type; all if absent.",
    "cluster": "Name of a cluster; all together if absent.",
}


class PendingReasonOutput(serializers.Serializer[Any]):
    """`reason`: a code, empty where nobody has looked at the jobs yet. `gpu_type`: the first that
    they accept, empty = any; a job with several pod sets counts at the type of each. `never`: no
    state of the cluster could start them. `since`: the first of them was submitted then."""

    reason = serializers.CharField()
    gpu_type = serializers.CharField()
    jobs = serializers.IntegerField()
    gpus = Gpus(source="milli")
    since = serializers.DateTimeField()
    never = serializers.BooleanField()


class PendingOutput(serializers.Serializer[Any]):
    items = PendingReasonOutput(many=True)


class PendingView(View):
    """Why GPUs are waited for: waiting jobs by reason and GPU type, the most GPUs first."""

    shapes = {"GET": Shape(PendingOutput, texts=QUERY)}
    query = {"GET": frozenset(QUERY)}

    def get(self, request: Request) -> Response:
        query = request.query_params
        tenants, cluster = access_of(self.actor).visible_tenants(), None
        if name := query.get("tenant", ""):
            tenants = frozenset(subtree_ids(asked_for("tenant", name, tenant_names(self.actor)).pk))
        if name := query.get("cluster", ""):
            cluster = asked_for("cluster", name, cluster_names())
        if gpu_type := query.get("gpu_type", ""):
            asked_for("gpu_type", gpu_type, gpu_type_names())
        found = pending(tenants=tenants, cluster=cluster, gpu_type=gpu_type or None)
        return Response(PendingOutput({"items": found}).data)
