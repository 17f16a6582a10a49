"""When waiting jobs are expected to start, and which process works that out."""

from django.db import models

from scheduling.models.clusters import Cluster
from scheduling.models.jobs import Job
from scheduling.models.shaped import ShapedField


class StartEstimate(models.Model):
    """The latest and the first (`first_…`) forecast for a waiting job.

    The job's start is compared with the first. Without a band, `none` says why, and `earliest`, if
    known, is the time before which nine in ten such jobs do not start. `first_runs`: p10, p50, p90
    of the first forecast before calibration, in seconds since the epoch.
    """

    job = models.OneToOneField(
        Job, on_delete=models.CASCADE, primary_key=True, related_name="estimate"
    )
    p10 = models.DateTimeField(null=True)
    p50 = models.DateTimeField(null=True)
    p90 = models.DateTimeField(null=True)
    earliest = models.DateTimeField(null=True)
    basis = models.CharField(max_length=16, blank=True)
    text = models.TextField(blank=True)
    none = models.TextField(blank=True)
    as_of = models.DateTimeField()
    first_p10 = models.DateTimeField(null=True)
    first_p90 = models.DateTimeField(null=True)
    first_basis = models.CharField(max_length=16, blank=True)
    first_as_of = models.DateTimeField(null=True)
    first_runs = ShapedField(shape=list[float], default=list, blank=True)
    # Its first start after that forecast.
    started_at = models.DateTimeField(null=True, db_index=True)

    class Meta:
        ordering = ["job"]


class Forecasting(models.Model):
    """The process that forecasts for a cluster, and its progress.

    `holder`: the process; it counts as dead if `alive_at` is too long ago. Of the last pass:
    `as_of`, the time that it is about; `waiting`: number of waiting jobs; `runs`: simulated runs
    per scope; `cpu_s`: CPU seconds.
    """

    cluster = models.OneToOneField(
        Cluster, on_delete=models.CASCADE, primary_key=True, related_name="forecasting"
    )
    holder = models.CharField(max_length=64, blank=True)
    alive_at = models.DateTimeField(null=True)
    as_of = models.DateTimeField(null=True)
    waiting = models.PositiveIntegerField(default=0)
    runs = models.PositiveIntegerField(default=0)
    cpu_s = models.FloatField(default=0.0)
