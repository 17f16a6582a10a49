"""One of several clusters of a run, and what the others hear of its jobs, nodes and quotas."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from scheduling.engine.cluster_choice.choice import ClusterOutlook, labels_in_common
from scheduling.engine.cluster_choice.estimate import (
    FOR_PLACES,
    FreeNodes,
    PodsOfJob,
    Queued,
    Supply,
    estimate,
    refused_by,
)
from scheduling.engine.cycle import run_cycle
from scheduling.engine.deltas import JobEnded, JobSubmitted, TenantsChanged
from scheduling.engine.demand.never import never
from scheduling.engine.native import mypyc_attr
from scheduling.engine.rehearse import copied, reserved_at, try_start
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import BEYOND, JobRequest, QueueSpec, QuotaSpec, TenantSpec
from scheduling.simulator.agenda import CYCLE, GIVE_UP
from scheduling.simulator.loop import Simulation
from scheduling.simulator.model import Arrival, ClusterOfRun, Settings
from scheduling.simulator.observe import Observer
from scheduling.simulator.run import Run

# (tenant, GPU model) -> (milli-GPU, how much of it non-preemptible jobs hold).
Held = dict[tuple[str, str], tuple[float, float]]


@mypyc_attr(allow_interpreted_subclasses=True)
class Member(Simulation):
    """A simulation whose arrivals and clock come from the run over all clusters."""

    def __init__(
        self,
        of: ClusterOfRun,
        observer: Observer,
        tenancy: tuple[tuple[TenantSpec, ...], tuple[QuotaSpec, ...], tuple[QueueSpec, ...]],
        settings: Settings,
        levels: tuple[str, ...],
        submit_again: Callable[[float, Arrival], None],
    ) -> None:
        tenants, quotas, queues = tenancy
        super().__init__(
            of.nodes,
            (),
            policy=of.policy,
            tenants=tenants,
            quotas=quotas,
            queues=queues,
            settings=replace(settings, warm_up_s=0.0),
            faults=of.faults,
            start=observer.start,
            levels=levels,
            observer=observer,
        )
        self.of = of
        self._tenants, self._quotas = tenants, quotas
        self._elsewhere: Held = {}
        self._held: Held = {}
        self._held_at = -1  # the version of the book at which `_held` was added up
        self._jobs_elsewhere: dict[str, int] = {}
        self._send_back = submit_again
        self._push(observer.start, CYCLE, None)

    @property
    def name(self) -> str:
        return self.of.name

    @property
    def next_at(self) -> float | None:
        """When the next event happens; None = it is at rest."""
        heap = self._agenda.heap
        return heap[0][0] if heap else None

    @property
    def lives(self) -> bool:
        """Whether anything is still to come for the jobs that it has."""
        return not self._agenda.rests and (bool(self.jobs) or bool(self._deltas))

    def advance(self, now: float) -> None:
        """Let everything happen that is due by this instant."""
        self.now = now
        while (at := self.next_at) is not None and at <= now:
            self._instant(now)

    def _submit_again(self, at: float, arrival: Arrival) -> None:
        self._send_back(at, arrival)

    # --- jobs that come and go ----------------------------------------------------------------
    def submit(self, run: Run, now: float) -> None:
        """Let the job wait here from now on."""
        self.now = now
        self._take_in(run)
        given_up = run.arrival.cancel_after_s
        if given_up is not None:
            self._push(max(now, run.arrival.submitted_at + given_up), GIVE_UP, run.arrival.job.id)
        self._push(now, CYCLE, None)
        self.advance(now)

    def withdraw(self, job_id: str, now: float) -> Run:
        """Remove a waiting job that goes to another cluster."""
        run = self.jobs.pop(job_id)
        self._deltas.append(JobEnded(job_id))
        self._push(now, CYCLE, None)
        self.advance(now)
        return run

    def may_leave(self) -> list[Run]:
        """Return waiting jobs that never had a place, depend on no job, and no job depends on."""
        awaited = {name for run in self.jobs.values() for name in _links(run.arrival.job)}
        return [
            run
            for name, run in self.jobs.items()
            if not (run.attempts or _links(run.arrival.job) or name in awaited)
            and run.arrival.not_before <= self.now
        ]

    # --- quota --------------------------------------------------------------------------------
    def held(self) -> Held:
        """Return what its own jobs hold."""
        book = self.state.book
        if self._held_at != book.version:
            self._held_at, self._held = book.version, {}
            for booking in book.bookings.values():
                for model, milli in booking.held.items():
                    amount = milli + booking.beyond.get(model, 0) / BEYOND
                    key = booking.tenant, model
                    used, fixed = self._held.get(key, (0.0, 0.0))
                    more = amount if booking.non_preemptible else 0.0
                    self._held[key] = used + amount, fixed + more
        return self._held

    def running(self) -> dict[str, int]:
        """Count jobs with places by tenant, if any tenant limits them."""
        found: dict[str, int] = {}
        if self.state.book.limits_jobs:
            for run in self.jobs.values():
                if run.places:
                    tenant = run.arrival.job.tenant
                    found[tenant] = found.get(tenant, 0) + 1
        return found

    def hear_of_others(self, held: Held, running: dict[str, int]) -> bool:
        """Count what others hold, from the next cycle on; return whether that is news."""
        if (held, running) == (self._elsewhere, self._jobs_elsewhere):
            return False
        self._elsewhere, self._jobs_elsewhere = held, running
        used = tuple((*key, *amounts) for key, amounts in sorted(held.items()))
        jobs = tuple(sorted(running.items()))
        self._deltas.append(TenantsChanged(self._tenants, self._quotas, used, jobs))
        self._push(self.now, CYCLE, None)
        return True

    # --- what becomes of a job here -----------------------------------------------------------
    def refuses(self, arrival: Arrival) -> str:
        """Return why the job can never run here; "" = it can."""
        lack = [
            f"{n}={v}"
            for n, v in (arrival.cluster_selector or {}).items()
            if self.of.labels.get(n) != v
        ]
        if lack:
            return f"it lacks the label {lack[0]}"
        job, state = arrival.job, self.state
        verdict = never(job, state.pools, state.book, state.strategy_of(job), state.cluster.levels)
        return verdict.summary if verdict is not None else ""

    def outlook(self, arrival: Arrival) -> ClusterOutlook:
        """Return the outlook of a job that is not here, judged by sums."""
        if why := self.refuses(arrival):
            return ClusterOutlook(self.name, refused=why)
        job = arrival.job
        asked = _asked(job)
        by_quota = refused_by(
            self.state.book, job.tenant, asked, non_preemptible=not job.preemptible
        )
        found = estimate(asked, self._supply(asked.level, job.priority), by_quota)
        return ClusterOutlook(
            self.name,
            starts_now=found.starts_now,
            why=found.why,
            groups=found.groups,
            labels=labels_in_common(self.of.labels, arrival.cluster_labels or {}),
            room=found.room,
        )

    def outlook_of(self, run: Run) -> ClusterOutlook:
        """Return the outlook of a job that waits here, as the engine knows it."""
        job_id = run.arrival.job.id
        labels = labels_in_common(self.of.labels, run.arrival.cluster_labels or {})
        start_at = reserved_at(self.state, job_id)
        return ClusterOutlook(self.name, start_at=start_at, labels=labels)

    def _supply(self, level: str, priority: int) -> Supply:
        cluster = self.state.cluster
        at = cluster.levels.index(level) if level in cluster.levels else -1
        rooms: dict[tuple[str, str, int], tuple[int, int, int]] = {}
        for slot, node in enumerate(cluster.facts):
            if node is None or not cluster.usable[slot]:
                continue
            group = node.topology[at] if at >= 0 else ""
            key = node.gpu_model, group, cluster.free[slot]
            nodes, milli, cpu = rooms.get(key, (0, 0, 0))
            left = cluster.available[slot] - cluster.allocated[slot]
            of_cpu = 0 if node.devices else cluster.cpu[slot]
            rooms[key] = nodes + 1, milli + left, cpu + of_cpu
        queued: dict[tuple[str, ...], int] = {}
        cpu_queued = 0
        for run in self.jobs.values():
            job = run.arrival.job
            if run.places or job.priority < priority or not self._for_places(job.id):
                continue
            for s in job.pod_sets:
                if s.gpus:
                    amount = queued.get(s.gpu_models, 0) + s.count * s.milli_per_pod
                    queued[s.gpu_models] = amount
                elif job.without_gpus:
                    cpu_queued += s.count * s.cpu_milli
        return Supply(
            tuple([FreeNodes(*key, *amounts) for key, amounts in rooms.items()]),
            tuple([Queued(models, amount) for models, amount in queued.items()]),
            cpu_queued,
        )

    def _for_places(self, job_id: str) -> bool:
        record = self.state.jobs.get(job_id)
        return record is None or record.verdict is None or record.verdict.reason in FOR_PLACES


class InstantOutlook:
    """Questions about a member at one instant, asked of a copy of its state.

    A job that would start there stays in the copy, so that no two jobs are sent to the same place.
    """

    def __init__(self, member: Member, now: float) -> None:
        self.member, self._now = member, now
        self._state: SchedulerState | None = None

    def outlook(self, run: Run) -> ClusterOutlook:
        """Return the outlook of a job from elsewhere: by sums; if they say "now", by the engine."""
        found = self.member.outlook(run.arrival)
        if not found.starts_now:
            return found
        if self._state is None:
            self._state = copied(self.member.state)
            run_cycle(self._state, [], self._now)
        job = run.arrival.job
        tried = try_start(self._state, JobSubmitted(job), self._now)
        if tried.places is not None:
            return found
        self.forget(run)
        return replace(found, starts_now=False)

    def forget(self, run: Run) -> None:
        """Note that the job did not go there."""
        if self._state is not None and run.arrival.job.id in self._state.jobs:
            run_cycle(self._state, [JobEnded(run.arrival.job.id)], self._now)


def _asked(job: JobRequest) -> PodsOfJob:
    """Return what the job asks for; its network level is its own, or that of its first pod set."""
    first = job.pod_sets[0]
    required = job.required_level or first.required_level
    level = required or job.preferred_level or first.preferred_level
    return PodsOfJob(job.pod_sets, job.gang, level, within=bool(required))


def _links(job: JobRequest) -> tuple[str, ...]:
    return (*job.after, *job.after_ok)


def sum_of(parts: list[Held]) -> Held:
    total: Held = {}
    for part in parts:
        for key, (milli, fixed) in part.items():
            before, before_fixed = total.get(key, (0.0, 0.0))
            total[key] = before + milli, before_fixed + fixed
    return total


def in_order(runs: list[Run]) -> list[Run]:
    """Return the jobs in order of priority, submission and id."""
    return sorted(runs, key=_rank)


def _rank(run: Run) -> tuple[int, float, str]:
    job = run.arrival.job
    return -job.priority, job.submitted_at, job.id


def labels_of(given: Mapping[str, str] | None) -> str:
    return ", ".join(f"{name}={value}" for name, value in (given or {}).items())
