"""Plans that free whole nodes at a time that is to come."""

import uuid

from django.conf import settings
from django.db import models

from scheduling.models.clusters import Cluster


class PlanOrderState(models.TextChoices):
    SCHEDULED = "scheduled", "Scheduled"
    MOVING = "moving", "Moving jobs"
    DONE = "done", "Done"
    FAILED = "failed", "Not done"
    CANCELLED = "cancelled", "Called off"


class PlanOrder(models.Model):
    """Whole nodes that are to be freed between `starts_at` and `ends_at`: `count` of a GPU model,
    or what a job (`job`) lacks.

    The plan is made anew then. `most_lost_gpu_s`, `most_moves`: what was approved of it, in
    GPU-seconds of work and in jobs that move. `tried_at`: when it was made last; `outcome`: why it
    was not carried out, or how it went. `nodes`, `lost_gpu_s`, `moves`: of the plan that was.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="plan_orders")
    # Of somebody who was deleted since, the name.
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    author_name = models.CharField(max_length=150)
    reason = models.CharField(max_length=2000)
    gpu_model = models.CharField(max_length=63, blank=True)
    count = models.PositiveIntegerField(default=0)
    job = models.UUIDField(null=True)
    most_lost_gpu_s = models.FloatField()
    most_moves = models.PositiveIntegerField()
    state = models.CharField(
        max_length=16, choices=PlanOrderState.choices, default=PlanOrderState.SCHEDULED
    )
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    tried_at = models.DateTimeField(null=True)
    applied_at = models.DateTimeField(null=True)
    over_at = models.DateTimeField(null=True, db_index=True)
    outcome = models.TextField(blank=True)
    nodes = models.JSONField(default=list)
    lost_gpu_s = models.FloatField(default=0.0)
    moves = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [models.Index(fields=["state", "starts_at"], name="plans_due")]
