"""What running jobs could lose to a preemptor, in sum.

Whether a preemption could suffice is asked far more often than it does: of every blocked job
whenever something happens. The answer must not cost a look at every running job.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, Protocol

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.native import mypyc_attr
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.running.holdings import Freed, HeldPod, Holdings, freed, row_of
from scheduling.engine.types import JobRequest

Whose = tuple[str, int]  # tenant and priority

# Of so many groups and times it is remembered what nodes would get back.
MAX_FREED = 16


class Exposure(NamedTuple):
    """GPU-milli by GPU model that have been held long enough to be taken, and those that will have
    been: (when, GPU model, milli), the earliest first."""

    ripe: dict[str, int]
    later: list[tuple[float, str, int]]

    def by(self, then: float) -> dict[str, int]:
        """GPU-milli by GPU model that may be taken by then."""
        found = self.ripe.copy()
        for at, model, milli in self.later:
            if at > then:
                break
            found[model] = found.get(model, 0) + milli
        return found


class Protection(Protocol):
    """What keeps places from being taken, beside priority and quota."""

    def at_preemption_limit(self, record: JobRecord) -> bool:
        """Whether a job was preempted as often as it may be."""

    def min_runtime_of(self, job: JobRequest) -> float:
        """For how many seconds a place of a job is its own."""

    def runs_from(self, record: JobRecord, pods: Sequence[tuple[int, int]]) -> float:
        """From when on these seconds count for these pods."""


@mypyc_attr(allow_interpreted_subclasses=True)  # a rehearsal copies it
class PreemptibleIndex:
    """Exposures of the preemptible jobs that have started, by tenant and priority; not of those
    that wait for places promised to them. More than may really be taken: who made room for whom
    before is left out, and of a disruption budget all but whether it lets anything go.

    Call `forget` when `protection` may answer otherwise than before.
    """

    def __init__(self, cluster: ClusterState, protection: Protection) -> None:
        self._cluster = cluster
        self._protection = protection
        self._members: dict[Whose, dict[str, JobRecord]] = {}
        self._known: dict[Whose, Exposure] = {}
        # What the groups hold that were asked for, and of whom it is to be read anew.
        self._held: dict[Whose, Holdings] = {}
        self._stale: dict[Whose, dict[str, JobRecord]] = {}
        self._numbers: dict[str, int] = {}  # of GPU models
        self._freed: dict[tuple[float, tuple[Whose, ...]], Freed] = {}

    def forget(self) -> None:
        self._known.clear()
        self._held.clear()
        self._stale.clear()
        self._freed.clear()

    def leave(self, record: JobRecord) -> None:
        """The job holds nothing any more, or is about to be another's."""
        whose = record.job.tenant, record.job.priority
        members = self._members.get(whose, {})
        if members.pop(record.job.id, None) is None:
            return
        self._known.pop(whose, None)
        self._freed.clear()
        if whose in self._held:
            self._held[whose].drop(record.job.id)
            self._stale[whose].pop(record.job.id, None)
        if not members:
            del self._members[whose]
            self._held.pop(whose, None)
            self._stale.pop(whose, None)

    def touch(self, record: JobRecord) -> None:
        """What the job holds, since when, or how much of it may go, has changed."""
        runs = record.started_at is not None and record.nomination is None and bool(record.pods)
        if not (runs and record.job.preemptible):
            self.leave(record)
            return
        whose = record.job.tenant, record.job.priority
        self._members.setdefault(whose, {})[record.job.id] = record
        self._known.pop(whose, None)
        self._freed.clear()
        if whose in self._held:
            self._stale[whose][record.job.id] = record

    def groups(self) -> Collection[Whose]:
        return self._members.keys()

    def members(self, whose: Whose) -> Collection[JobRecord]:
        return self._members[whose].values()

    def of(self, whose: Whose, now: float) -> Exposure:
        known = self._known.get(whose)
        if known is None or (known.later and known.later[0][0] <= now):
            held, names = self._read(whose), list(self._numbers)
            ripe = zip(names, held.sums(now, len(names)).tolist(), strict=True)
            later = [(at, names[model], milli) for at, model, milli in held.later(now)]
            known = Exposure({model: milli for model, milli in ripe if milli}, sorted(later))
            self._known[whose] = known
        return known

    def freed(self, groups: tuple[Whose, ...], by: float) -> Freed:
        """What the nodes would get back without all of it that may be taken by then."""
        known, slots = self._freed.get((by, groups)), len(self._cluster.names)
        if known is None or len(known.pods) != slots:
            if len(self._freed) >= MAX_FREED:
                self._freed.clear()
            known = freed([self._read(whose) for whose in groups], by, slots)
            self._freed[by, groups] = known
        return known

    def _read(self, whose: Whose) -> Holdings:
        """What a group holds, as it is now."""
        if whose not in self._held:
            self._held[whose], self._stale[whose] = Holdings(), self._members[whose].copy()
        held, stale = self._held[whose], self._stale[whose]
        for job_id, record in list(stale.items()):
            rows = list(self._rows(record))
            held.put(job_id, rows)
            if all(row.slot >= 0 for row in rows):  # else again, as its node may become known
                del stale[job_id]
        return held

    def _rows(self, record: JobRecord) -> Iterator[HeldPod]:
        """The pods that may be taken at some time."""
        if self._protection.at_preemption_limit(record) or not record.may_lose:
            return
        wait, gang = self._protection.min_runtime_of(record.job), record.job.gang
        places = self._cluster.held_by(record.job.id)
        runs_from = self._protection.runs_from
        of_all = runs_from(record, tuple(record.pods)) if gang else 0.0
        for pod, (model, _) in record.pods.items():
            p, spec = places[pod]
            at = wait + (of_all if gang else runs_from(record, (pod,)))
            number = self._numbers.setdefault(model, len(self._numbers))
            yield row_of(at, self._cluster.slot_of.get(p.node, -1), number, p, spec)
