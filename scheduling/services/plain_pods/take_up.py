"""Make jobs of pods that somebody else made (docs/decisions/0015-plain-pods.md, 0026).

Called inside the transaction of a pass, under its lease, before the pass decides, so that a job
that is placed at once is written once. The id of a job is the uid of its pod, or follows from the
uids of its gang: pods never become two jobs, however often they are offered.
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

# Of a pod: its uid, its job, and the labels that the job has for it.
_Known = tuple[Any, uuid.UUID, Any]


class TakenUp(NamedTuple):
    """What is to be written of the pods that a pass takes up.

    - `made`: the jobs that some of them become.
    - `followed`: events of jobs that follow their pods.
    - `ids`: ids for rows of them.
    - `ahead`: for jobs made before their transaction, what must still hold in it.
    """

    made: NewRows
    followed: list[JobEvent]
    ids: Ids
    ahead: StillSo | None = None

    def held(self) -> set[str]:
        """Return the jobs that their pods put on hold."""
        return {str(event.job_id) for event in self.followed if event.kind == JobEventKind.HELD}


def take_up(
    lease: Lease, offers: Sequence[Offer], now: datetime, shelf: Shelf | None = None
) -> TakenUp:
    """Make a job of each pod or gang that has none, and have other jobs follow their pods.

    The answers are written into the offers. `shelf`: what was read before. From here on the
    transaction is fenced; raises LeaseLost.
    """
    ids, found = _known_pods(lease, [pod.uid for offer in offers for pod in offer.pods])
    known, labels = _jobs_of(found)
    # In a divided cluster, others write nodes, too.
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
                continue  # the same cluster under another name has the job
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
    # A microsecond apart, so that they stand in the queue in order.
    made = make_jobs(shelf, groups, known, now + timedelta(microseconds=len(events)))
    # The scheduler of an undivided cluster knows the jobs that it made.
    if events or (made.events and lease.scope != WHOLE):
        ring_after_commit(cluster.pk)
    return TakenUp(made, events, ids)


def take_up_ahead(
    lease: Lease, offers: Sequence[Offer], now: datetime, shelf: Shelf
) -> TakenUp | None:
    """Make jobs like `take_up`, without a transaction and mostly without a statement.

    None = that would not do. It works for pods without a gang, in an undivided cluster, on
    PostgreSQL.
    """
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
    """Return, by uid, the last job of each of these pods, and the labels it has for the pod."""
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
    """Fence the transaction; return those of the pods that have, or had, a job, the last one last.

    On PostgreSQL one statement does this. It also reserves ids for what is written if each of the
    other pods becomes a job that is placed at once.
    """
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
