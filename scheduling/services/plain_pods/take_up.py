"""Jobs for pods that somebody else made (docs/decisions/0015-plain-pods.md, 0026).

Called inside the transaction of a pass, under its lease, before the pass decides: a job that is
placed at once is written once. The id of the job is the uid of the pod, or comes of the uids of its
gang: pods never become two jobs, whoever offers them again.
"""

import json
import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import connection

from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import TERMINAL, WAITING, JobEventKind, JobState
from scheduling.kube.seam import PodFacts
from scheduling.models import Job, JobEvent, JobPod, Placement
from scheduling.models.jobs import CANCELLED
from scheduling.queries.wording import in_state
from scheduling.services.common.bulk import Ids
from scheduling.services.common.doorbell import ring_after_commit
from scheduling.services.common.lease import Lease, fence, fence_sql, lost
from scheduling.services.plain_pods.ahead import StillSo
from scheduling.services.plain_pods.books import Shelf
from scheduling.services.plain_pods.follow import follow, follow_queue
from scheduling.services.plain_pods.gangs import groups_of
from scheduling.services.plain_pods.new_jobs import (
    Jobless,
    NewRows,
    lets_go,
    make_jobs,
    make_jobs_ahead,
)
from scheduling.session.memory.live import Cause, Offer
from tenants.database import planned
from tenants.database.chunks import chunks

# Of a pod: its uid, its job, and the labels by which that knows it.
_Known = tuple[Any, uuid.UUID, Any]


class TakenUp(NamedTuple):
    """What is to be written of the pods that a pass takes up: the jobs that some of them become,
    and events of those that follow their pods; and ids for rows of them. `ahead`: of jobs that were
    made before their transaction, what has to be still so in it."""

    made: NewRows
    followed: list[JobEvent]
    ids: Ids
    ahead: StillSo | None = None

    def held(self) -> set[str]:
        """Jobs that their pods put on hold."""
        return {str(event.job_id) for event in self.followed if event.kind == JobEventKind.HELD}


def take_up(
    lease: Lease, offers: Sequence[Offer], now: datetime, shelf: Shelf | None = None
) -> TakenUp:
    """Make a job of each pod, or gang of pods, that has none, and have the others follow their
    pods; the answers are written into the offers. `shelf`: what was read before. From here on the
    transaction is fenced; raises LeaseLost."""
    ids, found = _known_pods(lease, [pod.uid for offer in offers for pod in offer.pods])
    known, labels = _jobs_of(found)
    # Others write the nodes of a divided cluster, too.
    shelf = shelf if shelf is not None and lease.scope == WHOLE else Shelf()
    cluster = shelf.of(lease.cluster_id)
    events: list[JobEvent] = []
    groups: list[Jobless] = []
    for offer in offers:
        free: list[PodFacts] = []
        waiting: dict[Job, list[PodFacts]] = {}
        for pod in offer.pods:
            job = known.get(pod.uid)
            if job is None:
                free.append(pod)
            elif job.cluster_id != cluster.pk:
                continue  # the same cluster under another name; that one has it
            elif lets_go(job):
                free.append(pod)
            elif job.state in TERMINAL:
                offer.over[pod.uid] = _end_of(job)
            elif job.state in WAITING:
                waiting.setdefault(job, []).append(pod)
        for job, pods in waiting.items():
            if not job.pod_gang:
                events += follow(cluster, job, offer, pods[0], now)
            known_by = [(pod, labels[pod.uid]) for pod in pods]
            events += follow_queue(cluster, job, offer, known_by, now)
        groups += [Jobless(offer, of_group) for of_group in groups_of(free)]
    # A microsecond apart, so that they stand in the queue in their order.
    made = make_jobs(shelf, groups, known, now + timedelta(microseconds=len(events)))
    # Who leads all of the cluster knows the jobs that it made.
    if events or (made.events and lease.scope != WHOLE):
        ring_after_commit(cluster.pk)
    return TakenUp(made, events, ids)


def take_up_ahead(
    lease: Lease, offers: Sequence[Offer], now: datetime, shelf: Shelf
) -> TakenUp | None:
    """As `take_up`, without a transaction and mostly without a statement; None where that would not
    do. Of pods that come alone, in a cluster that is not divided, on PostgreSQL."""
    is_postgres = connection.vendor == "postgresql"
    if not is_postgres or lease.scope != WHOLE or not all(offer.is_new for offer in offers):
        return None
    shelf.of(lease.cluster_id)
    made = make_jobs_ahead(shelf, offers, now)
    if made is None:
        return None
    rows, premises = made
    uids = [pod.uid for offer in offers for pod in offer.pods]
    return TakenUp(rows, [], Ids(), StillSo(uids, premises))


def _jobs_of(found: Iterable[_Known]) -> tuple[dict[str, Job], dict[str, dict[str, str]]]:
    """By uid the last job of each of these pods, and the labels by which it knows the pod."""
    last: dict[str, uuid.UUID] = {}
    labels: dict[str, dict[str, str]] = {}
    for uid, job_id, known in found:
        last[str(uid)], labels[str(uid)] = job_id, known
    jobs: dict[uuid.UUID, Job] = {}
    for ids in chunks(sorted(set(last.values()))):
        locked = Job.objects.select_for_update().filter(id__in=ids)
        jobs.update((job.pk, job) for job in locked.prefetch_related("pod_sets"))
    return {uid: jobs[job_id] for uid, job_id in last.items()}, labels


def _known_pods(lease: Lease, uids: Sequence[str]) -> tuple[Ids, list[_Known]]:
    """Fence the transaction; those of the pods that have, or had, a job, the last one last. On
    PostgreSQL by one statement, which also gives ids for what is written where each of the others
    becomes a job that has its place at once."""
    columns = "uid", "job_id", "labels"
    known: list[_Known] = []
    if connection.vendor != "postgresql":
        fence(lease)
        for some in chunks(uids):
            rows = JobPod.objects.filter(uid__in=some).order_by("pk")
            known += rows.values_list(*columns)
        return Ids(), known
    fenced, params = fence_sql(lease)
    told = ", ".join(f"p.{name}" for name in columns)
    table = connection.ops.quote_name(JobPod._meta.db_table)
    new = "%s - (SELECT COUNT(DISTINCT uid) FROM p)"
    (places, of_places), (events, of_events) = (
        Ids.sql(model, f"{each} * ({new})") for model, each in ((Placement, 1), (JobEvent, 2))
    )
    with planned.cursor() as cursor:
        sql = f"""
            WITH fenced AS ({fenced}),
                p AS (SELECT * FROM {table} WHERE uid = ANY(%s::uuid[]))
            SELECT {told}, {places}, {events}
            FROM fenced LEFT JOIN p ON TRUE ORDER BY p.id"""
        pods = len(set(uids))
        cursor.execute(sql, [*params, [*uids], *of_places, pods, *of_events, pods])
        rows = cursor.fetchall()
    if not rows:
        raise lost(lease)
    for uid, job_id, labels, *_ in rows:
        if uid is not None:
            known.append((uid, job_id, json.loads(labels) if isinstance(labels, str) else labels))
    return Ids({Placement: rows[0][3], JobEvent: rows[0][4]}), known


def _end_of(job: Job) -> Cause:
    reason = CANCELLED if job.state == JobState.CANCELLED else job.reason or "JobOver"
    why = f": {job.message}" if job.message else ""
    return Cause(reason, f"Its job is {in_state(job.state)}{why}")
