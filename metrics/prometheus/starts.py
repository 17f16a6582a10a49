"""Metrics of start estimates: their progress, and how often they were right."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from scheduling.models import Forecasting
from scheduling.queries.starts import hit_rates

OF_ESTIMATES = ["gpus", "basis"]


def start_families() -> Iterator[Metric]:
    """Yield metrics of the jobs of the last 30 days by size class and basis, and of each cluster's
    last forecast."""
    told = GaugeMetricFamily(
        "kant_start_estimates",
        "Jobs that started in the last 30 days and were told an estimate before",
        labels=OF_ESTIMATES,
    )
    held = GaugeMetricFamily(
        "kant_start_estimates_held",
        "Those of them that started within the band that they were told first",
        labels=OF_ESTIMATES,
    )
    for rate in hit_rates():
        told.add_metric([rate.sizes, rate.basis], rate.starts)
        held.add_metric([rate.sizes, rate.basis], rate.held)
    as_of = GaugeMetricFamily(
        "kant_forecast_as_of_seconds",
        "Unix time of the instant that the start estimates of a cluster are of",
        labels=["cluster"],
    )
    cpu = GaugeMetricFamily(
        "kant_forecast_cpu_seconds",
        "CPU time of the last pass of the forecaster over a cluster",
        labels=["cluster"],
    )
    for row in Forecasting.objects.filter(as_of__isnull=False).select_related("cluster"):
        assert row.as_of is not None
        as_of.add_metric([row.cluster.name], row.as_of.timestamp())
        cpu.add_metric([row.cluster.name], row.cpu_s)
    yield from (told, held, as_of, cpu)
