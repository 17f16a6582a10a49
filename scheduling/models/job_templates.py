"""Jobs that a tenant keeps under a name as templates for others."""

import uuid

from django.conf import settings
from django.db import models

from tenants.models import Tenant


class JobTemplate(models.Model):
    """A job document under a name, for the members of a tenant and of the tenants below it.

    `document` is one that `POST /api/v1/jobs` takes, without secrets and without what belongs to a
    single job (`services.jobs.templates.LEFT_OUT`).
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="job_templates")
    name = models.CharField(max_length=63)
    description = models.CharField(max_length=200, blank=True)
    document = models.JSONField()
    # The name remains if the user is deleted.
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    author_name = models.CharField(max_length=150)
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["tenant__name", "name"]
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="template_named")]
