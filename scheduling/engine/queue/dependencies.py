"""Jobs that wait for the end or the success of other jobs and arrays."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scheduling.engine.native import mypyc_attr
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.types import JobRequest
from scheduling.engine.verdict import Verdict


class Stuck(NamedTuple):
    """A waiting job that does not start by itself: somebody has to act first."""

    job: str
    tenant: str
    array: str
    why: Verdict


@mypyc_attr(allow_interpreted_subclasses=True)  # a rehearsal copies it
class DependentJobs:
    """Which jobs wait for which, and which of them in vain. `jobs`: all jobs that are not over."""

    def __init__(self, jobs: Mapping[str, JobRecord]) -> None:
        self._jobs = jobs
        self._arrays: dict[str, set[str]] = {}  # array -> its jobs that are not over
        self._failed: set[str] = set()  # jobs that ended without success, and arrays of such jobs
        # Waiting jobs that will never start, and arrays with such jobs -> what failed. They need
        # the success of the failed job or array, directly or through a chain of other jobs.
        self._doomed: dict[str, str] = {}
        self._dependents: dict[str, set[str]] = {}
        # Waiting jobs that do not start by themselves or wait for such jobs -> what is in the way;
        # and the same by array, in the order of discovery. Filled once jobs have dependencies.
        self.watched = False
        self._stuck: dict[str, Stuck] = {}
        self._stuck_of: dict[str, dict[str, Stuck]] = {}

    def came(self, job: JobRequest) -> None:
        """Note a job that was not known before."""
        if job.array:
            self._arrays.setdefault(job.array, set()).add(job.id)

    def waits_for(self, job: JobRequest) -> list[str]:
        """Return the jobs and arrays that keep this job from starting.

        These still have to end, or ended without the success that the job needs.
        """
        names = (*job.after, *job.after_ok)
        if not names:
            return []
        alive = [name for name in names if name in self._jobs or name in self._arrays]
        return alive + [name for name in job.after_ok if name in self._failed]

    def waits(self, job: JobRequest) -> None:
        """Note that the job has to be looked at again when something ends that it waits for."""
        for name in self.waits_for(job):
            self._dependents.setdefault(name, set()).add(job.id)

    def number_of(self, names: Iterable[str]) -> int:
        """Count the jobs behind these job and array names that are not over."""
        return sum([len(self._arrays.get(name, (name,))) for name in dict.fromkeys(names)])

    def is_array(self, name: str) -> bool:
        """Return whether this is an array with a job that is not over."""
        return name in self._arrays

    # --- waiting in vain ----------------------------------------------------------------------
    @property
    def any_doomed(self) -> bool:
        """Whether some job will never start."""
        return bool(self._doomed)

    def doomed_by(self, job: JobRequest) -> str | None:
        """Return the failed job or array that keeps the job waiting in vain.

        The job needs its success, directly or through other jobs. None if there is none.
        """
        for name in job.after_ok:
            if name in self._failed:
                return name
            if name in self._doomed:
                return self._doomed[name]
        return None

    def doom(self, job: JobRequest, by: str | None) -> list[str]:
        """Note that a job will never start because `by` failed; None: nothing forbids its start.

        If that is news, return the jobs that wait for the job or its array.
        """
        name, array = job.id, job.array
        if self._doomed.get(name) == by:
            return []
        if by is None:
            del self._doomed[name]
        else:
            self._doomed[name] = by
        waiting = sorted(self._dependents.get(name, ()))
        if array:
            others = [self._doomed[n] for n in self._arrays.get(array, ()) if n in self._doomed]
            self._doomed.pop(array, None)
            if others:
                self._doomed[array] = min(others)
            waiting += sorted(self._dependents.get(array, ()))
        return waiting

    # --- waiting for what does not start --------------------------------------------------------
    @property
    def any_waited_for(self) -> bool:
        """Whether some job may wait for another."""
        return bool(self._dependents)

    def in_the_way(self, job: JobRequest) -> tuple[str, Stuck] | None:
        """Return the first dependency that does not start by itself, and what is in the way.

        The dependency is the name of a job or array, which may itself wait for the stuck job.
        """
        for name in self.waits_for(job) if self._stuck else ():
            stuck = self._stuck.get(name) or self._first_stuck(name)
            if stuck is not None:
                return name, stuck
        return None

    def stick(self, job: JobRequest, stuck: Stuck | None) -> list[str]:
        """Note what keeps a job from starting by itself; None: nothing that needs action.

        If that is news, return the jobs that wait for the job or its array.
        """
        name, array = job.id, job.array
        if self._stuck.get(name) == stuck:
            return []
        if stuck is None:
            del self._stuck[name]
        else:
            self._stuck[name] = stuck
        waiting = sorted(self._dependents.get(name, ()))
        if array:
            before = self._first_stuck(array)
            of_array = self._stuck_of.setdefault(array, {})
            if stuck is None:
                of_array.pop(name, None)
            else:
                of_array[name] = stuck
            if not of_array:
                del self._stuck_of[array]
            if self._first_stuck(array) != before:
                waiting += sorted(self._dependents.get(array, ()))
        return waiting

    def _first_stuck(self, array: str) -> Stuck | None:
        return next(iter(self._stuck_of.get(array, {}).values()), None)

    # --- ends ---------------------------------------------------------------------------------
    def failed_before(self, name: str) -> None:
        """Note a job that ended without success before the engine knew anything of it."""
        self._failed.add(name)

    def over(self, job: JobRequest, *, succeeded: bool) -> list[str]:
        """Remove a job that has ended.

        Return the names (jobs, arrays) that are over or have failed with it, if any job may wait.
        """
        names = [job.id]
        if job.array:
            left = self._arrays.get(job.array, set())
            left.discard(job.id)
            if not left and job.array in self._arrays:
                del self._arrays[job.array]
                names.append(job.array)
        if not succeeded:
            self._failed.add(job.id)
            if job.array:
                self._failed.add(job.array)
                names.append(job.array)
        return names if self._dependents else []

    def take(self, name: str) -> list[str]:
        """Return the jobs that wait for this job or array, and forget that they do."""
        return sorted(self._dependents.pop(name, ()))
