"""How long open jobs that declare nothing are likely to run, as the engine is told it.

What waits is backfilled by the time in which most of its like are over, so that reserved starts
hold; what runs is taken to end by the median of its like, and when it outlives that by the median
of those that go on longer. Few numbers, made of the distribution that the forecast draws from, so
that the live scheduler, the simulator and the forecast plan alike.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping
from statistics import NormalDist
from typing import NamedTuple

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
from scheduling.simulator.forecast.likeness import Kin, Traits, size_kin, traits_of
from scheduling.simulator.forecast.neighbours import (
    ENDED,
    NOTHING_KNOWN,
    RUNNING,
    WITHIN_S,
    Neighbour,
    Normal,
    known_by,
    nearest,
)
from scheduling.simulator.forecast.run_times import RENEWED, Likely, RunTimes
from scheduling.simulator.forecast.succession import EDGE, score_of, share_of

WARM = 30  # runs that have ended before anything is told
STEPS = 10  # who outlives them all is one of a thousand
MOST = 0.7
LOOKED_AT = 32  # of the jobs submitted the closest, for those that run
_SCORES = [NormalDist().inv_cdf(share) for share in (MOST, *(1 - 0.5**n for n in range(1, STEPS)))]


def times_of(likely: Likely, known: Normal = NOTHING_KNOWN) -> LearnedTime:
    """What the engine is told of a job by the distribution of its like, and what is known of its
    score among them."""
    shares = [share_of(known.mean + known.spread * score) for score in _SCORES]
    most = likely.at(shares[:1])[0]
    middles = dict.fromkeys(likely.at(shares[1:]))
    return LearnedTime(most, tuple(middles))


class _ByNeighbours(NamedTuple):
    """What neighbours say of the score of a job. Runs that were submitted further from it than
    `reach_s` and have ended do not count."""

    score: Normal
    reach_s: float


class LearnedTimes:
    """What one engine is told of run times. `run_times`: what is known of ended runs. Unless it
    `learns`, somebody else takes in those that end. Where they are `settled`, also those that go
    on; who was told by whoever the engine is a copy of is not told again."""

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
        self._places: dict[Kin, list[tuple[float, str]]] = {}  # open jobs by their submission
        self._at: dict[str, float] = {}  # when each was submitted
        self._known: dict[str, _ByNeighbours] = {}

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
                if self._settled and record.likely is not None:
                    self._new.pop(record.job.id, None)
        for delta in deltas:
            match delta:
                case JobSubmitted(job=job) | JobRestored(job=job) | JobChanged(job=job):
                    self._knows(job)
                case JobEnded(job_id=job_id):
                    self._ended(job_id, jobs.get(job_id), now)
        runs = self.run_times.ended_runs
        if runs < WARM:
            return []
        if runs >= self._next and not self._settled:
            self._next = runs * RENEWED
            self._note_going(jobs, now)
            found = self._plans(self._open, jobs, now)
        else:
            found = self._plans(self._new, jobs, now)
        self._new.clear()
        return [RunTimesLearned(tuple(found.items()))] if found else []

    def _note_going(self, jobs: Mapping[str, JobRecord], now: float) -> None:
        running = (jobs[job_id] for job_id in self._open if job_id in jobs)
        self.run_times.going(
            (self._open[record.job.id], now - record.started_at)
            for record in running
            if record.started_at is not None
        )

    def _plans(
        self, ids: Iterable[str], jobs: Mapping[str, JobRecord], now: float
    ) -> dict[str, LearnedTime]:
        """What is to be told of these that was not told before; worked out once for all alike."""
        alike: dict[int, LearnedTime] = {}
        found: dict[str, LearnedTime] = {}
        for job_id in ids:
            likely = self.run_times.nearly(self._open[job_id])
            known = self._by_neighbours(job_id, jobs, now)
            if known.tells:
                times = times_of(likely, known)
            else:
                same = alike.get(id(likely))
                times = alike[id(likely)] = times_of(likely) if same is None else same
            if self._told.get(job_id) != times:
                found[job_id] = self._told[job_id] = times
        return found

    def _by_neighbours(self, job_id: str, jobs: Mapping[str, JobRecord], now: float) -> Normal:
        """What neighbours say of the score of a job; it stands until one of them ends."""
        found = self._known.get(job_id)
        if found is None:
            found = self._known[job_id] = self._ask_neighbours(job_id, jobs, now)
        return found.score

    def _ask_neighbours(
        self, job_id: str, jobs: Mapping[str, JobRecord], now: float
    ) -> "_ByNeighbours":
        traits, at = self._open[job_id], self._at[job_id]
        alike = self.run_times.alike_in_size(traits)
        if not alike.part:
            return _ByNeighbours(NOTHING_KNOWN, WITHIN_S)
        going: list[Neighbour] = []
        for gap, other in self._near(size_kin(traits), at, job_id):
            record = jobs.get(other)
            if record is None or record.started_at is None:
                continue
            age_s = now - record.started_at
            shorter = self.run_times.nearly(self._open[other]).shorter(age_s)
            if shorter > EDGE:
                going.append(Neighbour(gap, score_of(shorter)))
            if len(going) == RUNNING:
                break
        ended = self.run_times.ended_near(traits, at)
        reach_s = abs(ended[-1].gap_s) if len(ended) == ENDED else WITHIN_S
        return _ByNeighbours(known_by(alike, ended, going), reach_s)

    def _near(self, kin: Kin, at: float, but: str) -> list[tuple[float, str]]:
        """Open jobs of the size class, those that were submitted the closest to that first."""
        places = self._places[kin]
        here = bisect_left(places, (at, but))
        some = places[max(0, here - LOOKED_AT) : here + LOOKED_AT + 1]
        return nearest(((since - at, other) for since, other in some if other != but), LOOKED_AT)

    def _knows(self, job: JobRequest) -> None:
        """A job that is there; what of it was told before is told again, as the engine may know it
        anew."""
        self._leaves(job.id)
        if job.declared_s is None and job.gang and job.kind is not JobKind.INFERENCE:
            traits = self._open[job.id] = traits_of(job, self._name_of(job.id))
            self._new[job.id] = None
            self._at[job.id] = job.submitted_at
            insort(self._places.setdefault(size_kin(traits), []), (job.submitted_at, job.id))

    def _leaves(self, job_id: str) -> Traits | None:
        """It is not open any more; returns what is known of it."""
        self._told.pop(job_id, None)
        self._new.pop(job_id, None)
        self._known.pop(job_id, None)
        traits = self._open.pop(job_id, None)
        if traits is not None:
            places = self._places[size_kin(traits)]
            places.pop(bisect_left(places, (self._at.pop(job_id), job_id)))
        return traits

    def _ended(self, job_id: str, record: JobRecord | None, now: float) -> None:
        traits = self._leaves(job_id)
        if traits is not None and not self._settled:
            self._news_for_neighbours(traits, record)
        if not self._learns or traits is None or record is None or record.started_at is None:
            return
        ran_s = max(0.0, now - record.started_at)
        self.run_times.ended(traits, ran_s, record.job.submitted_at)

    def _news_for_neighbours(self, traits: Traits, record: JobRecord | None) -> None:
        """A job of theirs has ended."""
        if record is None or record.started_at is None:
            return
        at, places = record.job.submitted_at, self._places[size_kin(traits)]
        first = bisect_left(places, (at - WITHIN_S,))
        last = bisect_right(places, (at + WITHIN_S,), lo=first)
        here = bisect_left(places, (at,))
        for since, job_id in places[max(first, here - LOOKED_AT) : min(last, here + LOOKED_AT)]:
            known = self._known.get(job_id)
            if known is not None and abs(since - at) <= known.reach_s:
                del self._known[job_id]
                self._new[job_id] = None
