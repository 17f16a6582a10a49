"""What an act on jobs would do to all jobs: who starts, who stops, whose wait changes."""

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduling.engine.deltas import Delta, JobChanged, JobEnded, JobRestored, JobSubmitted
from scheduling.engine.states import OPEN
from scheduling.models import Cluster, Job
from scheduling.queries.effects import change_effects
from scheduling.queries.explain import policy_in_use
from scheduling.queries.known import jobs_of
from scheduling.queries.selectors import JobArray, visible_jobs
from scheduling.services.jobs.many import Acted, JobAct, act_on_jobs
from scheduling.simulator.forecast.effects import OfJob
from tenants.database.chunks import chunks
from tenants.effects import Effects
from tenants.models import User
from tenants.services.transactions import unit_of_work


@dataclass(frozen=True, slots=True)
class ActTried:
    """What would become of each of the jobs, in order, and the effects on all jobs."""

    acted: Sequence[Acted]
    effects: Effects


def try_on_jobs(
    actor: User,
    ids: Collection[uuid.UUID],
    act: JobAct,
    changes: Mapping[str, Any] | None = None,
) -> ActTried:
    """Rehearse `act_on_jobs`; nothing is changed. Raises the same errors."""
    with unit_of_work(dry_run=True):
        acted = act_on_jobs(actor, ids, act, changes)
        jobs = [one.after for one in acted if one.after and one.refused is None]
        then = _told(jobs)
    clusters = Cluster.objects.filter(is_active=True, pk__in={job.cluster_id for job in jobs})
    return ActTried(acted, change_effects(actor, clusters.order_by("name"), JobsChange(then)))


@dataclass(frozen=True, slots=True)
class JobTried:
    """What would become of a job, and the effects on all jobs."""

    job: Job
    effects: Effects


def try_on_job(
    actor: User, job_id: uuid.UUID, act: JobAct, changes: Mapping[str, Any] | None = None
) -> JobTried:
    """Rehearse an act on one job like `try_on_jobs`; also raises what refuses it."""
    tried = try_on_jobs(actor, [job_id], act, changes)
    (one,) = tried.acted
    if one.refused is not None:
        raise one.refused
    assert one.after is not None
    return JobTried(one.after, tried.effects)


@dataclass(frozen=True, slots=True)
class ArrayTried:
    """What would become of an array, and the effects on all jobs."""

    array: JobArray
    effects: Effects


def try_on_array(actor: User, array_id: uuid.UUID, act: Callable[[], JobArray]) -> ArrayTried:
    """Rehearse an act on an array; nothing is changed. Raises the same errors."""
    with unit_of_work(dry_run=True):
        members = visible_jobs(actor).filter(array_id=array_id, state__in=list(OPEN))
        ids = list(members.order_by().values_list("pk", flat=True))
        array = act()
        jobs = [job for some in chunks(ids) for job in Job.objects.filter(pk__in=some)]
        then = _told(jobs)
    clusters = Cluster.objects.filter(is_active=True, pk__in={job.cluster_id for job in jobs})
    return ArrayTried(array, change_effects(actor, clusters.order_by("name"), JobsChange(then)))


def _told(jobs: Sequence[Job]) -> dict[str, JobSubmitted | None]:
    """Return what a scheduler would be told of these jobs; None = they are over."""
    found: dict[str, JobSubmitted | None] = {str(job.pk): None for job in jobs}
    by_scope: dict[tuple[int, str], list[str]] = {}
    for job in jobs:
        if job.state in OPEN:
            by_scope.setdefault((job.cluster_id, job.scope), []).append(str(job.pk))
    for (cluster_id, scope), ids in by_scope.items():
        for one in jobs_of(cluster_id, scope, ids, policy_in_use(cluster_id)):
            waits = (fact for fact in one.facts if isinstance(fact, JobSubmitted))
            found[one.request.id] = next(waits, JobSubmitted(one.request))
    return found


@dataclass(frozen=True, slots=True)
class JobsChange:
    """These jobs are over (None), or wait or run as `then` says."""

    then: Mapping[str, JobSubmitted | None]

    def __call__(self, facts: Sequence[Delta]) -> list[OfJob]:
        found: list[OfJob] = []
        for fact in facts:
            if not isinstance(fact, JobSubmitted | JobRestored) or fact.job.id not in self.then:
                continue
            told = self.then[fact.job.id]
            if told is None:
                found.append(JobEnded(fact.job.id, succeeded=False))
            elif isinstance(fact, JobRestored):
                found.append(JobChanged(told.job))
            elif told != fact:
                found.append(told)
        return found
