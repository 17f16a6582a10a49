"""Known traps of GPU job queues, as tables (see scenario.py)."""

import pytest

from tests.engine.scenario import play

# Table 1 of the paper on one history: r holds half, the head needs all, small jobs follow it.
POLICIES = {
    "strict FIFO: all behind the head wait, what is free stays idle": """
        nodes  H100: 8 8
        quota  a H100 64 | b H100 64
        policy strict-fifo
        at 0
          + r     a 1x8 H100 -> starts
          + head  a 2x8 H100 -> InsufficientGpus
          + small b 1x8 H100 -> BehindInQueue ahead=head
        at 1000
          ends r
          head  -> starts
          small -> InsufficientGpus
    """,
    "best-effort FIFO: whatever fits goes, and the head starves as long as more comes": """
        nodes  H100: 8 8
        quota  a H100 64 | b H100 64
        policy best-effort-fifo
        at 0
          + r      a 1x8 H100 -> starts
          + head   a 2x8 H100 -> InsufficientGpus
          + small1 b 1x8 H100 -> starts
        at 1000
          ends r
          + small2 b 1x8 H100 -> starts
        at 2000
          ends small1
          + small3 b 1x8 H100 -> starts
          head     -> InsufficientGpus
    """,
    "backfill: small ones go until the threshold, then they make room for the head": """
        nodes  H100: 8 8
        quota  a H100 64 | b H100 64
        policy backfill, backfill_after_s=600, preemption=backfill
        at 0
          + r      a 1x8 H100 -> starts
          + head   a 2x8 H100 -> InsufficientGpus
          + small1 b 1x8 H100 -> starts
        at 500
          ends r
          + small2 b 1x8 H100 -> starts
        at 600
          + small3 b 1x1 H100 -> InsufficientGpus
          head     -> WaitingForPreemption
          small1   -> preempted for head
          small2   -> preempted for head
        at 601
          gone small1
          gone small2
          head     -> starts
    """,
    "backfill: past an overdue head go those that it can preempt, and nobody else": """
        nodes  H100: 8 8
        quota  a H100 64 | b H100 64
        policy backfill, backfill_after_s=600, preemption=backfill, min_runtime_s=60
        at 0
          + r      a 1x8 H100 -> starts
          + head   a 2x8 H100 -> InsufficientGpus
        at 700
          + small1   b 1x2 H100 -> starts
          + stubborn b 1x2 H100 fixed -> ReservedForHead
        at 950
          + small2 b 1x2 H100 -> starts
        at 1000
          ends r
          + small3 b 1x2 H100 -> ReservedForHead
          head     -> InsufficientGpus
        at 1010
          head     -> WaitingForPreemption
          small1   -> preempted for head
          small2   -> preempted for head
    """,
    "backfill: what a job waits to borrow is lent to those that it can preempt": """
        nodes  H100: 8 8 8
        quota  a H100 0 | b H100 0 | owner H100 16
        policy backfill, backfill_after_s=600, preemption=backfill, min_runtime_s=60
        at 0
          + r      b 1x8 H100 -> starts
          + head   a 2x8 H100 -> WaitingForQuota
        at 700
          + small  b 1x8 H100 -> starts
        at 1000
          ends r
          head     -> WaitingForPreemption
          small    -> preempted for head
    """,
}

TRAPS = {
    "evicting for a preemptor that then cannot start: its CPU is not there": """
        nodes  H100: 8/8000
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + fixed a 1x1 H100 fixed cpu_milli=4000 -> starts
          + low   a 1x7 H100       cpu_milli=1000 -> starts
        at 10
          + high  a 1x7 H100 p9    cpu_milli=5000 -> InsufficientGpus
          + next  a 1x7 H100 p9    cpu_milli=4000 -> WaitingForPreemption
          low     -> preempted for next
    """,
    "evicting for a preemptor that then cannot start: its quota is not there": """
        nodes  H100: 8 8
        quota  a H100 4 isolated | b H100 8 isolated
        policy best-effort-fifo, preemption=priority,reclaim, min_runtime_s=0
        at 0
          + mine  a 1x2 H100 fixed -> starts
          + low   b 1x8 H100       -> starts
        at 10
          + high  a 1x4 H100 p9    -> WaitingForQuota
    """,
    "more evicted than needed: of ten that would do, one goes": """
        nodes  H100: 8 2
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + ten  a 10x1 H100 pods -> starts 10 pods
        at 10
          + high a 1x1 H100 p9    -> WaitingForPreemption
          ten    -> preempted 1 pod
    """,
    "preemption in turn: an owner takes back, who lent is not taken from again": """
        nodes  H100: 8
        quota  a H100 0 | b H100 8
        policy best-effort-fifo, preemption=priority,reclaim,backfill, min_runtime_s=0
        at 0
          + lent  a 1x8 H100 p9 -> starts borrowing 8
        at 10
          + owner b 1x8 H100    -> WaitingForPreemption
          lent    -> preempted for owner
        at 11
          gone lent
          owner   -> starts
          lent    -> WaitingForQuota
        at 1000
          lent    -> WaitingForQuota
    """,
    "preemption in turn: whom a head displaced does not displace it when it is overdue itself": """
        nodes  H100: 8
        quota  a H100 64
        policy backfill, backfill_after_s=50, preemption=backfill, min_runtime_s=0
        at 0
          + r    a 1x4 H100 -> starts
          + head a 1x8 H100 -> InsufficientGpus
        at 1
          + fill a 1x4 H100 -> starts
        at 60
          ends r
          head   -> WaitingForPreemption
          fill   -> preempted for head
        at 61
          gone fill
          head   -> starts
          fill   -> InsufficientGpus
        at 500
          fill   -> InsufficientGpus
    """,
    "preemption without end: after so many times a job is left alone": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0, max_preemptions=2
        at 0
          + low  a 1x8 H100    -> starts
        at 1
          + one  a 1x8 H100 p1 -> WaitingForPreemption
          low    -> preempted for one
        at 2
          gone low
          one    -> starts
        at 3
          ends one
          low    -> starts
        at 4
          + two  a 1x8 H100 p2 -> WaitingForPreemption
          low    -> preempted for two
        at 5
          gone low
          two    -> starts
        at 6
          ends two
          low    -> starts
        at 7
          + last a 1x8 H100 p3 -> InsufficientGpus
    """,
    "work lost that was never saved: the victim is who saved its work": """
        nodes  H100: 8 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + saved a 1x8 H100 -> starts
        at 50
          + young a 1x8 H100 -> starts
        at 90
          saves saved
        at 100
          + high  a 1x8 H100 p9 -> WaitingForPreemption
          saved   -> preempted for high
    """,
    "a service below what its disruption budget allows": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + web  a 8x1 H100 pods -> starts 8 pods
          budget web 2
        at 10
          + high a 1x3 H100 p9   -> InsufficientGpus
          + less a 1x2 H100 p9   -> WaitingForPreemption
          web    -> preempted 2 pods
    """,
    "borrowed capacity that never returns: reclaimed as soon as its owner needs it": """
        nodes  H100: 8 8
        quota  a H100 4 | b H100 12
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + own   a 1x4 H100 -> starts borrowing 0
        at 1
          + more  a 3x4 H100 pods -> starts 3 pods
        at 10
          + owner b 1x8 H100 -> WaitingForPreemption
          more    -> preempted 2 pods
        at 11
          pod-ends more 1
          pod-ends more 2
          owner   -> starts
    """,
    "a big gang starves behind small jobs: not past the threshold": """
        nodes  H100: 8
        quota  a H100 64 | b H100 64
        policy backfill, backfill_after_s=30
        at 0
          + s1  b 1x4 H100 -> starts
          + big a 8x1 H100 -> InsufficientGpus
          + s2  b 1x4 H100 -> starts
        at 29
          ends s1
          + s3  b 1x4 H100 -> starts
        at 30
          ends s2
          + s4  b 1x4 H100 -> ReservedForHead ahead=big
        at 40
          ends s3
          big   -> starts
    """,
    "a stuck head blocks other pools: only its own": """
        nodes  H100: 8 | L4: 4
        quota  a H100 16 | a L4 4
        policy strict-fifo
        at 0
          + r     a 1x4 H100         -> starts
          + head  a 1x8 H100         -> InsufficientGpus
          + joint a 1x1+1x1 H100+L4  -> BehindInQueue ahead=head
          + other a 1x3 L4           -> BehindInQueue ahead=joint
        at 1
          ends joint
          other -> starts
    """,
    "GPUs free in the wrong places: a gang makes room in one leaf": """
        nodes  H100: 8@l0 8@l0 8@l1 8@l1
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + one  a 1x8 H100 -> starts on n0
          + two  a 1x8 H100 -> starts on n1
          + more a 1x8 H100 -> starts on n2
        at 5
          ends two
        at 10
          + gang a 2x8 H100 p9 required_level=leaf -> WaitingForPreemption
          more   -> preempted for gang
    """,
    "a job that fails again and again holds nobody up": """
        nodes  H100: 8
        quota  a H100 64
        policy strict-fifo
        at 0
          + bad  a 1x8 H100 -> starts
        at 1
          requeue bad
          + good a 1x8 H100 -> starts
          bad    -> BackingOff
        at 6
          bad    -> InsufficientGpus
        at 7
          ends good
          bad    -> starts
    """,
    "enough quota and GPUs, and no start: the reason names what lacks": """
        nodes  H100: 8/1000 8/1000
        quota  a H100 64
        at 0
          + cpu  a 1x8 H100 cpu_milli=500 -> starts
          + same a 1x4 H100 cpu_milli=800 -> starts
          + more a 1x4 H100 cpu_milli=300 -> InsufficientCpuOrMemory
    """,
    "a job beyond every limit looks as if it waited: it is told at once": """
        nodes  H100: 8 8
        quota  dept H100 8 isolated | t1 H100 4 | t2 H100 4 isolated | b H100 8
        tree   t1 < dept | t2 < dept
        at 0
          + over t1 1x8 H100 -> ExceedsMaxQuota ceiling=4
          + fits t1 1x4 H100 -> starts
    """,
}


@pytest.mark.parametrize("name", POLICIES)
def test_queueing_policy(name: str) -> None:
    play(POLICIES[name])


@pytest.mark.parametrize("name", TRAPS)
def test_trap(name: str) -> None:
    play(TRAPS[name])
