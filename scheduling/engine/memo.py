"""What the engine remembers of its own answers, and when each of them stops being true.

A rule works an answer out from the state alone. Asked again it would mostly say the same, so the
memo keeps the answer (`Finding`) with what it depends on, and gives it back while that is
unchanged. Every version that an answer may hang on is named here and nowhere else: a rule says in
words what it depends on (`memo.room`), and what more it takes for its answer to stand
(`Question.stands`).

`Memo.off()` remembers nothing: the engine then asks everything anew. It decides the same, slowly,
which is what the tests hold every remembered answer against. A memo that checks works a share of
the remembered answers out anew and keeps the differences: each of them is an error of the engine.
"""

import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, Self

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.decisions import WrongAnswer
from scheduling.engine.demand.pools import Pools
from scheduling.engine.native import mypyc_attr
from scheduling.engine.quota.book import QuotaBook

# Shapes of which answers are remembered that hold for all jobs of the shape.
MAX_SHAPES: Final = 20_000
# What is asked of a class ...
NEVER: Final = "never"  # why it can never run
BY_QUOTA: Final = "by quota"  # why quota refuses it
ASKED: Final = "asked"  # what its jobs ask for
NO_START: Final = "no start"  # that none of its jobs finds a place
WITHIN_REACH: Final = "within reach"  # where it could start if all that runs had ended
UNPLANNED: Final = "unplanned"  # that nobody can be preempted for its first job
SETTLED: Final = "settled"  # that a visit would find and tell what the last one did
WOULD_START: Final = "would start"  # whether only reserved nodes keep it from a start
# ... of a shape ...
POSSIBLE: Final = "possible"  # that jobs of it can run
# ... of a job ...
EXPECTED: Final = "expected"  # when and where it will start
IN_VAIN: Final = "in vain"  # that no preemption makes room for so many pods of it
GREW: Final = "grew"  # that it runs and gets no more pods
# ... of what blocked jobs have closed.
WITHHELD: Final = "withheld"  # why only what is kept for others forbids a demand
# Wrong answers of which more than the number is told.
MAX_TOLD: Final = 20
# The check draws from a fixed sequence: two runs of one history check the same answers.
_DRAWN, _FACTOR, _STEP = 1 << 32, 1_664_525, 1_013_904_223


@mypyc_attr(allow_interpreted_subclasses=True)  # a rehearsal copies it
@dataclass(slots=True, init=False, eq=False)
class Finding:
    """An answer, what it depends on as that was when it was found, and until when (seconds since
    the epoch) the passing of time alone leaves it true."""

    answer: Any
    depends_on: Any
    until: float

    def __init__(self, answer: Any, depends_on: Any, until: float = math.inf) -> None:
        self.answer = answer
        self.depends_on = depends_on
        self.until = until


# By name of the question: what was found out about one subject.
Found = dict[str, Finding]


class Subject(Protocol):
    """Whatever something is found out about: a class, a job, a shape."""

    found: Found

    @property
    def about(self) -> str:
        """Its name, for who reads of a difference."""


class QuotaAsOf(NamedTuple):
    """When quota gave an answer: the change of the book that can turn it, and, where the job can
    start in one way only, how many milli-GPU of a `model` must have been given back, ever, before a
    refusal can end, or may be booked, ever, before it can begin (`bound`)."""

    refused: bool
    change: int
    model: str
    bound: int | None


class Since(NamedTuple):
    """What has happened to nodes and quota: `nothing`; `only_booked`: which never allows what was
    refused; `only_returned`: which never refuses what was allowed."""

    nothing: bool
    only_booked: bool
    only_returned: bool


@mypyc_attr(allow_interpreted_subclasses=True)
class Question:
    """What is asked again and again, under a name of its own."""

    def __init__(self, name: str, *, checked: bool = True, plain: bool = False) -> None:
        self.name = name
        self.checked = checked  # by its own `check`, else by that of another question
        self.plain = plain  # equality is all that `stands` asks for, which saves a call

    def stands(self, _state: Any, _subject: Any, known: Finding, depends_on: Any) -> bool:
        """Whether the answer would be the same now; time apart."""
        return bool(known.depends_on == depends_on)

    def work_out(self, state: Any, subject: Any, depends_on: Any) -> Any:
        """The answer by the state alone. Changes nothing that anybody could notice."""
        raise NotImplementedError(f"{self.name} is noted by who finds it out, never asked for")

    def check(self, state: Any, subject: Any, _known: Finding, depends_on: Any) -> Any:
        """The answer anew, as what was `known` would have it: equal unless that is wrong."""
        return self.work_out(state, subject, depends_on)


@mypyc_attr(allow_interpreted_subclasses=True)  # a rehearsal copies it
@dataclass(slots=True, init=False, eq=False)
class LikeJobs:
    """What was found out that holds for all jobs of a shape, also while none of them waits."""

    key: Any
    found: Found

    def __init__(self, key: object, found: Found | None = None) -> None:
        self.key = key
        self.found = {} if found is None else found

    @property
    def about(self) -> str:
        """Whose shape that is."""
        return f"jobs of shape {self.key!r}"


@mypyc_attr(allow_interpreted_subclasses=True)  # a rehearsal copies it
class Memo:
    """Owns all that one engine remembers of its answers.

    `remembers`: no if it is off. `check_share`: how much of the remembered answers is worked out
    anew, 0 … 1.
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
        self._for_a_while: dict[object, Finding] = {}  # in the order of their times
        self._assessed = ((-1, -1), (-1, -1))
        self._state: Any = None

    @classmethod
    def off(cls) -> Self:
        """The memo of the engine that asks everything anew."""
        return cls(remembers=False)

    def follow(self, state: Any, cluster: ClusterState, book: QuotaBook, pools: Pools) -> None:
        """Answers are about this state from now on."""
        self._state = state
        self._cluster, self._book, self._pools = cluster, book, pools

    def twin(self) -> "Memo":
        """One that remembers the same of shapes and checks nothing, for a copy of the state."""
        twin = Memo(remembers=self.remembers)
        for key, shape in self._shapes.items():
            twin._shapes[key] = LikeJobs(key, shape.found.copy())
        twin._for_a_while = self._for_a_while.copy()
        twin._assessed = self._assessed
        return twin

    # --- what answers depend on: while it is the same, nothing of that kind has happened ------
    @property
    def sizes(self) -> int:
        """What nodes there are, how large they are, and whom they admit."""
        return self._pools.version

    @property
    def nodes(self) -> int:
        """All facts of nodes, and the pods of others on them."""
        return self._cluster.facts_version

    @property
    def places(self) -> int:
        """Places that may have become free, or better."""
        return self._cluster.version

    @property
    def occupied(self) -> tuple[int, int]:
        """What is placed where, and places that may have become free, or better."""
        return self._cluster.stamp

    @property
    def quotas(self) -> int:
        """The tenants and their quotas."""
        return self._book.structure

    @property
    def booked(self) -> int:
        """Anything in the book: quotas, and who holds how much of them."""
        return self._book.version

    @property
    def freed_quota(self) -> int:
        """Quota that may have become free."""
        return self._book.loosened

    @property
    def facts(self) -> tuple[int, int]:
        """Sizes of nodes, tenants and their quotas."""
        return self._pools.version, self._book.structure

    @property
    def terms(self) -> tuple[int, int]:
        """All facts of nodes, tenants and their quotas."""
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
        """Anything given back by, or better on, a node; a mark for `most_gained`."""
        return self._cluster.gains

    def most_gained(self, since: int) -> int | None:
        """The most wholly free GPUs on a node that gained anything since then (`gains`); None: that
        cannot be told."""
        return self._cluster.gained(since)

    def quota_as_of(self, *, refused: bool, bound: tuple[str, int] | None) -> QuotaAsOf:
        """Now. `bound`: a GPU model, and how much of it must be given back before the refusal can
        end, or may be booked before it can begin."""
        book = self._book
        change = book.loosened if refused else book.tightened
        if bound is None:
            return QuotaAsOf(refused, change, "", None)
        model, milli = bound
        ever = book.returned if refused else book.booked
        return QuotaAsOf(refused, change, model, ever.get(model, 0) + milli)

    def quota_unchanged(self, as_of: QuotaAsOf) -> bool:
        """Whether nothing happened that could turn the answer."""
        book = self._book
        return as_of.change == (book.loosened if as_of.refused else book.tightened)

    def quota_stands(self, as_of: QuotaAsOf) -> bool:
        """Whether the answer is the same, be it with other numbers."""
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
        """What has happened since this was asked before, which is to say since all classes were
        assessed."""
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
        """What was found out, if it still stands."""
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
        """Keep what was found out."""
        if not self._checking:
            subject.found[question.name] = Finding(answer, depends_on, until)

    def changed(self, question: Question, subject: Subject, depends_on: Any) -> bool:
        """Whether what it was found out by is no more, also where nothing is remembered."""
        known = subject.found.get(question.name)
        return known is None or not question.stands(self._state, subject, known, depends_on)

    def forget(self, name: str, subject: Subject) -> None:
        """Something happened to an answer of that name that no version tells."""
        subject.found.pop(name, None)

    def forget_all(self, name: str, subject: Subject) -> None:
        """The same of all answers whose names begin so."""
        found = subject.found
        for each in [each for each in found if each.startswith(name)]:
            del found[each]

    def forget_shapes(self) -> None:
        """Nothing that was found out about shapes stands by the policy of now."""
        self._shapes.clear()

    def answer(self, question: Question, subject: Subject, depends_on: Any) -> Any:
        """What was found out, or else is worked out now and kept."""
        known = self.recall(question, subject, depends_on)
        if known is not None:
            return known.answer
        answer = question.work_out(self._state, subject, depends_on)
        self.note(question, subject, answer, depends_on)
        return answer

    def table(self, name: str, subject: Subject, depends_on: Any) -> dict[Any, Any]:
        """Answers to one question by what more it is asked about: they stand together or not at
        all. The caller adds those that are not there."""
        known = subject.found.get(name) if self.remembers else None
        if known is None or known.depends_on != depends_on:
            known = Finding({}, depends_on)
            if self.remembers:
                subject.found[name] = known
        answers: dict[Any, Any] = known.answer
        return answers

    def shape(self, key: object) -> LikeJobs:
        """The jobs of this shape as one subject."""
        shape = self._shapes.get(key)
        if shape is None:
            shape = LikeJobs(key)
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            self._shapes[key] = shape
        return shape

    def lately(self, key: object) -> Any:
        """An answer that is costly and need not be of now: that of a while ago, or None."""
        known = self._for_a_while.get(key) if self.remembers else None
        return None if known is None or known.until <= self._cluster.now else known.answer

    def note_for(self, seconds: float, key: object, answer: Any) -> None:
        """Keep it for `lately`; always for as long, so that the oldest are the first to go."""
        now, kept = self._cluster.now, self._for_a_while
        while kept and kept[first := next(iter(kept))].until <= now:
            del kept[first]
        kept.pop(key, None)
        kept[key] = Finding(answer, None, now + seconds)

    # --- checking -----------------------------------------------------------------------------
    def draws(self) -> bool:
        """Whether the next remembered answer is one of those that are checked."""
        if not self._threshold:
            return False
        self._drawn = (self._drawn * _FACTOR + _STEP) % _DRAWN
        return self.remembers and self._drawn < self._threshold

    def _check(self, question: Question, subject: Subject, known: Finding, depends_on: Any) -> None:
        """Work the answer out without any memory, and keep the difference if there is one."""
        self.remembers, self._checking = False, True
        try:
            anew = question.check(self._state, subject, known, depends_on)
        finally:
            self.remembers, self._checking = True, False
        self.compare(question.name, subject, known.answer, anew)

    def compare(self, name: str, subject: Subject, remembered: Any, anew: Any) -> None:
        """Keep the difference between two answers, if there is one."""
        self._checked += 1
        if anew == remembered:
            return
        self._wrong += 1
        if len(self._told) < MAX_TOLD:
            self._told.append(WrongAnswer(name, subject.about, repr(remembered), repr(anew)))

    def take_checks(self) -> tuple[int, int, tuple[WrongAnswer, ...]]:
        """How many answers were checked since this was asked last, how many of them were wrong, and
        the first of these."""
        told = self._checked, self._wrong, tuple(self._told)
        self._checked, self._wrong = 0, 0
        self._told.clear()
        return told
