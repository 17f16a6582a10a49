"""Django's admin shows jobs and clusters; only the services change them."""

from typing import Any

from django.contrib import admin
from django.db import models

from scheduling.models import Cluster, ClusterPolicy, Job, NodeRecord, SchedulerLease
from tenants.admin import ReadOnlyAdmin

COLUMNS: dict[type[models.Model], tuple[str, ...]] = {
    Cluster: ("name", "title", "is_active", "connected", "last_cycle_at"),
    ClusterPolicy: ("cluster", "version", "updated_at"),
    SchedulerLease: ("cluster", "scope", "holder", "token", "expires_at"),
    NodeRecord: ("name", "cluster", "scope", "gpu_model", "gpus", "healthy_gpus", "schedulable"),
    Job: ("name", "tenant", "cluster", "state", "reason", "submitted_at"),
}
for model, columns in COLUMNS.items():
    options: dict[str, Any] = {"list_display": columns}
    admin.site.register(model, type(f"{model.__name__}Admin", (ReadOnlyAdmin,), options))
