"""Who sees the secrets of jobs: who could start them."""

from collections.abc import Iterable, Mapping
from typing import Any

from scheduling.job_fields.secrets import pod_set_without_secrets
from scheduling.models import Job
from tenants.models import User
from tenants.permissions import access_of

# The fields of a pod set in which a secret may stand.
_TEXTS = ("env", "annotations", "command", "init_containers", "sidecars", "probes")


def hide_from(viewer: User, jobs: Iterable[Job]) -> None:
    """Mark the jobs whose secrets the viewer does not see: neither their own, nor of a tenant where
    they may submit jobs. Jobs that say nothing in which one may stand cost nothing."""
    found = [job for job in jobs if any(_says_something(row) for row in job.pod_sets.all())]
    if not found:
        return
    access = access_of(viewer)
    for job in found:
        mine = job.user_id is not None and job.user_id == access.user_id
        job.secrets_hidden = not (mine or access.may_submit(job.tenant_id))


def shown_pod_set(job: Job, told: Mapping[str, Any]) -> dict[str, Any]:
    """A pod set of a job, as its document or REST tells it, as its reader may see it."""
    return pod_set_without_secrets(told) if job.secrets_hidden else dict(told)


def _says_something(row: Any) -> bool:
    return any(getattr(row, name) for name in _TEXTS) or "@" in row.image
