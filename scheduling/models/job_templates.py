"""Jobs that a tenant keeps under a name, to begin others with."""

import uuid

from django.conf import settings
from django.db import models

from tenants.models import Tenant


class JobTemplate(models.Model):
    """A job document under a name, for the members of a tenant and of those below it.

    `document` is one as `POST /api/v1/jobs` takes it, without what belongs to one job alone
    (`services.jobs.templates.LEFT_OUT`) and without secrets.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="job_templates")
    name = models.CharField(max_length=63)
    description = models.CharField(max_length=200, blank=True)
    document = models.JSONField()
    # Of somebody who was deleted since, the name.
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    author_name = models.CharField(max_length=150)
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["tenant__name", "name"]
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="template_named")]
