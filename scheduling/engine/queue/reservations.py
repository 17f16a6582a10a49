"""What blocked jobs have closed to the jobs behind them, as a walk over the queue finds it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduling.engine.demand.requested import Ask
from scheduling.engine.memo import Found
from scheduling.engine.native import copied_by_fields
from scheduling.engine.queue.job import Expected, JobRecord
from scheduling.engine.queue.order import OrderKey
from scheduling.engine.quota.accounts import Account, Cohort
from scheduling.engine.quota.borrowing import Awaited, Kept
from scheduling.engine.quota.holds import Hold
from scheduling.engine.types import JobRequest
from scheduling.engine.verdict import Verdict

Mark = tuple[object, ...]
Waits = tuple[Account, Awaited]  # the account that refuses a job, and what it waits for
NOBODY_BEHIND = OrderKey(math.inf, math.inf, 0, "")  # after every job


@dataclass(frozen=True, slots=True)
class Head:
    """The first blocked job of a pool under backfill, or the first that waits for some quota.

    `closes`: it has been blocked for too long and no start of it is known. `kept`: nodes that are
    kept for it because it is its turn. `pools`: those in which it may be placed.
    """

    job_id: str
    closes: bool
    expected: Expected | None
    kept: frozenset[str] = frozenset()
    pools: frozenset[str] = frozenset()

    @property
    def nodes(self) -> frozenset[str]:
        """Those that jobs behind it may not use."""
        return self.kept if self.expected is None else self.expected.nodes

    @property
    def hold(self) -> Hold | None:
        """What it will need beside its nodes."""
        return None if self.expected is None else self.expected.hold


copied_by_fields(Head)


class Terms(NamedTuple):
    """What the blocked jobs ahead leave to a class: which of its jobs may be tried, and how.

    Pools in `closed` and nodes in `avoid` are not to be used, and nothing borrowed of what is
    `kept`. `later`: jobs that end before the
    heads ahead can start are tried first. `behind`: the job is one of those. `turns`: the nodes are
    kept for others only because it is their turn. `bar`: what this head will need has closed some
    of the pools. `unsure`: what is left to it may grow without news. `shorter`: more is left to
    another job of the class, which is over sooner. `by_right`: what is left to it
    if it preempts: who has a right to places does not wait for a head that waits for quota. `until`
    then it is so by the passing of time: afterwards jobs of the class are over too late. `wanted`:
    the pools of the class, in those `barred` of which it may take places from nobody.
    """

    record: JobRecord
    closed: frozenset[str] = frozenset()
    avoid: frozenset[str] = frozenset()
    kept: Kept = frozenset()
    later: bool = False
    behind: bool = False
    turns: bool = False
    bar: Head | None = None
    unsure: bool = False
    shorter: bool = False
    by_right: "Terms | None" = None
    until: float = math.inf
    wanted: frozenset[str] = frozenset()
    barred: frozenset[str] = frozenset()

    @property
    def claim(self) -> "Terms":
        """The terms by which it may preempt."""
        return self.by_right or self

    @property
    def bound(self) -> bool:
        """Whether more is left to it by right."""
        right = self.by_right
        return right is not None and (self.avoid, self.kept) != (right.avoid, right.kept)

    @property
    def may_preempt(self) -> bool:
        """Whether the job may take places from others in any of its pools: not past a head, which
        nobody knows the victims to leave in time for. It may where that head only has its turn:
        preempting is a right."""
        return not self.barred or not self.barred >= self.wanted


class Ahead(NamedTuple):
    """The blocked heads of some pools, when the first can start, and their nodes. `later`: each of
    the pools has a head, and one has nodes reserved: jobs that end before go first. `turns`: all
    that have nodes only have their turn. `holds`: heads, also such as wait for quota, that will
    need something at a time that is known."""

    heads: tuple[Head, ...]
    starts_at: float
    nodes: frozenset[str]
    later: bool
    turns: bool
    holds: tuple[Head, ...] = ()


@dataclass(slots=True)
class Reservations:
    """Pools, accounts, quota to borrow and nodes that belong to blocked jobs, as one walk over the
    queue has found.

    `closers`: the jobs that have been blocked for too long under backfill, and whether what passed
    them by only has to run a little longer before it can be preempted: until then, whoever could be
    preempted for all of them may pass. `queues`: by tenant, queue and GPU model the job that those
    of this queue may not pass, as theirs had too much. `mark` names all of it at the present place
    of the walk; where the walk before found the same, it is the same object. `last` is the last job
    in order that closed something. `asked`: what the jobs wait for of which a start by quota was
    looked for, the first for each; `planned`: those of them whose start is known, by what they wait
    for in `awaited`, and `before`: the heads ahead of each head as it was looked for. `starts`: how
    often jobs got places in this walk so far.
    """

    pools: dict[str, str] = field(default_factory=dict)  # GPU model -> the job ahead
    accounts: dict[tuple[str, str], str] = field(default_factory=dict)
    queues: dict[tuple[str, str, str], str] = field(default_factory=dict)
    kept: dict[Account | Cohort, str] = field(default_factory=dict)
    heads: dict[str, Head] = field(default_factory=dict)
    closers: dict[str, bool] = field(default_factory=dict)
    asked: dict[object, str] = field(default_factory=dict)
    planned: dict[str, Head] = field(default_factory=dict)
    awaited: dict[object, str] = field(default_factory=dict)
    before: dict[str, tuple[Head, ...]] = field(default_factory=dict)
    starts: int = 0
    mark: Mark = ()
    last: OrderKey | None = None
    # What holds for all classes alike until another job is found blocked.
    ahead_of: dict[frozenset[str], Ahead] = field(default_factory=dict)
    closed_to: dict[tuple[str, str, frozenset[str], bool, bool], frozenset[str]] = field(
        default_factory=dict
    )
    told: dict[str, Verdict] = field(default_factory=dict)
    all_kept: Kept = frozenset()
    found: Found = field(default_factory=dict)  # what the memo knows
    _marks: list[Mark] = field(default_factory=list)
    _before: list[Mark] = field(default_factory=list)

    @property
    def about(self) -> str:
        """Of what something was found out."""
        return "what blocked jobs have closed"

    def next_walk(self) -> "Reservations":
        """Nothing in the way yet, for a walk that begins anew."""
        if self._marks or self._before:
            return Reservations(_before=self._marks)
        self.starts = 0
        return self

    def all_heads(self) -> list[Head]:
        """Each head once."""
        found = {head.job_id: head for head in self.heads.values()}
        return [*found.values(), *self.planned.values()]

    def note_start(
        self, job: JobRequest, got: Mapping[str, int], ends_at: float, *, whole: bool
    ) -> None:
        """A job that is to be over at `ends_at` holds more, in milli by GPU model. `whole`: it is
        a new job, all of which is over then."""
        for head in self.all_heads():
            hold = head.hold
            if hold is None or ends_at > hold.at:
                continue
            for model, milli in got.items():
                hold.over[job.tenant, model, not job.preemptible] += milli
            hold.jobs[job.tenant] += whole

    def add(self, what: object, by: OrderKey) -> None:
        """Something more is closed to all that comes behind."""
        self.ahead_of.clear()
        self.closed_to.clear()
        self.told.clear()
        self.found.clear()
        self.all_kept = frozenset(self.kept)
        mark, depth = (*self.mark, what), len(self._marks)
        if depth < len(self._before) and self._before[depth] == mark:
            mark = self._before[depth]
        self._marks.append(mark)
        self.mark = mark
        self.last = by if self.last is None else max(self.last, by)


@dataclass(slots=True, eq=False)
class Settled:
    """What it depends on that a class which could not start still cannot, and has been told so.

    It holds for the same first job that asks for the same, as nodes are of the same `sizes`, behind
    the same `mark`, by the same `quotas` and limits, with the same answer about quota; unless it is
    `closed` to the class whatever is free, also while no node has `gained` what one of its pods
    needs. `freed_quota` must be the same where it may start in several ways; since it was `booked`
    what is kept for borrowers ahead must have gone on closing to it what was `withheld` (of what
    was `kept` from it), or have held all that it would wait for itself. `plans`: what the finding
    depends on that no other jobs can be preempted for it. `jobs_started`: where a limit of jobs may
    come to keep it waiting too, how many had. `needs`: wholly free GPUs of a node without which it
    need not be asked whatever else was given back, quota apart. `nodes`: of a class that is in
    nobody's way because of what it lacks, the facts of nodes. `until`: that of the terms.
    """

    first: OrderKey
    sizes: int
    mark: Mark
    never: Verdict | None
    refused: bool
    closed: bool
    withheld: frozenset[str]
    kept: Kept
    asks: Ask
    gained: int
    freed_quota: int | None
    booked: int | None
    plans: tuple[int, int, int] | None
    jobs_started: int | None
    needs: int
    nodes: int | None
    quotas: int
    until: float

    @property
    def in_somebodys_way(self) -> bool:
        """Whether those behind it may have to wait for it: not for who can never start, lacks nodes
        that are out of service, or may itself not pass who is ahead."""
        return not self.closed and self.nodes is None
