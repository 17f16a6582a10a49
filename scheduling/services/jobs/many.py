"""One act on many chosen jobs, done or refused for each of them."""

import uuid
from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from scheduling.models import Job
from scheduling.queries.selectors import jobs_seen_with, no_such_job, what_is_gone
from scheduling.services.jobs.changes import change_job, hold_job, release_job
from scheduling.services.jobs.submit import cancel_job
from tenants.errors import DomainError, Invalid
from tenants.models import User
from tenants.permissions import Access, access_of

MOST_AT_ONCE = 500


class JobAct(StrEnum):
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    CHANGE = "change"


@dataclass(frozen=True, slots=True)
class Acted:
    """What became of one job: `before` and `after` the act.

    Both are None if the user may see no such job. `refused`: why nothing was done, None = it was
    done.
    """

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
    """Do the act to each of the jobs, in order; a job that refuses does not stop the others.

    `changes`: for CHANGE, as for `change_job`. Raises Invalid naming `ids` if there are none or too
    many, and naming `changes` if they do not belong to the act.
    """
    ids = list(dict.fromkeys(ids))
    if not 1 <= len(ids) <= MOST_AT_ONCE:
        raise Invalid.field("ids", f"Name 1 to {MOST_AT_ONCE} jobs; you named {len(ids):,}.")
    if (act == JobAct.CHANGE) != bool(changes):
        text = f"Only {JobAct.CHANGE} takes changes, and it needs some, e.g. a priority."
        raise Invalid.field("changes", text)
    access = access_of(actor)
    jobs = jobs_seen_with(access).in_bulk(ids)
    do = _doing(actor, access, act, changes or {}, dry_run)
    gone = what_is_gone() if len(jobs) < len(ids) else ""
    return [
        _acted(pk, jobs[pk], do) if pk in jobs else Acted(pk, refused=no_such_job(pk, gone))
        for pk in ids
    ]


def _doing(
    actor: User, access: Access, act: JobAct, changes: Mapping[str, Any], dry_run: bool
) -> Callable[[Job], Job]:
    """Return the function that does the act to one job."""
    how: dict[str, Any] = {"access": access, "dry_run": dry_run}
    match act:
        case JobAct.CANCEL:
            return lambda job: cancel_job(actor, job, **how)
        case JobAct.HOLD:
            return lambda job: hold_job(actor, job, **how)
        case JobAct.RELEASE:
            return lambda job: release_job(actor, job, **how)
        case JobAct.CHANGE:
            return lambda job: change_job(actor, job, changes, **how)


def _acted(pk: uuid.UUID, job: Job, do: Callable[[Job], Job]) -> Acted:
    before = copy(job)
    try:
        return Acted(pk, before, do(job))
    except DomainError as error:
        return Acted(pk, before, before, error)
