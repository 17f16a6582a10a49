"""How many random cases, and how many states of processes, a test tries.

By day one in twelve of them. KANT_TEST_CASES=all (`make test-nightly`): all of them, and many more
examples of Hypothesis, other ones in each run.
"""

import itertools
import os
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings

T = TypeVar("T")
ASKED = os.environ.get("KANT_TEST_CASES") or "few"
if ASKED not in ("all", "few"):
    raise ValueError(f"KANT_TEST_CASES={ASKED}: must be all or few, which is what it is unset.")
NIGHTLY = ASKED == "all"
SHARE = 1.0 if NIGHTLY else 1 / 12
MORE_AT_NIGHT = 5


def seeds(count: int, *, usual: int = 0) -> range:
    """Of `count` seeds those that are tried now. `usual`: how many of them, where each is slow,
    before it is night."""
    return range(count if NIGHTLY else max(1, round((usual or count) * SHARE)))


def examples(count: int) -> int:
    """How many examples of Hypothesis are tried now where `count` are usual."""
    return count * MORE_AT_NIGHT if NIGHTLY else max(3, round(count * SHARE))


def some(states: Iterable[T]) -> list[T]:
    """Of states that are brought about at length, each for itself: every third one, from the first
    on; at night all."""
    return list(states)[:: 1 if NIGHTLY else 3]


def of_each_kind(values: Iterable[T], kind: Callable[[T], Hashable]) -> list[T]:
    """Of values that are the same again the first of each kind; at night all."""
    values, seen = list(values), set[Hashable]()
    firsts = [value for value in values if not (kind(value) in seen or seen.add(kind(value)))]
    return values if NIGHTLY else firsts


def paired(*choices: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Choices that do not depend on each other: each value of each of them once; at night all
    combinations."""
    lists = [list(values) for values in choices]
    if NIGHTLY:
        return list(itertools.product(*lists))
    most = max(map(len, lists))
    return [tuple(values[at % len(values)] for values in lists) for at in range(most)]


def histories(count: int, found: Iterable[int]) -> list[int]:
    """Seeds of histories so long that each takes seconds: `found` once showed faults. Of these by
    day every fifth one, from the fourth on, among which each kind of history is; at night all, and
    `count` others."""
    return [*range(count), *found] if NIGHTLY else list(found)[3::5]


def load_profile() -> None:
    """The same examples in every run but a nightly one, however slow the machine: what passed once
    passes again. What fails at night is kept in `.hypothesis`, and tells how to be seen again."""
    settings.register_profile(
        "kant",
        derandomize=not NIGHTLY,
        print_blob=NIGHTLY,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        max_examples=examples(100),
    )
    settings.load_profile("kant")
