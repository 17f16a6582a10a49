"""One run of the simulator, from a state on, until the jobs that wait in it have started."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from scheduling.engine.decisions import CycleResult, Waiting
from scheduling.engine.deltas import (
    Delta,
    JobChanged,
    JobEnded,
    JobRequeued,
    JobRestored,
    JobSubmitted,
    PodRequeued,
    QueuesChanged,
)
from scheduling.engine.types import JobRequest
from scheduling.simulator.agenda import END, GONE
from scheduling.simulator.forecast.ground import Ground
from scheduling.simulator.forecast.learned import LearnedTimes
from scheduling.simulator.forecast.run_times import RunTimes
from scheduling.simulator.loop import Simulation
from scheduling.simulator.model import Arrival, Pod, Settings, TimedChange
from scheduling.simulator.observe import SUCCEEDED
from scheduling.simulator.run import Run


def held_in(told: QueuesChanged) -> set[tuple[str, str]]:
    """Return the held queues, as (tenant, name)."""
    return {(queue.tenant, queue.name) for queue in told.queues if queue.held}


def beyond_count(job: JobRequest, pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods that a job has too many."""
    return [pod for pod in pods if pod[1] >= job.pod_sets[pod[0]].count]


class _Over(Exception):
    """No job is waited for any more, or the run has reached its limit."""


class RunAhead(Simulation):
    """A run ahead.

    `starts`: when each job that waited in the scene got its first place, in seconds. `never`: why
    others never will. Jobs in neither had not started at `now` when the run was over.
    """

    def __init__(
        self,
        ground: Ground,
        lasting: Mapping[str, float],
        coming: Iterator[Arrival],
        *,
        until: float,
        most_cycles: int,
        learned: LearnedTimes | None = None,
        change: Sequence[Delta | TimedChange] = (),
        late: Callable[[], bool] = lambda: False,
    ) -> None:
        """Set the run up.

        - `lasting`: run times in seconds by job, counted from the start of the job.
        - `coming`: what arrives from the scene's instant on, in order of time.
        - `until`: the last instant.
        - `change`: what changes, at the scene's instant or at a time of its own.
        - `learned`: what the engine is told of run times.
        - `late`: whether the run has to stop where it is; it is `cut` then.
        """
        scene = ground.scene
        super().__init__(
            scene.nodes,
            coming,
            policy=scene.policy,
            start=scene.now,
            settings=Settings(sample_s=math.inf, stop_s=until),
            levels=scene.levels,
            changes=[
                one if isinstance(one, TimedChange) else TimedChange(scene.now, one)
                for one in change
            ],
        )
        self._learned = learned or LearnedTimes(RunTimes(), learns=False)
        self.starts: dict[str, float] = {}
        self._notices = scene.notices
        self._awaited = {job.id for job in scene.waiting}
        self._most_cycles, self._late, self.cut = most_cycles, late, False
        self.state = ground.twin()
        self._deltas.clear()  # the state knows all of that
        self._wake(scene.now)
        for fact in scene.facts:
            if isinstance(fact, JobSubmitted):
                self._knows(fact.job, lasting[fact.job.id])
            elif isinstance(fact, JobRestored):
                self._goes_on(fact, lasting[fact.job.id])

    def starts_all(self) -> dict[str, float]:
        """Run until all waiting jobs have started, as far as the run may go; return `starts`."""
        try:
            if not self._is_over():
                self.run()
        except _Over:
            pass
        return self.starts

    def _knows(self, job: JobRequest, lasts: float) -> Run:
        row = self.observer.jobs.add(job)
        arrival = Arrival(job, lasts, notice_s=self._notices.get(job.id, 0.0))
        run = Run(arrival, row, self.observer.jobs.unit[row])
        self.jobs[job.id] = run
        return run

    def _goes_on(self, was: JobRestored, lasts: float) -> None:
        """Take in a job that holds places.

        It ends when it has run for long enough, pod by pod if it is no gang. Pods that were told to
        leave are gone at once, and so are pods on nodes that are gone.
        """
        job = was.job
        run = self._knows(job, lasts)
        run.attempts, run.since, run.places = 1, was.started_at, {}
        since = was.placed_at or (was.started_at,) * len(was.placements)
        run.missing = 0 if job.gang else max(0, job.pods - len(was.placements) - len(was.ended))
        lost: list[Pod] = []
        for place, begun in zip(was.placements, since, strict=True):
            pod = (place.pod_set, place.ordinal)
            if place.node not in self.observer.nodes:
                lost.append(pod)
                continue
            self._places.take(run, place, self.now)
            if not job.gang:
                run.begun[pod] = begun
                run.ends[pod] = begun + lasts
                end = (job.id, run.epoch, *pod, 0)
                self._push(max(self.now, begun + lasts), END, end)
        leaving: list[Pod] = [pod for pod in was.leaving if pod in run.places]
        if leaving and len(leaving) == len(run.places):
            run.stopped_at = self.now
            run.epoch += 1
            self._push(self.now, GONE, (job.id, run.epoch, None))
            return
        for pod in leaving:
            run.evict(pod, 0.0)
            self._push(self.now, GONE, (job.id, run.epoch, pod))
        if job.gang:
            self._push(max(self.now, was.started_at + lasts), END, (job.id, run.epoch, -1, -1, 0))
        if lost:
            self._are_lost(run, lost)

    def _are_lost(self, run: Run, lost: Sequence[Pod]) -> None:
        """Have pods whose nodes are gone placed again, with the whole job if necessary."""
        assert run.places is not None
        job = run.arrival.job
        with_them = job.go_together(lost) & run.places.keys()
        if not job.goes_on_with(run.places.keys() - with_them):
            self._places.interrupt(run, self.now)
            self._deltas.append(JobRequeued(job.id, self.now))
            return
        for pod in lost:
            self._deltas.append(PodRequeued(job.id, *pod, self.now))
            run.displaced(pod)
        if with_them:
            self._displace(run, sorted(with_them), self.now)

    def _change(self, delta: Delta) -> None:
        """Apply a change; here a job may also end, be submitted anew, or ask for something else."""
        if isinstance(delta, JobEnded):
            self._awaited.discard(delta.job_id)
            self._give_up(delta.job_id)
        elif isinstance(delta, JobSubmitted):
            self._waits_anew(delta)
        elif isinstance(delta, QueuesChanged):
            held = held_in(delta)
            self._awaited = {j for j in self._awaited if self._queue_of(j) not in held}
            super()._change(delta)
        elif isinstance(delta, JobChanged):
            self._asks_for(delta)
        else:
            super()._change(delta)

    def _asks_for(self, delta: JobChanged) -> None:
        """Change the request of a job that holds places.

        Pods beyond its new count are gone when their notice is over. If it is no gang, new pods are
        missing from then on.
        """
        job, run = delta.job, self.jobs[delta.job.id]
        self._deltas.append(delta)
        more = job.pods - run.arrival.job.pods
        run.arrival = replace(run.arrival, job=job)
        if not more or run.places is None:
            return
        run.row = self.observer.jobs.add(job)
        run.unit = self.observer.jobs.unit[run.row]
        beyond = beyond_count(job, run.places)
        if not job.gang:
            run.missing = max(0, run.missing + more + len(beyond))
        for pod in beyond:
            run.moving.pop(pod, None)
            self._leave_place(run, pod, run.evict(pod, 0.0))

    def _pod_gone(self, run: Run, pod: Pod) -> None:
        if run.places is None or pod not in run.places:
            return  # it was told to leave twice: by a preemption, and because it is one too many
        job = run.arrival.job
        if not beyond_count(job, (pod,)):
            super()._pod_gone(run, pod)
            return
        self._places.give_back(run, pod, self.now)
        self._deltas.append(PodRequeued(job.id, *pod, self.now))
        if not (job.gang or run.places or run.missing):
            self._finish(run, SUCCEEDED)  # its other pods have ended

    def _queue_of(self, job_id: str) -> tuple[str, str]:
        job = self.jobs[job_id].arrival.job
        return job.tenant, job.queue

    def _waits_anew(self, delta: JobSubmitted) -> None:
        """Let a waiting job wait with another request, or as held or released."""
        job = delta.job
        self._knows(job, self.jobs[job.id].arrival.duration_s)
        (self._awaited.discard if delta.held else self._awaited.add)(job.id)
        self._deltas.append(delta)

    def _carry_out(self, result: CycleResult, now: float) -> None:
        for part in result.started:
            if part.job_id in self._awaited:
                self._awaited.discard(part.job_id)
                self.starts[part.job_id] = now
        if self.cycles == 1:
            result = result._replace(waiting=self._told_before(result))
        super()._carry_out(result, now)
        if self._is_over():
            raise _Over

    def _told_before(self, result: CycleResult) -> tuple[Waiting, ...]:
        """Return why jobs wait after the first cycle, also where that is no news to the state."""
        told = {waiting.job_id: waiting for waiting in result.waiting}
        for job_id in sorted(self._awaited - told.keys()):
            record = self.state.jobs.get(job_id)
            if record is not None and record.eq_class is not None and record.verdict is not None:
                told[job_id] = Waiting(job_id, record.verdict)
        return tuple(told.values())

    def _is_over(self) -> bool:
        if not self._awaited or self.cycles >= self._most_cycles:
            return True
        self.cut = self._late()
        return self.cut

    def _never_runs(self, job_id: str, why: str) -> None:
        """Note why a job can never run; a job that holds places goes on with what it has."""
        self._awaited.discard(job_id)
        run = self.jobs.get(job_id)
        if run is not None and run.places:
            self.never[job_id] = why
        else:
            super()._never_runs(job_id, why)
