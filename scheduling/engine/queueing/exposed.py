"""What running jobs could lose to a preemptor, in sum.

Whether a preemption could suffice is asked far more often than it does: of every blocked job
whenever something happens. The answer must not cost a look at every running job.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

from scheduling.engine.queueing.waiting import JobRecord
from scheduling.engine.types import JobRequest

Whose = tuple[str, int]  # tenant and priority


class Exposure(NamedTuple):
    """GPU-milli by GPU model that have been held long enough to be taken, and those that will have
    been: (when, GPU model, milli), the earliest first."""

    ripe: dict[str, int]
    later: list[tuple[float, str, int]]


class Exposed:
    """Exposures of the preemptible jobs that have started, by tenant and priority. More than may
    really be taken: disruption budgets, and who made room for whom before, are left out.

    `tired`: whether a job was preempted as often as it may be; `min_runtime_of`: for how many
    seconds a place of a job is its own. Call `forget` when either may answer otherwise.
    """

    def __init__(
        self,
        tired: Callable[[JobRecord], bool],
        min_runtime_of: Callable[[JobRequest], float],
    ) -> None:
        self._tired = tired
        self._min_runtime_of = min_runtime_of
        self._members: dict[Whose, dict[str, JobRecord]] = {}
        self._known: dict[Whose, Exposure] = {}

    def forget(self) -> None:
        self._known.clear()

    def leave(self, record: JobRecord) -> None:
        """The job holds nothing any more, or is about to be another's."""
        whose = record.job.tenant, record.job.priority
        members = self._members.get(whose, {})
        if members.pop(record.job.id, None) is not None:
            self._known.pop(whose, None)
            if not members:
                del self._members[whose]

    def touch(self, record: JobRecord) -> None:
        """What the job holds, or since when, has changed."""
        if record.started_at is None or not record.pods or not record.job.preemptible:
            self.leave(record)
            return
        whose = record.job.tenant, record.job.priority
        self._members.setdefault(whose, {})[record.job.id] = record
        self._known.pop(whose, None)

    def groups(self) -> Collection[Whose]:
        return self._members.keys()

    def members(self, whose: Whose) -> Collection[JobRecord]:
        return self._members[whose].values()

    def of(self, whose: Whose, now: float) -> Exposure:
        known = self._known.get(whose)
        if known is None or (known.later and known.later[0][0] <= now):
            known = self._known[whose] = self._expose(whose, now)
        return known

    def _expose(self, whose: Whose, now: float) -> Exposure:
        found = Exposure({}, [])
        for record in self._members[whose].values():
            if self._tired(record):
                continue
            wait, gang = self._min_runtime_of(record.job), record.job.gang
            assert record.started_at is not None
            for pod, (model, milli) in record.pods.items():
                at = wait + (record.started_at if gang else record.placed_since(pod))
                if at <= now:
                    found.ripe[model] = found.ripe.get(model, 0) + milli
                else:
                    found.later.append((at, model, milli))
        found.later.sort()
        return found
