"""What a preemption record says of the choices not taken (see scenario.py)."""

import pytest

from tests.engine.scenario import play

PRICES = {
    "one level, other victims": (
        """
        nodes  H100: 8 8 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + oldest a 1x8 H100 -> starts
        at 50
          + middle a 1x8 H100 -> starts
        at 90
          + young  a 1x8 H100 -> starts
        at 100
          + high   a 1x8 H100 p9 -> WaitingForPreemption
          young    -> preempted for high
        """,
        80.0,
        [("other victims", 1, 400.0)],
    ),
    "nobody else could make room": (
        """
        nodes  H100: 8 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low    a 1x8 H100 -> starts
          + fixed  a 1x8 H100 fixed -> starts
        at 10
          + high   a 1x8 H100 p9 -> WaitingForPreemption
          low      -> preempted for high
        """,
        80.0,
        [],
    ),
    "another GPU model": (
        """
        nodes  A100: 8 | H100: 8
        quota  a A100 64 | a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + dear   a 1x8 H100 -> starts
        at 50
          + cheap  a 1x8 A100 -> starts
        at 100
          + high   a 1x8 H100|A100 p9 -> WaitingForPreemption
          cheap    -> preempted for high
        """,
        400.0,
        [("on H100", 1, 800.0)],
    ),
    "a wider level would be cheaper, by less than a quarter": (
        """
        nodes  H100: 8@l0 8@l0 8@l1 8@l1
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + f0 a 1x8 H100 fixed -> starts on n0
        at 2
          + a1 a 1x8 H100 -> starts on n1
        at 3
          + a2 a 1x8 H100 -> starts on n2
        at 5
          + a3 a 1x8 H100 -> starts on n3
        at 6
          ends f0
        at 8
          + a0 a 1x8 H100 -> starts on n0
        at 20
          + gang a 2x8 H100 p9 -> WaitingForPreemption
          a0 -> preempted for gang
          a1 -> preempted for gang
        """,
        240.0,
        [("anywhere in the pool", 2, 216.0), ("other victims", 2, 256.0)],
    ),
    "a gang over two GPU models": (
        """
        nodes  A100: 4 | H100: 8 8
        quota  a A100 64 | a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + other a 1x4 A100 -> starts
          + old   a 1x8 H100 -> starts
        at 50
          + young a 1x8 H100 -> starts
        at 100
          + high  a 1x8+1x4 H100+A100 p9 -> WaitingForPreemption
          young   -> preempted for high
          other   -> preempted for high
        """,
        800.0,
        [("other victims", 2, 1200.0)],
    ),
    "what is borrowed is taken back from one borrower rather than from another": (
        """
        nodes  H100: 8 8 8
        quota  a H100 8 | b H100 8 | c H100 8
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + a1  a 1x8 H100 -> starts
          + b1  b 1x8 H100 -> starts
        at 10
          + a2  a 1x4 H100 -> starts borrowing 4
        at 20
          + b2  b 1x4 H100 -> starts borrowing 4
        at 30
          + c1  c 1x4 H100 -> WaitingForPreemption
          b2    -> preempted for c1
        """,
        40.0,
        [("other victims", 1, 80.0)],
    ),
}


@pytest.mark.parametrize("name", PRICES)
def test_a_preemption_tells_what_other_choices_would_have_cost(name: str) -> None:
    text, total, alternatives = PRICES[name]
    told = play(text).last.preempted
    assert {one.total_gpu_s for one in told} == {total}
    assert sum(one.cost_gpu_s for one in told) == total
    for one in told:
        assert [(a.choice, a.jobs, a.cost_gpu_s) for a in one.alternatives] == alternatives
        assert one.examined >= len(alternatives)
