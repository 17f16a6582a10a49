"""Plans that free whole nodes at a future time."""

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
    """An order to free whole nodes between `starts_at` and `ends_at`.

    It is for `count` nodes of a GPU model, or for those that a job (`job`) lacks. The plan is made
    anew at that time. `most_lost_gpu_s`, `most_moves`: the approved limits, in GPU-seconds of lost
    work and in jobs moved. `tried_at`: when the plan was last made; `outcome`: why it was not
    carried out, or how it went. `nodes`, `lost_gpu_s`, `moves`: of the plan that was carried out.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="plan_orders")
    # The name remains if the user is deleted.
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
