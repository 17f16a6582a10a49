"""Rows into the engine's nouns, and the cheap questions that tell whether rows changed."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Count, F, Max, Q, QuerySet, Sum
from django.utils import timezone

from scheduling.engine.deltas import JobHistory, TenantsChanged
from scheduling.engine.queue.dependencies import Stuck
from scheduling.engine.queue.preemption_delay import delay_of
from scheduling.engine.states import HOLDING, OPEN, WAITING, JobState
from scheduling.engine.states import JobEventKind as Kind
from scheduling.engine.types import (
    JobRequest,
    PodPlacement,
    PodSetSpec,
    Policy,
    QuotaSpec,
    Sharing,
    TenantSpec,
)
from scheduling.engine.verdict import NEVER, Reason, Verdict
from scheduling.job_fields.containers import meant
from scheduling.job_fields.nouns import pod_set_of, wishes_of
from scheduling.kube.translate.manifests import PodSettings
from scheduling.models import (
    Cluster,
    ClusterPolicy,
    Job,
    JobConstraints,
    JobEvent,
    JobPod,
    Placement,
    PodSet,
    unreadable_request,
)
from scheduling.models.held import HELD
from scheduling.models.jobs import LIVE_PLACEMENTS, MOVED, PREEMPTED, PlacementState
from scheduling.models.shaped import Unreadable
from scheduling.policy.document import to_policy
from scheduling.session.memory.constraints import with_devices
from scheduling.session.memory.labels import SharedLabels
from scheduling.session.memory.live import (
    NOTHING,
    Failures,
    LiveJob,
    LivePod,
    PodContent,
    PodKey,
    PodRef,
)
from scheduling.session.memory.raw import RawRow, RawRows
from tenants import selectors
from tenants.database.chunks import chunks
from tenants.models import Quota, Tenant

# What is told of a job that waits and does not start by itself.
NO_START = {*NEVER, Reason.ON_HOLD, Reason.QUEUE_HELD}
FEW = 200  # jobs, of which what belongs to them is asked for by their ids


# --- jobs -----------------------------------------------------------------------------------------
def waiting_or_holding(cluster_id: int, scope: str) -> list[str]:
    """Ids of all jobs that are not over, and of those that still have live placements."""
    open_jobs = _open_jobs(cluster_id, scope)
    leaving = Placement.objects.filter(
        job__cluster_id=cluster_id, job__scope=scope, state__in=LIVE_PLACEMENTS
    )
    ids = dict.fromkeys(open_jobs.order_by("submitted_at").values_list("id", flat=True))
    ids.update(dict.fromkeys(leaving.values_list("job_id", flat=True)))
    return [str(i) for i in ids]


def jobs(ids: Iterable[str]) -> tuple[list[LiveJob], list[tuple[str, int, JobState, str]]]:
    """The jobs, the oldest first, without pods; and of those whose rows make no sense (id,
    version, state, why)."""
    good: list[LiveJob] = []
    bad: list[tuple[str, int, JobState, str]] = []
    tenants = dict(Tenant.objects.values_list("id", "name"))
    for chunk in chunks(list(ids)):
        jobs = RawRows(Job.objects.filter(id__in=chunk))
        specs = _Specs(chunk)
        rows = [(raw, jobs.columns(raw)) for raw in jobs.rows]
        last = _last_places([job.id for _, job in rows if job.attempt])
        plain = _plain_pods([job.id for _, job in rows if job.pod_name])
        key = jobs.place("id")
        for raw, job in rows:
            try:
                asked = specs.of(raw[key]) if jobs.is_readable(raw) else None
                if asked is None:
                    live = _one_by_one(job.id, tenants)
                else:
                    live = live_of(job, tenants[job.tenant_id], asked)
                live.plain = plain.get(job.id, {})
                live.attempt, live.namespace = last.get(job.id, (live.attempt, live.namespace))
                good.append(live)
            except (KeyError, TypeError, ValueError) as error:
                bad.append((str(job.id), job.version, JobState(job.state), str(error)))
    # A job that waits for another one must find it known already.
    good.sort(key=lambda job: (job.request.submitted_at, job.id))
    return good, bad


class ReadSpec(NamedTuple):
    """What a pod set asks for, as the engine knows it, and what its pods run."""

    pod_set: PodSetSpec
    content: PodContent


class _Specs:
    """What the pod sets of jobs ask for: read once for all that ask for the same, as the jobs of an
    array do, each of which has variables of its own."""

    def __init__(self, job_ids: Sequence[Any]) -> None:
        rows = PodSet.objects.filter(job_id__in=job_ids).order_by("job", "index")
        self._rows = RawRows(rows)
        self._alike = self._rows.places(without=("id", "job_id", "env"))
        self._env = self._rows.place("env")
        self._read: dict[tuple[Any, ...], ReadSpec | None] = {}
        self._of_job: dict[Any, list[RawRow]] = defaultdict(list)
        job = self._rows.place("job_id")
        for row in self._rows.rows:
            self._of_job[row[job]].append(row)

    def of(self, job_id: Any) -> list[ReadSpec] | None:
        """Those of a job, by its id as the database gives it; None: it has none, or one that
        cannot be read."""
        found = [self._asked(row) for row in self._of_job.get(job_id, ())]
        whole = [asked for asked in found if asked is not None]
        return whole if found and len(whole) == len(found) else None

    def _asked(self, row: RawRow) -> ReadSpec | None:
        alike = tuple(row[place] for place in self._alike)
        if alike not in self._read:
            readable = self._rows.is_readable(row)
            self._read[alike] = asked_of(self._rows.columns(row)) if readable else None
        asked = self._read[alike]
        env = self._rows.value(row, self._env)
        if asked is None or isinstance(env, Unreadable):
            return None
        runs = asked.content
        mine = PodContent(runs.image, runs.command, env, runs.annotations, runs.settings)
        return ReadSpec(asked.pod_set, mine)


def asked_of(row: Any) -> ReadSpec:
    return ReadSpec(pod_set_of(vars(row)), content(row))


def _one_by_one(job_id: Any, tenants: Mapping[int, str]) -> LiveJob:
    """As `live_job`, which tells what is wrong with the rows of a job."""
    job = Job.objects.filter(id=job_id).first()
    if job is None:
        raise ValueError("the job was deleted just now")
    return live_job(job, tenants[job.tenant_id], list(job.pod_sets.order_by("index")))


def _last_places(placed: Sequence[Any]) -> dict[Any, tuple[int, str]]:
    """The highest attempt among the pods of each of these jobs, and their namespace: the job's own
    column knows of those that all of it was placed by, not of pods that were placed again alone."""
    if not placed:
        return {}
    rows = Placement.objects.filter(job__in=placed).order_by("attempt")
    places = rows.values_list("job_id", "attempt", "namespace").distinct()
    return {job_id: (attempt, namespace) for job_id, attempt, namespace in places}


def _plain_pods(taken_up: Sequence[Any]) -> dict[Any, dict[PodKey, PodRef]]:
    """The pods that each of these jobs stands for."""
    found: dict[Any, dict[PodKey, PodRef]] = defaultdict(dict)
    shared = SharedLabels()
    names = ("job_id", "pod_set", "ordinal", "name", "uid", "labels")
    rows = JobPod.objects.filter(job__in=taken_up).order_by() if taken_up else JobPod.objects.none()
    for job_id, pod_set, ordinal, name, uid, labels in rows.values_list(*names):
        found[job_id][pod_set, ordinal] = PodRef(name, str(uid), shared.one(labels))
    return found


def failed_among(ids: tuple[str, ...]) -> list[str]:
    """Those of these jobs that ended without success, and of these arrays that have such a job."""
    if not ids:
        return []
    ended = Job.objects.filter(state__in=(JobState.FAILED, JobState.CANCELLED)).order_by()
    jobs = ended.filter(id__in=ids).values_list("id", flat=True)
    arrays = ended.filter(array_id__in=ids).values_list("array_id", flat=True).distinct()
    return sorted(str(i) for i in (*jobs, *arrays))


def doomed_by(ids: Iterable[str]) -> str | None:
    """The job or array that failed, of these or of those for the success of which they still wait,
    however many links away."""
    todo, seen = set(ids), set[str]()
    while todo:
        failed = failed_among(tuple(todo))
        if failed:
            return failed[0]
        seen |= todo
        before = Job.objects.filter(Q(id__in=todo) | Q(array_id__in=todo), state__in=list(WAITING))
        links = before.order_by().values_list("after_ok", flat=True)
        todo = {name for after_ok in links for name in after_ok} - seen
    return None


def stuck_before(ids: Iterable[str]) -> tuple[str, Stuck] | None:
    """What keeps the first of these jobs and arrays from its end, of those that have such: a job
    that waits and was told that it does not start by itself, however many links away; with the
    name that leads there."""
    for first in ids:
        todo, seen = {first}, set[str]()
        while todo:
            seen |= todo
            named = Q(id__in=todo) | Q(array_id__in=todo)
            before = Job.objects.filter(named, state__in=list(WAITING)).select_related("tenant")
            todo = set()
            for job in before.order_by("id"):
                by_itself = (
                    job.reason == Reason.ON_HOLD and not job.held and job.after + job.after_ok
                )
                if by_itself:
                    todo.update(job.after, job.after_ok)
                elif job.reason in NO_START:
                    told = dict(job.evidence)
                    helps = tuple(told.pop("remedies", ()))
                    why = Verdict(Reason(job.reason), job.message, told, helps)
                    return first, Stuck(str(job.pk), job.tenant.name, str(job.array_id or ""), why)
            todo -= seen
    return None


def message_of(job_id: str) -> str:
    """What its row says of why it waits."""
    told: str = Job.objects.values_list("message", flat=True).get(pk=job_id)
    return told


def open_among(ids: Iterable[str]) -> list[str]:
    """Those of these jobs, and of the jobs of these arrays, that are not over."""
    named = Q(id__in=list(ids)) | Q(array_id__in=list(ids))
    rows = Job.objects.filter(named, state__in=list(OPEN))
    return [str(i) for i in rows.order_by("id").values_list("id", flat=True)]


@dataclass(slots=True)
class _Displaced:
    """For each time a job was preempted, the job it made room for; those for which an elastic
    gang only gave pods up; and the GPU-seconds of work that moves have cost it."""

    by: tuple[str, ...] = ()
    gave_way_to: tuple[str, ...] = ()
    lost_gpu_s: float = 0.0


def _displaced(cluster_id: int, scope: str, only: Sequence[str]) -> dict[str, _Displaced]:
    """Of the jobs that are not over, those that ever made room for others or moved; or `only` of
    these."""
    told = JobEvent.objects.filter(reason__in=(PREEMPTED, MOVED)).order_by("id")
    few = told.filter(job_id__in=only) if only else None
    rows = told.filter(job__in=_open_jobs(cluster_id, scope)) if few is None else few
    found: dict[str, _Displaced] = defaultdict(_Displaced)
    for job_id, gang, reason, evidence in rows.values_list(
        "job_id", "job__gang", "reason", "evidence"
    ):
        of_job = found[str(job_id)]
        if reason == MOVED:
            of_job.lost_gpu_s += evidence.get("cost_gpu_s", 0.0)
        elif gang and "which" in evidence:
            of_job.gave_way_to += (str(evidence.get("by", "")),)
        else:
            of_job.by += (str(evidence.get("by", "")),)
    return found


def histories(
    cluster_id: int, scope: str, jobs: Iterable[LiveJob], policy: Policy
) -> Iterator[JobHistory]:
    """What was decided about these jobs before, where that was anything."""
    jobs = list(jobs)
    if not jobs:
        return
    few = [job.id for job in jobs] if len(jobs) <= FEW else []
    displaced = _displaced(cluster_id, scope, few)
    back, nothing = _back_at(cluster_id, scope, delay_of(policy)), _Displaced()
    for job in jobs:
        of_job = displaced.get(job.id, nothing)
        told = JobHistory(
            job.id, of_job.by, job.blocked_since, job.front, of_job.gave_way_to, back.get(job.id),
            of_job.lost_gpu_s, job.stands_at,
        )  # fmt: skip
        if told != JobHistory(job.id):
            yield told


def _back_at(cluster_id: int, scope: str, delay_s: float) -> dict[str, float]:
    """When jobs that wait came back to their queue, or were released, if no longer ago: who waits
    for longer than that may preempt anyway."""
    if not delay_s:
        return {}
    waiting = Job.objects.filter(cluster_id=cluster_id, scope=scope, state__in=list(WAITING))
    recent = JobEvent.objects.filter(
        job__in=waiting,
        kind__in=(Kind.RELEASED, Kind.REQUEUED, Kind.PREEMPTED),
        at__gt=timezone.now() - timedelta(seconds=delay_s),
    )
    rows = recent.order_by().values_list("job_id").annotate(Max("at"))
    return {str(job_id): at.timestamp() for job_id, at in rows}


def reserved(cluster_id: int, scope: str) -> list[str]:
    """Ids of jobs that show a reservation."""
    rows = Job.objects.filter(cluster_id=cluster_id, scope=scope, reserved_start__isnull=False)
    return [str(i) for i in rows.order_by("id").values_list("id", flat=True)]


def live_job(job: Job, tenant: str, sets: list[PodSet]) -> LiveJob:
    """The job without pods. Raises ValueError where no valid request can be made of its rows."""
    if not sets:
        raise ValueError("the job has no pod set")
    if wrong := unreadable_request(job, sets):
        raise ValueError(wrong)
    return live_of(job, tenant, [asked_of(row) for row in sets])


def live_of(job: Any, tenant: str, asked: Sequence[ReadSpec]) -> LiveJob:
    """The job without pods. `job`: a row, or what has its columns; `asked`: of its pod sets."""
    return LiveJob(
        request=JobRequest(
            id=str(job.id),
            tenant=tenant,
            submitted_at=job.submitted_at.timestamp(),
            pod_sets=tuple(one.pod_set for one in asked),
            array=str(job.array_id or ""),
            user=str(job.user_id or ""),
            **wishes_of(vars(job)),
        ),
        name=job.name,
        contents=tuple(one.content for one in asked),
        state=JobState(job.state),
        version=job.version,
        cluster=job.cluster_id,
        scope=job.scope,
        attempt=job.attempt,
        failures=Failures(job.failures),
        restarts=job.restarts,
        max_restarts=job.max_restarts,
        not_before=max(_seconds(job.not_before), _seconds(job.start_not_before)),
        held=job.held,
        admitted_at=_seconds(job.admitted_at),
        reason=job.reason,
        notice_s=job.checkpoint_notice_s or 0,
        labels=dict(job.labels) or NOTHING,
        blocked_since=job.blocked_since.timestamp() if job.blocked_since else None,
        stands_at=job.stands_at.timestamp() if job.stands_at else None,
        front=job.front,
        bound=job.bound_at is not None,
        namespace=job.pod_namespace,
        pod_gang=job.pod_gang,
        pod_hold=job.pod_hold,
    )


def content(row: Any) -> PodContent:
    asked = {name: getattr(row, name) for name in PodSettings.__struct_fields__}
    asked["security_context"] = meant(row.security_context)
    settings = PodSettings(**asked)
    env, annotations = dict(row.env), dict(row.annotations)
    return PodContent(row.image, tuple(row.command), env, annotations, settings)


def add_placements(cluster_id: int, scope: str, live: Mapping[str, LiveJob]) -> None:
    """Give each job that holds places, or gives them back, its pods: of each the last attempt."""
    rows = Placement.objects.filter(job__cluster_id=cluster_id, job__scope=scope)
    if len(live) <= FEW:
        rows = rows.filter(job_id__in=list(live))
    leaving = rows.filter(state__in=LIVE_PLACEMENTS).values_list("job_id", flat=True)
    with_pods = {str(i) for i in leaving} | {i for i, j in live.items() if j.state in HOLDING}
    # The attempt of the job is the one by which all of it was placed last.
    since = rows.filter(attempt__gte=F("job__attempt")).order_by("attempt")
    for chunk in chunks(sorted(with_pods & live.keys())):
        places = RawRows(since.filter(job_id__in=chunk))
        for raw in places.rows:
            row = places.columns(raw)
            if (job := live.get(str(row.job_id))) is not None:
                _add_placement(job, row)


def add_constraints(cluster_id: int, scope: str, live: Mapping[str, LiveJob]) -> None:
    """Give each job what the engine was told of it last, beside what it asks for."""
    rows = JobConstraints.objects.filter(job__cluster_id=cluster_id, job__scope=scope)
    if len(live) <= FEW:
        rows = rows.filter(job_id__in=list(live))
    for job_id, document in rows.values_list("job_id", "document"):
        if (job := live.get(str(job_id))) is not None:
            job.constraints = document
            if job.state in HOLDING:
                job.request = with_devices(job.asked, document)


def _add_placement(job: LiveJob, row: Any) -> None:
    place = PodPlacement(
        row.pod_set,
        row.ordinal,
        row.node,
        tuple(row.devices),
        row.milli,
        tuple(row.nics),
        row.held_beyond,
    )
    job.namespace = row.namespace
    key = row.pod_set, row.ordinal
    earlier = job.pods.get(key)
    if earlier is not None:
        job.forget(earlier)
    job.add(
        LivePod(
            place,
            attempt=row.attempt,
            name=row.pod_name,
            gpu_model=row.gpu_model,
            state=PlacementState(row.state),
            row=row.id,
            placed_at=row.intended_at.timestamp(),
            running_at=_running_at(row),
            later=row.intended_at.timestamp() > job.admitted_at,
            uid=job.plain[key].uid if job.plain else row.pod_uid,
            reason=row.reason,
            why=row.message if row.state in LIVE_PLACEMENTS else "",
        )
    )


def _running_at(row: Any) -> float | None:
    """Since when the pod runs; of one that ran before that was noted, since it had its place."""
    if row.running_at is not None:
        return row.running_at.timestamp()
    return row.intended_at.timestamp() if row.state == PlacementState.RUNNING else None


# --- what changed ---------------------------------------------------------------------------------
def versions(cluster_id: int, scope: str) -> dict[str, int]:
    """Versions of all jobs that are not over: what a lost wake-up is found by."""
    rows = _open_jobs(cluster_id, scope)
    return {str(i): version for i, version in rows.values_list("id", "version")}


def reached_by(cluster: Cluster) -> tuple[object, ...]:
    """What a session is made from that cannot change while it lasts."""
    return cluster.access, cluster.namespace, cluster.label_map


def tenancy(cluster_id: int, scope: str | None = None) -> TenantsChanged:
    """Tenants and quotas, with what is used outside of the scope; None = of the whole cluster."""
    rows = Tenant.objects.select_related("parent").order_by("id")
    quotas = Quota.objects.select_related("tenant", "gpu_type").order_by("id")
    return TenantsChanged(
        tenants=tuple(
            TenantSpec(
                t.name,
                t.parent.name if t.parent else None,
                t.weight,
                t.max_running,
                t.min_runtime_s,
            )
            for t in rows
        ),
        quotas=tuple(
            QuotaSpec(
                tenant=q.tenant.name,
                gpu_model=q.gpu_type.name,
                guaranteed=q.guaranteed_milli,
                mode=Sharing(q.mode),
                borrow_limit=q.borrow_limit_milli,
                lend_limit=q.lend_limit_milli,
            )
            for q in quotas
        ),
        used_elsewhere=used_elsewhere(cluster_id, scope),
        jobs_elsewhere=jobs_elsewhere(cluster_id, scope),
    )


def namespaces(default: str) -> dict[str, str]:
    """{tenant: where pods of its jobs are made}; `default` is the cluster's namespace."""
    return {
        name: default if given is None else given.value
        for name, given in selectors.given_to_all()["namespace"].items()
    }


def used_elsewhere(cluster_id: int, scope: str | None) -> tuple[tuple[str, str, float, float], ...]:
    """(tenant, GPU model, milli-GPU, of that by jobs that cannot be preempted) that jobs hold in
    other clusters and scopes: it counts against quota."""
    own = Q(job__cluster_id=cluster_id)
    if scope is not None:
        own &= Q(job__scope=scope)
    rows = (
        Placement.objects.filter(~own, state__in=LIVE_PLACEMENTS)
        .values_list("job__tenant__name", "gpu_model")
        .annotate(
            held=Sum(HELD),
            fixed=Sum(HELD, filter=Q(job__preemptible=False), default=0.0),
        )
        .order_by("job__tenant__name", "gpu_model")
    )
    return tuple(rows)


def jobs_elsewhere(cluster_id: int, scope: str | None) -> tuple[tuple[str, int], ...]:
    """(tenant, jobs that run in other clusters and scopes), where any tenant is limited in them."""
    if not Tenant.objects.filter(max_running__isnull=False).exists():
        return ()
    own = Q(cluster_id=cluster_id)
    if scope is not None:
        own &= Q(scope=scope)
    rows = (
        Job.objects.filter(~own, state__in=list(HOLDING))
        .order_by("tenant__name")
        .values_list("tenant__name")
        .annotate(Count("id"))
    )
    return tuple((tenant, jobs) for tenant, jobs in rows)


def policy(cluster_id: int) -> Policy:
    """The cluster's policy; fields its document does not name have their defaults."""
    row = ClusterPolicy.objects.filter(cluster_id=cluster_id).first()
    return to_policy(row.document if row else {})


def _open_jobs(cluster_id: int, scope: str) -> QuerySet[Job]:
    # By the states it may have: excluding others, every job that the cluster ever had is read.
    return Job.objects.filter(cluster_id=cluster_id, scope=scope, state__in=list(OPEN))


def _seconds(at: datetime | None) -> float:
    return at.timestamp() if at else 0.0
