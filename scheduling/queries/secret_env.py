"""Variables that look like secrets: whose values only those see who could start the job."""

import re
from collections.abc import Iterable, Mapping

from scheduling.models import Job
from tenants.models import User
from tenants.permissions import access_of

HIDDEN = "(hidden)"
_SECRET_NAME = re.compile(
    r"TOKEN|PASSW|PASSPHRASE|PWD|SECRET|KEY|CRED|PRIVATE|COOKIE|WEBHOOK|AUTHORIZATION|BEARER"
    r"|CONN(ECTION)?_?STR"
    # Words, of which others begin or end so, too: PATH, AUTHOR, BYPASS.
    r"|(?<![A-Z])(PW|PAT|AUTH|DSN|SAS|JWT|OTP)(?![A-Z])"
    r"|(?<!BY)(?<!COM)(?<!SUR)(?<!TRES)PASS(?![A-Z])",
    re.IGNORECASE,
)
_NAMED = r"(?:\w{0,30}[_-])?(?:pass(?:word|wd|phrase)?|pwd|secret|(?:api|access|account)[_-]?key)"
_OF_TOKENS = r"(?:(?:access|auth|api|id|refresh)[_-]?)?token"
_SECRET_VALUE = re.compile(
    # An address with a password in it, a private key, the header that signs in.
    r"://[^\s/?#@:]*:[^\s/?#@]+@|-----BEGIN [A-Z ]*PRIVATE KEY|\b(?:Bearer|Basic) \S"
    # --password x, ?token=x, {"api_key": "x"}; but neither --pad-token x nor tokens=8.
    rf"|(?:^|[\s?&;,({{\"'])(?:--?)?(?:{_NAMED}|{_OF_TOKENS})[\"']?\s*[=:]\s*\S"
    rf"|(?:^|\s)--?(?:{_NAMED}|{_OF_TOKENS})\s+[^\s-]"
    # What services give out, by how it begins.
    r"|\b(?:gh[oprsu]_|github_pat_|glpat-|hf_|sk-|xox[a-z]-|AKIA|ASIA|AIza|eyJ)[\w.-]{16}"
    r"|\bhooks\.slack\.com/services/\S",
    re.IGNORECASE,
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
