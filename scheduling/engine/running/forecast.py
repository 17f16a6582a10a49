"""Forecast the cluster after running jobs have ended, as far as their run times are known.

The forecast is a what-if copy of the cluster in which the first jobs to end have already ended. It
follows the real bookings by the jobs that changed, and moves along the list of ends to the point
where a blocked job just fits; from one event to the next, that takes one step or none. A gang ends
as a whole. The pods of any other job end one by one, in the order in which they began.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping

import numpy as np

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.placement import PlacementFailure, place_job
from scheduling.engine.placement.strategies.by_name import STRATEGIES
from scheduling.engine.queue.job import Expected, JobRecord
from scheduling.engine.statement import Statement
from scheduling.engine.types import MILLI, JobRequest

# With more pending changes than this, a new copy costs less than following them.
MAX_UNREAD = 5000
MAX_SEEN = 64

Nodes = frozenset[str] | None
Due = dict[tuple[int, int], float]  # by pod
# The job, the number of pods of each set, the strategy, and nodes not to use.
Request = tuple[JobRequest, tuple[int, ...], str, frozenset[str]]
End = tuple[float, str]  # a time, and the job whose pods due at that time end
_LAST = "\U0010ffff"  # after every job id


class Forecast:
    """A what-if copy of the cluster that can move to any of the expected ends.

    `_ends`: the ends, in order, of jobs that hold GPUs of the `models` and have a known run time;
    the first `_gone` of them have happened in the copy. `_due`: when the pods of each job end.
    """

    def __init__(
        self, cluster: ClusterState, jobs: Mapping[str, JobRecord], models: frozenset[str]
    ) -> None:
        self._true = cluster
        self._jobs = jobs
        self._models = models
        self._facts = cluster.facts_version
        self._copy = cluster.copy()
        self._gone = 0
        self._changed: set[str] = set()
        cluster.followers.append(self._changed)
        self._due: dict[str, Due] = {
            name: due for name, record in jobs.items() if (due := self._due_of(record))
        }
        self._ends: list[End] = sorted(
            {(at, name) for name, due in self._due.items() for at in due.values()}
        )
        # What each end releases, by GPU model, for jobs that have not changed since.
        self._freed: dict[str, dict[float, dict[str, int]]] = {}
        # Answers by what they depend on, if that is little; and the last question with its answer.
        self._seen: dict[object, Nodes] = {}
        self._last: tuple[object, Expected] | None = None

    def stale(self) -> bool:
        """Whether the copy can no longer follow the cluster, or a new copy would be cheaper."""
        return self._facts != self._true.facts_version or len(self._changed) > MAX_UNREAD

    def close(self) -> None:
        """Stop following the cluster."""
        followers = self._true.followers
        followers[:] = [changed for changed in followers if changed is not self._changed]

    def start_of(
        self,
        job: JobRequest,
        counts: tuple[int, ...],
        strategy: str,
        now: float,
        avoid: frozenset[str] = frozenset(),
    ) -> Expected | None:
        """Return when and where the job can first be placed as running jobs end; None = never.

        Jobs end in the order of their expected ends, and as few as possible end. Jobs past their
        expected ends may end at any moment; if only they have to end, the start is given as the
        last of their expected ends. `avoid`: nodes not to use.
        """
        self.follow()
        ends = self._ends
        if not ends:
            return None
        request = (job, counts, strategy, avoid)
        overdue = bisect_right(ends, (now, _LAST))
        if self._gone < max(overdue, 1):
            self._move(max(overdue, 1))
        question = self._question(request)
        if question is not None and self._last is not None and not overdue:
            asked = (question, ends[self._gone - 1])
            if self._last[0] == asked:
                return self._last[1]
        if overdue:
            self._move(overdue)
            nodes = self._place(request)
            if nodes is not None:
                return self._among_overdue(request, overdue, nodes)
        found = self._first_fit(request, overdue)
        if found is None:
            return None
        at = ends[self._gone - 1][0]
        start = Expected(at, found, at)
        question = self._question(request)
        if question is not None:
            self._last = (question, ends[self._gone - 1]), start
        return start

    def start_from(
        self,
        job: JobRequest,
        counts: tuple[int, ...],
        strategy: str,
        at: float,
        now: float,
        avoid: frozenset[str] = frozenset(),
        known: Expected | None = None,
    ) -> Expected | None:
        """Return when and where the job can be placed, not before `at` or `now`; None = never.

        A start that only waits for jobs past their expected ends is given as the last of those
        ends. For a start at `at`, prefer the nodes of the `known` start, then nodes without wholly
        free GPUs now.
        """
        self.follow()
        passed = bisect_right(self._ends, (max(at, now), _LAST))
        self._move(passed)
        if at <= now and passed:
            at = max(at, self._ends[passed - 1][0])
        nodes: Nodes = None
        if known is not None and known.at == at and known.nodes.isdisjoint(avoid):
            others = avoid | self._others(known.nodes)
            nodes = self._place((job, counts, strategy, others))
        if nodes is None:
            nodes = self._place((job, counts, strategy, avoid | self._partly_free()))
        if nodes is None:
            nodes = self._place((job, counts, strategy, avoid))
        if nodes is None:
            nodes = self._first_fit((job, counts, strategy, avoid), passed)
            at = self._ends[self._gone - 1][0] if nodes is not None else at
        if nodes is None:
            return None
        if at > now:
            return Expected(at, nodes, at)
        return Expected(at, nodes, next((end for end, _ in self._ends[passed:]), math.inf))

    def ends(self) -> Iterator[tuple[float, JobRecord, dict[str, int]]]:
        """Yield (time, job, GPU-milli by GPU model, rounded down) of each end, in order.

        Call `follow` before.
        """
        for at, name in self._ends:
            record = self._jobs[name]
            freed = self._freed.get(name)
            if freed is None:
                freed = self._freed[name] = self._given_back(record, self._due[name])
            yield at, record, freed[at]

    def _given_back(self, record: JobRecord, due: Due) -> dict[float, dict[str, int]]:
        found: dict[float, dict[str, int]] = {}
        for pod, at in due.items():
            model, milli = record.pods[pod]
            freed = found.setdefault(at, {})
            freed[model] = freed.get(model, 0) + milli
        return found

    def _others(self, nodes: frozenset[str]) -> frozenset[str]:
        """Return all other nodes of the models."""
        return frozenset(name for name, _ in self._free() if name not in nodes)

    def _partly_free(self) -> frozenset[str]:
        """Return the nodes of the models that have wholly free GPUs now."""
        return frozenset(name for name, free in self._free() if free)

    def _free(self) -> Iterator[tuple[str, int]]:
        """Yield each node of the models with the number of its wholly free GPUs now."""
        true = self._true
        for model in self._models:
            pool = true.index.pools.get(model)
            for slot in pool.layout.slots if pool is not None else ():
                yield true.names[slot], true.free[slot]

    # --- following ----------------------------------------------------------------------------
    def _due_of(self, record: JobRecord | None) -> Due:
        if record is None or record.started_at is None or record.planned_s is None:
            return {}
        if not any(model in self._models for model, _ in record.pods.values()):
            return {}
        planned_s, first = record.planned_s, record.started_at
        if record.job.gang:
            return dict.fromkeys(record.pods, first + planned_s)
        return {pod: record.placed_at.get(pod, first) + planned_s for pod in record.pods}

    def follow(self) -> None:
        """Bring the copy up to date with the real bookings."""
        for name in sorted(self._changed):
            self._freed.pop(name, None)
            for at in set(self._due.pop(name, {}).values()):
                self._forget(at, name)
            self._copy.release_job(name)
            due = self._due_of(self._jobs.get(name))
            if due:
                self._due[name] = due
            for at in set(due.values()):
                self._note(at, name)
            self._book(name)
        self._changed.clear()
        self._copy.now = self._true.now
        self._copy.typical = self._true.typical.copy()

    def _forget(self, at: float, name: str) -> None:
        place = bisect_left(self._ends, (at, name))
        del self._ends[place]
        self._gone -= place < self._gone

    def _note(self, at: float, name: str) -> None:
        place = bisect_left(self._ends, (at, name))
        self._ends.insert(place, (at, name))
        self._gone += place < self._gone

    def _book(self, name: str) -> None:
        """Book the places of a job that have not ended in the copy."""
        due = self._due.get(name, {})
        last = self._ends[self._gone - 1] if self._gone else (-math.inf, "")
        for pod, (placement, pod_set) in self._true.held_by(name).items():
            if pod not in due or (due[pod], name) > last:
                self._copy.restore(name, placement, pod_set)

    def _move(self, count: int) -> None:
        """Move the copy to where exactly the first `count` ends have happened."""
        while self._gone < count:
            at, name = self._ends[self._gone]
            for pod in self._ending(at, name):
                self._copy.release(name, *pod)
            self._gone += 1
        while self._gone > count:
            self._gone -= 1
            self._again(*self._ends[self._gone])

    def _ending(self, at: float, name: str) -> list[tuple[int, int]]:
        return [pod for pod, due in self._due[name].items() if due == at]

    def _again(self, at: float, name: str) -> None:
        """Restore the pods that end at this time."""
        held = self._true.held_by(name)
        for pod in self._ending(at, name):
            self._copy.restore(name, *held[pod])

    # --- asking -------------------------------------------------------------------------------
    def _first_fit(self, request: Request, low: int) -> Nodes:
        """Move to the first number of ends above `low` at which the job fits; None = never."""
        if low == len(self._ends):
            return None
        if self._gone <= low:
            self._move(low + 1)
        high, step = self._gone, 1
        found = self._place(request)
        while found is None:
            if high == len(self._ends):
                return None
            low, high = high, min(high + step, len(self._ends))
            self._move(high)
            found, step = self._place(request), step * 2
        step = 1
        while high - low > 1:
            middle = max(high - step, (low + high) // 2)
            self._move(middle)
            nodes = self._place(request)
            if nodes is None:
                low = middle
            else:
                high, found, step = middle, nodes, step * 2
        self._move(high)
        return found

    def _among_overdue(self, request: Request, overdue: int, found: frozenset[str]) -> Expected:
        """Return a start for which only overdue jobs must end, taken in the order of their ids."""
        late = sorted(self._ends[:overdue], key=lambda end: end[::-1])
        low, high = 0, overdue
        while high - low > 1:
            middle = (low + high) // 2
            for end in late[middle:]:
                self._again(*end)
            nodes = self._place(request)
            for at, name in late[middle:]:
                for pod in self._ending(at, name):
                    self._copy.release(name, *pod)
            if nodes is None:
                low = middle
            else:
                high, found = middle, nodes
        until = next((at for at, _ in self._ends[overdue:]), math.inf)
        return Expected(self._ends[overdue - 1][0], found, until)

    def _place(self, request: Request) -> Nodes:
        """Return the nodes on which the job fits in the copy; None if it does not fit."""
        job, counts, strategy, avoid = request
        if job.gang and not self._enough(job):
            return None
        question = self._question(request)
        if question is not None and question in self._seen:
            return self._seen[question]
        statement = Statement(self._copy)
        placed = place_job(statement, job, strategy=strategy, counts=counts, avoid=avoid)
        statement.rollback()
        nodes: Nodes = None
        if not isinstance(placed, PlacementFailure):
            nodes = frozenset(p.node for p in placed)
        if question is not None:
            if len(self._seen) >= MAX_SEEN:
                self._seen.clear()
            self._seen[question] = nodes
        return nodes

    def _enough(self, job: JobRequest) -> bool:
        """Whether the least of each pod set might fit, by wholly free GPUs alone."""
        held = self._copy.held_by(job.id)
        for s in job.pod_sets:
            if held or not s.gpus or s.gpu_milli != MILLI or s.gpu_memory_mib:
                continue
            pools = [self._copy.index.pools[m] for m in s.gpu_models if m in self._copy.index.pools]
            fit = sum(
                nodes.bit_count() * (free // s.gpus)
                for pool in pools
                for free, nodes in enumerate(pool.bits)
            )
            if fit < s.least:
                return False
        return True

    def _question(self, request: Request) -> object:
        """Return all that the job's placement depends on, if that is only free GPUs per node.

        That is so for a packed gang of whole GPUs over several nodes. For other jobs, return None.
        """
        job, counts, strategy, avoid = request
        s = job.pod_sets[0]
        how = STRATEGIES.get(job.strategy or strategy)
        simple = (
            not avoid
            and job.gang
            and len(job.pod_sets) == 1
            and len(s.gpu_models) == 1
            and s.gpu_models[0] in self._copy.index.pools
            and s.gpu_milli == MILLI
            and not (s.gpu_memory_mib or s.cpu_milli or s.memory_mib or s.nics or s.extended)
            and s.min_count is None
            and how is not None
            and how.packs
            and not self._copy.held_by(job.id)
        )
        if not simple:
            return None
        pool = self._copy.index.pools[s.gpu_models[0]]
        # A job with a declared run time chooses partly used nodes by the times of their pods.
        by_times = job.declared_s is not None and s.gpus < pool.top
        if counts[0] * s.gpus <= pool.top or by_times or self._pods_are_short():
            return None
        return job.id, counts, strategy, *pool.bits[s.gpus :]

    def _pods_are_short(self) -> bool:
        """Whether some node has fewer pod slots left than free GPUs."""
        pods = np.frombuffer(self._copy.pods, np.int64)
        return bool((pods < np.frombuffer(self._copy.free, np.int64)).any())
