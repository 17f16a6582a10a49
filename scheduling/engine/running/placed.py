"""When running jobs got their places: who may have passed a job that was blocked since."""

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field

# Placements of jobs that have ended are remembered until there are so many.
MORE_PLACED = 1_000


@dataclass(slots=True)
class Placed:
    """Times at which jobs got places, ascending, and who did at each; some of them have ended.
    `count`: all that is noted."""

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
        """Jobs of which a pod may have got its place since then, the last first, those of one time
        by their names."""
        found: dict[str, None] = {}
        for time in reversed(self.times[bisect_left(self.times, at) :]):
            # Sorted when asked for: many jobs get places at one time, and few look for them.
            jobs = self.jobs_at[time]
            jobs.sort(reverse=True)
            found.update(dict.fromkeys(jobs))
        return found

    def _forget_ended(self, running: Mapping[str, object]) -> None:
        """Keep of each job that runs the last time."""
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
