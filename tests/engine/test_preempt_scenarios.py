"""Every kind of preemption, and the traps around it, as tables (see scenario.py)."""

import pytest

from tests.engine.scenario import play

SCENARIOS = {
    "priority: the lower goes, its place is held, the preemptor starts when it is gone": """
        nodes  H100: 8
        quota  a H100 8 | b H100 8
        policy strict-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low  a 1x8 H100    -> starts
        at 100
          + high b 1x8 H100 p9 -> WaitingForPreemption
          low -> preempted for high
        at 101
          + thief b 1x1 H100 p99 -> InsufficientGpus
        at 102
          gone low
          high -> starts on n0
          low  -> BehindInQueue ahead=thief
    """,
    "what a victim leaves beside its preemptor is entered when it is gone": """
        nodes  H100: 8 8
        quota  a H100 64
        policy strict-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low   a 1x8 H100    -> starts on n0
          + other a 1x8 H100    -> starts on n1
        at 100
          + high  a 1x2 H100 p9 -> WaitingForPreemption
          low -> preempted for high
          + next  a 1x4 H100    -> WaitingForPreemption
        at 101
          ends other
          + free  a 1x8 H100    -> starts on n1
        at 102
          gone low
          high  -> starts on n0
          next  -> starts on n0
    """,
    "a place that its preemptor does not want any more is entered when the victim is gone": """
        nodes  H100: 8
        quota  a H100 64
        policy strict-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low  a 1x8 H100    -> starts
        at 100
          + high a 1x8 H100 p9 -> WaitingForPreemption
          low -> preempted for high
        at 101
          ends high
          + next a 1x8 H100 p5 -> WaitingForPreemption
        at 102
          gone low
          next -> starts
    """,
    "of an elastic gang in slices whole slices go": """
        nodes  H100: 8@l1 8@l1 8@l2 8@l2
        quota  a H100 64
        policy strict-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low  a 4x8 H100 min=2 slice_size=2 required_level=leaf -> starts 4 pods
        at 100
          + high a 1x8 H100 p9 -> WaitingForPreemption
          low -> preempted 2 pods
    """,
    "a preemptor that is to start later, or after others, gives up the places held for it": """
        nodes  H100: 8
        quota  a H100 64
        policy strict-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low  a 1x8 H100    -> starts
        at 100
          + high a 1x8 H100 p9 -> WaitingForPreemption
          low -> preempted for high
        at 101
          change high not_before=110
          high -> BackingOff not_before=110
        at 102
          gone low
          low  -> starts
        at 110
          high -> WaitingForPreemption
          low -> preempted for high
        at 111
          + first a 1x8 L4
          change high after=first
          high -> OnHold
        at 112
          gone low
          low  -> starts
    """,
    "a more important job of the same shape preempts where those before it could not": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low    a 1x8 H100 p5 -> starts
        at 100
          + less   a 1x8 H100 p1 -> InsufficientGpus
        at 101
          + same   a 1x8 H100 p5 -> InsufficientGpus
        at 102
          + higher a 1x8 H100 p9 -> WaitingForPreemption
          low -> preempted for higher
    """,
    "who started in the places of others may be preempted himself once he has run": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=10
        at 0
          + low    a 1x8 H100 p1 -> starts
        at 100
          + middle a 1x8 H100 p5 -> WaitingForPreemption
          low -> preempted for middle
        at 105
          + high   a 1x8 H100 p9 -> InsufficientGpus
        at 110
          gone low
          middle -> starts
        at 120
          high   -> WaitingForPreemption
          middle -> preempted for high
    """,
    "equal priority is never preempted": """
        nodes  H100: 8
        quota  a H100 16
        policy strict-fifo, preemption=priority, min_runtime_s=0
        at 0
          + one a 1x8 H100 p5 -> starts
          + two a 1x8 H100 p5 -> InsufficientGpus
    """,
    "the least cost wins: what was lost since the start, then the number of victims": """
        nodes  H100: 8 8 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + old   a 1x8 H100 -> starts on n0
        at 90
          + young a 1x8 H100 -> starts on n1
          + other a 1x4 H100 -> starts on n2
          + fixed a 1x4 H100 fixed -> starts on n2
        at 100
          + high  a 1x8 H100 p9 -> WaitingForPreemption
          young -> preempted for high
    """,
    "nobody is evicted for a job that would not fit anyway": """
        nodes  H100: 8 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low   a 1x8 H100       -> starts
          + fixed a 1x1 H100 fixed -> starts
        at 10
          + big   a 2x8 H100 p9    -> InsufficientGpus
    """,
    "no victim that turns out unneeded": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + one   a 1x2 H100 -> starts
          + two   a 1x3 H100 -> starts
          + three a 1x3 H100 -> starts
        at 10
          + high  a 1x3 H100 p9 -> WaitingForPreemption
          three   -> preempted for high
    """,
    "jobs that just started are left alone for a while": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=60
        at 0
          + low  a 1x8 H100    -> starts
        at 30
          + high a 1x8 H100 p9 -> InsufficientGpus
        at 59
        at 60
          low -> preempted for high
    """,
    "a gang goes whole, a service pod by pod": """
        nodes  H100: 8 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + web  a 8x1 H100 pods -> starts 8 pods
          + gang a 2x4 H100      -> starts
        at 10
          + one  a 1x2 H100 p9   -> WaitingForPreemption
          web    -> preempted 2 pods
        at 11
          pod-ends web 7
          one    -> WaitingForPreemption
        at 12
          pod-ends web 6
          one    -> starts
          web    -> InsufficientGpus
        at 20
          ends one
          web    -> starts 2 pods
        at 30
          + two  a 1x8 H100 p9   -> WaitingForPreemption
          web    -> preempted 8 pods
        at 31
          + three a 1x8 H100 p9  -> WaitingForPreemption
          gang   -> preempted for three
    """,
    "a pod of a service counts from when it got its own place": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=20
        at 0
          + other a 1x4 H100      -> starts
          + web   a 8x1 H100 pods -> starts 4 pods
        at 100
          ends other
          web   -> starts 4 pods
        at 110
          + one   a 1x2 H100 p9   -> WaitingForPreemption
          web     -> preempted 2 pods
        at 111
          pod-ends web 3
          pod-ends web 2
          one     -> starts
        at 120
          ends one
          web     -> starts 2 pods
        at 130
          + two   a 1x2 H100 p9   -> WaitingForPreemption
          web     -> preempted 2 pods
        at 131
          pod-ends web 7
          pod-ends web 6
          two     -> starts
    """,
    "an elastic gang first gives up what exceeds its minimum": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + elastic a 8x1 H100 min=4 -> starts 8 pods
        at 10
          + high    a 1x3 H100 p9    -> WaitingForPreemption
          elastic   -> preempted 3 pods
        at 11
          pod-ends elastic 5
          pod-ends elastic 6
          pod-ends elastic 7
          high      -> starts
        at 20
          + more    a 1x2 H100 p9    -> WaitingForPreemption
          elastic   -> preempted 5 pods
    """,
    "nobody is preempted in the cycle in which he starts, whenever he was promised places": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low  a 1x8 H100         -> starts
        at 10
          + svc  a 2x4 H100 pods p5 -> WaitingForPreemption
          low    -> preempted for svc
        at 20
          gone low
          + high a 1x4 H100 p9      -> InsufficientGpus
          svc    -> starts 2 pods
        at 21
          high   -> WaitingForPreemption
          svc    -> preempted 1 pods
    """,
    "backfill: past the threshold what was backfilled goes, if the head then starts": """
        nodes  H100: 8 8
        quota  a H100 64 | b H100 64
        policy backfill, backfill_after_s=60, preemption=backfill, min_runtime_s=0
        at 0
          + r1    a 1x8 H100 -> starts on n0
          + r2    a 1x4 H100 -> starts on n1
          + head  a 2x8 H100 -> InsufficientGpus
          + fill  b 1x4 H100 -> starts on n1
        at 30
          ends r1
          + fill2 b 1x8 H100 -> starts on n0
        at 60
        at 70
          ends r2
          head  -> WaitingForPreemption
          fill  -> preempted for head
          fill2 -> preempted for head
        at 71
          gone fill
        at 72
          gone fill2
          head  -> starts
    """,
    "a service whose pods leave asks for them when they are gone, not only for the others": """
        nodes  L4: 2 | H100: 1
        quota  a L4 2 | a H100 0 | b L4 2
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + web  a 2x1+1x1 L4+H100 pods -> starts 2 pods
        at 1
          + high b 2x1 L4 p9 -> WaitingForPreemption
          web    -> preempted 2 pods
        at 2
          release web
          web    -> WaitingForQuota
        at 3
          pod-gone web 0
          pod-gone web 1
          high   -> starts
        at 4
          ends high
          web    -> starts 2 pods
    """,
    "a preemptor that gives up leaves its place to others": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low  a 1x8 H100    -> starts
        at 10
          + high a 1x8 H100 p9 -> WaitingForPreemption
          low    -> preempted for high
        at 11
          ends high
          gone low
          low    -> starts
    """,
    "a held place on a lost node is no loss of the preemptor's": """
        nodes  H100: 8 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low   a 1x8 H100       -> starts on n0
          + fixed a 1x8 H100 fixed -> starts on n1
        at 10
          + high  a 1x8 H100 p9    -> WaitingForPreemption
          low     -> preempted for high
        at 11
          node-lost n0
          high    -> InsufficientGpus
    """,
    "a job that was preempted often enough is left alone": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0, max_preemptions=1
        at 0
          + low   a 1x8 H100    -> starts
        at 10
          + high  a 1x8 H100 p9 -> WaitingForPreemption
          low     -> preempted for high
        at 11
          gone low
          high    -> starts
        at 12
          ends high
          low     -> starts
        at 13
          + again a 1x8 H100 p9 -> InsufficientGpus
    """,
    "who may not preempt waits": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low  a 1x8 H100               -> starts
        at 10
          + high a 1x8 H100 p9 preempts=no -> InsufficientGpus
    """,
    "topology: a required leaf is freed in one leaf": """
        nodes  H100: 8@l0 8@l0 8@l1 8@l1
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + a0 a 1x8 H100 -> starts on n0
          + a1 a 1x8 H100 -> starts on n1
          + a2 a 1x8 H100 -> starts on n2
          + a3 a 1x8 H100 -> starts on n3
        at 5
          requeue a0
          requeue a2
        at 10
          a0 -> starts
          a2 -> starts
        at 20
          + gang a 2x8 H100 p9 required_level=leaf -> WaitingForPreemption
          a0 -> preempted for gang
          a1 -> preempted for gang
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_preemption(name: str) -> None:
    play(SCENARIOS[name])
