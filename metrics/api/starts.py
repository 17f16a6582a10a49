"""REST for how true start estimates were."""

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.models import Forecasting
from scheduling.queries.starts import hit_rates
from scheduling.simulator.forecast.run_times import Basis
from tenants.api.base import OperatorsOnly, View
from tenants.api.schema import Shape


class HitRateSerializer(serializers.Serializer[Any]):
    """Of `starts` jobs with so many GPUs that were told an estimate by this basis so many `held`:
    they started within the band that they were told first."""

    gpus = serializers.CharField(source="sizes")
    basis = serializers.ChoiceField([basis.value for basis in Basis])
    starts = serializers.IntegerField()
    held = serializers.IntegerField()
    share = serializers.FloatField()


class ForecastingSerializer(serializers.Serializer[Any]):
    """The last pass over a cluster: the instant that it is of, jobs that waited, runs ahead, CPU
    seconds."""

    cluster = serializers.CharField(source="cluster.name")
    as_of = serializers.DateTimeField(allow_null=True)
    waiting = serializers.IntegerField()
    runs = serializers.IntegerField()
    cpu_s = serializers.FloatField()


class StartEstimatesSerializer(serializers.Serializer[Any]):
    """How true start estimates were in the last 30 days, and how far they are now."""

    hit_rates = HitRateSerializer(many=True)
    clusters = ForecastingSerializer(many=True)


class StartEstimatesView(View):
    """How often start estimates held in the last 30 days, by size of job and basis, and when they
    were worked out last, for operators."""

    permission_classes = [OperatorsOnly]
    shapes = {"GET": Shape(StartEstimatesSerializer)}

    def get(self, _request: Request) -> Response:
        clusters = Forecasting.objects.select_related("cluster").order_by("cluster__name")
        found = {"hit_rates": hit_rates(), "clusters": clusters}
        return Response(StartEstimatesSerializer(found).data)
