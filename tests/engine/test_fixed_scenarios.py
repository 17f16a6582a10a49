"""Non-preemptible jobs where lenders may reclaim what they lent (see scenario.py)."""

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.types import Policy, PreemptionKind, QuotaSpec, TenantSpec
from tests.engine.scenario import World, job, node, play

SCENARIOS = {
    "without reclaim it borrows like any other": """
        nodes  H100: 8
        quota  a H100 2 | b H100 6
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + fixed a 1x6 H100 fixed -> starts borrowing 4
    """,
    "with reclaim it holds what is guaranteed, and more is never": """
        nodes  H100: 8 8
        quota  a H100 4 | b H100 12 | c H100 0
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + one   a 1x2 H100 fixed -> starts borrowing 0
          + two   a 1x3 H100 fixed -> WaitingForQuota non_preemptible=2 guaranteed=4 left=2
          + big   a 1x6 H100 fixed -> ExceedsMaxQuota asked=6 guaranteed=4
          + none  c 1x1 H100 fixed -> ExceedsMaxQuota asked=1 guaranteed=0
          + most  b 1x1 H100 fixed -> starts borrowing 0
        at 10
          ends one
          two -> starts
    """,
    "what the tenant borrows by jobs that can be preempted is not held against it": """
        nodes  H100: 4 4 4
        quota  a H100 4 | b H100 8
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + soft  a 1x4 H100       -> starts borrowing 0
        at 5
          + fixed a 1x4 H100 fixed -> starts borrowing 4
        at 10
          + own   b 2x4 H100       -> WaitingForPreemption
          soft    -> preempted for own
    """,
    "the guarantee of every tenant above it counts as well": """
        nodes  H100: 8 8
        quota  dept H100 4 | a H100 4 | b H100 4 | c H100 12
        tree   a < dept | b < dept
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + one a 1x3 H100 fixed -> starts
          + two b 1x3 H100 fixed -> WaitingForQuota tenant=dept non_preemptible=3 guaranteed=4
          + own dept 1x1 H100 fixed -> ExceedsMaxQuota guaranteed=0
          + three b 1x3 H100     -> starts borrowing 2
    """,
    "a quota below its use lets it go on, and nothing be added": """
        nodes  H100: 8
        quota  a H100 4 | b H100 4
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + one a 1x2 H100 fixed -> starts
          + two a 1x1 H100 fixed -> starts
        at 5
          quota  a H100 2 | b H100 6
          + more a 1x1 H100 fixed -> WaitingForQuota non_preemptible=3 guaranteed=2 left=0
        at 10
          ends one
          more -> starts
    """,
    "what runs when the policy begins to reclaim goes on, and nothing is added": """
        nodes  H100: 8
        quota  a H100 2 | b H100 6
        policy best-effort-fifo
        at 0
          + one  a 1x4 H100 fixed -> starts borrowing 2
        at 5
          policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
          + more a 1x1 H100 fixed -> WaitingForQuota non_preemptible=4 guaranteed=2
          + own  b 1x6 H100       -> InsufficientGpus
        at 10
          policy best-effort-fifo
          more -> starts borrowing 1
    """,
    "whether it can be preempted may change while it waits or runs": """
        nodes  H100: 8
        quota  a H100 2 | b H100 6
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + one a 1x2 H100 fixed -> starts
          + two a 1x2 H100 fixed -> WaitingForQuota
        at 5
          change one preemptible=yes
          two   -> starts borrowing 2
        at 10
          change one preemptible=no
          + six b 1x6 H100       -> InsufficientGpus
        at 15
          + four a 1x1 H100 fixed -> WaitingForQuota non_preemptible=4
        at 20
          change four preemptible=yes
          four  -> starts borrowing 1
    """,
    "a gang grows as far as is guaranteed": """
        nodes  H100: 8
        quota  a H100 3 | b H100 5
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + gang a 5x1 H100 min=2 fixed -> starts 3 pods
        at 5
          gang -> WaitingForQuota non_preemptible=3 guaranteed=3
        at 10
          quota a H100 4 | b H100 4
          gang -> starts 1 pods
    """,
    "a service starts as many pods as are guaranteed": """
        nodes  H100: 8
        quota  a H100 3 | b H100 5
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + pods a 5x1 H100 pods fixed -> starts 3 pods
        at 5
          pods -> WaitingForQuota non_preemptible=3 left=0
    """,
    "several models together, parts of a GPU, and a choice of models": """
        nodes  H100: 4 | L4: 4
        quota  a H100 2 | a L4 0.5 | b H100 2 | b L4 3.5
        policy best-effort-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + both  a 1x2+1x0.5 H100+L4 fixed -> starts borrowing 0
          + half  a 1x0.5 L4 fixed -> WaitingForQuota non_preemptible=0.5 guaranteed=0.5
          + joint b 1x1+1x4 H100+L4 fixed -> ExceedsMaxQuota gpu_model=L4 guaranteed=3.5
          + any   b 1x3 H100|L4 fixed -> starts borrowing 0
    """,
    "one that its tenant's guarantee refuses preempts nobody": """
        nodes  H100: 8
        quota  a H100 4 | b H100 4
        policy best-effort-fifo, preemption=priority,reclaim, min_runtime_s=0
        at 0
          + one  a 1x4 H100 fixed    -> starts
          + soft a 1x4 H100          -> starts borrowing 4
        at 10
          + more a 1x4 H100 p9 fixed -> WaitingForQuota non_preemptible=4
    """,
    "strict FIFO: the jobs of its tenant wait behind it, others do not": """
        nodes  H100: 8
        quota  a H100 4 | b H100 4
        policy strict-fifo, preemption=reclaim, min_runtime_s=0
        at 0
          + one   a 1x3 H100 fixed -> starts
          + two   a 1x2 H100 fixed -> WaitingForQuota
          + small a 1x1 H100 fixed -> BehindInQueue ahead=two
          + other b 1x4 H100 fixed -> starts
        at 10
          ends one
          two   -> starts
          small -> starts
    """,
    "backfill: small jobs of its tenant pass it until the threshold": """
        nodes  H100: 8
        quota  a H100 4 | b H100 4
        policy backfill, preemption=reclaim, min_runtime_s=0, backfill_after_s=60
        at 0
          + one   a 1x3 H100 fixed -> starts
          + two   a 1x3 H100 fixed -> WaitingForQuota
        at 10
          + small a 1x1 H100 fixed -> starts
        at 70
          ends small
          + late  a 1x1 H100 fixed -> BehindInQueue ahead=two
          + other b 1x4 H100       -> starts
        at 80
          ends one
          two     -> starts
          late    -> starts
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_fixed(name: str) -> None:
    play(SCENARIOS[name])


def test_what_runs_when_the_scheduler_starts_counts() -> None:
    world = play("""
        nodes  H100: 8
        quota  a H100 4 | b H100 4
        policy best-effort-fifo, preemption=reclaim
        at 0
          + one a 1x3 H100 fixed -> starts
    """)
    places = world.state.cluster.placements_of("one")
    again = World()
    again.pending = [
        d.NodeChanged(node("n0", 8)),
        d.TenantsChanged(
            (TenantSpec("a"), TenantSpec("b")),
            (QuotaSpec("a", "H100", 4000), QuotaSpec("b", "H100", 4000)),
        ),
        d.PolicyChanged(Policy(preemption=(PreemptionKind.RECLAIM,))),
        d.JobRestored(world.jobs["one"], places, 0.0),
        d.JobSubmitted(job("two", "a", "1x2 H100", "fixed")),
    ]
    assert not again.cycle(10).started
    verdict = again.state.jobs["two"].verdict
    assert verdict is not None
    assert verdict.evidence["non_preemptible"] == 3


def test_it_is_told_what_to_do() -> None:
    world = play("""
        nodes  H100: 8
        quota  a H100 4 | b H100 4
        policy best-effort-fifo, preemption=reclaim
        at 0
          + one a 1x3 H100 fixed -> starts
          + two a 1x2 H100 fixed -> WaitingForQuota
          + big a 1x5 H100 fixed -> ExceedsMaxQuota
    """)
    two, big = (world.state.jobs[name].verdict for name in ("two", "big"))
    assert two is not None
    assert two.summary == (
        "Non-preemptible jobs of tenant a hold 3 of its guaranteed 4 H100 GPUs. This one needs "
        "2 H100 GPUs, and such jobs cannot borrow."
    )
    assert "submit it as preemptible" in two.remedies
    assert big is not None
    assert big.will_never_run
    assert big.summary == (
        "Needs 5 H100 GPUs and is not preemptible. Such jobs cannot borrow here, and "
        "tenant a is guaranteed 4."
    )
    assert big.remedies[:2] == ("submit it as preemptible", "ask for a larger quota")
