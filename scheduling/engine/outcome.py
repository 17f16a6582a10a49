"""Collect what one cycle decides."""

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
    """The decisions of a cycle in progress."""

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
        # By class: jobs to report, as quota's answer for the class changed or they joined it.
        self.turned: dict[EquivalenceClass, set[str]] = {}
        self.walks = 0
        self.asked = 0
        self.remembered = 0
        self.attempts = 0
        self.plans = 0

    @property
    def just_started(self) -> frozenset[str]:
        """Jobs of which at least one pod starts in this cycle."""
        return self._just_started.union([start.job_id for start in self.started])

    def walked(self, *, asked: int, waiting: int) -> None:
        """Count one walk over the queue that asked `asked` of the `waiting` equivalence classes.

        For the other classes the remembered answers still held.
        """
        self.walks += 1
        self.asked += asked
        self.remembered += max(0, waiting - asked)

    def block(self, record: JobRecord, since: float | None) -> None:
        """Record and report since when a job is blocked at the head; None = no longer."""
        if record.blocked(since):
            self.blocked[record.job.id] = Blocked(record.job.id, since)

    def stands(self, record: JobRecord) -> None:
        """Report the time by which a job is ordered in the queue."""
        self.stand_at[record.job.id] = StandsAt(record.job.id, record.stands_at)

    def result(
        self, next_at: float | None, checked: int, wrong: int, told: tuple[WrongAnswer, ...]
    ) -> CycleResult:
        """Return what the cycle decided.

        `checked` and `wrong`: how many remembered answers were checked and found wrong; `told`: the
        wrong ones to report.
        """
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
