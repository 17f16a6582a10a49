"""How long open jobs that declare nothing are likely to run, as the engine is told it.

What waits is backfilled by the time in which most of its like are over, so that reserved starts
hold; what runs is taken to end by the median of its like, and when it outlives that by the median
of those that go on longer. Few numbers, made of the distribution that the forecast draws from, so
that the live scheduler, the simulator and the forecast plan alike.
"""

from collections.abc import Callable, Iterable, Mapping

from scheduling.engine.deltas import (
    Delta,
    JobChanged,
    JobEnded,
    JobRestored,
    JobSubmitted,
    LearnedTime,
    RunTimesLearned,
)
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.types import JobKind, JobRequest
from scheduling.simulator.forecast.likeness import Traits, traits_of
from scheduling.simulator.forecast.run_times import Likely, RunTimes

WARM = 30  # runs that have ended before anything is told
GROWTH = 1.05  # all jobs are told anew when so many more have ended
STEPS = 10  # who outlives them all is one of a thousand
HALF, MOST = 0.5, 0.7


def times_of(likely: Likely) -> LearnedTime:
    """What the engine is told of a distribution."""
    found: list[float] = []
    age = 0.0
    for _ in range(STEPS):
        longer = likely.draw(age, HALF, HALF)
        if longer <= age:
            break
        found.append(longer)
        age = longer
    return LearnedTime(likely.draw(0.0, MOST, MOST), tuple(found))


class LearnedTimes:
    """What one engine is told of run times. `run_times`: what is known of ended runs. Unless it
    `learns`, somebody else takes in those that end; where they are `settled`, also those that go
    on."""

    def __init__(
        self,
        run_times: RunTimes,
        name_of: Callable[[str], str] = lambda _: "",
        *,
        learns: bool = True,
        settled: bool = False,
    ) -> None:
        """`name_of`: a job, by its id."""
        self.run_times = run_times
        self._name_of = name_of
        self._learns, self._settled = learns, settled
        self._began = False
        self._open: dict[str, Traits] = {}
        self._told: dict[str, LearnedTime] = {}
        self._new: dict[str, None] = {}
        self._next = float(WARM)  # ended runs

    def follow(
        self,
        deltas: Iterable[Delta],
        jobs: Mapping[str, JobRecord],
        now: float,
    ) -> list[Delta]:
        """What the engine is to be told after these deltas. `jobs`: as it knows them before."""
        if not self._began:
            self._began = True
            for record in jobs.values():
                self._knows(record.job)
        for delta in deltas:
            match delta:
                case JobSubmitted(job=job) | JobRestored(job=job) | JobChanged(job=job):
                    self._knows(job)
                case JobEnded(job_id=job_id):
                    self._ended(job_id, jobs.get(job_id), now)
        runs = self.run_times.ended_runs
        if runs >= self._next:
            self._next = runs * GROWTH
            if not self._settled:
                self._note_going(jobs, now)
            found = self._plans(self._open)
        elif runs >= WARM:
            found = self._plans(self._new)
        else:
            return []
        self._new.clear()
        return [RunTimesLearned(tuple(found.items()))] if found else []

    def _note_going(self, jobs: Mapping[str, JobRecord], now: float) -> None:
        running = (jobs[job_id] for job_id in self._open if job_id in jobs)
        self.run_times.going(
            (self._open[record.job.id], now - record.started_at)
            for record in running
            if record.started_at is not None
        )

    def _plans(self, ids: Iterable[str]) -> dict[str, LearnedTime]:
        """What is to be told of these that was not told before; worked out once for all alike."""
        alike: dict[int, LearnedTime] = {}
        found: dict[str, LearnedTime] = {}
        for job_id in ids:
            likely = self.run_times.of(self._open[job_id])
            times = alike.get(id(likely))
            if times is None:
                times = alike[id(likely)] = times_of(likely)
            if self._told.get(job_id) != times:
                found[job_id] = self._told[job_id] = times
        return found

    def _knows(self, job: JobRequest) -> None:
        """A job that is there; what of it was told before is told again, as the engine may know it
        anew."""
        self._told.pop(job.id, None)
        if job.declared_s is None and job.gang and job.kind is not JobKind.INFERENCE:
            self._open[job.id] = traits_of(job, self._name_of(job.id))
            self._new[job.id] = None
        else:
            self._open.pop(job.id, None)
            self._new.pop(job.id, None)

    def _ended(self, job_id: str, record: JobRecord | None, now: float) -> None:
        traits = self._open.pop(job_id, None)
        self._told.pop(job_id, None)
        self._new.pop(job_id, None)
        if not self._learns or traits is None or record is None or record.started_at is None:
            return
        ran_s = max(0.0, now - record.started_at)
        self.run_times.ended(traits, ran_s, record.job.submitted_at)
