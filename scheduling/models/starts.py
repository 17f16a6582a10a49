"""When waiting jobs are expected to start, and who works that out."""

from django.db import models

from scheduling.models.clusters import Cluster
from scheduling.models.jobs import Job
from scheduling.models.shaped import ShapedField


class StartEstimate(models.Model):
    """What was told last of a job that waits, and first (`first_…`), against which its start is
    held. Without a band `none` says why, and `earliest` before when nine in ten such jobs do not
    start, where that is known. `first_runs`: the band as the runs ahead had it before it was
    calibrated, p10, p50, p90 in seconds since the epoch."""

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
    # Its first start after that.
    started_at = models.DateTimeField(null=True, db_index=True)

    class Meta:
        ordering = ["job"]


class Forecasting(models.Model):
    """Who forecasts for a cluster, and how far it is. `holder`: a process that is taken for dead
    when it has been silent since `alive_at`. Of the last pass: the instant that it is of, jobs that
    waited, runs ahead of each scope, CPU seconds."""

    cluster = models.OneToOneField(
        Cluster, on_delete=models.CASCADE, primary_key=True, related_name="forecasting"
    )
    holder = models.CharField(max_length=64, blank=True)
    alive_at = models.DateTimeField(null=True)
    as_of = models.DateTimeField(null=True)
    waiting = models.PositiveIntegerField(default=0)
    runs = models.PositiveIntegerField(default=0)
    cpu_s = models.FloatField(default=0.0)
