"""Gangs of many pod sets that each accept several GPU models: more combinations than Kant tries."""

import itertools
import random

import pytest

from scheduling.engine.demand import model_choices
from scheduling.engine.demand.model_choices import Search
from tests.cases import seeds
from tests.engine.scenario import play

MODELS = "A|B|C|D"
SIX = f"1x8+1x8+1x8+1x8+1x8+1x8 {'+'.join([MODELS] * 6)}"  # 4,096 combinations
QUOTA = " | ".join(f"a {m} 99 isolated" for m in "ABCD")

SCENARIOS = {
    "the one division of the pod sets among the pools that fits is found": f"""
        nodes  A: 8 | B: 8 | C: 8 8 | D: 8 8
        quota  {QUOTA}
        at 0
          + six a {SIX} -> starts on n0 n1 n2 n3 n4 n5
    """,
    "what is free decides": f"""
        nodes  A: 8 8 8 | B: 8 8 8 | C: 8 8 8 | D: 8 8 8
        quota  {QUOTA}
        policy best-effort-fifo
        at 0
          + r1  a 3x8 A -> starts
          + r2  a 3x8 B -> starts
          + r3  a 1x8 C -> starts
          + six a {SIX} -> InsufficientGpus
        at 1
          ends r3
          six -> starts on n6 n7 n8 n9 n10 n11
    """,
    "quota decides": f"""
        nodes  A: 8 8 8 | B: 8 8 8 | C: 8 8 8 | D: 8 8 8
        quota  a A 0 isolated | a B 8 isolated | a C 16 isolated | a D 24 isolated
        at 0
          + six  a {SIX} -> starts on n3 n6 n7 n9 n10 n11
          + more a {SIX} -> WaitingForQuota
    """,
    "five nodes never hold six pods of a node each": f"""
        nodes  A: 8 | B: 8 | C: 8 | D: 8 8
        quota  {QUOTA}
        policy strict-fifo
        at 0
          + six a {SIX} -> ExceedsCapacity
          + one a 1x8 A -> starts
    """,
    "nor is a quota of five nodes ever enough": f"""
        nodes  A: 8 8 8 | B: 8 8 8 | C: 8 8 8 | D: 8 8 8
        quota  a A 8 isolated | a B 8 isolated | a C 8 isolated | a D 16 isolated
        policy strict-fifo
        at 0
          + six a {SIX} -> ExceedsMaxQuota
          + one a 1x8 A -> starts
    """,
    "where counts leave more combinations than are tried, the job is told how many were": f"""
        nodes  A: 8 8 8 8 8 8 | B: 8 8 8 8 8 8 | C: 8 8 8 8 8 8 | D: 8 8 8 8 8 8
        quota  {QUOTA} | b A 99 | b B 99 | b C 99 | b D 99
        policy best-effort-fifo
        at 0
          + a1 b 6x1 A max_per_node=1 -> starts
          + b1 b 6x1 B max_per_node=1 -> starts
          + c1 b 6x1 C max_per_node=1 -> starts
          + d1 b 6x1 D max_per_node=1 -> starts
          + six a {SIX} -> FragmentedCapacity combinations=4096 combinations_tried=128
    """,
    "a preemption finds the combination that makes room": f"""
        nodes  A: 8 | B: 8 | C: 8 8 | D: 8 8
        quota  {QUOTA}
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + r1  a 1x8 A -> starts
          + r2  a 2x8 D -> starts
        at 10
          + six a {SIX} p9 -> WaitingForPreemption
          r1 -> preempted for six
          r2 -> preempted for six
    """,
    "a closed pool keeps back the pods of a service that need it, not the others": """
        nodes  A: 8 | B: 8
        quota  a A 99 | a B 99
        policy strict-fifo
        at 0
          + r    a 1x4 A -> starts
          + head a 1x8 A -> InsufficientGpus
          + web  a 2x1+2x1 A+B pods -> starts 2 pods
        at 1
          web -> BehindInQueue ahead=head
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_combinations(name: str) -> None:
    play(SCENARIOS[name])


def test_the_pod_sets_of_a_service_are_each_tried_on_all_their_models() -> None:
    world = play("""
        nodes  A: 8 | B: 8 | C: 8 | D: 8
        quota  a A 99 | a B 99 | a C 99 | a D 99
        policy strict-fifo
        at 0
          + r1  a 1x8 A   -> starts
          + r2  a 1x7 B   -> starts
          + r3  a 1x1 C   -> starts
          + web a 1x1+1x8 A|B|C+A|B|C|D pods -> starts
    """)
    assert world.where["web"] == {"n1", "n3"}


@pytest.mark.parametrize("seed", seeds(40))
def test_the_search_finds_what_trying_everything_finds(seed: int) -> None:
    rng = random.Random(seed)
    options = [
        [(m, rng.choice((1, 2, 3, 5))) for m in rng.sample("ABCD", rng.randint(1, 4))]
        for _ in range(rng.randint(1, 5))
    ]
    room = {m: rng.randint(0, 8) for m in "ABCD"}
    search = Search(options, lambda model, milli: milli <= room[model])
    every = [
        tuple(m for m, _ in choice)
        for choice in itertools.product(*options)
        if all(sum(n for at, n in choice if at == m) <= room[m] for m in room)
    ]
    assert list(search) == every
    assert search.complete


def test_a_search_without_end_is_given_up_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_choices, "MAX_STEPS", 1000)
    # The sum is 2**30 - 1, each model takes less than half of it, and no two sums are equal.
    options = [[("A", 2**i), ("B", 2**i)] for i in range(30)]
    search = Search(options, lambda _, milli: milli < 2**29)
    assert list(search) == []
    assert not search.complete
