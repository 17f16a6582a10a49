"""What blocked jobs have closed to the jobs behind them, as found by one walk over the queue."""

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

    `closes`: it has been blocked for too long and has no known start, so it closes its pools.
    `kept`: nodes kept for it because it has a turn. `pools`: the pools in which it may be placed.
    """

    job_id: str
    closes: bool
    expected: Expected | None
    kept: frozenset[str] = frozenset()
    pools: frozenset[str] = frozenset()

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes that jobs behind it may not use."""
        return self.kept if self.expected is None else self.expected.nodes

    @property
    def hold(self) -> Hold | None:
        """What it will need in addition to its nodes."""
        return None if self.expected is None else self.expected.hold


copied_by_fields(Head)


class Terms(NamedTuple):
    """What the blocked jobs ahead leave to a class: which of its jobs may be tried, and how.

    The job of `record` may not use pools in `closed` or nodes in `avoid`, nor borrow from what is
    `kept`.

    - `later`: jobs that end before the heads ahead can start are tried first.
    - `behind`: the job is one of those.
    - `turns`: the nodes are kept for others only because these have a turn.
    - `bar`: the head whose future needs have closed some of the pools.
    - `unsure`: more may be left to the class later without any event that says so.
    - `shorter`: another job of the class, which ends sooner, is left more.
    - `by_right`: what is left to the job if it preempts. A job with a right to places does not wait
      for a head that waits for quota.
    - `until`: when the terms change by the passing of time alone, because jobs of the class then
      end too late.
    - `wanted`: the pools of the class. In those that are `barred` it may preempt nobody.
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
        """The terms that apply if the job preempts."""
        return self.by_right or self

    @property
    def turn_nodes(self) -> frozenset[str]:
        """Nodes that are kept from it only because it is the turn of others."""
        return self.avoid if self.turns else frozenset()

    @property
    def bound(self) -> bool:
        """Whether preempting by right leaves more to the job."""
        right = self.by_right
        return right is not None and (self.avoid, self.kept) != (right.avoid, right.kept)

    @property
    def may_preempt(self) -> bool:
        """Whether the job may preempt in any of its pools.

        It may not preempt past a head with a reservation, because nobody knows whether the victims
        leave in time. It may preempt past a head that only has a turn: preempting is a right.
        """
        return not self.barred or not self.barred >= self.wanted


class Ahead(NamedTuple):
    """The blocked heads of some pools, when the first of them can start, and their nodes.

    `later`: each of the pools has a head and one head has nodes reserved, so jobs that end before
    go first. `turns`: all heads with nodes have them only by a turn. `holds`: the heads, including
    those that wait for quota, that will need something at a known time.
    """

    heads: tuple[Head, ...]
    starts_at: float
    nodes: frozenset[str]
    later: bool
    turns: bool
    holds: tuple[Head, ...] = ()


@dataclass(slots=True)
class Reservations:
    """Pools, accounts, quota to borrow and nodes that belong to blocked jobs, as found by one walk.

    - `closers`: the jobs that have been blocked for too long under backfill -> whether what passed
      them only has to run a little longer before it can be preempted. While that is False for all
      of them, jobs that all of them could preempt may pass.
    - `queues`: (tenant, queue, GPU model) -> the job that jobs of this queue may not pass, because
      the queue had too much.
    - `mark`: names everything closed so far in the walk. If the previous walk had found the same at
      this place, it is the same object.
    - `last`: the last job in the order that closed something.
    - `asked`: what jobs wait for, where a start by quota was looked for -> the first such job.
    - `planned`: those of these jobs whose start is known. `awaited`: what they wait for.
    - `before`: the heads that were ahead of each head when its start was looked for.
    - `starts`: how often jobs got places in this walk so far.
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
    # Caches, valid for all classes until another job is found blocked.
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
        """The name of the subject of a finding, see `memo.Subject`."""
        return "what blocked jobs have closed"

    def next_walk(self) -> "Reservations":
        """Return reservations with nothing closed, for a new walk."""
        if self._marks or self._before:
            return Reservations(_before=self._marks)
        self.starts = 0
        return self

    def all_heads(self) -> list[Head]:
        """Return each head once."""
        found = {head.job_id: head for head in self.heads.values()}
        return [*found.values(), *self.planned.values()]

    def note_start(
        self, job: JobRequest, got: Mapping[str, int], ends_at: float, *, whole: bool
    ) -> None:
        """Note in the heads' holds that a job which ends by `ends_at` holds more.

        `got`: GPU-milli by model. `whole`: a whole new job starts, all of which is over then.
        """
        for head in self.all_heads():
            hold = head.hold
            if hold is None or ends_at > hold.at:
                continue
            for model, milli in got.items():
                hold.over[job.tenant, model, not job.preemptible] += milli
            hold.jobs[job.tenant] += whole

    def add(self, what: object, by: OrderKey) -> None:
        """Note that something more is closed to all jobs behind."""
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
    """What the answer of a class rests on that could not start and was told so.

    The answer holds while all of these are as they were: the `first` job and what it asks for, the
    `sizes` of nodes, the `mark` of what is closed ahead, the `quotas` and limits, and whether quota
    refuses the class. In addition:

    - `closed`: jobs ahead leave the class no pool, whatever is free. If this is False, no node may
      have `gained` as many free GPUs as one of its pods needs.
    - `freed_quota`: has to be the same if the class can start in several ways.
    - `booked`: if the book has changed since, what is kept for borrowers ahead still has to close
      to it what was `withheld` (because of what was `kept` from it), or still has to include
      everything that the class itself would wait for.
    - `plans`: what the finding "nobody can be preempted for the class" depends on.
    - `jobs_started`: the number of starts, where a limit of jobs may come to keep it waiting too.
    - `needs`: unless a node that gained anything has this many wholly free GPUs, the class need not
      be asked, whatever else was given back; quota is checked separately.
    - `nodes`: the version of the node facts, for a class that is in nobody's way because it lacks
      nodes that are out of service.
    - `until`: as in the terms.
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
        """Whether jobs behind it may have to wait for it.

        Nobody waits for a class that can never start, that lacks nodes which are out of service, or
        that may itself not pass the jobs ahead.
        """
        return not self.closed and self.nodes is None
