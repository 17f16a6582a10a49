"""How a scheduler fares: how long passes take, what cycles do, and how calls to Kubernetes end."""

import re
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scheduling.engine.decisions import CycleStats
from scheduling.kube.seam import CallOutcome, Effect, Result

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# Results of effects that were not carried out.
FAILURES = frozenset({Result.REFUSED, Result.FAILED})
MARK_EVERY_S = 15.0
LATELY_S = 300.0  # what pages call “lately”
MARKS = round(LATELY_S / MARK_EVERY_S) + 1


class PaceMark(NamedTuple):
    """The counts of a `Pace` at an instant (seconds since the epoch).

    `decide` and `write`: seconds that passes spent on these.
    """

    at: float
    passes: int = 0
    seconds: float = 0.0
    decide: float = 0.0
    write: float = 0.0
    bound: int = 0
    failed: int = 0


class Backlog(NamedTuple):
    """What a scheduler has not done yet.

    - `effects`: calls to the Kubernetes API without a known result.
    - `news`: observations of the cluster that are not taken in.
    - `rows`: whether jobs that people wrote wait to be read.
    """

    effects: int = 0
    news: int = 0
    rows: bool = False


@dataclass(slots=True)
class Pace:
    """Counts of one scope since its session began.

    - `passes`: those that decided or changed something; `seconds`: what they took together, from
      the news to the commit; `within`: how many took at most each of BUCKETS_S.
    - `effects`: calls to the Kubernetes API by kind and result, such as ("create_and_bind",
      "bound"); `sent`: effects handed over.
    - `work`: the counts of CycleStats over all engine cycles, by name.
    - `phases`: seconds in which the engine decided ("decide") and the database was written
      ("write").
    - `since`: when the session began to count, in seconds since the epoch, 0 = unknown.
    - `marks`: the counts over the last LATELY_S, one for each change.
    """

    passes: int = 0
    seconds: float = 0.0
    within: list[int] = field(default_factory=lambda: [0] * len(BUCKETS_S))
    effects: Counter[tuple[str, str]] = field(default_factory=Counter)
    work: Counter[str] = field(default_factory=Counter)
    phases: dict[str, float] = field(default_factory=dict)
    sent: int = 0
    since: float = 0.0
    marks: list[PaceMark] = field(default_factory=list)

    def mark(self, now: float) -> None:
        """Note the counts if they changed and the last note is old enough."""
        if not self.since:
            self.since = now
            self.marks.append(PaceMark(now))
        last, this = self.marks[-1], self._mark(now)
        if now >= last.at + MARK_EVERY_S and last[1:] != this[1:]:
            self.marks = [*self.marks[1 - MARKS :], this]

    def lately(self, now: float) -> tuple[PaceMark, float]:
        """Return what was counted in the last LATELY_S (or this session), and in how many seconds.

        0 seconds for a session that is over.
        """
        begin = now - LATELY_S
        before = [mark for mark in self.marks if mark.at <= begin]
        first = before[-1] if before else next(iter(self.marks), PaceMark(now))
        this = self._mark(now)
        counted = PaceMark(
            now,
            this.passes - first.passes,
            this.seconds - first.seconds,
            this.decide - first.decide,
            this.write - first.write,
            this.bound - first.bound,
            this.failed - first.failed,
        )
        return counted, max(min(LATELY_S, now - (self.since or now)), 0.0)

    def _mark(self, now: float) -> PaceMark:
        decide, write = (self.phases.get(name, 0.0) for name in ("decide", "write"))
        return PaceMark(now, self.passes, self.seconds, decide, write, self.bound, self.failed)

    @property
    def waiting(self) -> int:
        """How many effects were handed over without a known result."""
        return max(self.sent - self.effects.total(), 0)

    def took(self, seconds: float) -> None:
        self.passes += 1
        self.seconds += seconds
        for bucket in range(bisect_left(BUCKETS_S, seconds), len(BUCKETS_S)):
            self.within[bucket] += 1

    def decided(self, stats: CycleStats, seconds: float) -> None:
        """Count the work of one engine cycle, and the seconds it took."""
        self.work.update(stats._asdict())
        self.spent("decide", seconds)

    def spent(self, phase: str, seconds: float) -> None:
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds

    def ended(self, effect: Effect, outcome: CallOutcome) -> None:
        self.effects[_snake(type(effect).__name__), outcome.result.lower()] += 1

    @property
    def bound(self) -> int:
        """How many pods were bound."""
        return sum(n for (_, result), n in self.effects.items() if result == Result.BOUND.lower())

    @property
    def failed(self) -> int:
        """How many calls the API server refused or did not finish in time."""
        lost = {result.lower() for result in FAILURES}
        return sum(n for (_, result), n in self.effects.items() if result in lost)

    @property
    def mostly_within_s(self) -> float | None:
        """The smallest of BUCKETS_S that 95 % of the passes stayed within; None = none."""
        enough = (s for s, n in zip(BUCKETS_S, self.within, strict=True) if n >= 0.95 * self.passes)
        return next(enough, None)

    def document(self) -> dict[str, Any]:
        """Return the counts as JSON, for `from_document`."""
        return {
            "passes": self.passes,
            "seconds": self.seconds,
            "within": list(self.within),
            "work": dict(self.work),
            "phases": self.phases,
            "effects": [[*key, number] for key, number in sorted(self.effects.items())],
            "sent": self.sent,
            "since": self.since,
            "marks": [list(mark) for mark in self.marks],
        }


def from_document(document: dict[str, Any]) -> Pace:
    """Read the counts that `document` wrote; zero if that version had other buckets."""
    if len(document.get("within", ())) != len(BUCKETS_S):
        return Pace()
    effects = Counter({(effect, result): n for effect, result, n in document["effects"]})
    work, phases = Counter(document.get("work", {})), document.get("phases", {})
    return Pace(
        document["passes"], document["seconds"], document["within"], effects, work, phases,
        document.get("sent", 0), document.get("since", 0.0),
        [PaceMark(*mark) for mark in document.get("marks", ())],
    )  # fmt: skip


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
