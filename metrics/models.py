"""Recorded metric samples, and counters of what may be deleted since. Formulas live in
`metrics.definitions`."""

from django.db import models

from scheduling.models import Cluster


class MetricSample(models.Model):
    """State of one pool (a GPU model of a cluster; "" = all) at one instant, and exact integrals.

    `allocated_milli_s` and `available_milli_s` integrate from the start of recording, so that
    SOR over any window is a ratio of two differences (metrics.md).
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

    class Meta:
        ordering = ["at"]
        constraints = [
            models.UniqueConstraint(
                fields=["cluster", "gpu_model", "at"], name="one_sample_per_instant"
            )
        ]


class CounterTotals(models.Model):
    """One row: what `/metrics` counts of the time before `until` (docs/decisions/0016).

    `events`: {cluster id: {event: number}} of events before then. `waits`: {size class: {"count",
    "sum_us", "within": numbers of waits up to each bucket's bound}} of jobs that ended before then.
    """

    until = models.DateTimeField()
    events = models.JSONField(default=dict)
    waits = models.JSONField(default=dict)
