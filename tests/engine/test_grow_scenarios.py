"""Running elastic gangs grow (engine/lifecycle/grow.py), as tables (scenario.py)."""

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import PodPlacement, Policy, PreemptionKind, QuotaSpec, TenantSpec
from scheduling.engine.verdict import Reason
from tests.engine.cycles import job, node
from tests.engine.scenario import play

GROWS = {
    "what it gave up comes back when there is room again": """
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
          ends high
          elastic   -> starts 3 pods
    """,
    "one that started small gets the rest as others end": """
        nodes  H100: 8
        quota  a H100 64
        policy strict-fifo
        at 0
          + r       a 1x3 H100       -> starts
          + r2      a 1x1 H100       -> starts
          + elastic a 8x1 H100 min=4 -> starts 4 pods
          elastic   -> InsufficientGpus asked=1 free=0
        at 1
          ends r2
          elastic   -> starts 1 pod
        at 2
          ends r
          elastic   -> starts 3 pods
    """,
    "nobody who waits is passed: a job behind it in the queue goes first": """
        nodes  H100: 8
        quota  a H100 64 | b H100 64
        policy best-effort-fifo
        at 0
          + r       a 1x4 H100       -> starts
          + elastic a 8x1 H100 min=4 -> starts 4 pods
          + later   b 1x3 H100       -> InsufficientGpus
        at 1
          ends r
          later     -> starts
          elastic   -> starts 1 pod
    """,
    "strict FIFO: not in a pool that a blocked job closes": """
        nodes  H100: 8 | L4: 4
        quota  a H100 64 | a L4 64
        policy strict-fifo
        at 0
          + r       a 1x4 H100       -> starts
          + elastic a 8x1 H100 min=4 -> starts 4 pods
          + small   a 4x1 L4   min=2 -> starts 4 pods
          + head    a 1x6 H100       -> InsufficientGpus
        at 1
          ends r
          head      -> InsufficientGpus
          elastic   -> BehindInQueue ahead=head gpu_model=H100
        at 2
          ends head
          elastic   -> starts 4 pods
    """,
    "strict FIFO: not of the quota that a job of its tenant waits for": """
        nodes  H100: 8 8
        quota  a H100 8 isolated
        policy strict-fifo
        at 0
          + r       a 1x2 H100       -> starts
          + elastic a 8x1 H100 min=4 -> starts 6 pods
          + head    a 1x4 H100       -> WaitingForQuota
        at 1
          ends r
          head      -> WaitingForQuota
          elastic   -> BehindInQueue ahead=head
        at 2
          ends head
          elastic   -> starts 2 pods
    """,
    "backfill: not on the nodes reserved for a head, on others it does": """
        nodes  H100: 8 8
        quota  a H100 64
        policy backfill
        at 0
          + r1      a 1x4 H100 s=100  -> starts on n0
          + r2      a 1x4 H100 s=1000 -> starts on n0
          + r3      a 1x2 H100 s=1000 -> starts on n1
          + r4      a 1x2 H100        -> starts on n1
          + elastic a 8x1 H100 min=4 s=1000 -> starts 4 pods
          + head    a 1x4 H100        -> InsufficientGpus
        at 1
          ends r4
          elastic   -> starts 2 pods
        at 2
          ends r1
          head      -> starts on n0
    """,
    "backfill: not in a pool with a head whose start nobody knows": """
        nodes  H100: 8
        quota  a H100 64
        policy backfill
        at 0
          + r       a 1x3 H100       -> starts
          + elastic a 8x1 H100 min=4 -> starts 5 pods
          + head    a 1x8 H100       -> InsufficientGpus
        at 1
          ends r
          head      -> InsufficientGpus
          elastic   -> BehindInQueue ahead=head
    """,
    "by quota: as much as it allows, borrowed too": """
        nodes  H100: 8
        quota  a H100 4 shared borrow=2 | b H100 4
        policy best-effort-fifo
        at 0
          + r       b 1x4 H100       -> starts
          + elastic a 8x1 H100 min=2 -> starts 4 pods
        at 1
          ends r
          elastic   -> starts borrowing 2
          elastic   -> BorrowLimitReached asked=2 left=0
        at 2
          elastic   -> BorrowLimitReached
    """,
    "what was borrowed so is reclaimed first, and does not count as a preemption": """
        nodes  H100: 8
        quota  a H100 4 | b H100 4
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0, max_preemptions=1
        at 0
          + elastic a 8x1 H100 min=2 -> starts 8 pods
        at 1
          + mine    b 1x2 H100       -> WaitingForPreemption
          elastic   -> preempted 2 pods
        at 2
          pod-ends elastic 6
          pod-ends elastic 7
          mine      -> starts
        at 3
          ends mine
          elastic   -> starts 2 pods
        at 4
          + again   b 1x4 H100       -> WaitingForPreemption
          elastic   -> preempted 4 pods
    """,
    "pods that came later are protected as long as any, those of the start are not": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=60
        at 0
          + r       a 1x2 H100       -> starts
          + elastic a 8x1 H100 min=4 -> starts 6 pods
        at 100
          ends r
          elastic   -> starts 2 pods
        at 110
          + high    a 1x2 H100 p9    -> WaitingForPreemption
          elastic   -> preempted 2 pods
        at 111
          pod-ends elastic 4
          pod-ends elastic 5
          high      -> starts
    """,
    "slices come whole": """
        nodes  H100: 8@l0 8@l1
        quota  a H100 64
        policy best-effort-fifo
        at 0
          + r       a 1x3 H100 -> starts on n0
          + r2      a 1x2 H100 -> starts on n0
          + r3      a 1x8 H100 -> starts on n1
          + elastic a 9x1 H100 min=3 required_level=leaf slice_size=3 -> starts 3 pods
        at 1
          ends r2
        at 2
          ends r
          elastic   -> starts 3 pods
        at 3
          ends r3
          elastic   -> starts on n1
    """,
    "inside the one group that it has to share": """
        nodes  H100: 8@l0 8@l1
        quota  a H100 64
        policy best-effort-fifo
        at 0
          + r       a 1x4 H100 -> starts on n0
          + r2      a 1x8 H100 -> starts on n1
          + elastic a 8x1 H100 min=4 required_level=leaf -> starts on n0
        at 1
          ends r2
        at 2
          ends r
          elastic   -> starts on n0
    """,
    "not where a replica leaves that consolidation moves, before it is gone": """
        nodes  H100: 4@l0 5@l1
        quota  a H100 64
        policy best-effort-fifo, consolidation=yes, min_runtime_s=0
        at 0
          + hold    a 1x3 H100                     -> starts on n0
          + end     a 1x1 H100                     -> starts on n0
          + one     a 1x1 H100 pods kind=inference -> starts on n1
          + r       a 1x1 H100                     -> starts on n1
          + elastic a 2x1 H100 min=1 required_level=leaf -> starts 2 pods
        at 100
          ends end
          one       -> moves 0 from n1 to n0
        at 101
          pod-fails elastic 1
        at 102
          pod-gone one 0
          one       -> starts on n0
          elastic   -> starts on n1
    """,
    "before replicas move: into the hole that one of them would have filled": """
        nodes  H100: 4 4
        quota  a H100 64
        policy best-effort-fifo, consolidation=yes, min_runtime_s=0
        at 0
          + hold    a 1x3 H100                     -> starts on n0
          + end     a 1x1 H100                     -> starts on n0
          + one     a 1x1 H100 pods kind=inference -> starts on n1
          + elastic a 2x1 H100 min=1               -> starts on n1
        at 1
          pod-fails elastic 1 n1
        at 100
          ends end
          elastic   -> starts on n0
    """,
    "not any more once one of its pods has ended": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo
        at 0
          + r       a 1x3 H100       -> starts
          + elastic a 8x1 H100 min=4 -> starts 5 pods
        at 1
          pod-ends elastic 0
        at 2
          ends r
    """,
    "not by a node that a pod of it failed on, until that is forgiven": """
        nodes  H100: 8 8
        quota  a H100 64
        policy best-effort-fifo, blame_s=60
        at 0
          + r       a 1x8 H100       -> starts on n0
          + elastic a 9x1 H100 min=8 -> starts on n1
        at 1
          ends r
          elastic   -> starts on n0
        at 2
          pod-fails elastic 8 n0
          elastic   -> FragmentedCapacity asked=1 free=8
        at 10
        at 70
          elastic   -> starts on n0
    """,
}


@pytest.mark.parametrize("name", GROWS)
def test_an_elastic_gang_that_runs_grows(name):
    play(GROWS[name])


def test_who_takes_up_a_preemption_that_was_begun_makes_nobody_else_leave():
    state = SchedulerState(policy=Policy(preemption=(PreemptionKind.PRIORITY,), min_runtime_s=0))
    gang = job("gang", "a", "4x1 H100", "min=2")
    places = tuple(PodPlacement(0, i, "n0", (i,), 1000) for i in range(4))
    tenants = d.TenantsChanged((TenantSpec("a"),), (QuotaSpec("a", "H100", 64_000),))
    known = [d.NodeChanged(node("n0", 4)), tenants]
    known.append(d.JobRestored(gang, places, 0.0, leaving=((0, 3),)))
    known.append(d.JobSubmitted(job("high", "a", "1x1 H100", "p9")))
    result = run_cycle(state, known, 100.0)
    assert not result.preempted
    assert not result.started
    assert [w.verdict.reason for w in result.waiting] == [Reason.WAITING_FOR_PREEMPTION]
    result = run_cycle(state, [d.PodEnded("gang", 0, 3)], 101.0)
    assert [(s.job_id, s.placements[0].devices) for s in result.started] == [("high", (3,))]
    result = run_cycle(state, [d.JobEnded("high")], 102.0)
    assert [s.job_id for s in result.started] == ["gang"]
