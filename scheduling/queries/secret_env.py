"""Variables that look like secrets: whose values only those see who could start the job."""

import re
from collections.abc import Iterable, Mapping

from scheduling.models import Job
from tenants.models import User
from tenants.permissions import access_of

HIDDEN = "(hidden)"
_SECRET_NAME = re.compile(
    r"TOKEN|PASSW|PASSPHRASE|PWD|SECRET|KEY|CRED|PRIVATE|COOKIE|WEBHOOK|AUTHORIZATION"
    # Words, of which others begin or end so, too: PATH, AUTHOR, BYPASS.
    r"|(?<![A-Z])(PGPASS|PASS|PW|PAT|AUTH|DSN|SAS|JWT)(?![A-Z])",
    re.IGNORECASE,
)
# An address with a password in it, a private key, the header that signs in.
_SECRET_VALUE = re.compile(
    r"://[^\s/?#@]*:[^\s/?#@]+@|-----BEGIN [A-Z ]*PRIVATE KEY|\b(?:Bearer|Basic) \S", re.IGNORECASE
)


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable does, by its name or by what it holds."""
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def hide_from(viewer: User, jobs: Iterable[Job]) -> None:
    """Mark the jobs whose secrets the viewer does not see: neither their own, nor of a tenant where
    they may submit jobs. Jobs without any cost nothing."""
    found = [job for job in jobs if any(looks_secret(*each) for each in _variables(job))]
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
    return {n: HIDDEN if looks_secret(n, value) else value for n, value in env.items()}


def _variables(job: Job) -> Iterable[tuple[str, str]]:
    return (each for row in job.pod_sets.all() for each in row.env.items())
