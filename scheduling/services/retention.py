"""Delete jobs that have been over longer than they are kept (docs/decisions/0016)."""

import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime

from django.db import transaction
from django.db.models import Model, Q

from scheduling.engine.states import HOLDING, TERMINAL, WAITING
from scheduling.models import Cluster, Job, JobEvent, JobPod, Placement, Retention
from scheduling.models.jobs import LIVE_PLACEMENTS
from tenants.database.chunks import chunks

BATCH = 50  # jobs examined, and deleted, together
ROWS = 250  # events or placements that one transaction deletes at most
PAUSE = 2.0  # rest this many times as long as the work took: one cycle is several transactions


def prune_jobs(before: datetime, *, budget_s: float) -> int:
    """Delete jobs that ended before `before`, oldest first, with their rows.

    These are pod sets, placements and events. Returns after about `budget_s` seconds with the
    number of deleted jobs; the rest is deleted next time. These jobs stay: jobs with a pod that was
    not gone before then, jobs that an open job waits for, and all jobs of an array while one of
    them has to stay.
    """
    deadline = time.monotonic() + budget_s
    deleted, needed, arrays = 0, _needed(), set[uuid.UUID]()
    for page in _ended(before):
        units = [[job_id for job_id, array_id in page if array_id is None and job_id not in needed]]
        for array_id in dict.fromkeys(a for _, a in page if a is not None and a not in arrays):
            arrays.add(array_id)
            units.append(_whole(array_id, before, needed))
        for unit in units:
            deleted += _delete(unit, before)
            if time.monotonic() > deadline:
                return deleted
    return deleted


def _ended(before: datetime) -> Iterator[list[tuple[uuid.UUID, uuid.UUID | None]]]:
    """Yield (id, array) of the jobs that ended before then, first to end first, BATCH at a time."""
    rows = Job.objects.filter(state__in=list(TERMINAL), ended_at__lt=before)
    rows = rows.order_by("ended_at", "id")
    page = list(rows.values_list("id", "array_id", "ended_at")[:BATCH])
    while page:
        yield [(job_id, array_id) for job_id, array_id, _ in page]
        last, _, at = page[-1]
        later = rows.filter(Q(ended_at__gt=at) | Q(id__gt=last), ended_at__gte=at)
        page = list(later.values_list("id", "array_id", "ended_at")[:BATCH])


def _needed() -> set[uuid.UUID]:
    """Return the jobs and arrays that open jobs wait for, and the job of the newest event.

    The latter stays because schedulers count from its id.
    """
    # By cluster, as the index of states begins with that.
    clusters = list(Cluster.objects.values_list("id", flat=True))
    waiting = Job.objects.filter(cluster__in=clusters, state__in=list(WAITING | HOLDING))
    rows = waiting.exclude(after=[], after_ok=[]).order_by().values_list("after", "after_ok")
    needed = {uuid.UUID(i) for after, after_ok in rows for i in (*after, *after_ok)}
    newest = JobEvent.objects.order_by("-id").values_list("job", "job__array_id").first()
    return needed | {i for i in newest or () if i is not None}


def _whole(array_id: uuid.UUID, before: datetime, needed: set[uuid.UUID]) -> list[uuid.UUID]:
    """Return the jobs of an array; none if one of them has to stay."""
    if array_id in needed:
        return []
    rows = Job.objects.filter(array_id=array_id)
    if rows.exclude(state__in=list(TERMINAL), ended_at__lt=before).exists():
        return []
    # Its first job, by which it is found, goes last.
    ids = list(rows.order_by("-array_index").values_list("id", flat=True))
    return [] if needed.intersection(ids) or _leaving(ids, before) else ids


def _leaving(ids: Sequence[uuid.UUID], before: datetime) -> set[uuid.UUID]:
    """Return the jobs with pods that were not gone before then: a job ends before its pods."""
    found: set[uuid.UUID] = set()
    for chunk in chunks(ids, BATCH):
        late = Q(state__in=LIVE_PLACEMENTS) | Q(ended_at__gte=before)
        pods = Placement.objects.filter(late, job__in=chunk)
        found.update(pods.order_by().values_list("job_id", flat=True))
    return found


def _delete(unit: Sequence[uuid.UUID], before: datetime) -> int:
    """Delete those of the jobs whose pods were gone before then; return how many.

    Dependent rows go first, and never many in one transaction: an array of ten thousand jobs takes
    a few seconds to disappear, during which others can write.
    """
    leaving = _leaving(unit, before)
    ids = [job_id for job_id in unit if job_id not in leaving]
    if ids:
        _say_what_is_left(before)
    for chunk in chunks(ids, BATCH):
        began = time.monotonic()
        _delete_rows(JobEvent, chunk)
        _delete_rows(Placement, chunk)
        _delete_rows(JobPod, chunk)
        # With their pod sets; without `only`, the ORM would read each job first.
        Job.objects.filter(pk__in=chunk).only("pk").delete()
        time.sleep(PAUSE * (time.monotonic() - began))
    return len(ids)


def _delete_rows(model: type[Model], ids: Sequence[uuid.UUID]) -> None:
    rows = model._default_manager.filter(job__in=ids).order_by()
    deleted = ROWS
    while deleted == ROWS:
        with transaction.atomic():
            deleted, _ = model._default_manager.filter(pk__in=rows.values("pk")[:ROWS]).delete()


def _say_what_is_left(before: datetime) -> None:
    with transaction.atomic():
        row, _ = Retention.objects.get_or_create(pk=1, defaults={"complete_from": before})
        if row.complete_from < before:
            Retention.objects.filter(complete_from__lt=before).update(complete_from=before)
