"""When running jobs got their places; it tells which may have passed a job blocked since then."""

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field

# Forget placements of ended jobs once entries exceed twice the running jobs by this many.
MORE_PLACED = 1_000


@dataclass(slots=True)
class Placed:
    """The times at which jobs got places, ascending, and the jobs at each time.

    Some of the jobs have ended. `count`: the number of entries.
    """

    times: list[float] = field(default_factory=list)
    jobs_at: dict[float, list[str]] = field(default_factory=dict)
    count: int = 0

    def note(self, job_id: str, at: float, running: Mapping[str, object]) -> None:
        """Note that a job got a place."""
        if self.count > 2 * len(running) + MORE_PLACED:
            self._forget_ended(running)
        jobs = self.jobs_at.get(at)
        if jobs is None:
            jobs = self.jobs_at[at] = []
            insort(self.times, at)
        jobs.append(job_id)
        self.count += 1

    def since(self, at: float) -> dict[str, None]:
        """Return the jobs of which a pod may have got its place since `at`, latest first.

        Jobs of the same time are in descending order of their ids.
        """
        found: dict[str, None] = {}
        for time in reversed(self.times[bisect_left(self.times, at) :]):
            # Sorted only on reading: many jobs may get places at one time, and few reads follow.
            jobs = self.jobs_at[time]
            jobs.sort(reverse=True)
            found.update(dict.fromkeys(jobs))
        return found

    def _forget_ended(self, running: Mapping[str, object]) -> None:
        """Keep only the last time of each running job."""
        latest = {
            job_id: time
            for time in self.times
            for job_id in self.jobs_at[time]
            if job_id in running
        }
        self.jobs_at = {}
        for job_id, time in latest.items():
            self.jobs_at.setdefault(time, []).append(job_id)
        self.times = sorted(self.jobs_at)
        self.count = len(latest)
