"""Preemption between tenants: whose quota it is, and who takes it back (see scenario.py)."""

import pytest

from tests.engine.scenario import play

SCENARIOS = {
    "nobody loses in the cycle in which he starts": """
        nodes  H100: 8
        quota  a H100 4 | b H100 4
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + lent  a 1x8 H100 -> starts
          + owner b 1x4 H100 -> InsufficientGpus
        at 1
          lent  -> preempted for owner
          owner -> WaitingForPreemption
    """,
    "borrowed capacity is returned: the owner takes back what was lent, from its borrower": """
        nodes  H100: 8 8
        quota  a H100 8 | b H100 8
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + own      a 1x8 H100    -> starts borrowing 0
        at 5
          + borrowed a 1x8 H100    -> starts borrowing 8
        at 10
          + owner    b 1x8 H100    -> WaitingForPreemption
          borrowed   -> preempted for owner
    """,
    "who starts on lent quota makes it worth reclaiming, in the same cycle": """
        nodes  H100: 8 8
        quota  a H100 12 | b H100 4
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + b1  b 1x4 H100 -> starts on n0
          + a1  a 1x5 H100 -> starts on n1
        at 10
          + own a 1x7 H100 -> FragmentedCapacity
        at 20
          + b2  b 1x3 H100 -> starts borrowing 3
          own   -> WaitingForPreemption
          b1    -> preempted for own
    """,
    "what a department has borrowed is owed by those of it that borrow": """
        nodes  H100: 8 8 8 8
        quota  dept H100 16 | a H100 8 | b H100 8 | c H100 16
        tree   a < dept | b < dept
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + a1  a 1x8 H100 -> starts on n0
          + a2  a 1x8 H100 -> starts on n1
          + a3  a 1x8 H100 -> starts on n2
          + own b 1x8 H100 -> starts on n3
        at 10
          saves own
          + c1  c 1x8 H100 -> WaitingForPreemption
          a1 -> preempted for c1
    """,
    "reclaim takes no more than was borrowed": """
        nodes  H100: 8 8
        quota  a H100 8 isolated | b H100 8 isolated
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + one   a 2x4 H100 -> starts
          + two   b 1x4 H100 -> starts
          + three b 1x4 H100 -> starts
        at 10
          + four  b 1x4 H100 -> WaitingForQuota
    """,
    "a department's child takes its own back from its sibling": """
        nodes  H100: 8
        quota  dept H100 8 isolated | t1 H100 4 | t2 H100 4
        tree   t1 < dept | t2 < dept
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + own    t1 1x4 H100 -> starts borrowing 0
        at 5
          + more   t1 1x4 H100 -> starts borrowing 4
        at 10
          + mine   t2 1x4 H100 -> WaitingForPreemption
          more     -> preempted for mine
    """,
    "a higher priority frees its own tenant's quota": """
        nodes  H100: 8 8
        quota  a H100 8 isolated | b H100 8 isolated
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low  a 1x8 H100    -> starts
        at 10
          + high a 1x8 H100 p9 -> WaitingForPreemption
          low    -> preempted for high
    """,
    "who would borrow does not take what is another's own": """
        nodes  H100: 8 8
        quota  a H100 8 | b H100 8 | c H100 8
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + own  a 1x8 H100    -> starts
          + mine b 1x8 H100    -> starts
        at 10
          + more b 1x8 H100 p9 -> WaitingForPreemption
          mine   -> preempted for more
    """,
    "no two jobs ever preempt each other in turn": """
        nodes  H100: 8
        quota  a H100 8 | b H100 8
        policy best-effort-fifo, preemption=priority,reclaim, min_runtime_s=0
        at 0
          + lent  a 1x8 H100 p9 -> starts
          + more  a 1x1 H100 fixed -> InsufficientGpus
        at 10
          + owner b 1x8 H100    -> InsufficientGpus
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_reclaim(name: str) -> None:
    play(SCENARIOS[name])
