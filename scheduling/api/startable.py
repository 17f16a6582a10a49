"""REST for the size of job that could start now."""

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.queries.startable import startable
from tenants.api.base import View
from tenants.api.schema import Shape
from tenants.models import Scope
from tenants.permissions import access_of
from tenants.selectors import visible_tenants


class StartableOutput(serializers.Serializer[Any]):
    """The largest new gang of `tenant`, one of yours, that would start now on a GPU type.

    Sizes are 1, 2, 4 ... GPUs of one node, or as many whole nodes. The gang declares no run time
    and preempts nobody. `in_leaf`: the largest one within a leaf group, null if no leaf groups are
    known. `free`: GPUs that nobody holds. `refused`: the next larger size, which would not start,
    with its `reason` (empty if unknown) and `summary`; null = no size is larger.
    """

    gpu_type = serializers.CharField()
    tenant = serializers.CharField()
    cluster = serializers.CharField()
    gpus = serializers.IntegerField()
    in_leaf = serializers.IntegerField(allow_null=True)
    free = serializers.IntegerField()
    refused = serializers.IntegerField(allow_null=True)
    reason = serializers.CharField()
    summary = serializers.CharField(source="why")


class StartableNowOutput(serializers.Serializer[Any]):
    """What could start now.

    `as_of`: when the cluster with the oldest information was looked at. `troubles`: clusters about
    which nothing is known, and why.
    """

    as_of = serializers.DateTimeField(allow_null=True)
    items = StartableOutput(many=True, source="rows")
    troubles = serializers.ListField(child=serializers.CharField())


class StartableView(View):
    """How large a new job could be and still start now, by GPU type.

    That is what is free, minus what quotas, reservations and waiting jobs take from it.
    """

    scope = Scope.SUBMIT
    shapes = {
        "GET": Shape(StartableNowOutput),
    }

    def get(self, _request: Request) -> Response:
        access = access_of(self.actor)
        mine = [t.name for t in visible_tenants(self.actor) if access.may_submit(t.pk)]
        return Response(StartableNowOutput(startable(self.actor, mine)).data)
