"""The discrete-event loop: simulated time, with the engine's own cycle making the decisions.

Events have a total order (time, kind, sequence), so that a run is the same every time. This shell
carries the engine's decisions out as the live session would: pods start after the bind delay, lose
work when they are preempted or their node fails, and end.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from heapq import heappop
from typing import Any

from scheduling.engine.cycle import run_cycle
from scheduling.engine.decisions import CycleResult, Moved, Preempted, Started
from scheduling.engine.deltas import (
    Checkpointed,
    Delta,
    JobEnded,
    JobRequeued,
    JobSubmitted,
    NodeChanged,
    NodeRemoved,
    PastUse,
    PodEnded,
    PodRequeued,
    PodsRunning,
    PolicyChanged,
    QueueDebts,
    QueuesChanged,
    TenantsChanged,
)
from scheduling.engine.native import mypyc_attr
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import (
    DEFAULT_LEVELS,
    Node,
    PodPlacement,
    Policy,
    QueueSpec,
    QuotaSpec,
    TenantSpec,
)
from scheduling.engine.verdict import NEVER as NEVER_RUNS
from scheduling.engine.verdict import Reason
from scheduling.simulator.agenda import (
    ARRIVAL,
    CHANGE,
    CYCLE,
    END,
    FAULT,
    GIVE_UP,
    GONE,
    REPAIR,
    RUN,
    SAVE,
    WARM,
    Agenda,
)
from scheduling.simulator.faults import Outages
from scheduling.simulator.forecast.learned import LearnedTimes
from scheduling.simulator.forecast.run_times import RunTimes
from scheduling.simulator.journal import RunJournal
from scheduling.simulator.model import Arrival, HardwareFault, Pod, Settings, TimedChange
from scheduling.simulator.observe import CANCELLED, ENDS, FAILED, RUNNING, SUCCEEDED, Observer
from scheduling.simulator.places import RunPlaces
from scheduling.simulator.run import Run, RunOutcome, TraceError

# After this many events, progress is reported and the run may be cancelled.
LOOK_EVENTS = 1024

Progress = Callable[[float, int, int], None]  # (simulated time, events so far, jobs so far)


@mypyc_attr(allow_interpreted_subclasses=True)
class Simulation:
    """One run. Build it and call `run()` once."""

    def __init__(
        self,
        nodes: Sequence[Node],
        arrivals: Iterable[Arrival],
        *,
        policy: Policy,
        tenants: tuple[TenantSpec, ...] = (),
        quotas: tuple[QuotaSpec, ...] = (),
        queues: tuple[QueueSpec, ...] = (),
        settings: Settings | None = None,
        faults: Iterable[HardwareFault] = (),
        changes: Iterable[TimedChange] = (),
        start: float = 0.0,
        levels: tuple[str, ...] = DEFAULT_LEVELS,
        journal: RunJournal | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Set the run up.

        `queues`: all queues of the tenants that have more than a plain one. `journal`: records
        every placement. `observer`: keeps the books; a new one by default.
        """
        self.settings = settings or Settings()
        # Numbers in reasons are never renewed (refresh_s): nobody reads them for simulated jobs.
        self._tells_of_runs = self.settings.bind_delay_s > 0  # otherwise pods run at once
        self.state = SchedulerState(
            levels=levels,
            policy=policy,
            refresh_s=math.inf,
            told_of_runs=self._tells_of_runs,
        )
        self.now = start
        self.observer = observer or Observer(start, self.settings.sample_s, journal)
        self._places = RunPlaces(self.observer, self.settings)
        self._outages = Outages(nodes)
        self.nodes = self._outages.facts
        self.jobs: dict[str, Run] = {}
        self.never: dict[str, str] = {}
        self.events = self.cycles = 0
        self._agenda = Agenda(start, arrivals, faults)
        self._push = self._agenda.push
        self._learned: LearnedTimes | None = None
        self._deltas: list[Delta] = [TenantsChanged(tenants, quotas)]
        self._saved: list[Delta] = []  # told at the next cycle, but no cause for one
        if queues:
            self._deltas.append(QueuesChanged(queues))
        self._cycle_at: float | None = None
        for node in nodes:
            self._deltas.append(NodeChanged(node))
            self.observer.node_changed(node, start)
        # Jobs beyond all quota, and why. They wait as long as changes of tenants are to
        # come (`_tenancies` of them).
        self._beyond_quota: dict[str, str] = {}
        self._tenancies = 0
        for change in changes:
            self._push(change.at, CHANGE, change.delta)
            self._tenancies += isinstance(change.delta, TenantsChanged)
        self._warming = self.settings.warm_up_s > 0
        if self._warming:
            self._push(start + self.settings.warm_up_s, WARM, None)
        self._agenda.next_fault()
        self._agenda.next_arrival(start)

    # --- the loop -----------------------------------------------------------------------------
    def run(
        self, progress: Progress | None = None, cancelled: Callable[[], bool] | None = None
    ) -> RunOutcome:
        """Run to rest, to `settings.stop_s`, or until `cancelled()`; call this at most once."""
        stop, agenda, partial = self.settings.stop_s, self._agenda, False
        heap = agenda.heap
        look_at = LOOK_EVENTS
        # Nodes go on failing after the last job has ended.
        while not agenda.rests and (self.jobs or agenda.arriving or self._deltas):
            now = heap[0][0]
            if stop is not None and now > stop:
                now = stop
            self.observer.sample_until(now)
            self.now = now
            if heap[0][0] > now:
                break
            self._instant(now)
            if self.events >= look_at:
                look_at = self.events + LOOK_EVENTS
                if progress is not None:
                    progress(now, self.events, len(self.observer.jobs))
                if cancelled is not None and cancelled():
                    partial = True
                    break
        return self.result(partial=partial)

    def _instant(self, now: float) -> None:
        """Let everything happen that is due now, and run a cycle if anything changed."""
        heap = self._agenda.heap
        while heap and heap[0][0] == now:
            _, kind, _, payload = heappop(heap)
            self.events += 1
            self._happen(kind, payload)
        if self._deltas or self._cycle_at == now:
            self._decide(now)

    def result(self, *, partial: bool) -> RunOutcome:
        """Return what there is at the present instant; the run is over."""
        if self._warming:  # what was observed so far does not count
            self._warm()
        for run in self.jobs.values():
            if run.places:
                self.observer.jobs.state[run.row] = RUNNING
        return RunOutcome(
            observer=self.observer,
            pools=dict(self.observer.finish(self.now)),
            ended_at=self.now,
            events=self.events,
            cycles=self.cycles,
            partial=partial,
            never=self.never,
            waiting=sum(1 for r in self.jobs.values() if not r.places),
        )

    def _decide(self, now: float) -> None:
        """Run a cycle now, or at the next tick if cycles have a period."""
        period = self.settings.cycle_s
        if period and self._cycle_at != now:
            tick = now - now % period + period
            if self._cycle_at is None or self._cycle_at > tick:
                self._cycle_at = tick
                self._push(tick, CYCLE, None)
            return
        deltas, self._deltas, self._saved = self._saved + self._deltas, [], []
        self._cycle_at = None
        self.cycles += 1
        if self.state.policy.plans_by_learned or self._learned is not None:
            if self._learned is None:
                self._learned = LearnedTimes(RunTimes())
            deltas += self._learned.follow(deltas, self.state.jobs, now)
        result = run_cycle(self.state, deltas, now)
        self._carry_out(result, now)
        if result.next_at is not None:
            self._wake(max(result.next_at, now))

    def _wake(self, at: float) -> None:
        """Have a cycle at `at` at the latest."""
        if self._cycle_at is None or at < self._cycle_at:
            self._cycle_at = at
            self._push(at, CYCLE, None)

    # --- what the engine decided --------------------------------------------------------------
    def _carry_out(self, result: CycleResult, now: float) -> None:
        for victim in result.preempted:
            self._preempt(victim, now)
        for move in result.moved:
            self._move(move, now)
        for part in result.started:
            self._start(part, now)
        for limit in result.run_limits:
            if limit.exceeded and limit.job_id in self.jobs:
                self._finish(self.jobs[limit.job_id], FAILED)
        for waiting in result.waiting:
            verdict = waiting.verdict
            if verdict.reason == Reason.EXCEEDS_MAX_QUOTA and self._tenancies:
                self._beyond_quota[waiting.job_id] = verdict.summary
            elif verdict.reason in NEVER_RUNS:
                self._never_runs(waiting.job_id, verdict.summary)
        if self._beyond_quota and not self._tenancies:
            self._quotas_stand()
        lost: dict[str, list[Pod]] = {}
        for job_id, pod_set, ordinal in result.lost:
            lost.setdefault(job_id, []).append((pod_set, ordinal))
        for job_id, pods in lost.items():
            run = self.jobs.get(job_id)
            if run is not None and run.places:
                self._displace(run, pods, now)
        if self._deltas:
            self._cycle_at = now
            self._push(now, CYCLE, None)

    def _quotas_stand(self) -> None:
        """Give up the jobs that are still beyond all quota: quotas will not change any more."""
        for job_id, why in self._beyond_quota.items():
            record = self.state.jobs.get(job_id)
            if (
                record is not None
                and record.eq_class is not None
                and record.eq_class.never is not None
            ):
                self._never_runs(job_id, why)
        self._beyond_quota.clear()

    def _never_runs(self, job_id: str, why: str) -> None:
        self.never[job_id] = why
        # Jobs that wait for it must not wait for ever.
        self._deltas.append(JobEnded(job_id, succeeded=False))
        self._leave(job_id, FAILED)

    def _preempt(self, victim: Preempted, now: float) -> None:
        """Let preempted pods leave; the whole job stops, or goes on with the other pods."""
        run, pods = self.jobs[victim.job_id], victim.pods
        self.observer.was_preempted(run.row, self.now)
        delays = [run.evict(pod, self.settings.evict_s) for pod in pods]
        leaving: list[tuple[float, Pod | None]] = list(zip(delays, pods, strict=True))
        if victim.whole:
            run.stopped_at = now
            run.epoch += 1
            leaving = [(max(delays), None)]
        for delay, pod in leaving:
            self._leave_place(run, pod, delay)

    def _move(self, move: Moved, now: float) -> None:
        """Let a moved pod leave.

        A replica ends when it would have ended anyway, wherever it runs then. A job that moves as a
        whole stops, and goes on from its last checkpoint.
        """
        run, pod = self.jobs[move.job_id], (move.pod_set, move.ordinal)
        self.observer.was_moved(run.row, self.now)
        if move.whole:
            run.stopped_at = now
            run.epoch += 1
            self._leave_place(run, None, run.evict(pod, self.settings.evict_s))
            return
        run.moving[pod] = run.ends[pod]
        self._leave_place(run, pod, run.evict(pod, self.settings.evict_s))

    def _displace(self, run: Run, pods: list[Pod], now: float) -> None:
        """Handle pods that lost their node or device.

        If the job can go on without them, only they and the rest of their slices are placed again.
        """
        assert run.places is not None
        job = run.arrival.job
        self.observer.was_requeued(run.row, self.now)
        gone = job.go_together(pods)
        if not job.goes_on_with(run.places.keys() - gone):
            self._places.interrupt(run, now)
            self._deltas.append(JobRequeued(job.id, now, front=self.settings.fault_first))
            return
        for pod in sorted(gone):
            if pod in run.places:
                self._places.lose(run, self._places.give_back(run, pod, now), 0.0, now)
                self._places.wait_again(run, (pod,), now)
                self._deltas.append(PodRequeued(job.id, *pod, now))
                run.displaced(pod)

    def _leave_place(self, run: Run, pod: Pod | None, delay: float) -> None:
        payload = (run.arrival.job.id, run.epoch, pod)
        if delay:
            self._push(self.now + delay, GONE, payload)
        else:
            self._gone(payload)

    def _gone(self, payload: tuple[str, int, Pod | None]) -> None:
        """Handle a preempted pod that is gone; None: its whole job is.

        A whole job waits again unless it was cancelled meanwhile.
        """
        job_id, epoch, pod = payload
        run = self.jobs.get(job_id)
        if run is None or run.epoch != epoch:
            return  # its job was cancelled, or lost its node, while it was leaving
        if pod is None:
            if run.given_up:
                self._finish(run, CANCELLED)
                return
            self._places.interrupt(run, self.now)
            self._deltas.append(JobRequeued(job_id, self.now))
            return
        self._pod_gone(run, pod)

    def _pod_gone(self, run: Run, pod: Pod) -> None:
        """Handle a preempted pod that is gone while its job goes on; it waits for a place."""
        p = self._end_pod(run, pod)
        self._places.wait_again(run, (pod,), self.now)
        if pod in run.moving:
            return  # replicas have no work to lose
        self._places.lose(run, p, 0.0, self.now)
        run.missing += not run.arrival.job.gang

    def _start(self, part: Started, now: float) -> None:
        run = self.jobs[part.job_id]
        job, first = run.arrival.job, not (run.places or run.moving)
        if first:
            run.attempts += 1
            run.places = {}
            run.since = now
        assert run.places is not None
        begin = now + self.settings.bind_delay_s
        if run.attempts > 1:
            begin += self.settings.restart_s
        if self._tells_of_runs:
            pods = tuple([(p.pod_set, p.ordinal) for p in part.placements])
            stops = tuple([run.stops.get(pod, 0) for pod in pods])
            self._push(now + self.settings.bind_delay_s, RUN, (job.id, run.epoch, pods, stops))
        own = run.arrival.pod_s
        moved = bool(run.moving) and all(
            (p.pod_set, p.ordinal) in run.moving for p in part.placements
        )
        if run.attempts > 1 and not moved:
            until = min(begin, self.settings.stop_s or begin)
            for p in part.placements:
                self.observer.lost(run.row, p, begin - self.settings.restart_s, until)
        for p in part.placements:
            self._places.take(run, p, now)
            where = (p.pod_set, p.ordinal)
            if own or not (job.gang and first):
                run.begun[where] = now
            if own or not job.gang:
                pod = (job.id, run.epoch, *where, run.stops.get(where, 0))
                left = run.left_s
                if own and where in own:
                    left = max(0.0, own[where] - run.saved_s)
                if (ends := run.moving.pop(where, None)) is None:
                    ends = begin + left
                    run.missing -= 1
                run.ends[where] = ends
                self._push(max(now, ends), END, pod)
        if job.gang:
            if first and not own:
                self._push(begin + run.left_s, END, (job.id, run.epoch, -1, -1, 0))
            if first and self.settings.checkpoint_s:
                self._push(begin + self.settings.checkpoint_s, SAVE, (job.id, run.epoch))
            run.missing = 0
        if run.missing <= 0 and not moved and (first or not job.gang):
            model = self.nodes[part.placements[0].node].gpu_model
            self.observer.started(run.row, now, model, run.places.values())

    def _runs(self, job_id: str, epoch: int, pods: tuple[Pod, ...], stops: tuple[int, ...]) -> None:
        """Report that pods begin to run, without those that were stopped since."""
        run = self.jobs.get(job_id)
        if run is None or run.epoch != epoch or run.places is None or run.stopped_at is not None:
            return
        begun = [
            pod
            for pod, stopped in zip(pods, stops, strict=True)
            if pod in run.places and run.stops.get(pod, 0) == stopped
        ]
        if begun:
            self._deltas.append(PodsRunning(job_id, self.now, tuple(begun)))

    def _saves(self, job_id: str, epoch: int) -> None:
        """Report that a gang has saved its work."""
        run = self.jobs.get(job_id)
        if run is None or run.epoch != epoch or run.places is None:
            return  # it was interrupted since then
        self._saved.append(Checkpointed(job_id, self.now))
        assert self.settings.checkpoint_s
        self._push(self.now + self.settings.checkpoint_s, SAVE, (job_id, epoch))

    # --- ends ---------------------------------------------------------------------------------
    def _end(self, payload: tuple[str, int, int, int, int]) -> None:
        job_id, epoch, pod_set, ordinal, stops = payload
        run = self.jobs.get(job_id)
        if run is None or run.epoch != epoch or run.places is None:
            return  # it was interrupted since then
        if run.stops.get((pod_set, ordinal), 0) != stops:
            return  # this pod alone was
        others = len(run.places) > 1 or run.missing > 0
        if pod_set >= 0 and (others or any(pod not in run.places for pod in run.moving)):
            self._end_pod(run, (pod_set, ordinal))
            return
        self._finish(run, ENDS[run.arrival.ends])

    def _end_pod(self, run: Run, where: tuple[int, int]) -> PodPlacement:
        """End one pod while its job goes on; return the place that it held."""
        self._deltas.append(PodEnded(run.arrival.job.id, *where))
        return self._places.give_back(run, where, self.now)

    def _finish(self, run: Run, state: int) -> None:
        job = run.arrival.job
        self._deltas.append(JobEnded(job.id, succeeded=state == SUCCEEDED))
        self._leave(job.id, state)
        again = run.arrival.resubmit_after_s
        if state == FAILED and again is not None:
            at = self.now + again
            self._submit_again(at, run.arrival.again(at))

    def _submit_again(self, at: float, arrival: Arrival) -> None:
        self._push(at, ARRIVAL, arrival)

    def _leave(self, job_id: str, state: int) -> None:
        run = self.jobs.pop(job_id, None)
        if run is None:
            return
        self._places.release(run, self.now)
        self.observer.jobs.ended[run.row] = self.now
        self.observer.jobs.state[run.row] = state

    # --- what happens -------------------------------------------------------------------------
    def _happen(self, kind: int, payload: Any) -> None:
        if kind == END:
            self._end(payload)
        elif kind == ARRIVAL:
            self._arrive(payload)
        elif kind == GONE:
            self._gone(payload)
        elif kind == REPAIR:
            self._repair(payload)
        elif kind == FAULT:
            self._fault(payload)
        elif kind == CHANGE:
            self._change(payload)
        elif kind == GIVE_UP:
            self._give_up(payload)
        elif kind == WARM:
            self._warm()
        elif kind == RUN:
            self._runs(*payload)
        elif kind == SAVE:
            self._saves(*payload)
        # CYCLE needs nothing: the loop runs the cycle after the events of this instant.

    def _arrive(self, payload: Arrival | tuple[Arrival]) -> None:
        self._agenda.arriving -= 1
        if isinstance(payload, tuple):  # it comes from the trace, not from a resubmission
            (arrival,) = payload
            self._agenda.next_arrival(self.now)
        else:
            arrival = payload
        row = self.observer.jobs.add(arrival.job)
        self._take_in(Run(arrival, row, self.observer.jobs.unit[row]))

    def _take_in(self, run: Run) -> None:
        """Let the job wait here from now on."""
        arrival = run.arrival
        job = arrival.job
        self.jobs[job.id] = run
        self._deltas.append(JobSubmitted(job, arrival.not_before))
        if arrival.cancel_after_s is not None:
            at = max(self.now, job.submitted_at + arrival.cancel_after_s)
            self._push(at, GIVE_UP, job.id)

    def _give_up(self, job_id: str) -> None:
        run = self.jobs.get(job_id)
        if run is None:
            return
        if run.stopped_at is None:
            self._finish(run, CANCELLED)
        else:
            run.given_up = True  # it is over once it is gone

    def _fault(self, fault: HardwareFault) -> None:
        self._agenda.next_fault()
        self._node_is(self._outages.begin(fault))
        self._push(self.now + fault.repair_s, REPAIR, fault)

    def _repair(self, fault: HardwareFault) -> None:
        self._node_is(self._outages.end(fault))

    def _node_is(self, node: Node) -> None:
        self._deltas.append(NodeChanged(node))
        self.observer.node_changed(node, self.now)

    def _change(self, delta: Delta) -> None:
        if isinstance(delta, NodeChanged):
            self._node_is(self._outages.changed(delta.node))
        elif isinstance(delta, NodeRemoved):
            self._deltas.append(delta)
            gone = replace(self.nodes[delta.name], schedulable=False)
            self.observer.node_changed(gone, self.now)
        elif isinstance(
            delta, TenantsChanged | QueuesChanged | QueueDebts | PolicyChanged | PastUse
        ):
            self._tenancies -= isinstance(delta, TenantsChanged)
            self._deltas.append(delta)
        else:
            raise TraceError(f"{type(delta).__name__} cannot stand on the timeline of a run")

    def _warm(self) -> None:
        self._warming = False
        self.observer.end_warm_up(self.now)
