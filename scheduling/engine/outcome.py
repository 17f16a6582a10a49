"""What one cycle decides, gathered while it is being made."""

from scheduling.engine.cluster.cluster import PodKey
from scheduling.engine.decisions import (
    Blocked,
    CycleResult,
    CycleStats,
    Moved,
    Preempted,
    Reservation,
    RunLimit,
    StandsAt,
    Started,
    Waiting,
    WrongAnswer,
)
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.waiting import EquivalenceClass


class Outcome:
    """The decisions of one cycle while it is being made."""

    def __init__(
        self, now: float, refresh_s: float, just_started: frozenset[str] = frozenset()
    ) -> None:
        self.now = now
        self.refresh_s = refresh_s
        self._just_started = just_started
        self.started: list[Started] = []
        self.quota_reserved: list[str] = []
        self.quota_lost: list[str] = []
        self.waiting: dict[str, Waiting] = {}
        self.staying: dict[str, Waiting] = {}
        self.lost: list[PodKey] = []
        self.preempted: list[Preempted] = []
        self.moved: list[Moved] = []
        self.reservations: list[Reservation] = []
        self.blocked: dict[str, Blocked] = {}
        self.stand_at: dict[str, StandsAt] = {}
        self.run_limits: list[RunLimit] = []
        # Classes whose answer about quota turned, or got jobs, and which.
        self.turned: dict[EquivalenceClass, set[str]] = {}
        self.walks = 0
        self.asked = 0
        self.remembered = 0
        self.attempts = 0
        self.plans = 0

    @property
    def just_started(self) -> frozenset[str]:
        """Jobs of which something starts in this cycle."""
        return self._just_started.union([start.job_id for start in self.started])

    def walked(self, *, asked: int, waiting: int) -> None:
        """One walk over the queue asked so many of the equivalence classes that waited; what it
        had found out about the others before still stood."""
        self.walks += 1
        self.asked += asked
        self.remembered += max(0, waiting - asked)

    def block(self, record: JobRecord, since: float | None) -> None:
        """Note, and report, since when a job is blocked at the head; None = no longer."""
        if record.blocked(since):
            self.blocked[record.job.id] = Blocked(record.job.id, since)

    def stands(self, record: JobRecord) -> None:
        """Report since when a job stands in the queue."""
        self.stand_at[record.job.id] = StandsAt(record.job.id, record.stands_at)

    def result(
        self, next_at: float | None, checked: int, wrong: int, told: tuple[WrongAnswer, ...]
    ) -> CycleResult:
        """`checked`: so many remembered answers were, `wrong`: were, and are `told`."""
        starts = len(self.started)
        walked = (self.walks, self.asked, self.remembered)
        stats = CycleStats(*walked, self.attempts, self.plans, starts, checked, wrong)
        return CycleResult(
            tuple(self.started),
            tuple(sorted(self.quota_reserved)),
            tuple(sorted(self.quota_lost)),
            tuple(self.waiting.values()),
            tuple(self.lost),
            stats,
            tuple(self.preempted),
            tuple(self.moved),
            tuple(self.reservations),
            tuple(self.blocked.values()),
            tuple(self.run_limits),
            tuple(self.staying.values()),
            next_at,
            told,
            tuple(self.stand_at.values()),
        )
