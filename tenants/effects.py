"""What a planned change would do to waiting jobs, running jobs and loans.

The same types serve all changes: quotas, policies, nodes. The scheduling app computes the values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class PlannedTenant:
    """What the scheduler would know of a tenant besides its quotas.

    `parent`: None = a root; `weight` of its share; the most jobs that run at once (None = no
    limit); the minimum run time of its jobs in seconds (None = inherited).
    """

    parent: str | None
    weight: float
    max_running: int | None = None
    min_runtime_s: float | None = None


NO_TENANTS: Mapping[str, PlannedTenant] = {}


@dataclass(frozen=True, slots=True)
class AffectedJob:
    """A job, as far as the reader may see it: of a job in a tenant that they may not see, only the
    size. `user`: who submitted it; "" = a plain pod."""

    job: str | None
    name: str | None
    tenant: str | None
    user: str | None
    gpu_milli: int


@dataclass(frozen=True, slots=True)
class StoppingJob:
    """A running job that would lose pods: `pods` of them, or all of them (`whole`).

    A job that loses all waits until `again` (None = beyond the forecast). `by`: the job that takes
    its places; None = its node goes away. `lost_gpu_s`: GPU-seconds of work that it loses unless it
    saves its work within the `notice_s` seconds of warning (0 = no warning).
    """

    job: AffectedJob
    pods: int
    whole: bool
    by: AffectedJob | None
    lost_gpu_s: float
    again: datetime | None
    notice_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ShiftingJob:
    """A waiting job whose start moves; None = beyond the forecast."""

    job: AffectedJob
    before: datetime | None
    after: datetime | None

    @property
    def by_s(self) -> float | None:
        """Seconds by which it starts later; negative = sooner; None = unknown."""
        if self.before is None or self.after is None:
            return None
        return (self.after - self.before).total_seconds()

    @property
    def sooner_s(self) -> float:
        return -(self.by_s or 0.0)


@dataclass(frozen=True, slots=True)
class ResizedJob:
    """A running job whose number of pods changes.

    `leave` pods go. Of `more` pods, `at_once` get places at once and all have one at `all_at` (None
    = beyond the forecast). `why`: why they never get places; "" = they may. `notice_s`: the seconds
    of warning of pods that go (0 = no warning).
    """

    job: AffectedJob
    leave: int
    more: int
    at_once: int
    all_at: datetime | None
    why: str = ""
    notice_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ImpossibleJob:
    """A waiting job that could never start after the change, and why."""

    job: AffectedJob
    why: str


@dataclass(frozen=True, slots=True)
class LoanShift:
    """What `borrower` borrows of a GPU type from `lender`, before and after, in milli-GPU. "" = all
    tenants that the reader may not see, together."""

    gpu_type: str
    borrower: str
    lender: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class EffectCounts:
    """The full length of each list, which itself holds only the first entries. `sooner` and
    `later`: the jobs whose start moves."""

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
    """What a change would do, from what was known at `as_of`, if nobody submits anything more, up
    to `until` (None = there was nothing to compute).

    `starts`: jobs that start at once; `delayed`: jobs that no longer would; `shifts`: waiting jobs
    whose start moves; `resizes`: running jobs whose number of pods changes; `troubles`: the
    clusters for which nothing can be computed, and why.
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
        """How far the forecast reaches, in seconds."""
        return 0.0 if self.until is None else (self.until - self.as_of).total_seconds()

    @property
    def is_nothing(self) -> bool:
        """Whether the forecast shows no effect on any waiting or running job."""
        return self.counts == EffectCounts() and not self.loans and not self.resizes


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What happened to jobs in a span of time: how many started, with how many milli-GPU, and how
    many were preempted.

    `reclaimed`: those preempted for a tenant that took its guarantee back. `told_and_started`: how
    many of the jobs that were predicted to start did. The lists hold the largest jobs.
    """

    started: int
    started_milli: int
    told_and_started: int
    stopped: int
    reclaimed: int
    lost_gpu_s: float
    starts: Sequence[AffectedJob] = ()
    stops: Sequence[AffectedJob] = ()
