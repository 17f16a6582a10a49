"""Changes of all waiting jobs of an array: hold, release, ask for something else.

Each is one transaction over at most 10,000 rows. Jobs that have started or are over are left as
they are.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from django.db.models import F, QuerySet
from django.utils import timezone

from scheduling.engine.states import WAITING, JobEventKind
from scheduling.models import Job, JobEvent
from scheduling.queries import selectors
from scheduling.services.common.doorbell import ring_after_commit
from scheduling.services.common.lease import hold_all
from scheduling.services.jobs.changes import (
    COLUMNS,
    check_dependencies,
    check_priority,
    columns_of,
    nothing_to_change,
    queue_after,
)
from scheduling.services.queues.entry import LOOKED_AT, Submitter, take_in
from tenants.database.chunks import CHUNK, chunks
from tenants.errors import Conflict, Invalid, NotAllowed
from tenants.models import User
from tenants.permissions import Access, access_of
from tenants.services.transactions import unit_of_work


def hold_array(actor: User, array_id: uuid.UUID, *, dry_run: bool = False) -> selectors.JobArray:
    """Keep all waiting jobs of an array from being started; they keep their places in the queue.

    Raises NotFound, NotAllowed, and Conflict if none of them waits or all waiting ones are held.
    """
    first, _ = _may_change(actor, array_id)
    with unit_of_work(dry_run):
        waiting = _lock_waiting(first)
        free = [job_id for job_id, held in waiting.items() if not held]
        if not free:
            raise Conflict(f"All {len(waiting)} waiting jobs of this array are already on hold.")
        _change(actor, free, JobEventKind.HELD, {"held": True})
        return _changed(actor, first)


def release_array(actor: User, array_id: uuid.UUID, *, dry_run: bool = False) -> selectors.JobArray:
    """Let all held jobs of an array be started again. Raises like `hold_array`."""
    first, _ = _may_change(actor, array_id)
    with unit_of_work(dry_run):
        waiting = _lock_waiting(first)
        held = [job_id for job_id, is_held in waiting.items() if is_held]
        if not held:
            raise Conflict(f"None of the {len(waiting)} waiting jobs of this array is on hold.")
        _change(actor, held, JobEventKind.RELEASED, {"held": False})
        return _changed(actor, first)


def change_array(
    actor: User, array_id: uuid.UUID, changes: Mapping[str, Any], *, dry_run: bool = False
) -> selectors.JobArray:
    """Change what all waiting jobs of an array ask for; `changes` as for `change_job`.

    Raises NotFound, NotAllowed, Invalid naming each field, Conflict if none of them waits.
    """
    first, access = _may_change(actor, array_id)
    if not changes:
        raise nothing_to_change(*COLUMNS)
    if "pod_sets" in changes:
        text = "Jobs of an array are resized one by one. Name one of its jobs."
        raise Invalid.field("pod_sets", text)
    columns = columns_of(changes)
    check_priority(first, columns)
    members = Job.objects.filter(array_id=array_id, state__in=list(WAITING))
    kinds = list(members.order_by().values("queue", *LOOKED_AT).distinct())
    queue = queue_after(Submitter(actor, access), first.tenant, kinds, columns)
    with unit_of_work(dry_run):
        # Check the dependencies first: that locks the cluster, as any change of a job does.
        ids = [str(i) for i in members.values_list("id", flat=True)]
        check_dependencies(access, first.cluster_id, columns, (str(array_id), *ids))
        waiting = _lock_waiting(first)
        if queue is not None:
            take_in(queue, members.exclude(queue=queue.name).count())
        _change(actor, list(waiting), JobEventKind.CHANGED, columns, _described(changes))
        return _changed(actor, first)


def _may_change(actor: User, array_id: uuid.UUID) -> tuple[Job, Access]:
    """Return the first job of the array, if the actor may change it, and the actor's rights."""
    access = access_of(actor)
    first = selectors.first_of_array(actor, array_id)
    if not access.may_cancel(first.tenant_id, first.user_id):
        raise NotAllowed(
            "Only the user who submitted this array, a tenant admin or an operator may change it."
        )
    return first, access


def lock_array(first: Job) -> QuerySet[Job]:
    """Return all jobs of the array of `first`; reading them locks them."""
    for cluster_id in clusters_of(first):
        hold_all(cluster_id)
    return Job.objects.select_for_update().filter(array_id=first.array_id).order_by("id")


def clusters_of(first: Job) -> list[int]:
    """Return the clusters with jobs of the array of `first`: each may move while it waits."""
    if not first.any_cluster:
        return [first.cluster_id]
    rows = Job.objects.filter(array_id=first.array_id).order_by("cluster_id")
    return list(rows.values_list("cluster_id", flat=True).distinct())


def _lock_waiting(first: Job) -> dict[uuid.UUID, bool]:
    """Return {waiting job of the array: whether it is held}. Raises Conflict if there is none."""
    rows = lock_array(first).filter(state__in=list(WAITING))
    waiting = dict(rows.values_list("id", "held"))
    if not waiting:
        raise Conflict(
            "No job of this array is waiting; only waiting jobs can be held, released or changed."
        )
    return waiting


def _change(
    actor: User,
    ids: list[uuid.UUID],
    kind: JobEventKind,
    columns: Mapping[str, Any],
    message: str = "",
) -> None:
    """Change jobs whose rows are locked, and add an event to each."""
    now = timezone.now()
    events: list[JobEvent] = []
    for chunk in chunks(ids):
        rows = Job.objects.filter(id__in=chunk)
        rows.update(version=F("version") + 1, **columns)
        events += [
            JobEvent(
                job_id=job_id,
                at=now,
                kind=kind.value,
                from_state=state,
                to_state=state,
                message=message,
                actor=actor.get_username(),
            )
            for job_id, state in rows.values_list("id", "state")
        ]
    JobEvent.objects.bulk_create(events, batch_size=CHUNK)


def _changed(actor: User, first: Job) -> selectors.JobArray:
    assert first.array_id is not None
    for cluster_id in clusters_of(first):
        ring_after_commit(cluster_id)
    return selectors.array_by_id(actor, first.array_id)


def _described(changes: Mapping[str, Any]) -> str:
    """Return what the jobs now ask for, e.g. “priority → 5”."""
    return "; ".join(f"{name} → {_shown(value)}" for name, value in changes.items())


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value[:3])) + (" …" if len(value) > 3 else "") or "none"
    return "none" if value is None else str(value)
