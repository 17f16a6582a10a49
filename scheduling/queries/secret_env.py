"""Variables that look like secrets: whose values only those see who could start the job."""

import re
from collections.abc import Iterable, Mapping

from scheduling.models import Job
from tenants.models import User
from tenants.permissions import access_of

HIDDEN = "(hidden)"
_SECRET = re.compile(r"TOKEN|PASSW|PWD|SECRET|KEY|CREDENTIAL", re.IGNORECASE)


def looks_secret(name: str) -> bool:
    return bool(_SECRET.search(name))


def hide_from(viewer: User, jobs: Iterable[Job]) -> None:
    """Mark the jobs whose secrets the viewer does not see: neither their own, nor of a tenant where
    they may submit jobs. Jobs without any cost nothing."""
    found = [job for job in jobs if any(map(looks_secret, _names(job)))]
    if not found:
        return
    access = access_of(viewer)
    for job in found:
        mine = job.user_id is not None and job.user_id == access.user_id
        job.secrets_hidden = not (mine or access.may_submit(job.tenant_id))


def shown_env(job: Job, env: Mapping[str, str]) -> dict[str, str]:
    """The variables of a job as its reader may see them."""
    if not job.secrets_hidden:
        return dict(env)
    return {name: HIDDEN if looks_secret(name) else value for name, value in env.items()}


def _names(job: Job) -> Iterable[str]:
    return (name for row in job.pod_sets.all() for name in row.env)
