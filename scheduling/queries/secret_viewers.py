"""Who may see the secrets of jobs: users who could start the jobs."""

from collections.abc import Iterable, Mapping
from typing import Any

from scheduling.job_fields.secrets import pod_set_without_secrets
from scheduling.models import Job
from tenants.models import User
from tenants.permissions import access_of

# The fields of a pod set that may contain a secret.
_TEXTS = ("env", "annotations", "command", "init_containers", "sidecars", "probes")


def hide_from(viewer: User, jobs: Iterable[Job]) -> None:
    """Mark the jobs whose secrets the viewer may not see.

    These are neither their own nor of a tenant where they may submit jobs. Own jobs, and jobs
    without fields that may contain a secret, take no query.
    """
    others = [job for job in jobs if job.user_id is None or job.user_id != viewer.pk]
    found = [job for job in others if any(_says_something(row) for row in job.pod_sets.all())]
    if not found:
        return
    access = access_of(viewer)
    for job in found:
        job.secrets_hidden = not access.may_submit(job.tenant_id)


def shown_pod_set(job: Job, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's pod set, as its document or REST has it, as the reader may see it."""
    return pod_set_without_secrets(told) if job.secrets_hidden else dict(told)


def _says_something(row: Any) -> bool:
    return any(getattr(row, name) for name in _TEXTS) or "@" in row.image
