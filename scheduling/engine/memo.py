"""The memo: answers that the engine remembers, and what each of them depends on.

A rule works out an answer from the state alone. Asked again, it would usually give the same
answer, so the memo keeps it (`Finding`) together with what it depends on, and returns it while
that is unchanged. All versions that an answer can depend on are defined here and nowhere else: a
rule names its dependency (`memo.room`) and may add further conditions (`Question.stands`).

`Memo.off()` remembers nothing, so the engine recomputes everything. It then decides the same
things, only slowly; the tests compare remembered answers with it. A checking memo recomputes a
sample of the remembered answers and records the differences. Each difference is a bug in the
engine.
"""

import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, Self

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.decisions import WrongAnswer
from scheduling.engine.demand.pools import Pools
from scheduling.engine.native import mypyc_attr
from scheduling.engine.quota.book import QuotaBook

# How many shapes have remembered answers, which hold for all jobs of a shape.
MAX_SHAPES: Final = 20_000
# Questions about a class ...
NEVER: Final = "never"  # why its jobs can never run
BY_QUOTA: Final = "by quota"  # why quota refuses it
ASKED: Final = "asked"  # what its jobs request
NO_START: Final = "no start"  # none of its jobs finds a place
WITHIN_REACH: Final = "within reach"  # where it could start if all running jobs had ended
UNPLANNED: Final = "unplanned"  # no preemption is possible for its first job
SETTLED: Final = "settled"  # another visit would find and report what the last one did
WOULD_START: Final = "would start"  # whether only reserved nodes prevent its start
# ... about a shape ...
POSSIBLE: Final = "possible"  # jobs of this shape can run
# ... about a job ...
EXPECTED: Final = "expected"  # when and where it will start
IN_VAIN: Final = "in vain"  # no preemption makes room for so many of its pods
GREW: Final = "grew"  # it runs and gets no more pods
# ... about what blocked jobs have closed.
WITHHELD: Final = "withheld"  # why a demand is refused only because of what is kept for others
# How many wrong answers are reported in full; the others are only counted.
MAX_TOLD: Final = 20
# Checks are drawn from a fixed sequence, so two runs of one history check the same answers.
_DRAWN, _FACTOR, _STEP = 1 << 32, 1_664_525, 1_013_904_223


@mypyc_attr(allow_interpreted_subclasses=True)  # a rehearsal copies it
@dataclass(slots=True, init=False, eq=False)
class Finding:
    """A remembered answer and what makes it valid.

    `depends_on`: the versions it depends on, as they were when it was found. `until`: when it
    expires by the passing of time alone (seconds since the epoch).
    """

    answer: Any
    depends_on: Any
    until: float

    def __init__(self, answer: Any, depends_on: Any, until: float = math.inf) -> None:
        self.answer = answer
        self.depends_on = depends_on
        self.until = until


# Findings about one subject, by the name of the question.
Found = dict[str, Finding]


class Subject(Protocol):
    """What a finding is about: a class, a job, a shape."""

    found: Found

    @property
    def about(self) -> str:
        """Its name in reports of wrong answers."""


class QuotaAsOf(NamedTuple):
    """The state of quota when it gave an answer.

    `change`: the version of the book whose growth may change the answer. `bound`, if the job can
    start in one way only: the total GPU-milli of `model` ever returned at which a refusal may end,
    or the total ever booked up to which quota still allows the job. None = no such bound.
    """

    refused: bool
    change: int
    model: str
    bound: int | None


class Since(NamedTuple):
    """What has happened to nodes and quota.

    `only_booked`: at most bookings, which never allow what was refused. `only_returned`: at most
    returns, which never refuse what was allowed.
    """

    nothing: bool
    only_booked: bool
    only_returned: bool


@mypyc_attr(allow_interpreted_subclasses=True)
class Question:
    """A question whose answers are remembered under its name."""

    def __init__(self, name: str, *, checked: bool = True, plain: bool = False) -> None:
        self.name = name
        self.checked = checked  # by its own `check`; False: another question's check covers it
        self.plain = plain  # `stands` only tests equality, so the call can be skipped

    def stands(self, _state: Any, _subject: Any, known: Finding, depends_on: Any) -> bool:
        """Whether the answer still holds, apart from the passing of time."""
        return bool(known.depends_on == depends_on)

    def work_out(self, state: Any, subject: Any, depends_on: Any) -> Any:
        """Work out the answer from the state alone, with no visible side effects."""
        raise NotImplementedError(f"{self.name} is noted by who finds it out, never asked for")

    def check(self, state: Any, subject: Any, _known: Finding, depends_on: Any) -> Any:
        """Recompute the answer, in the form of the `known` one; a difference is a bug."""
        return self.work_out(state, subject, depends_on)


@mypyc_attr(allow_interpreted_subclasses=True)  # a rehearsal copies it
@dataclass(slots=True, init=False, eq=False)
class LikeJobs:
    """Findings that hold for all jobs of a shape, even while none of them waits."""

    key: Any
    found: Found

    def __init__(self, key: object, found: Found | None = None) -> None:
        self.key = key
        self.found = {} if found is None else found

    @property
    def about(self) -> str:
        """The shape in words."""
        return f"jobs of shape {self.key!r}"


@mypyc_attr(allow_interpreted_subclasses=True)  # a rehearsal copies it
class Memo:
    """All answers that one engine remembers.

    `remembers`: False if the memo is off. `check_share`: the share of remembered answers to
    recompute as a check, 0 to 1.
    """

    def __init__(self, *, remembers: bool = True, check_share: float = 0.0) -> None:
        if not 0 <= check_share <= 1:
            raise ValueError(f"check_share is {check_share}: give a share of 0 to 1")
        self.remembers = remembers
        self._checking = False
        self._checked, self._wrong = 0, 0
        self._told: list[WrongAnswer] = []
        self._threshold = int(check_share * _DRAWN)
        self._drawn = 0
        self._shapes: dict[object, LikeJobs] = {}
        self._for_a_while: dict[object, Finding] = {}  # ordered by expiry
        self._assessed = ((-1, -1), (-1, -1))
        self._state: Any = None

    @classmethod
    def off(cls) -> Self:
        """Return a memo that remembers nothing."""
        return cls(remembers=False)

    def follow(self, state: Any, cluster: ClusterState, book: QuotaBook, pools: Pools) -> None:
        """Make the answers refer to this state from now on."""
        self._state = state
        self._cluster, self._book, self._pools = cluster, book, pools

    def twin(self) -> "Memo":
        """Return a memo for a copy of the state: the same findings on shapes, and no checks."""
        twin = Memo(remembers=self.remembers)
        for key, shape in self._shapes.items():
            twin._shapes[key] = LikeJobs(key, shape.found.copy())
        twin._for_a_while = self._for_a_while.copy()
        twin._assessed = self._assessed
        return twin

    # --- what answers depend on: while the value is equal, nothing of that kind has happened --
    @property
    def sizes(self) -> int:
        """Which nodes exist, their sizes, and which pods they admit."""
        return self._pools.version

    @property
    def nodes(self) -> int:
        """All facts about nodes, and the pods of others on them."""
        return self._cluster.facts_version

    @property
    def places(self) -> int:
        """Places that may have become free or better."""
        return self._cluster.version

    @property
    def occupied(self) -> tuple[int, int]:
        """What is placed where, and places that may have become free or better."""
        return self._cluster.stamp

    @property
    def quotas(self) -> int:
        """The tenants and their quotas."""
        return self._book.structure

    @property
    def booked(self) -> int:
        """Anything in the book: quotas, and how much of them is used by whom."""
        return self._book.version

    @property
    def freed_quota(self) -> int:
        """Quota that may have become free."""
        return self._book.loosened

    @property
    def facts(self) -> tuple[int, int]:
        """Node sizes, tenants and their quotas."""
        return self._pools.version, self._book.structure

    @property
    def terms(self) -> tuple[int, int]:
        """All facts about nodes, tenants and their quotas."""
        return self._cluster.facts_version, self._book.structure

    @property
    def room(self) -> tuple[int, int]:
        """Places or quota that may have become free."""
        return self._cluster.version, self._book.loosened

    @property
    def holders(self) -> tuple[int, int]:
        """Places that may have become free, and anything in the book."""
        return self._cluster.version, self._book.version

    @property
    def gains(self) -> int:
        """Everything released or improved on nodes so far; a mark for `most_gained`."""
        return self._cluster.gains

    def most_gained(self, since: int) -> int | None:
        """Return the most wholly free GPUs on any node that gained something since the mark.

        `since`: an earlier value of `gains`. None = unknown.
        """
        return self._cluster.gained(since)

    def quota_as_of(self, *, refused: bool, bound: tuple[str, int] | None) -> QuotaAsOf:
        """Return the present state of quota, for `quota_stands` to compare with later.

        `bound`: (GPU model, GPU-milli) that must be returned before a refusal can end, or that may
        still be booked before one can begin.
        """
        book = self._book
        change = book.loosened if refused else book.tightened
        if bound is None:
            return QuotaAsOf(refused, change, "", None)
        model, milli = bound
        ever = book.returned if refused else book.booked
        return QuotaAsOf(refused, change, model, ever.get(model, 0) + milli)

    def quota_unchanged(self, as_of: QuotaAsOf) -> bool:
        """Whether nothing has happened that could change the answer or its numbers."""
        book = self._book
        return as_of.change == (book.loosened if as_of.refused else book.tightened)

    def quota_stands(self, as_of: QuotaAsOf) -> bool:
        """Whether the answer is still the same, though its numbers may differ."""
        refused, change, model, bound = as_of
        book = self._book
        if change == (book.loosened if refused else book.tightened):
            return True
        if bound is None:
            return False
        if refused:
            return book.returned.get(model, 0) < bound
        return book.booked.get(model, 0) <= bound

    def since_assessed(self) -> Since:
        """Return what has happened since the last call, when all classes were last assessed."""
        book = self._book
        facts, at = self.facts, (book.loosened, book.tightened)
        (before, was), self._assessed = self._assessed, (facts, at)
        alike = self.remembers and before == facts
        return Since(
            alike and was == at,
            alike and was[0] == at[0],
            alike and was[1] == at[1],
        )

    # --- asking -------------------------------------------------------------------------------
    def recall(self, question: Question, subject: Subject, depends_on: Any) -> Finding | None:
        """Return the remembered finding if it still holds, else None."""
        if not self.remembers:
            return None
        known = subject.found.get(question.name)
        if known is None or known.until <= self._cluster.now:
            return None
        if question.plain:
            if known.depends_on != depends_on:
                return None
        elif not question.stands(self._state, subject, known, depends_on):
            return None
        if self._threshold and question.checked and self.draws():
            self._check(question, subject, known, depends_on)
        return known

    def note(
        self,
        question: Question,
        subject: Subject,
        answer: Any,
        depends_on: Any,
        until: float = math.inf,
    ) -> None:
        """Remember an answer."""
        if not self._checking:
            subject.found[question.name] = Finding(answer, depends_on, until)

    def changed(self, question: Question, subject: Subject, depends_on: Any) -> bool:
        """Whether there is no finding or its dependencies changed; also works with the memo off."""
        known = subject.found.get(question.name)
        return known is None or not question.stands(self._state, subject, known, depends_on)

    def forget(self, name: str, subject: Subject) -> None:
        """Drop the finding of that name, after a change that no version reflects."""
        subject.found.pop(name, None)

    def forget_all(self, name: str, subject: Subject) -> None:
        """Drop all findings whose names start with `name`."""
        found = subject.found
        for each in [each for each in found if each.startswith(name)]:
            del found[each]

    def forget_shapes(self) -> None:
        """Drop all findings on shapes, after a change of policy."""
        self._shapes.clear()

    def answer(self, question: Question, subject: Subject, depends_on: Any) -> Any:
        """Return the remembered answer, or work it out now and remember it."""
        known = self.recall(question, subject, depends_on)
        if known is not None:
            return known.answer
        answer = question.work_out(self._state, subject, depends_on)
        self.note(question, subject, answer, depends_on)
        return answer

    def table(self, name: str, subject: Subject, depends_on: Any) -> dict[Any, Any]:
        """Return a table of answers to one question, keyed by a further argument.

        The whole table becomes invalid at once. The caller adds missing answers.
        """
        known = subject.found.get(name) if self.remembers else None
        if known is None or known.depends_on != depends_on:
            known = Finding({}, depends_on)
            if self.remembers:
                subject.found[name] = known
        answers: dict[Any, Any] = known.answer
        return answers

    def shape(self, key: object) -> LikeJobs:
        """Return the jobs of this shape as one subject."""
        shape = self._shapes.get(key)
        if shape is None:
            shape = LikeJobs(key)
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            self._shapes[key] = shape
        return shape

    def lately(self, key: object) -> Any:
        """Return an answer kept by `note_for`, which may be somewhat out of date; None = none."""
        known = self._for_a_while.get(key) if self.remembers else None
        return None if known is None or known.until <= self._cluster.now else known.answer

    def note_for(self, seconds: float, key: object, answer: Any) -> None:
        """Keep a costly answer for `lately`.

        All calls must use the same `seconds`, so that the oldest answers expire first.
        """
        now, kept = self._cluster.now, self._for_a_while
        while kept and kept[first := next(iter(kept))].until <= now:
            del kept[first]
        kept.pop(key, None)
        kept[key] = Finding(answer, None, now + seconds)

    # --- checking -----------------------------------------------------------------------------
    def draws(self) -> bool:
        """Whether to check the next remembered answer."""
        if not self._threshold:
            return False
        self._drawn = (self._drawn * _FACTOR + _STEP) % _DRAWN
        return self.remembers and self._drawn < self._threshold

    def _check(self, question: Question, subject: Subject, known: Finding, depends_on: Any) -> None:
        """Work out the answer with the memo off, and record a difference."""
        self.remembers, self._checking = False, True
        try:
            anew = question.check(self._state, subject, known, depends_on)
        finally:
            self.remembers, self._checking = True, False
        self.compare(question.name, subject, known.answer, anew)

    def compare(self, name: str, subject: Subject, remembered: Any, anew: Any) -> None:
        """Count a check, and record the two answers if they differ."""
        self._checked += 1
        if anew == remembered:
            return
        self._wrong += 1
        if len(self._told) < MAX_TOLD:
            self._told.append(WrongAnswer(name, subject.about, repr(remembered), repr(anew)))

    def take_checks(self) -> tuple[int, int, tuple[WrongAnswer, ...]]:
        """Return and reset the counts of checked and wrong answers, and the first wrong ones."""
        told = self._checked, self._wrong, tuple(self._told)
        self._checked, self._wrong = 0, 0
        self._told.clear()
        return told
