"""REST for why jobs wait for GPUs."""

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.api.standing.asked import WHOSE, whose
from scheduling.queries.standing.pending import pending
from tenants.api.base import View
from tenants.api.fields import Gpus
from tenants.api.schema import Shape


class PendingReasonOutput(serializers.Serializer[Any]):
    """Waiting jobs with one reason and one GPU type.

    `reason`: a code, empty if the jobs have not been examined yet. `gpu_type`: the first that they
    accept, empty = any; a job with several pod sets counts at the type of each. `never`: no state
    of the cluster could start them. `since`: when the first of them was submitted.
    """

    reason = serializers.CharField()
    gpu_type = serializers.CharField()
    jobs = serializers.IntegerField()
    gpus = Gpus(source="milli")
    since = serializers.DateTimeField()
    never = serializers.BooleanField()


class PendingOutput(serializers.Serializer[Any]):
    items = PendingReasonOutput(many=True)


class PendingView(View):
    """Why jobs wait for GPUs: waiting jobs by reason and GPU type, the most GPUs first."""

    shapes = {"GET": Shape(PendingOutput, texts=WHOSE)}
    query = {"GET": frozenset(WHOSE)}

    def get(self, request: Request) -> Response:
        found = pending(**whose(request, self.actor)._asdict())
        return Response(PendingOutput({"items": found}).data)
