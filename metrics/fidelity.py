"""Compare a recorded run of a live cluster with its replay in the simulator.

Both become a `FidelityRecord`: every pod's hold of GPUs, from the decision to its end. The same
functions then compute the five metrics of both (`metrics.definitions`, docs/metrics.md).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

import numpy as np

from metrics import definitions
from metrics.definitions import NodeUse, StepIntegral
from scheduling.engine.decisions import CycleResult
from scheduling.engine.deltas import JobEnded, JobRequeued, PodEnded
from scheduling.engine.states import JobState
from scheduling.engine.types import MILLI, Node
from scheduling.models import Job, JobEvent, Placement
from scheduling.models.jobs import PREEMPTED, PlacementState
from scheduling.queries import history
from scheduling.session.memory.load import policy, tenancy
from scheduling.simulator.loop import Simulation
from scheduling.simulator.model import Arrival, Settings
from scheduling.simulator.observe import SUCCEEDED

SAMPLE_S = 1.0  # spacing of the samples that the medians are computed from

Figures = dict[str, Any]


@dataclass(slots=True)
class PodHold:
    """A pod's hold of whole GPUs or of fractions, with the seconds at which it was decided, bound
    and gone. `finished`: its work was done by then."""

    job: str
    pod: tuple[int, int]
    node: str
    devices: tuple[int, ...]
    milli: int
    decided: float
    bound: float
    gone: float = math.inf
    finished: bool = False

    @property
    def held_milli(self) -> int:
        return self.milli * len(self.devices)


@dataclass(frozen=True, slots=True)
class AskedJob:
    """What a job asked for, and when. `ended`: when it was over; inf = not within the record.
    `done`: it succeeded."""

    submitted: float
    gpu_milli: int
    gang: bool
    pods: int
    ended: float
    done: bool = False


@dataclass(frozen=True, slots=True)
class FidelityRecord:
    """A run of `seconds`: jobs by id, and holds in the order of their decisions.

    `preempted`: ids of jobs that lost all or some of their pods to other jobs.
    """

    seconds: float
    jobs: Mapping[str, AskedJob]
    holds: Sequence[PodHold]
    preempted: frozenset[str] = frozenset()

    def order(self) -> list[tuple[str, tuple[int, int], str, tuple[int, ...]]]:
        """Return which pod was placed where, in the order of the decisions."""
        return [(h.job, h.pod, h.node, h.devices) for h in self.holds]


# --- the live run -------------------------------------------------------------------------------
def recorded(window: history.Window) -> FidelityRecord:
    """Read the record of the jobs submitted in the window from the database."""
    jobs: dict[str, AskedJob] = {}
    rows = Job.objects.filter(
        cluster=window.cluster, submitted_at__gte=window.since, submitted_at__lte=window.until
    )
    for job in rows.prefetch_related("pod_sets").order_by("submitted_at", "id"):
        jobs[str(job.pk)] = AskedJob(
            submitted=window.at(job.submitted_at),
            gpu_milli=job.first_gpu_milli or job.gpu_milli,
            gang=job.gang,
            pods=job.first_pods or sum(s.count for s in job.pod_sets.all()),
            ended=window.at(job.ended_at) if job.ended_at else math.inf,
            done=job.state == JobState.SUCCEEDED,
        )
    placed = Placement.objects.filter(job__in=rows, intended_at__lte=window.until)
    holds = [
        PodHold(
            job=str(p.job_id),
            pod=(p.pod_set, p.ordinal),
            node=p.node,
            devices=tuple(p.devices),
            milli=p.milli,
            decided=window.at(p.intended_at),
            bound=window.at(p.held_from) if p.held_from else math.inf,
            gone=window.at(p.ended_at) if p.ended_at else math.inf,
            finished=p.state == PlacementState.SUCCEEDED,
        )
        for p in placed.order_by("intended_at", "id")
    ]
    preempted = JobEvent.objects.filter(job__in=rows, reason=PREEMPTED)
    ids = frozenset(str(i) for i in preempted.values_list("job_id", flat=True))
    return FidelityRecord(window.seconds, jobs, holds, ids)


def bind_delay(record: FidelityRecord) -> float:
    """Return the mean seconds from a decision to the end of the wait, in whole steps; 0 without
    starts.

    A gang counts once, other jobs pod by pod, as in JWTD.
    """
    ends: dict[tuple[str, float, tuple[int, int] | None], float] = {}
    for h in _of_starts(record):
        if h.bound < math.inf:
            of = h.job, h.decided, None if record.jobs[h.job].gang else h.pod
            ends[of] = min(h.bound - h.decided, ends.get(of, math.inf))
    delays = list(ends.values())
    return round(fmean(delays) * history.STEPS) / history.STEPS if delays else 0.0


def heard_after(window: history.Window) -> float:
    """Return the mean seconds from a submission until the scheduler knew of it; 0 without jobs."""
    found = history.arrivals_of(window)
    delays = [a.heard_after_s for a in found if isinstance(a, Arrival)]
    return fmean(delays) if delays else 0.0


# --- the same run in the simulator ----------------------------------------------------------------
class _Recording(Simulation):
    """A simulation that keeps every hold; only what the engine was told and decided counts."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.holds: list[PodHold] = []
        self._open: dict[str, dict[tuple[int, int], PodHold]] = defaultdict(dict)

    def _decide(self, now: float) -> None:
        for delta in self._deltas:
            if isinstance(delta, PodEnded):
                self._close(delta.job_id, [(delta.pod_set, delta.ordinal)])
            elif isinstance(delta, JobEnded | JobRequeued):
                self._close(delta.job_id, list(self._open[delta.job_id]))
        super()._decide(now)

    def _close(self, job_id: str, pods: Iterable[tuple[int, int]]) -> None:
        for pod in pods:
            hold = self._open[job_id].pop(pod, None)
            if hold is not None:
                hold.gone = self.now
                run = self.jobs.get(job_id)
                waits = self.observer.jobs.waits.since
                hold.finished = run is None or math.isnan(waits[run.unit_of(pod)])

    def _carry_out(self, result: CycleResult, now: float) -> None:
        for part in result.started:
            for p in part.placements:
                pod, bound = (p.pod_set, p.ordinal), now + self.settings.bind_delay_s
                hold = PodHold(part.job_id, pod, p.node, p.devices, p.milli, now, bound)
                self._open[part.job_id][pod] = hold
                self.holds.append(hold)
        super()._carry_out(result, now)


def replayed(window: history.Window, bind_delay_s: float) -> FidelityRecord:
    """Decide the window's jobs again, in the simulator and under the cluster's own policy.

    Raises HistoryError for a job that cannot be read.
    """
    known = tenancy(window.cluster.pk)
    asked: dict[str, AskedJob] = {}

    def arrivals() -> Iterable[Arrival]:
        for arrival in history.arrivals_of(window):
            if isinstance(arrival, history.HistoryError):
                raise arrival
            job = arrival.job
            asked[job.id] = AskedJob(job.submitted_at, job.gpu_milli, job.gang, job.pods, math.inf)
            yield _bound_later(arrival, bind_delay_s)

    run = _Recording(
        tuple(history.nodes_of(window.cluster)),
        arrivals(),
        policy=policy(window.cluster.pk),
        tenants=known.tenants,
        quotas=known.quotas,
        settings=Settings(bind_delay_s=bind_delay_s, stop_s=window.seconds),
        start=history.RUNNING_AT,
    )
    outcome = run.run()
    columns = outcome.observer.jobs
    jobs = {
        job_id: replace(asked[job_id], ended=columns.ended[i], done=columns.state[i] == SUCCEEDED)
        for i, job_id in enumerate(columns.ids)
        if not math.isnan(columns.ended[i])
    }
    preempted = frozenset(i for i, n in zip(columns.ids, columns.preemptions, strict=True) if n)
    return FidelityRecord(window.seconds, {**asked, **jobs}, run.holds, preempted)


def _bound_later(arrival: Arrival, delay: float) -> Arrival:
    """Subtract the binding time from a job's run time. The recorded run time contains it, and the
    simulator adds it again."""
    pods = arrival.pod_s and {key: max(0.0, s - delay) for key, s in arrival.pod_s.items()}
    return replace(arrival, duration_s=max(0.0, arrival.duration_s - delay), pod_s=pods)


# --- the five metrics of a record -----------------------------------------------------------------
def figures(record: FidelityRecord, nodes: Sequence[Node]) -> Figures:
    """Compute GAR, SOR and GFR over the whole record and all pools; JWTD and JTTED by size class,
    and "all".

    GAR and GFR count a hold from its decision to its end and are integrated exactly; SOR counts
    from the binding (of a gang, of all its pods). The keys are those of every study.
    """
    uses = _Uses(nodes, record.seconds)
    uses.play(record.holds)
    held = definitions.held_milli_seconds(
        np.array([h.held_milli for h in record.holds], dtype=np.int64),
        np.array([h.bound for h in record.holds]),
        np.array([h.gone for h in record.holds]),
        (0.0, record.seconds),
    )
    found = waits(record)
    quality = jtted(record, nodes)
    return {
        "gar_mean": definitions.ratio(uses.allocated.area, uses.available.area),
        "gar_median": median(uses.gar) if uses.gar else None,
        "sor_mean": definitions.ratio(held, uses.available.area),
        "sor_median": median(uses.sor) if uses.sor else None,
        "gfr_mean": definitions.ratio(uses.fragmented.area, uses.nodes.area),
        "wait_mean_s": {size: of.in_all.mean for size, of in found.items()},
        "first_start_mean_s": {size: of.first_start.mean for size, of in found.items()},
        "jtted_nodes": {size: fmean(n for n, _ in rows) for size, rows in quality.items()},
        "jtted_groups": {size: fmean(g for _, g in rows) for size, rows in quality.items()},
        "jobs": len(record.jobs),
        "preempted_jobs": len(record.preempted),
        "lost_gpu_hours": _lost(record) / MILLI / 3600,
    }


@dataclass(slots=True)
class _Uses:
    """The nodes over time: integrals of `definitions.pool_use`, and a sampled series."""

    all_nodes: Sequence[Node]
    seconds: float
    allocated: StepIntegral = field(default_factory=lambda: StepIntegral(0.0))
    available: StepIntegral = field(default_factory=lambda: StepIntegral(0.0))
    fragmented: StepIntegral = field(default_factory=lambda: StepIntegral(0.0))
    nodes: StepIntegral = field(default_factory=lambda: StepIntegral(0.0))
    gar: list[float] = field(default_factory=list)
    sor: list[float] = field(default_factory=list)

    def play(self, holds: Iterable[PodHold]) -> None:
        changes: dict[float, list[tuple[int, PodHold]]] = defaultdict(list)
        for hold in holds:
            changes[hold.decided].append((1, hold))
            if hold.gone < math.inf:
                changes[hold.gone].append((-1, hold))
        on: dict[str, dict[int, int]] = {n.name: defaultdict(int) for n in self.all_nodes}
        sample, before = SAMPLE_S, 0.0
        self._change(0.0, on)
        instants = sorted(at for at in changes if at < self.seconds)
        for at in [*instants, self.seconds]:
            while sample <= at and sample <= self.seconds:
                before = self._sample(sample, before)
                sample += SAMPLE_S
            for sign, hold in changes[at] if at < self.seconds else ():
                for device in hold.devices:
                    on[hold.node][device] += sign * hold.milli
            self._change(max(at, 0.0), on)

    def _sample(self, at: float, before: float) -> float:
        area = self.allocated.area + self.allocated.value * (at - self.allocated.at)
        if self.available.value:
            self.gar.append(self.allocated.value / self.available.value)
            self.sor.append((area - before) / SAMPLE_S / self.available.value)
        return area

    def _change(self, at: float, on: Mapping[str, Mapping[int, int]]) -> None:
        use = definitions.pool_use(_node_use(n, on[n.name]) for n in self.all_nodes if n.devices)
        self.allocated.change(at, use.allocated_milli)
        self.available.change(at, use.available_milli)
        self.fragmented.change(at, use.fragmented)
        self.nodes.change(at, use.nodes)


def _node_use(node: Node, on: Mapping[int, int]) -> NodeUse:
    return NodeUse(
        gpu_model=node.gpu_model,
        gpus=len(node.devices),
        healthy=node.healthy_gpus,
        free=max(
            sum(1 for d in node.devices if d.healthy and not on.get(d.index))
            - node.unnamed_unhealthy,
            0,
        ),
        allocated_milli=sum(on.values()),
        schedulable=node.schedulable,
        leaf=node.topology[0] or node.name,
    )


def waits(record: FidelityRecord) -> dict[str, definitions.JobWaits]:
    """Return JWTD by size class, and "all". A gang counts once, other jobs pod by pod. No pod of a
    gang holds its place before all pods that the gang needs are bound."""
    held: dict[str, dict[tuple[int, int], list[tuple[float, float, bool]]]] = defaultdict(dict)
    for hold in record.holds:
        if hold.bound < math.inf:
            pod = (0, 0) if record.jobs[hold.job].gang else hold.pod
            span = (hold.bound, hold.gone, hold.finished)
            held[hold.job].setdefault(pod, []).append(span)
    found: dict[str, list[definitions.Wait]] = defaultdict(list)
    for job_id, job in record.jobs.items():
        until = min(job.ended, record.seconds)
        spans = [sorted(of_pod) for of_pod in held[job_id].values()]
        # Pods that a resized job got later did not wait since its submission.
        units = 1 if job.gang else job.pods
        spans = sorted(spans)[:units] + [[]] * (units - len(spans))
        for of_unit in spans:
            done = job.done or (bool(of_unit) and of_unit[-1][2])
            times = (span[:2] for span in of_unit)
            wait = definitions.wait_of(job.submitted, times, until, done=done)
            for size in (definitions.size_class(job.gpu_milli), "all"):
                found[size].append(wait)
    order = [*definitions.SIZE_LABELS, "all"]
    return {s: definitions.job_waits(found[s]) for s in order if s in found}


def jtted(record: FidelityRecord, nodes: Sequence[Node]) -> dict[str, list[tuple[float, float]]]:
    """Return the (node, group) deviations of gangs, by the size of what they hold, and "all"."""
    known = {n.name: n for n in nodes}
    per_node: dict[str, int] = defaultdict(int)
    members: dict[tuple[str, str], int] = defaultdict(int)
    for n in nodes:
        per_node[n.gpu_model] = max(per_node[n.gpu_model], len(n.devices))
        members[n.gpu_model, n.topology[0] or n.name] += 1
    largest: dict[str, int] = defaultdict(int)
    for (model, _), count in members.items():
        largest[model] = max(largest[model], count)
    starts: dict[tuple[str, float, str], list[PodHold]] = defaultdict(list)
    for hold in _of_starts(record):
        if record.jobs[hold.job].gang and hold.bound < math.inf:
            starts[hold.job, hold.decided, known[hold.node].gpu_model].append(hold)
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for (_, _, model), holds in starts.items():
        milli = sum(h.held_milli for h in holds)
        if not milli:
            continue  # without GPUs there is no fewest number of nodes
        used = {h.node for h in holds}
        groups = {known[name].topology[0] or name for name in used}
        fewest = definitions.fewest_nodes(-(-milli // MILLI), per_node[model])
        fewest_groups = definitions.fewest_groups(fewest, largest[model])
        row = (
            definitions.deviation(len(used), fewest),
            definitions.deviation(len(groups), fewest_groups),
        )
        for size in (definitions.size_class(milli), "all"):
            found[size].append(row)
    order = [*definitions.SIZE_LABELS, "all"]
    return {size: found[size] for size in order if size in found}


def _of_starts(record: FidelityRecord) -> Iterator[PodHold]:
    """Yield the holds without those that elastic gangs got while running: JTTED and binding delays
    are about how a gang started."""
    start: dict[str, list[PodHold]] = defaultdict(list)  # of each gang, the holds of its last start
    for hold in record.holds:
        if record.jobs[hold.job].gang:
            begun = start[hold.job]
            if any(h.decided < hold.decided < h.gone for h in begun):
                continue
            start[hold.job] = [h for h in begun if h.decided == hold.decided] + [hold]
        yield hold


def _lost(record: FidelityRecord) -> float:
    """Return the GPU-milli-seconds of starts after which the same pod had to start again."""
    last: dict[tuple[str, tuple[int, int]], PodHold] = {}
    lost = 0.0
    for hold in record.holds:
        earlier = last.get((hold.job, hold.pod))
        if earlier is not None:
            lost += earlier.held_milli * (earlier.gone - earlier.decided)
        last[hold.job, hold.pod] = hold
    return lost
