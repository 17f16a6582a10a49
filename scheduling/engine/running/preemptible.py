"""Sums of what running jobs could lose to a preemptor.

Whether a preemption could make enough room is asked for every blocked job whenever something
happens, and the answer is mostly no. So the answer must not cost a look at every running job.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, Protocol

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.native import mypyc_attr
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.running.holdings import Freed, HeldPod, Holdings, freed, row_of
from scheduling.engine.types import JobRequest

Whose = tuple[str, int]  # tenant and priority

# How many answers of `PreemptibleIndex.freed` to remember.
MAX_FREED = 16


class Exposure(NamedTuple):
    """What the jobs of one group could lose, by min runtime.

    `ripe`: GPU-milli by GPU model that may be taken now. `later`: (when, GPU model, GPU-milli) of
    what may be taken later, earliest first.
    """

    ripe: dict[str, int]
    later: list[tuple[float, str, int]]

    def by(self, then: float) -> dict[str, int]:
        """Return the GPU-milli by GPU model that may be taken by this time."""
        found = self.ripe.copy()
        for at, model, milli in self.later:
            if at > then:
                break
            found[model] = found.get(model, 0) + milli
        return found


class Protection(Protocol):
    """What protects places from preemption, besides priority and quota."""

    def at_preemption_limit(self, record: JobRecord) -> bool:
        """Whether the job has been preempted as often as it may be."""

    def min_runtime_of(self, job: JobRequest) -> float:
        """Return the min runtime of the job in seconds."""

    def runs_from(self, record: JobRecord, pods: Sequence[tuple[int, int]]) -> float:
        """Return when the min runtime of these pods begins."""


@mypyc_attr(allow_interpreted_subclasses=True)  # a rehearsal copies it
class PreemptibleIndex:
    """What the started preemptible jobs could lose, by tenant and priority.

    Jobs that wait for nominated places are left out. The sums may exceed what can really be taken:
    they ignore which job made room for which before, and use a disruption budget only to tell
    whether it lets any pod go. Call `forget` whenever `protection` may answer differently.
    """

    def __init__(self, cluster: ClusterState, protection: Protection) -> None:
        self._cluster = cluster
        self._protection = protection
        self._members: dict[Whose, dict[str, JobRecord]] = {}
        self._known: dict[Whose, Exposure] = {}
        # What the requested groups hold, and the jobs to read again.
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
        """Take a job out: it holds nothing any more, or is about to change tenant or priority."""
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
        """Note that what a job holds, since when, or how much of it may go, has changed."""
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
        """Return what nodes would get back if all that may be taken by then were gone."""
        known, slots = self._freed.get((by, groups)), len(self._cluster.names)
        if known is None or len(known.pods) != slots:
            if len(self._freed) >= MAX_FREED:
                self._freed.clear()
            known = freed([self._read(whose) for whose in groups], by, slots)
            self._freed[by, groups] = known
        return known

    def _read(self, whose: Whose) -> Holdings:
        """Return what a group holds, up to date."""
        if whose not in self._held:
            self._held[whose], self._stale[whose] = Holdings(), self._members[whose].copy()
        held, stale = self._held[whose], self._stale[whose]
        for job_id, record in list(stale.items()):
            rows = list(self._rows(record))
            held.put(job_id, rows)
            if all(row.slot >= 0 for row in rows):  # otherwise read again: its node may appear
                del stale[job_id]
        return held

    def _rows(self, record: JobRecord) -> Iterator[HeldPod]:
        """Yield the pods that may be taken at some time."""
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
