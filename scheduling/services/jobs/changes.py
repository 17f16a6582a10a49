"""Changes of a job: hold it, release it, or change what it asks for while it waits.

Of a running job, only how long it may run or is said to run, and how many pods it has.
`services.jobs.array_changes` does the same for all waiting jobs of an array.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import F, prefetch_related_objects
from django.utils import timezone

from scheduling.engine.states import HOLDING, WAITING, JobEventKind, JobState
from scheduling.job_fields.definition import JobDocument
from scheduling.job_fields.faults import Faults
from scheduling.job_fields.nouns import check_values
from scheduling.job_fields.parts import fields_of
from scheduling.models import Cluster, Job, JobEvent
from scheduling.queries.selectors import no_such_job
from scheduling.queries.wording import in_state
from scheduling.services.common.doorbell import ring_after_commit
from scheduling.services.common.lease import hold_all
from scheduling.services.jobs.dependencies import awaited_by, refuse_bad_dependencies, refuse_cycle
from scheduling.services.jobs.permitted import refuse_priority
from scheduling.services.jobs.priority_limits import refuse_too_high
from scheduling.services.jobs.resizing import SIZES, Resize
from scheduling.services.queues.entry import (
    LOOKED_AT,
    Submitter,
    queue_to_enter,
    refuse_unfit,
    take_in,
)
from tenants.errors import Conflict, Invalid, NotAllowed
from tenants.models import Queue, Tenant, User
from tenants.permissions import Access, access_of
from tenants.services.transactions import unit_of_work
from tenants.tree import Tree

# What may be changed, and its column.
CHANGES = {name: f for name, f in fields_of(JobDocument).items() if f.change}
COLUMNS = {name: field.column for name, field in CHANGES.items()}
DEPENDENCIES = ("after", "after_ok")
WHILE_IT_RUNS = tuple(n for n, f in CHANGES.items() if f.change and f.change.running)
SIZED = ("gpu_milli", "first_pods", "first_gpu_milli")  # follow from the counts of its pods


def hold_job(actor: User, job: Job, *, access: Access | None = None, dry_run: bool = False) -> Job:
    """Keep a waiting job from being started until it is released; it keeps its place in the queue.

    `access`: the rights of the actor, if read before. Raises NotFound, NotAllowed, and Conflict if
    it does not wait or is held already.
    """
    _may_change(access or access_of(actor), job)
    with unit_of_work(dry_run):
        return _changed(actor, job, JobEventKind.HELD, {"held": True})


def release_job(
    actor: User, job: Job, *, access: Access | None = None, dry_run: bool = False
) -> Job:
    """Let a held job be started again. `access` and errors are those of `hold_job`."""
    _may_change(access or access_of(actor), job)
    with unit_of_work(dry_run):
        return _changed(actor, job, JobEventKind.RELEASED, {"held": False})


def change_job(
    actor: User,
    job: Job,
    changes: Mapping[str, Any],
    *,
    access: Access | None = None,
    dry_run: bool = False,
) -> Job:
    """Change what a job asks for.

    `changes` has names of COLUMNS (None = unset), and `pod_sets` as for `Resize`. Of a running job,
    only those in WHILE_IT_RUNS and `pod_sets` may change. `access` as for `hold_job`. Raises
    NotFound, NotAllowed, Invalid naming each field, Conflict if it is too late for a change.
    """
    access = access or access_of(actor)
    _may_change(access, job)
    if not changes:
        raise nothing_to_change(*COLUMNS, "pod_sets")
    columns = columns_of({name: v for name, v in changes.items() if name != "pod_sets"})
    check_priority(job, columns)
    queue = queue_after(Submitter(actor, access), job.tenant, [vars(job)], columns)
    with unit_of_work(dry_run):
        check_dependencies(access, job.cluster_id, columns, (str(job.pk),))
        if queue is not None:
            take_in(queue, 1)
        return _changed(actor, job, JobEventKind.CHANGED, columns, changes.get("pod_sets", ()))


def nothing_to_change(*names: str) -> Invalid:
    return Invalid(f"There is nothing to change. Give some of {', '.join(names)}.")


def columns_of(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that `changes` set. Raises Invalid naming each field that is wrong."""
    faults = Faults()
    given = {name: v for name, v in changes.items() if v is not None}
    check_values(JobDocument, given, (), faults)
    faults.raise_if_any()
    return {
        COLUMNS[name]: None if value is None else CHANGES[name].kind.stored(value)
        for name, value in changes.items()
    }


def check_priority(job: Job, columns: Mapping[str, Any]) -> None:
    """Raise Invalid if the columns ask for a higher priority than the tenant or cluster allows."""
    if "priority" in columns:
        refuse_too_high(Tree(), job.tenant_id, columns["priority"])
        refuse_priority(job.cluster.job_rules, columns["priority"])


def queue_after(
    who: Submitter | None,
    tenant: Tenant,
    jobs: Collection[Mapping[str, Any]],
    columns: Mapping[str, Any],
) -> Queue | None:
    """Return the queue into which the columns move some of the jobs; None = all stay.

    `jobs` are given by their queue and LOOKED_AT. Raises Invalid if the new queue, or the one they
    stay in, does not allow what they ask for then, and whatever `queue_to_enter` raises.
    """
    asked = {name: columns[name] for name in LOOKED_AT if name in columns}
    moved = [job for job in jobs if columns.get("queue", job["queue"]) != job["queue"]]
    if moved:
        queue = queue_to_enter(who, tenant, columns["queue"])
        for job in moved:
            refuse_unfit(queue, {name: job[name] for name in LOOKED_AT} | asked)
        return queue
    for name in {job["queue"] for job in jobs} if asked else ():
        if stays := Queue.objects.filter(tenant=tenant, name=name).first():
            refuse_unfit(stays, asked)
    return None


def check_dependencies(
    access: Access, cluster_id: int, columns: Mapping[str, Any], jobs: Collection[str]
) -> None:
    """Raise Invalid if `jobs` may not wait for what the columns name.

    Raises Conflict if the jobs are not all on the cluster.
    """
    wanted = {name: columns[name] for name in DEPENDENCIES if name in columns}
    if any(wanted.values()):
        hold_all(cluster_id)  # no job moves to another cluster meanwhile
        if Job.objects.filter(id__in=jobs).exclude(cluster=cluster_id).exists():
            raise Conflict(
                "A job can only wait for jobs on its own cluster. Some of these jobs are on "
                "different clusters, or one has just moved. Change the jobs one by one."
            )
        # Two changes at once could close a cycle; this makes them take turns.
        cluster = Cluster.objects.select_for_update().get(id=cluster_id)
        refuse_bad_dependencies(awaited_by(access, [wanted]), cluster, wanted)
        refuse_cycle(cluster_id, jobs, wanted)


def _may_change(access: Access, job: Job) -> None:
    if not access.may_view(job.tenant_id):
        raise no_such_job(job.pk)
    if not access.may_cancel(job.tenant_id, job.user_id):
        raise NotAllowed(
            "Only the user who submitted this job, a tenant admin or an operator may change it."
        )


def _changed(
    actor: User,
    job: Job,
    kind: JobEventKind,
    columns: Mapping[str, Any],
    sizes: Sequence[Mapping[str, Any]] = (),
) -> Job:
    """Make one guarded update; read again as often as the scheduler wrote first."""
    if sizes:  # two resizes of a running job take turns
        Job.objects.select_for_update().get(pk=job.pk)
    while True:
        facts = ["state", "version", "held", "pod_hold", "admitted_at", *SIZED]
        job.refresh_from_db(fields=[*facts, *columns])
        _refuse_change(job, kind, columns)
        now = timezone.now()
        _refuse_past_limit(job, columns.get("run_limit_s"), now)
        resize = Resize(job, sizes)
        if sizes and not (resize or columns):
            return job  # it already has that many
        changed = _described(job, columns) if kind == JobEventKind.CHANGED else ""
        message = "; ".join(filter(None, (resize.message, changed)))
        guarded = Job.objects.filter(id=job.pk, version=job.version)
        # A step of the scheduler does not depend on the job's run limit or number of pods, so
        # neither blocks the other.
        runs = JobState(job.state) in HOLDING
        values = {**columns, **resize.columns}
        if guarded.update(version=F("version") + (0 if runs else 1), **values):
            break
    for row in resize.changed:
        row.save(update_fields=SIZES)
    JobEvent.objects.create(
        job=job,
        at=now,
        kind=kind.value,
        from_state=job.state,
        to_state=job.state,
        message=message,
        evidence=resize.evidence,
        actor=actor.get_username(),
    )
    ring_after_commit(job.cluster_id)
    job.refresh_from_db()
    prefetch_related_objects([job], "pod_sets")  # as they are here, even if this is rolled back
    return job


def _refuse_change(job: Job, kind: JobEventKind, columns: Mapping[str, Any]) -> None:
    if job.pod_name and "max_restarts" in columns:
        text = (
            "Kant did not create its pods, so it cannot change this. Create the pods again, or "
            "leave this out."
        )
        raise Invalid.field("max_restarts", text)
    if JobState(job.state) in HOLDING and kind == JobEventKind.CHANGED:
        if columns.keys() <= set(WHILE_IT_RUNS):
            return
        raise Conflict(
            f"The job is {in_state(job.state)}; after a job has started, only "
            f"{', '.join(WHILE_IT_RUNS)} and the number of its pods can be changed."
        )
    if JobState(job.state) not in WAITING:
        raise Conflict(
            f"The job is {in_state(job.state)}; only a waiting job can be held, released or "
            "changed."
        )
    if kind == JobEventKind.HELD and job.held:
        raise Conflict("The job is already on hold.")
    if kind == JobEventKind.RELEASED and not job.held:
        raise Conflict(
            f"The job itself is not on hold. {job.pod_hold}"
            if job.pod_hold
            else "The job is not on hold."
        )


def _refuse_past_limit(job: Job, limit: float | None, now: datetime) -> None:
    """Raise Invalid for a limit that has already passed: it would end the job at once."""
    if limit is None or job.admitted_at is None or JobState(job.state) not in HOLDING:
        return
    ran = (now - job.admitted_at).total_seconds()
    if limit <= ran:
        text = f"The job has already run for {ran:.0f} s. Give a longer limit, or cancel the job."
        raise Invalid.field("run_limit_s", text)


def _described(job: Job, columns: Mapping[str, Any]) -> str:
    """Return what changes, e.g. “priority: 0 → 5”."""
    names = {column: name for name, column in COLUMNS.items()}
    parts = [
        f"{names[column]}: {_shown(getattr(job, column))} → {_shown(value)}"
        for column, value in columns.items()
    ]
    return "; ".join(parts)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} jobs" if len(value) > 1 else (value[0] if value else "none")
    return "none" if value is None else str(value)
