"""One act on many jobs that somebody chose, done or refused for each of them."""

import uuid
from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from scheduling.models import Job
from scheduling.queries.selectors import visible_jobs
from scheduling.services.jobs.changes import change_job, hold_job, release_job
from scheduling.services.jobs.submit import cancel_job
from tenants.errors import DomainError, Invalid, NotFound
from tenants.models import User

MOST_AT_ONCE = 500


class JobAct(StrEnum):
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    CHANGE = "change"


@dataclass(frozen=True, slots=True)
class Acted:
    """What became of one: `before` and `after` it, both None where there is none that the user may
    see; `refused`: why nothing was done, None = it was done."""

    id: uuid.UUID
    before: Job | None = None
    after: Job | None = None
    refused: DomainError | None = None


def act_on_jobs(
    actor: User,
    ids: Collection[uuid.UUID],
    act: JobAct,
    changes: Mapping[str, Any] | None = None,
    *,
    dry_run: bool = False,
) -> list[Acted]:
    """Do it to each of the jobs, in their order; a job that refuses stops no other. `changes`: for
    CHANGE, as `change_job` takes them.

    Raises Invalid naming `ids` where there are none or too many of them, and naming `changes`
    where they do not belong to the act.
    """
    ids = list(dict.fromkeys(ids))
    if not 1 <= len(ids) <= MOST_AT_ONCE:
        raise Invalid.field("ids", f"Name 1 to {MOST_AT_ONCE} jobs; these are {len(ids):,}.")
    if (act == JobAct.CHANGE) != bool(changes):
        text = f"Only {JobAct.CHANGE} takes changes, and it needs some, e.g. a priority."
        raise Invalid.field("changes", text)
    jobs = visible_jobs(actor).in_bulk(ids)
    return [_acted(actor, pk, jobs.get(pk), act, changes or {}, dry_run) for pk in ids]


def _acted(
    actor: User,
    pk: uuid.UUID,
    job: Job | None,
    act: JobAct,
    changes: Mapping[str, Any],
    dry_run: bool,
) -> Acted:
    if job is None:
        return Acted(pk, refused=NotFound(f"There is no job {pk} that you may see."))
    before = copy(job)
    try:
        match act:
            case JobAct.CANCEL:
                after = cancel_job(actor, job, dry_run=dry_run)
            case JobAct.HOLD:
                after = hold_job(actor, job, dry_run=dry_run)
            case JobAct.RELEASE:
                after = release_job(actor, job, dry_run=dry_run)
            case JobAct.CHANGE:
                after = change_job(actor, job, changes, dry_run=dry_run)
    except DomainError as error:
        return Acted(pk, before, before, error)
    return Acted(pk, before, after)
