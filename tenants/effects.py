"""What a change would do, before anybody makes it: to jobs that wait and run, and to loans.

One noun for all writes: quotas, policies, nodes. The scheduling app works it out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class PlannedTenant:
    """What the scheduler will know of a tenant beside its quotas: where it is in the tree, None =
    below nobody, the weight of its share, most jobs that run at once, None = no limit, and the
    minimum run time of its jobs in seconds, None = as above."""

    parent: str | None
    weight: float
    max_running: int | None = None
    min_runtime_s: float | None = None


NO_TENANTS: Mapping[str, PlannedTenant] = {}


@dataclass(frozen=True, slots=True)
class AffectedJob:
    """A job, as far as whoever asks may know of it: of tenants that they do not see only its size.
    `user`: who submitted it, "" = a plain pod."""

    job: str | None
    name: str | None
    tenant: str | None
    user: str | None
    gpu_milli: int


@dataclass(frozen=True, slots=True)
class StoppingJob:
    """A running job that would lose pods: `pods` of them, all where `whole`, which then waits
    again until `again` (None = later than was looked). `by`: for whom; None = its node is taken.
    `lost_gpu_s`: GPU-seconds of its work, unless it saves it within the `notice_s` seconds that it
    is told before (0 = it is not)."""

    job: AffectedJob
    pods: int
    whole: bool
    by: AffectedJob | None
    lost_gpu_s: float
    again: datetime | None
    notice_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ShiftingJob:
    """A waiting job that starts at another time; None = later than was looked."""

    job: AffectedJob
    before: datetime | None
    after: datetime | None

    @property
    def by_s(self) -> float | None:
        """Seconds later, below 0 sooner; None = not told."""
        if self.before is None or self.after is None:
            return None
        return (self.after - self.before).total_seconds()

    @property
    def sooner_s(self) -> float:
        return -(self.by_s or 0.0)


@dataclass(frozen=True, slots=True)
class ResizedJob:
    """A running job that is given another number of pods: `leave` pods go; of `more` pods
    `at_once` get places at once, all of them at `all_at` (None = later than was looked); `why`:
    they never get any, "" = they may."""

    job: AffectedJob
    leave: int
    more: int
    at_once: int
    all_at: datetime | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class ImpossibleJob:
    """A waiting job that could never start any more, and why."""

    job: AffectedJob
    why: str


@dataclass(frozen=True, slots=True)
class LoanShift:
    """What of a GPU type `borrower` borrows from `lender`, before and after, in milli-GPU; "" = of
    tenants that are not to be seen, together."""

    gpu_type: str
    borrower: str
    lender: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class EffectCounts:
    """How many there are of each list, which holds the first of them; `sooner` and `later`: of
    those that start at another time."""

    starts: int = 0
    delayed: int = 0
    stops: int = 0
    sooner: int = 0
    later: int = 0
    impossible: int = 0
    possible: int = 0
    lost_gpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Effects:
    """What would be, by what was known at `as_of` and if nobody submits anything, as far as
    `until` (None = there was nothing to look at).

    `starts`: jobs that start at once, `delayed`: that would no longer; `shifts`: waiting jobs that
    start at another time; `resizes`: running jobs that are given another number of pods;
    `troubles`: of which clusters nothing can be told, and why.
    """

    as_of: datetime
    until: datetime | None = None
    counts: EffectCounts = EffectCounts()
    starts: Sequence[AffectedJob] = ()
    delayed: Sequence[AffectedJob] = ()
    stops: Sequence[StoppingJob] = ()
    shifts: Sequence[ShiftingJob] = ()
    impossible: Sequence[ImpossibleJob] = ()
    possible: Sequence[AffectedJob] = ()
    loans: Sequence[LoanShift] = ()
    resizes: Sequence[ResizedJob] = ()
    troubles: Sequence[str] = ()

    @property
    def ahead_s(self) -> float:
        """How far was looked, in seconds."""
        return 0.0 if self.until is None else (self.until - self.as_of).total_seconds()

    @property
    def is_nothing(self) -> bool:
        """Whether no job that waits or runs is touched, as far as was looked."""
        return self.counts == EffectCounts() and not self.loans and not self.resizes


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What happened to jobs in a span of time: how many started, with how many milli-GPU, and how
    many had to make room for others, `reclaimed` of them for a tenant that took back its own.
    `told_and_started`: of those that were told to start. The lists hold the largest of them."""

    started: int
    started_milli: int
    told_and_started: int
    stopped: int
    reclaimed: int
    lost_gpu_s: float
    starts: Sequence[AffectedJob] = ()
    stops: Sequence[AffectedJob] = ()
