"""How long open jobs that declare nothing are likely to run, as the engine is told.

Waiting jobs are backfilled by the time in which most jobs like them are over, so that reserved
starts hold. Running jobs are taken to end at the median of jobs like them and, if they outlive
that, at the median of those that go on longer. These few numbers come from the distribution that
the forecast draws from, so that the live scheduler, the simulator and the forecast plan alike.
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

WARM = 30  # how many runs have to end before anything is told
STEPS = 10  # one in a thousand outlives them all
MOST = 0.7
LOOKED_AT = 32  # how many of the jobs submitted closest are checked for running ones
_SCORES = [NormalDist().inv_cdf(share) for share in (MOST, *(1 - 0.5**n for n in range(1, STEPS)))]


def times_of(likely: Likely, known: Normal = NOTHING_KNOWN) -> LearnedTime:
    """Return what the engine is told of a job.

    `likely`: the distribution of jobs like it; `known`: what is known of its score among them.
    """
    shares = [share_of(known.mean + known.spread * score) for score in _SCORES]
    most = likely.at(shares[:1])[0]
    middles = dict.fromkeys(likely.at(shares[1:]))
    return LearnedTime(most, tuple(middles))


class _ByNeighbours(NamedTuple):
    """What neighbours say of the score of a job.

    Ended runs that were submitted further away than `reach_s` do not count.
    """

    score: Normal
    reach_s: float


class LearnedTimes:
    """What one engine is told of run times.

    `run_times`: what is known of ended runs. Without `learns`, somebody else adds the runs that
    end. With `settled`, what is known of running jobs is not updated either, and jobs that the
    original of this engine copy was told of are not told again.
    """

    def __init__(
        self,
        run_times: RunTimes,
        name_of: Callable[[str], str] = lambda _: "",
        *,
        learns: bool = True,
        settled: bool = False,
    ) -> None:
        """`name_of`: the name of a job, by its id."""
        self.run_times = run_times
        self._name_of = name_of
        self._learns, self._settled = learns, settled
        self._began = False
        self._open: dict[str, Traits] = {}
        self._told: dict[str, LearnedTime] = {}
        self._new: dict[str, None] = {}
        self._next = float(WARM)  # the number of ended runs at which all are told anew
        self._places: dict[Kin, list[tuple[float, str]]] = {}  # open jobs by submission
        self._at: dict[str, float] = {}  # when each open job was submitted
        self._known: dict[str, _ByNeighbours] = {}

    def follow(
        self,
        deltas: Iterable[Delta],
        jobs: Mapping[str, JobRecord],
        now: float,
    ) -> list[Delta]:
        """Return what to tell the engine after these deltas. `jobs`: as it knows them before."""
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
        """Return what is new to tell of these jobs; worked out once for all jobs alike."""
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
        """Return what neighbours say of the score of a job; it stands until one of them ends."""
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
        """Return open jobs of the size class, those submitted closest to that time first."""
        places = self._places[kin]
        here = bisect_left(places, (at, but))
        some = places[max(0, here - LOOKED_AT) : here + LOOKED_AT + 1]
        return nearest(((since - at, other) for since, other in some if other != but), LOOKED_AT)

    def _knows(self, job: JobRequest) -> None:
        """Note an open job.

        What was told of it before is told again, because the job may be new to the engine.
        """
        self._leaves(job.id)
        if job.declared_s is None and job.gang and job.kind is not JobKind.INFERENCE:
            traits = self._open[job.id] = traits_of(job, self._name_of(job.id))
            self._new[job.id] = None
            self._at[job.id] = job.submitted_at
            insort(self._places.setdefault(size_kin(traits), []), (job.submitted_at, job.id))

    def _leaves(self, job_id: str) -> Traits | None:
        """Note that a job is no longer open; return its traits if it was."""
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
        """Have jobs asked anew that had the ended job as a neighbour."""
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
