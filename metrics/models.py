"""Metric samples, counters and GPU time of jobs that may since have been deleted, and replays of
the past.

The formulas live in `metrics.definitions`.
"""

import uuid

from django.conf import settings
from django.db import models

from scheduling.models import Cluster


class MetricSample(models.Model):
    """State of one pool (a GPU model of a cluster; "" = all) at one instant, with exact integrals.

    `allocated_milli_s` and `available_milli_s` integrate from the start of recording, so SOR over
    any window is a ratio of two differences (docs/metrics.md). Kant corrects the samples of the
    last minutes by what it learns later. `told_milli_s` is the highest value that
    `allocated_milli_s` ever had: what a counter, which must never fall, may report.
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
        indexes = [models.Index(fields=["cluster", "at"])]  # reads all pools at one instant


class ThinnedSamples(models.Model):
    """One row: before `until`, only one sample per pool and ten minutes is left."""

    until = models.DateTimeField()


class CounterTotals(models.Model):
    """One row: what `/metrics` counted before `until` (docs/decisions/0016).

    `events`: {cluster id: {event: number}}. `waits`: {cluster id: {GPU type: {size class: {"count",
    "sum_us", "within": numbers of waits up to each bucket's bound}}}}, the total waits of jobs that
    ended before then. `first_starts`: the same for waits until the first start.
    """

    until = models.DateTimeField()
    events = models.JSONField(default=dict)
    waits = models.JSONField(default=dict)
    first_starts = models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))


class UsageDay(models.Model):
    """GPU time of one day in UTC, by cluster, tenant, submitter, GPU model and kind of job.

    Amounts are milli-GPU x milliseconds. The row keeps the names that cluster, tenant and submitter
    had then, because it outlives them; without a submitter, `user_id` is null.
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
    lost = models.BigIntegerField()  # work that preempted pods lost since they last saved it
    pods = models.PositiveIntegerField()  # number of pods that began to hold GPUs


class BorrowedDay(models.Model):
    """GPU time of one day in UTC that a tenant, with all below it, held of a GPU model above its
    guarantee.

    In milli-GPU x milliseconds; a missing row means 0 (docs/decisions/0024). The row keeps the name
    that the tenant had then, because it outlives the tenant.
    """

    day = models.DateField(db_index=True)
    tenant_id = models.BigIntegerField()
    tenant_name = models.CharField(max_length=63)
    gpu_model = models.CharField(max_length=63)
    borrowed = models.BigIntegerField()


class GpuUseDay(models.Model):
    """How busy GPUs were on a day in UTC, by cluster, tenant and GPU model (docs/decisions/0092).

    `measured`: the part of the held GPU time for which there is a measurement; `idle`: the part of
    that in which nothing ran on the GPUs. Both in milli-GPU x milliseconds. Names as in UsageDay.
    """

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
    """One row: from when and up to when Kant has asked Prometheus how busy GPUs were, and what went
    wrong the last time ("" = nothing), as of `asked_at`."""

    since = models.DateTimeField()
    until = models.DateTimeField()
    asked_at = models.DateTimeField()
    trouble = models.TextField(blank=True, default="")


class UsageLedger(models.Model):
    """One row: every day before `until` is in UsageDay, except days before `complete_from`, whose
    jobs had been deleted already (null = there are none). BorrowedDay has the days from
    `borrowed_from` on (null = all)."""

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

    `policy_before` and `policy` are whole policies: the cluster's own when the replay was
    requested, and the one to try. `nodes`: [{"gpu_type", "gpus", "change"}], nodes of a shape to
    add or remove. `progress` in 0..1. `alive_at`: the last sign of life of its process. `message`:
    why it failed. `result`: see `metrics.replays.results.result_of`; null until it is done.
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
            # At most one replay runs, however many workers there are.
            models.UniqueConstraint(
                fields=["state"],
                condition=models.Q(state="RUNNING"),
                name="one_replay_runs_at_a_time",
            )
        ]
        indexes = [models.Index(fields=["-created_at", "-id"])]
