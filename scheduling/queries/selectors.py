"""Reads about jobs and clusters, limited to what the user may see."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, OuterRef, Q, QuerySet, Subquery, Sum

from scheduling.engine.states import WAITING
from scheduling.models import (
    Cluster,
    Job,
    JobEvent,
    NodeRecord,
    Placement,
    PodSet,
    Retention,
    SchedulerLease,
)
from scheduling.queries.secret_viewers import hide_from
from scheduling.session.pace import Backlog, Pace, from_document
from tenants.errors import NotFound
from tenants.models import Tenant, User
from tenants.permissions import Access, access_of
from tenants.selectors import id_begins, subtree_ids


def visible_jobs(user: Any) -> QuerySet[Job]:
    """Return the jobs of tenants in or above which the user has a role; all for operators."""
    return jobs_seen_with(access_of(user))


def jobs_seen_with(access: Access) -> QuerySet[Job]:
    """Return the same for a user with these rights."""
    rows = Job.objects.select_related(
        "tenant", "cluster", "user", "estimate", "gpu_use"
    ).prefetch_related("pod_sets")
    tenants = access.visible_tenants()
    return rows if tenants is None else rows.filter(tenant__in=tenants)


def no_node(cluster: Cluster, name: str) -> str:
    return f"Cluster “{cluster.name}” has no node “{name}”."


def accepting(rows: QuerySet[Job], gpu_model: str) -> QuerySet[Job]:
    """Return the jobs that accept a GPU model by name."""
    # Texts in a JSON list are quoted; SQLite has no containment operator.
    name = gpu_model.replace('"', "")
    named = PodSet.objects.filter(job=OuterRef("pk"), gpu_models__icontains=f'"{name}"')
    # No join with DISTINCT, which compares all columns of all jobs to show the first page; and no
    # EXISTS, which PostgreSQL also makes a join that reads the pod sets of all jobs first.
    return rows.alias(named=Subquery(named.values("index")[:1])).filter(named__isnull=False)


def in_tenant(rows: QuerySet[Job], name: str) -> QuerySet[Job]:
    """Return the jobs of a tenant or those below it; none if there is no such tenant."""
    tenant = Tenant.objects.filter(name=name).values_list("id", flat=True).first()
    return rows.none() if tenant is None else rows.filter(tenant__in=subtree_ids(tenant))


def matching(rows: QuerySet[Job], text: str) -> QuerySet[Job]:
    """Return the jobs with a text in their name, or at the beginning of their id."""
    return rows.filter(Q(name__icontains=text) | id_begins(text))


def reasons_of_waiting(rows: QuerySet[Job]) -> set[str]:
    """Return the reasons of those of the jobs that wait."""
    waiting = rows.filter(state__in=list(WAITING)).order_by()
    return set(waiting.values_list("reason", flat=True).distinct())


def held_until(job: Job, end: datetime) -> timedelta:
    """Return how long the job had places before `end`."""
    held, since = timedelta(0), job.submitted_at
    spans = job.placements.filter(held_from__lt=end).order_by("held_from")
    for begin, gone in spans.values_list("held_from", "ended_at"):
        assert begin is not None  # held_from < end
        until = min(gone or end, end)
        held += max(timedelta(0), until - max(begin, since))
        since = max(since, until)
    return held


def job_by_id(user: User, job_id: uuid.UUID | str, access: Access | None = None) -> Job:
    """Return one job; raises NotFound also if the user may not see it.

    `access`: the rights of the user, if read before.
    """
    job = jobs_seen_with(access or access_of(user)).filter(id=job_id).first()
    if job is None:
        raise no_such_job(job_id)
    hide_from(user, (job,))
    return job


def no_such_job(job_id: uuid.UUID | str, gone: str | None = None) -> NotFound:
    """Return the error for a job that does not exist or that the user may not see.

    `gone`: the result of `what_is_gone`, if read before.
    """
    told = what_is_gone() if gone is None else gone
    text = f"There is no job {job_id} that you may see. GET /api/v1/jobs lists yours."
    return NotFound(f"{text}{told}")


@dataclass(frozen=True, slots=True)
class JobArray:
    """Jobs that were submitted as one; `states` counts them, `gpu_milli` is of all of them."""

    id: uuid.UUID
    name: str
    tenant: str
    cluster: str
    user: str | None
    count: int
    gpu_milli: int
    states: Mapping[str, int]
    submitted_at: datetime


def first_of_array(user: User, array_id: uuid.UUID) -> Job:
    """Return the first job of an array; raises NotFound also if the user may not see it."""
    job = visible_jobs(user).filter(array_id=array_id).order_by("array_index").first()
    if job is None:
        raise NotFound(f"There is no array {array_id} that you may see.")
    hide_from(user, (job,))
    return job


def array_by_id(user: User, array_id: uuid.UUID) -> JobArray:
    """Return an array and the states of its jobs; raises NotFound like `first_of_array`."""
    first = first_of_array(user, array_id)
    rows = Job.objects.filter(array_id=array_id).order_by()
    states = dict(rows.values_list("state").annotate(Count("id")).order_by("state"))
    return JobArray(
        id=array_id,
        name=first.name.removesuffix(f"-{first.array_index}"),
        tenant=first.tenant.name,
        cluster=first.cluster.name,
        user=first.user.get_username() if first.user else None,
        count=sum(states.values()),
        gpu_milli=rows.aggregate(sum=Sum("gpu_milli"))["sum"],
        states=states,
        submitted_at=first.submitted_at,
    )


def complete_from() -> datetime | None:
    """Jobs that ended before this are deleted, or about to be; None = no job was ever deleted."""
    return Retention.objects.values_list("complete_from", flat=True).first()


def what_is_gone() -> str:
    """Return a sentence for users who miss a job, after a blank; "" = none was deleted."""
    since = complete_from()
    return f" Jobs that ended before {since:%Y-%m-%d %H:%M} UTC are deleted." if since else ""


def events_of(job: Job) -> QuerySet[JobEvent]:
    return JobEvent.objects.filter(job=job)


def placements_of(job: Job) -> QuerySet[Placement]:
    """Return where the pods of every attempt went."""
    return Placement.objects.filter(job=job)


def cluster_by_name(name: str) -> Cluster:
    cluster = Cluster.objects.filter(name=name).first()
    if cluster is None:
        names = ", ".join(Cluster.objects.values_list("name", flat=True)[:20]) or "none"
        raise NotFound(f"There is no cluster “{name}”. Clusters: {names}.")
    return cluster


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a scope of a cluster, how many nodes it owns, and how the last leader fares.

    `holder` "" = nobody at this moment. The scope of an undivided cluster is "".
    """

    scope: str
    holder: str
    until: datetime | None
    nodes: int
    pace: Pace
    own_clock: bool = False  # ticks of beat are missing
    token: int = 0  # grows with every change of the leader
    backlog: Backlog = field(default_factory=Backlog)


def leaders_of(cluster: Cluster, now: datetime) -> list[Leader]:
    """Return the scopes of a cluster, by name, without those that no longer exist."""
    rows = NodeRecord.objects.filter(cluster=cluster).order_by()
    nodes = dict(rows.values_list("scope").annotate(Count("id")))
    leaders = []
    for lease in SchedulerLease.objects.filter(cluster=cluster).order_by("scope"):
        leads = lease.expires_at is not None and lease.expires_at > now
        if leads or lease.scope in nodes:
            holder, until = (lease.holder, lease.expires_at) if leads else ("", None)
            pace = from_document(lease.pace)
            own = bool(lease.pace.get("own_clock"))
            backlog = Backlog(*lease.pace.get("backlog", ()))
            count = nodes.get(lease.scope, 0)
            leaders.append(
                Leader(lease.scope, holder, until, count, pace, own, lease.token, backlog)
            )
    return leaders


def nodes_of(cluster: Cluster) -> QuerySet[NodeRecord]:
    return NodeRecord.objects.filter(cluster=cluster)
