"""Recorded metric samples, counters and GPU time of what may be deleted since, and replays of what
was. Formulas live in `metrics.definitions`."""

import uuid

from django.conf import settings
from django.db import models

from scheduling.models import Cluster


class MetricSample(models.Model):
    """State of one pool (a GPU model of a cluster; "" = all) at one instant, and exact integrals.

    `allocated_milli_s` and `available_milli_s` integrate from the start of recording, so that
    SOR over any window is a ratio of two differences (metrics.md). The samples of the last minutes
    are corrected by what becomes known later; `told_milli_s` is the highest that
    `allocated_milli_s` ever was, which is what a counter may tell.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="samples")
    gpu_model = models.CharField(max_length=63, blank=True)
    at = models.DateTimeField()
    available_milli = models.BigIntegerField()
    allocated_milli = models.BigIntegerField()
    excluded_milli = models.BigIntegerField(default=0)
    nodes = models.PositiveIntegerField()
    fragmented_nodes = models.PositiveIntegerField()
    free_by_node = models.JSONField(default=dict)  # {free GPUs on a node: number of nodes}
    largest_gang_leaf = models.PositiveIntegerField(default=0)
    largest_gang_any = models.PositiveIntegerField(default=0)
    pending_jobs = models.PositiveIntegerField(default=0)
    pending_milli = models.BigIntegerField(default=0)
    allocated_milli_s = models.FloatField(default=0.0)
    available_milli_s = models.FloatField(default=0.0)
    told_milli_s = models.FloatField(default=0.0, db_default=0.0)

    class Meta:
        ordering = ["at"]
        constraints = [
            models.UniqueConstraint(
                fields=["cluster", "gpu_model", "at"], name="one_sample_per_instant"
            )
        ]
        indexes = [models.Index(fields=["cluster", "at"])]  # all pools at one instant


class ThinnedSamples(models.Model):
    """One row: of what was sampled before `until`, one sample of a pool in ten minutes is left."""

    until = models.DateTimeField()


class CounterTotals(models.Model):
    """One row: what `/metrics` counts of the time before `until` (docs/decisions/0016).

    `events`: {cluster id: {event: number}} of events before then. `waits`: {cluster id: {GPU type:
    {size class: {"count", "sum_us", "within": numbers of waits up to each bucket's bound}}}} of
    jobs that ended before then, waiting in all; `first_starts` likewise, until the first start.
    """

    until = models.DateTimeField()
    events = models.JSONField(default=dict)
    waits = models.JSONField(default=dict)
    first_starts = models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))


class UsageDay(models.Model):
    """GPU time of one day in UTC, by cluster, tenant, submitter, GPU model and kind of job.

    Amounts are milli-GPU x milliseconds. Cluster, tenant and submitter stand with the name that
    they had then, for the row outlives them; without a submitter, `user_id` is null.
    """

    day = models.DateField(db_index=True)
    cluster_id = models.BigIntegerField()
    cluster_name = models.CharField(max_length=63)
    tenant_id = models.BigIntegerField()
    tenant_name = models.CharField(max_length=63)
    user_id = models.BigIntegerField(null=True)
    user_name = models.CharField(max_length=150, blank=True)
    gpu_model = models.CharField(max_length=63)
    kind = models.CharField(max_length=16)
    held = models.BigIntegerField()
    lost = models.BigIntegerField()  # of the work of preempted pods, since they last saved it
    pods = models.PositiveIntegerField()  # that began to hold GPUs


class BorrowedDay(models.Model):
    """GPU time of one day in UTC that a tenant with all below it held of a GPU model above its
    guarantee, in milli-GPU x milliseconds; what is not here is 0 (docs/decisions/0024).

    The tenant stands with the name that it had then, for the row outlives it.
    """

    day = models.DateField(db_index=True)
    tenant_id = models.BigIntegerField()
    tenant_name = models.CharField(max_length=63)
    gpu_model = models.CharField(max_length=63)
    borrowed = models.BigIntegerField()


class GpuUseDay(models.Model):
    """How busy GPUs were on a day in UTC, by cluster, tenant and GPU model: of how much of the GPU
    time that was held it was `measured`, and how much of that the GPUs were `idle`, both in
    milli-GPU x milliseconds (docs/decisions/0092). Names as in UsageDay."""

    day = models.DateField(db_index=True)
    cluster_id = models.BigIntegerField()
    cluster_name = models.CharField(max_length=63)
    tenant_id = models.BigIntegerField()
    tenant_name = models.CharField(max_length=63)
    gpu_model = models.CharField(max_length=63)
    measured = models.BigIntegerField(default=0)
    idle = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["day", "cluster_id", "tenant_id", "gpu_model"], name="one_gpu_use_a_day"
            )
        ]


class GpuUseLedger(models.Model):
    """One row: up to when Prometheus was asked how busy GPUs were, since when, and what was wrong
    the last time ("" = nothing), as of `asked_at`."""

    since = models.DateTimeField()
    until = models.DateTimeField()
    asked_at = models.DateTimeField()
    trouble = models.TextField(blank=True, default="")


class UsageLedger(models.Model):
    """One row: every day before `until` is in UsageDay, except those before `complete_from`, whose
    jobs were deleted already; null = none was. BorrowedDay knows those from `borrowed_from` on;
    null = all."""

    until = models.DateField()
    complete_from = models.DateField(null=True)
    borrowed_from = models.DateField(null=True)


class ReplayState(models.TextChoices):
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Replay(models.Model):
    """What a cluster's history from `since` to `until` would have been under another policy or with
    other nodes (docs/decisions/0025).

    `policy_before` and `policy` are whole policies, as the cluster had it when this was asked for
    and as it is tried. `nodes`: [{"gpu_type", "gpus", "change"}], nodes more or fewer of a shape.
    `progress` in 0..1. `alive_at`: when its process last said that it is at work. `message`: why it
    failed. `result`: `metrics.replays.runs.result_of`, null until it is done.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="replays")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    since = models.DateTimeField()
    until = models.DateTimeField()
    policy_before = models.JSONField()
    policy = models.JSONField()
    nodes = models.JSONField(default=list)
    quotas_before = models.JSONField(default=list)
    quotas = models.JSONField(default=list)
    state = models.CharField(max_length=16, choices=ReplayState.choices, default=ReplayState.QUEUED)
    progress = models.FloatField(default=0.0)
    message = models.TextField(blank=True)
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    alive_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    result = models.JSONField(null=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            # However many workers there are.
            models.UniqueConstraint(
                fields=["state"],
                condition=models.Q(state="RUNNING"),
                name="one_replay_runs_at_a_time",
            )
        ]
        indexes = [models.Index(fields=["-created_at", "-id"])]
