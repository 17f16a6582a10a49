"""REST for the accuracy of start estimates."""

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
    """The hit rate of estimates for jobs of a size, made on the same basis: of `starts` jobs,
    `held` started within the first band that they were given."""

    gpus = serializers.CharField(source="sizes")
    basis = serializers.ChoiceField([basis.value for basis in Basis])
    starts = serializers.IntegerField()
    held = serializers.IntegerField()
    share = serializers.FloatField()


class ForecastingSerializer(serializers.Serializer[Any]):
    """The last forecast of a cluster: the instant it is for, the number of waiting jobs, the
    simulated runs, CPU seconds."""

    cluster = serializers.CharField(source="cluster.name")
    as_of = serializers.DateTimeField(allow_null=True)
    waiting = serializers.IntegerField()
    runs = serializers.IntegerField()
    cpu_s = serializers.FloatField()


class StartEstimatesSerializer(serializers.Serializer[Any]):
    """The accuracy of start estimates over the last 30 days, and the state of the forecasts."""

    hit_rates = HitRateSerializer(many=True)
    clusters = ForecastingSerializer(many=True)


class StartEstimatesView(View):
    """How often start estimates were right in the last 30 days, by job size and basis, and when
    they were last computed. For operators."""

    permission_classes = [OperatorsOnly]
    shapes = {"GET": Shape(StartEstimatesSerializer)}

    def get(self, _request: Request) -> Response:
        clusters = Forecasting.objects.select_related("cluster").order_by("cluster__name")
        found = {"hit_rates": hit_rates(), "clusters": clusters}
        return Response(StartEstimatesSerializer(found).data)
