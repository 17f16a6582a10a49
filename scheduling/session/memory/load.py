"""Rows as the engine's nouns, and cheap queries that tell whether rows changed."""

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

# Reasons of a waiting job that does not start by itself.
NO_START = {*NEVER, Reason.ON_HOLD, Reason.QUEUE_HELD}
FEW = 200  # up to this many jobs, related rows are queried by job id


# --- jobs -----------------------------------------------------------------------------------------
def waiting_or_holding(cluster_id: int, scope: str) -> list[str]:
    """Return the ids of all open jobs, and of jobs that still have live placements."""
    open_jobs = _open_jobs(cluster_id, scope)
    leaving = Placement.objects.filter(
        job__cluster_id=cluster_id, job__scope=scope, state__in=LIVE_PLACEMENTS
    )
    ids = dict.fromkeys(open_jobs.order_by("submitted_at").values_list("id", flat=True))
    ids.update(dict.fromkeys(leaving.values_list("job_id", flat=True)))
    return [str(i) for i in ids]


def jobs(ids: Iterable[str]) -> tuple[list[LiveJob], list[tuple[str, int, JobState, str]]]:
    """Return the jobs without pods, oldest first, and (id, version, state, why) of bad rows."""
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
    """What the pod sets of jobs ask for; equal ones are read once.

    The jobs of an array ask for the same; only their environment variables differ.
    """

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
        """Return the pod sets of a job, by its id as the database gives it.

        None = it has none, or one that cannot be read.
        """
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
    """Read one job with `live_job`, which says what is wrong with its rows."""
    job = Job.objects.filter(id=job_id).first()
    if job is None:
        raise ValueError("the job was deleted just now")
    return live_job(job, tenants[job.tenant_id], list(job.pod_sets.order_by("index")))


def _last_places(placed: Sequence[Any]) -> dict[Any, tuple[int, str]]:
    """Return each job's highest attempt and its namespace.

    The job's own column only knows when all of it was placed, not pods that were placed again
    alone.
    """
    if not placed:
        return {}
    rows = Placement.objects.filter(job__in=placed).order_by("attempt")
    places = rows.values_list("job_id", "attempt", "namespace").distinct()
    return {job_id: (attempt, namespace) for job_id, attempt, namespace in places}


def _plain_pods(taken_up: Sequence[Any]) -> dict[Any, dict[PodKey, PodRef]]:
    """Return the pods that each of these jobs stands for."""
    found: dict[Any, dict[PodKey, PodRef]] = defaultdict(dict)
    shared = SharedLabels()
    names = ("job_id", "pod_set", "ordinal", "name", "uid", "labels")
    rows = JobPod.objects.filter(job__in=taken_up).order_by() if taken_up else JobPod.objects.none()
    for job_id, pod_set, ordinal, name, uid, labels in rows.values_list(*names):
        found[job_id][pod_set, ordinal] = PodRef(name, str(uid), shared.one(labels))
    return found


def failed_among(ids: tuple[str, ...]) -> list[str]:
    """Return those of these jobs that did not succeed, and of these arrays that have such a job."""
    if not ids:
        return []
    ended = Job.objects.filter(state__in=(JobState.FAILED, JobState.CANCELLED)).order_by()
    jobs = ended.filter(id__in=ids).values_list("id", flat=True)
    arrays = ended.filter(array_id__in=ids).values_list("array_id", flat=True).distinct()
    return sorted(str(i) for i in (*jobs, *arrays))


def doomed_by(ids: Iterable[str]) -> str | None:
    """Return a failed job or array among these, or among those they wait for, at any distance."""
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
    """Return the first of these jobs or arrays that is stuck, with what it is stuck on.

    What it is stuck on is a job, any number of links away, whose verdict says that it does not
    start by itself.
    """
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
    """Return the row's text on why the job waits."""
    told: str = Job.objects.values_list("message", flat=True).get(pk=job_id)
    return told


def open_among(ids: Iterable[str]) -> list[str]:
    """Return those of these jobs, and of the jobs of these arrays, that are not over."""
    named = Q(id__in=list(ids)) | Q(array_id__in=list(ids))
    rows = Job.objects.filter(named, state__in=list(OPEN))
    return [str(i) for i in rows.order_by("id").values_list("id", flat=True)]


@dataclass(slots=True)
class _Displaced:
    """Who displaced a job, and at what loss.

    - `by`: for each preemption, the job that it made room for.
    - `gave_way_to`: jobs for which an elastic gang only gave up pods.
    - `lost_gpu_s`: GPU-seconds of work that moves have cost it.
    """

    by: tuple[str, ...] = ()
    gave_way_to: tuple[str, ...] = ()
    lost_gpu_s: float = 0.0


def _displaced(cluster_id: int, scope: str, only: Sequence[str]) -> dict[str, _Displaced]:
    """Return the open jobs that ever made room for others or moved, or `only` these of them."""
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
    """Yield what was decided about these jobs before, if anything."""
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
    """Return when waiting jobs last came back to the queue or were released, within `delay_s`.

    A job that has waited longer may preempt anyway.
    """
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
    """Return the ids of jobs that show a reservation."""
    rows = Job.objects.filter(cluster_id=cluster_id, scope=scope, reserved_start__isnull=False)
    return [str(i) for i in rows.order_by("id").values_list("id", flat=True)]


def live_job(job: Job, tenant: str, sets: list[PodSet]) -> LiveJob:
    """Return the job without pods. Raises ValueError if its rows make no valid request."""
    if not sets:
        raise ValueError("the job has no pod set")
    if wrong := unreadable_request(job, sets):
        raise ValueError(wrong)
    return live_of(job, tenant, [asked_of(row) for row in sets])


def live_of(job: Any, tenant: str, asked: Sequence[ReadSpec]) -> LiveJob:
    """Return the job without pods. `job`: a row or its columns; `asked`: for each pod set."""
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
        bound_at=job.bound_at.timestamp() if job.bound_at else None,
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
    """Give each job that holds or gives back places its pods, each by its last attempt."""
    rows = Placement.objects.filter(job__cluster_id=cluster_id, job__scope=scope)
    if len(live) <= FEW:
        rows = rows.filter(job_id__in=list(live))
    leaving = rows.filter(state__in=LIVE_PLACEMENTS).values_list("job_id", flat=True)
    with_pods = {str(i) for i in leaving} | {i for i, j in live.items() if j.state in HOLDING}
    # The job's attempt is the one by which all of it was placed last.
    since = rows.filter(attempt__gte=F("job__attempt")).order_by("attempt")
    for chunk in chunks(sorted(with_pods & live.keys())):
        places = RawRows(since.filter(job_id__in=chunk))
        for raw in places.rows:
            row = places.columns(raw)
            if (job := live.get(str(row.job_id))) is not None:
                _add_placement(job, row)


def add_constraints(cluster_id: int, scope: str, live: Mapping[str, LiveJob]) -> None:
    """Give each job what the engine was last told of it beyond its rows."""
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
            bound_at=_seconds(row.bound_at),
            running_at=_running_at(row),
            later=row.intended_at.timestamp() > job.admitted_at,
            uid=job.plain[key].uid if job.plain else row.pod_uid,
            reason=row.reason,
            why=row.message if row.state in LIVE_PLACEMENTS else "",
        )
    )


def _running_at(row: Any) -> float | None:
    """Return since when the pod runs, or has its place if it ran before this was noted."""
    if row.running_at is not None:
        return row.running_at.timestamp()
    return row.intended_at.timestamp() if row.state == PlacementState.RUNNING else None


# --- changes --------------------------------------------------------------------------------------
def versions(cluster_id: int, scope: str) -> dict[str, int]:
    """Return the versions of all open jobs, to find lost wake-ups."""
    rows = _open_jobs(cluster_id, scope)
    return {str(i): version for i, version in rows.values_list("id", "version")}


def reached_by(cluster: Cluster) -> tuple[object, ...]:
    """Return the settings that a session is built from and that cannot change while it lasts."""
    return cluster.access, cluster.namespace, cluster.label_map


def tenancy(cluster_id: int, scope: str | None = None) -> TenantsChanged:
    """Return tenants and quotas, with the use outside the scope; None = outside the cluster."""
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
    """Return {tenant: namespace of its jobs' pods}; `default` is the cluster's namespace."""
    return {
        name: default if given is None else given.value
        for name, given in selectors.given_to_all()["namespace"].items()
    }


def used_elsewhere(cluster_id: int, scope: str | None) -> tuple[tuple[str, str, float, float], ...]:
    """Return what jobs in other clusters and scopes hold, which counts against quota.

    Each entry is (tenant, GPU model, GPU-milli, of these by non-preemptible jobs).
    """
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
    """Return (tenant, jobs that run in other clusters and scopes) if any tenant is limited."""
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
    """Return the cluster's policy; fields that its document lacks have their defaults."""
    row = ClusterPolicy.objects.filter(cluster_id=cluster_id).first()
    return to_policy(row.document if row else {})


def _open_jobs(cluster_id: int, scope: str) -> QuerySet[Job]:
    # By possible states: excluding the others would read every job that the cluster ever had.
    return Job.objects.filter(cluster_id=cluster_id, scope=scope, state__in=list(OPEN))


def _seconds(at: datetime | None) -> float:
    return at.timestamp() if at else 0.0
