"""What a cluster really did, from the database: its jobs as arrivals, its nodes as a fleet.

Times are seconds from the start of the window, in whole steps of 2**-20 s. Their sums and
differences are exact, so that what happened in one scheduling pass happens at one instant again.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Max, Min, Q, QuerySet

from scheduling.engine.states import TERMINAL, JobState
from scheduling.engine.states import JobEventKind as Kind
from scheduling.engine.types import Node, PodSetSpec, Policy, Taint
from scheduling.kube.translate.devices import devices_of, nics_of
from scheduling.models import Cluster, Job, JobEvent, NodeRecord, Placement
from scheduling.models.jobs import MOVED, PREEMPTED
from scheduling.session.memory.load import live_job
from scheduling.session.memory.past import half_life_of, past_use
from scheduling.simulator.model import Arrival, TimedChange
from tenants.database.chunks import chunks

CHUNK = 500  # jobs read at once, and ids in one IN list
STEPS = 1 << 20  # steps of time in a second
# Before the window begins at 0, jobs that already ran get their places, then jobs that waited
# arrive; each group in its old order.
RUNNING_AT, WAITING_AT = -2.0, -1.0
ALWAYS = -math.inf  # the start time of a job that may start at any time
BY_PEOPLE = (Kind.SUBMITTED, Kind.HELD, Kind.RELEASED, Kind.CHANGED, Kind.CANCELLED)

PodSpan = tuple[float, float]  # (decided, gone) in seconds of the window; inf = not gone


class HistoryError(ValueError):
    """A row of the history that makes no valid job; names the job."""


@dataclass(frozen=True, slots=True)
class Window:
    """The history of a cluster from `since` to `until`."""

    cluster: Cluster
    since: datetime
    until: datetime

    @property
    def seconds(self) -> float:
        return exact(self.until - self.since)

    def at(self, instant: datetime) -> float:
        """Return the seconds of the window; negative before it."""
        return exact(instant - self.since)


def exact(length: timedelta) -> float:
    """Return the seconds in whole steps."""
    return round(length.total_seconds() * STEPS) / STEPS


# --- nodes ----------------------------------------------------------------------------------------
def nodes_of(cluster: Cluster) -> Iterator[Node]:
    """Return the nodes of a cluster as its scheduler last saw them, by name."""
    rows = NodeRecord.objects.filter(cluster=cluster).order_by("name")
    return (node_of(row) for row in rows.iterator(chunk_size=CHUNK))


def node_of(row: NodeRecord) -> Node:
    """Return the node as the engine gets it."""

    def told(name: str, default: Any) -> Any:
        return row.facts[name]["value"] if name in row.facts else default

    bad_gpus, bad_nics = told("unhealthy_gpus", ()), told("unhealthy_nics", ())
    memory = int(told("gpu_memory_mib", 0))
    nic_counts = tuple(sorted(told("nic_resources", {}).items()))  # numbered in this order
    return Node(
        name=row.name,
        gpu_model=row.gpu_model,
        devices=devices_of(row.gpus, tuple(bad_gpus), memory, ()),
        nics=nics_of(int(told("nics", 0)), tuple(bad_nics), row.gpus, nic_counts),
        topology=(row.leaf, row.spine, row.superspine),
        hyper_node=row.hyper_node,
        labels=row.labels,
        taints=tuple(Taint(**taint) for taint in row.taints),
        cpu_milli=row.cpu_milli,
        memory_mib=row.memory_mib,
        max_pods=row.max_pods,
        extended=row.extended,
        schedulable=row.schedulable,
        link_model=str(told("link_model", "")),
        zone=row.zone,
        gives_shares="shares" in row.facts,
        unnamed_unhealthy=int(told("unnamed_unhealthy_gpus", 0)),
        gpu_parts="gpu_parts" in row.facts,
        out_of_service="" if row.schedulable else str(told("health", "")),
        attach_limits=told("attach_limits", {}),
    )


# --- past use -------------------------------------------------------------------------------------
def held_before(window: Window, policy: Policy) -> list[TimedChange]:
    """Return what was held before the window, for a run under a policy that counts it."""
    half_life_s = half_life_of(policy)
    if not half_life_s:
        return []
    return [TimedChange(RUNNING_AT, past_use(window.cluster.pk, half_life_s, window.since))]


# --- jobs -----------------------------------------------------------------------------------------
def arrivals_of(window: Window) -> Iterator[Arrival | HistoryError]:
    """Yield all jobs that were open in the window, in order of arrival, read as needed.

    - A job holds its places as long as it really did, from the decision until its last pod was
      gone.
    - A job that had not ended by the end of the window never ends.
    - A job that ended without a start is given up when it ended.
    - If a job was placed several times, the last time counts; how long its pods took to leave when
      it was preempted is given for each time.
    - A job that was resized while it ran asks for all the pods that it had since then, each for as
      long as it had it.
    - Rows that make no valid job come as errors, in their places.
    """
    jobs = Job.objects.filter(cluster=window.cluster, submitted_at__lt=window.until)
    before = jobs.filter(submitted_at__lt=window.since)
    before = before.filter(Q(ended_at=None) | Q(ended_at__gt=window.since))
    ran = Q(admitted_at__lte=window.since)
    for rows in (
        before.filter(ran),
        before.exclude(ran),
        jobs.filter(submitted_at__gte=window.since),
    ):
        for chunk in _chunks(rows):
            yield from _arrivals(window, chunk)


def _chunks(rows: QuerySet[Job]) -> Iterator[list[Job]]:
    """Yield jobs in order of submission, each chunk by a query of its own.

    No reader stays open for hours. All keys are read first: if asked for rows after the last one, a
    database may sort all that are left each time.
    """
    keys = list(rows.order_by("submitted_at", "id").values_list("pk", flat=True))
    whole = Job.objects.select_related("tenant").prefetch_related("pod_sets").order_by()
    for wanted in chunks(keys, CHUNK):
        found = {job.pk: job for job in whole.filter(pk__in=wanted)}
        yield [found[key] for key in wanted if key in found]


def _arrivals(window: Window, jobs: list[Job]) -> Iterator[Arrival | HistoryError]:
    ids = [job.pk for job in jobs]
    told = _told(window, ids)
    pods = _pods(window, jobs)
    leaves = _leaves(window, ids)
    for job in jobs:
        try:
            went = leaves.get(job.pk)
            arrival = _arrival(window, job, *told[job.pk], pods[job.pk], was_made_to_go=bool(went))
            yield replace(arrival, leaves_s=went)
        except (KeyError, TypeError, ValueError) as error:
            yield HistoryError(f"job {job.pk}: cannot be read ({error})")


def _told(window: Window, ids: list[Any]) -> dict[Any, tuple[float | None, float]]:
    """Return {job: (when the scheduler first saw it, when it was last released from a hold)}."""
    rows = (
        JobEvent.objects.filter(job_id__in=ids)
        .order_by()
        .values_list("job_id")
        .annotate(
            heard=Min("at", filter=~Q(kind__in=BY_PEOPLE)),
            released=Max("at", filter=Q(kind=Kind.RELEASED)),
        )
    )
    found: dict[Any, tuple[float | None, float]] = dict.fromkeys(ids, (None, ALWAYS))
    for job_id, heard, released in rows:
        found[job_id] = (
            window.at(heard) if heard else None,
            window.at(released) if released else ALWAYS,
        )
    return found


def _pods(window: Window, jobs: list[Job]) -> dict[Any, dict[tuple[int, int], PodSpan]]:
    """Return {job: {(pod set, ordinal): (placed, gone)}} of its last start.

    For a pod that was moved since, the first place counts. What a job still holds when it is over
    goes at one time, as the scheduler is told once the last pod is gone.
    """
    found: dict[Any, dict[tuple[int, int], PodSpan]] = {job.pk: {} for job in jobs}
    starts = {job.pk: job.admitted_at for job in jobs if job.admitted_at is not None}
    rows = Placement.objects.filter(job_id__in=starts).order_by("attempt")
    moves = JobEvent.objects.filter(job_id__in=starts, reason=MOVED)
    told = moves.values_list("job_id", "evidence__pod_set", "evidence__ordinal")
    moved = {(job_id, (pod_set, ordinal)) for job_id, pod_set, ordinal in told}
    for job_id, pod_set, ordinal, begun, ended in rows.values_list(
        "job_id", "pod_set", "ordinal", "intended_at", "ended_at"
    ).iterator(chunk_size=2000):
        if begun >= starts[job_id]:  # otherwise of an earlier start
            gone = math.inf if ended is None or ended > window.until else window.at(ended)
            pod = (pod_set, ordinal)
            known = found[job_id].get(pod) if (job_id, pod) in moved else None
            found[job_id][pod] = (known[0] if known else window.at(begun), gone)
    for job in jobs:
        over = window.at(job.ended_at) if job.ended_at else math.inf
        held = {pod: span for pod, span in found[job.pk].items() if span[1] > over}
        last = max((gone for _, gone in held.values()), default=over)
        found[job.pk].update((pod, (begun, last)) for pod, (begun, _) in held.items())
    return found


def _leaves(window: Window, ids: list[Any]) -> dict[Any, dict[tuple[int, int], tuple[float, ...]]]:
    """Return the seconds that pods took to leave each time they were preempted or moved.

    Shape: {job: {(pod set, ordinal): seconds, …}}.
    """
    events = JobEvent.objects.filter(job_id__in=ids, reason__in=(PREEMPTED, MOVED))
    jobs: dict[Any, list[datetime]] = {}  # when all of it had to leave
    pods: dict[str, datetime] = {}  # by name, when that pod had to leave
    for job_id, at, kind, evidence in events.order_by("at", "id").values_list(
        "job_id", "at", "kind", "evidence"
    ):
        # With this in the query, SQLite reads all events of the window for each few jobs.
        if not window.since <= at <= window.until:
            continue
        whole = jobs.setdefault(job_id, [])
        if kind == Kind.PREEMPTED:
            whole.append(at)
        else:
            pods.update(dict.fromkeys(evidence.get("which", "").split(","), at))
    found: dict[Any, dict[tuple[int, int], tuple[float, ...]]] = {}
    gone = Placement.objects.filter(job_id__in=jobs, ended_at__isnull=False)
    for job_id, pod_set, ordinal, name, begun, ended in gone.order_by("ended_at").values_list(
        "job_id", "pod_set", "ordinal", "pod_name", "intended_at", "ended_at"
    ):
        assert ended is not None
        whole = jobs[job_id]
        before = bisect_left(whole, ended)
        told = pods.get(name, whole[before - 1] if before else None)
        if told is not None and begun <= told:
            times = found.setdefault(job_id, {}).get((pod_set, ordinal), ())
            found[job_id][pod_set, ordinal] = (*times, window.at(ended) - window.at(told))
    return found


def _arrival(
    window: Window,
    job: Job,
    heard: float | None,
    released: float,
    pods: dict[tuple[int, int], PodSpan],
    *,
    was_made_to_go: bool,
) -> Arrival:
    request = live_job(job, job.tenant.name, list(job.pod_sets.all())).request
    request = replace(request, pod_sets=_with_all(request.pod_sets, pods))
    submitted = window.at(job.submitted_at)
    ended = job.ended_at is not None and job.ended_at <= window.until
    begun = min((begin for begin, _ in pods.values()), default=math.inf)
    not_before = max(released, window.at(job.start_not_before) if job.start_not_before else ALWAYS)
    arrival = Arrival(
        replace(request, submitted_at=submitted),
        duration_s=math.inf,
        ends=JobState(job.state) if ended and job.state in TERMINAL else JobState.SUCCEEDED,
        heard_after_s=max(0.0, heard - submitted) if heard is not None else 0.0,
        not_before=math.inf if job.held or job.pod_hold else not_before,
    )
    over = window.at(job.ended_at) if ended and job.ended_at is not None else math.inf
    last = max((gone for _, gone in pods.values()), default=-math.inf)
    # How long a job would have run is unknown if it ended while it waited (before its first start
    # or after it lost its places), or if it was cancelled after it started over.
    waited = last < over < math.inf and job.state != JobState.SUCCEEDED
    # A plain pod's job ends when its pod has to leave.
    cut_off = over < math.inf and was_made_to_go
    cut_off = cut_off and (job.state == JobState.CANCELLED or bool(job.pod_name))
    if pods and not waited and not cut_off:
        spans = {key: gone - begin for key, (begin, gone) in pods.items()}
        longest = max(spans.values())
        alike = len(set(spans.values())) == 1
        arrival = replace(arrival, duration_s=longest, pod_s=None if alike else spans)
    elif max(over, last) < math.inf:  # otherwise it holds its places to the end of the window
        arrival = replace(arrival, cancel_after_s=max(over, last) - submitted)
    return arrival if submitted >= 0 else _carried_over(arrival, begun)


def _with_all(
    sets: tuple[PodSetSpec, ...], had: Iterable[tuple[int, int]]
) -> tuple[PodSetSpec, ...]:
    """Return the pod sets with counts that include all these pods (pod set, ordinal)."""
    counts = [s.count for s in sets]
    for index, ordinal in had:
        whole = sets[index].slice_size or 1
        counts[index] = max(counts[index], ordinal + whole - ordinal % whole)
    return tuple(replace(s, count=count) for s, count in zip(sets, counts, strict=True))


def _carried_over(arrival: Arrival, begun: float) -> Arrival:
    """Return a job from before the window, with what was left of it if it already ran."""
    job, passed = arrival.job, max(0.0, RUNNING_AT - begun)
    gave_up = arrival.cancel_after_s
    if gave_up is not None:
        gave_up += job.submitted_at
    if begun > 0.0:
        age = -job.submitted_at
        # Map ages of any length, in order, to times between the two arrivals before the window.
        at = WAITING_AT * age / (1 + age)
        return replace(
            arrival,
            job=replace(job, submitted_at=at),
            heard_after_s=0.0,
            cancel_after_s=None if gave_up is None else gave_up - at,
        )
    pods = arrival.pod_s and {key: max(0.0, s - passed) for key, s in arrival.pod_s.items()}

    def left(seconds: float | None) -> float | None:
        return None if seconds is None else max(1.0, seconds - passed)

    request = replace(
        job,
        submitted_at=RUNNING_AT,
        declared_s=left(job.declared_s),
        run_limit_s=left(job.run_limit_s),
    )
    return replace(
        arrival,
        job=request,
        duration_s=max(0.0, arrival.duration_s - passed),
        pod_s=pods,
        heard_after_s=0.0,
        not_before=ALWAYS,
        cancel_after_s=None if gave_up is None else gave_up - RUNNING_AT,
    )
