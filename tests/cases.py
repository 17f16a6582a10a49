"""How many random cases, and how many process states, a test tries.

By day: one case in twelve. With KANT_TEST_CASES=all (`make test-nightly`): all cases, and many more
Hypothesis examples, which differ from run to run.
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
    """Return the seeds to try now out of `count`. `usual`: the number of which the daytime tries a
    part, where each case is slow."""
    return range(count if NIGHTLY else max(1, round((usual or count) * SHARE)))


def examples(count: int) -> int:
    """Return how many Hypothesis examples to try now; `count` is the usual number."""
    return count * MORE_AT_NIGHT if NIGHTLY else max(3, round(count * SHARE))


def some(states: Iterable[T]) -> list[T]:
    """Choose from states that are slow to set up and independent of each other: every third one by
    day, starting with the first; all at night."""
    return list(states)[:: 1 if NIGHTLY else 3]


def of_each_kind(values: Iterable[T], kind: Callable[[T], Hashable]) -> list[T]:
    """Choose from values that repeat: the first of each kind by day; all at night."""
    values, seen = list(values), set[Hashable]()
    firsts = [value for value in values if not (kind(value) in seen or seen.add(kind(value)))]
    return values if NIGHTLY else firsts


def paired(*choices: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combine independent choices: by day each value of each choice once; at night all
    combinations."""
    lists = [list(values) for values in choices]
    if NIGHTLY:
        return list(itertools.product(*lists))
    most = max(map(len, lists))
    return [tuple(values[at % len(values)] for values in lists) for at in range(most)]


def histories(count: int, found: Iterable[int]) -> list[int]:
    """Return seeds of long histories that each take seconds; the seeds in `found` once exposed
    faults. By day: every fifth of them, starting with the fourth, which covers each kind of
    history. At night: all of them and `count` others."""
    return [*range(count), *found] if NIGHTLY else list(found)[3::5]


def load_profile() -> None:
    """Use the same examples in every run except a nightly one, however slow the machine: a test
    that passed once passes again. A nightly failure is kept in `.hypothesis` and says how to
    reproduce it."""
    settings.register_profile(
        "kant",
        derandomize=not NIGHTLY,
        print_blob=NIGHTLY,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        max_examples=examples(100),
    )
    settings.load_profile("kant")
