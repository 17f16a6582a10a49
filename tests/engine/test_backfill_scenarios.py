"""Backfill as tables (see scenario.py): the rules of the paper's table 1, and the traps around
them."""

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.decisions import Reservation
from scheduling.engine.types import PodPlacement, Policy
from tests.engine.scenario import job, play

SCENARIOS = {
    "what fits goes; past the threshold nothing more goes in the head's way": """
        nodes  H100: 8 8
        quota  a H100 32 | b H100 32
        policy backfill, backfill_after_s=60
        at 0
          + r1     a 1x8 H100 -> starts
          + r2     a 1x4 H100 -> starts
          + head   a 2x8 H100 -> InsufficientGpus
          + small1 b 1x1 H100 -> starts
        at 59
          + small2 b 1x1 H100 -> starts
        at 60
          + small3 b 1x1 H100 -> ReservedForHead ahead=head
        at 70
          ends r1 r2 small1
          head   -> InsufficientGpus
          small3 -> ReservedForHead
        at 71
          ends small2
          head   -> starts
          small3 -> InsufficientGpus
    """,
    "the threshold passes without any event": """
        nodes  H100: 8
        quota  a H100 32
        policy backfill, backfill_after_s=60
        at 0
          + r     a 1x4 H100 -> starts
          + head  a 1x8 H100 -> InsufficientGpus
        at 61
        at 62
          + small a 1x1 H100 -> ReservedForHead
    """,
    "declared run times: the head has a time and a place, jobs that end before it go": """
        nodes  H100: 8 8
        quota  a H100 64 | b H100 64
        policy backfill, backfill_after_s=600
        at 0
          + r1    a 1x8 H100 s=100 -> starts on n0
          + r2    a 1x4 H100 s=50  -> starts on n1
          + head  a 2x8 H100 s=100 -> InsufficientGpus
          + long  b 1x1 H100 s=101 -> ReservedForHead ahead=head starts_at=100
          + open  b 1x1 H100       -> ReservedForHead
          + short b 1x1 H100 s=100 -> starts
        at 100
          ends r1 r2 short
          head -> starts
          open -> InsufficientGpus
    """,
    "outside the reserved nodes everything goes, also past the threshold": """
        nodes  H100: 8 8 8
        quota  a H100 64 | b H100 64
        policy backfill, backfill_after_s=10
        at 0
          + r1    a 1x8 H100 s=100 -> starts on n0
          + r2    a 1x8 H100 s=50  -> starts on n1
          + r3    a 1x4 H100       -> starts on n2
          + head  a 2x8 H100       -> InsufficientGpus
          + open  b 1x2 H100       -> starts on n2
        at 20
          + more  b 1x1 H100       -> starts on n2
    """,
    "what ends before the head's start goes first": """
        nodes  H100: 8 8
        quota  a H100 64 | b H100 64
        policy backfill
        at 0
          + r1    a 1x8 H100 s=100 -> starts on n0
          + r2    a 1x6 H100 s=999 -> starts on n1
          + head  a 1x8 H100       -> InsufficientGpus
          + long  b 1x2 H100       -> InsufficientGpus
          + short b 1x1 H100 s=10  -> starts on n1
    """,
    "placement-true: 8 free GPUs in two halves are no start for a whole node": """
        nodes  H100: 8 8
        quota  a H100 64 | b H100 64
        policy backfill
        at 0
          + half1 a 1x5 H100 s=10  -> starts on n0
          + half2 a 1x5 H100 s=20  -> starts on n1
          + head  a 1x8 H100       -> InsufficientGpus
          + mid   b 1x1 H100 s=15  -> starts on n1
    """,
    "who goes past a head because he ends in time does not preempt: his victims may be slow": """
        nodes  H100: 8 8
        quota  a H100 64
        policy backfill, preemption=priority, min_runtime_s=0
        at 0
          + r1    a 1x8 H100 s=100 -> starts on n0
          + r2    a 1x8 H100 s=100 -> starts on n1
        at 10
          + head  a 2x8 H100 p9 s=9 preempts=no -> InsufficientGpus
          + short a 1x1 H100 p5 s=9 -> InsufficientGpus
          + other a 1x1 H100 p5     -> InsufficientGpus
        at 100
          ends r1 r2
          head  -> starts
          short -> InsufficientGpus
    """,
    "a head is promised nothing in a pool whose first right another head has": """
        nodes  H100: 8 8 | L4: 4
        quota  a H100 64 | a L4 64
        policy backfill
        at 0
          + r1    a 1x8 H100 s=100 -> starts on n0
          + r2    a 1x8 H100 s=50  -> starts on n1
          + r3    a 1x4 L4   s=70  -> starts on n2
          + first a 1x8 H100       -> InsufficientGpus
          + both  a 1x4 H100|L4    -> InsufficientGpus
          + joint a 1x8+1x4 H100+L4 -> InsufficientGpus
          + late  a 1x1 H100 -> InsufficientGpus
        at 50
          ends r2
          first -> starts on n1
        at 70
          ends r3
          both  -> starts on n2
    """,
    "who finds one of its pools reserved keeps its place as the first of another": """
        nodes  H100: 8 8 | L4: 4
        quota  a H100 64 | a L4 64
        policy backfill
        at 0
          + r1    a 1x8 H100 s=100 -> starts on n0
          + r2    a 1x8 H100 s=50  -> starts on n1
          + r3    a 1x2 L4   s=70  -> starts on n2
          + r4    a 1x2 L4   s=40  -> starts on n2
          + first a 1x8 H100       -> InsufficientGpus
          + both  a 1x4 H100|L4    -> InsufficientGpus
          + late  a 1x2 L4         -> InsufficientGpus
        at 40
          ends r4
          both  -> InsufficientGpus
          late  -> InsufficientGpus
        at 50
          ends r2
          first -> starts on n1
          late  -> ReservedForHead ahead=both starts_at=70
        at 70
          ends r3
          both  -> starts on n2
    """,
    "a large borrower is not starved by small borrowers of other tenants": """
        nodes  H100: 8 8 8
        quota  a H100 0 | b H100 0 | c H100 16 | d H100 8 lend=0
        policy backfill, backfill_after_s=60
        at 0
          + s1  b 1x8 H100 -> starts borrowing 8
          + s2  b 1x4 H100 -> starts borrowing 4
          + big a 2x8 H100 -> WaitingForQuota
          + s3  b 1x4 H100 -> starts borrowing 4
        at 59
          ends s1
          + s4  b 1x4 H100 -> starts borrowing 4
        at 60
          + s5  b 1x4 H100 -> BehindInQueue ahead=big
        at 61
          + d1  d 1x4 H100 -> starts borrowing 0
          + c1  c 1x4 H100 -> starts borrowing 0
          s5  -> WaitingForQuota
        at 70
          ends s2 s3 s4
          s5  -> BehindInQueue ahead=big
        at 71
          ends c1 d1
          big -> starts borrowing 16
          s5  -> WaitingForQuota
    """,
    "what a borrower waits for inside its department is kept there and nowhere else": """
        nodes  H100: 8 8 8
        quota  dept H100 8 isolated | t1 H100 0 | t2 H100 0 | t3 H100 8 | a H100 0 | c H100 8
        tree   t1 < dept | t2 < dept | t3 < dept
        policy backfill, backfill_after_s=60
        at 0
          + s1  t2 1x4 H100 -> starts borrowing 4
          + big t1 1x8 H100 -> WaitingForQuota
        at 60
          + s2  t2 1x1 H100 -> BehindInQueue ahead=big
          + own t3 1x1 H100 -> starts borrowing 0
          + far a  1x1 H100 -> starts borrowing 1
        at 70
          ends s1 own
          big -> starts borrowing 8
    """,
    "who has borrowed all it may keeps nothing from others": """
        nodes  H100: 8 8
        quota  a H100 0 borrow=4 | b H100 0 | c H100 16
        policy backfill, backfill_after_s=0
        at 0
          + a1 a 1x2 H100 -> starts
          + a2 a 1x4 H100 -> BorrowLimitReached
          + a3 a 1x1 H100 -> BehindInQueue ahead=a2
          + b1 b 1x1 H100 -> starts borrowing 1
    """,
    "part of a service within its own quota starts, the part that would borrow waits": """
        nodes  H100: 8 8
        quota  a H100 0 | b H100 4 lend=0 | c H100 8
        policy backfill, backfill_after_s=0
        at 0
          + r   c 1x2 H100      -> starts
          + big a 1x8 H100      -> WaitingForQuota
          + web b 6x1 H100 pods -> starts 4 pods
        at 1
          web -> BehindInQueue ahead=big
        at 2
          ends r
          big -> starts borrowing 8
    """,
    "nobody preempts past a waiting borrower for what it waits to borrow": """
        nodes  H100: 8 8
        quota  a H100 0 | b H100 0 | c H100 8
        policy backfill, backfill_after_s=0, preemption=priority,reclaim, min_runtime_s=0
        at 0
          + s1   b 1x4 H100    -> starts borrowing 4
          + s0   b 1x2 H100    -> starts borrowing 2
        at 1
          + big  a 1x8 H100 p5 preempts=no -> WaitingForQuota
          + more b 1x4 H100 p1 -> WaitingForQuota
        at 2
          + own  c 1x8 H100    -> starts borrowing 0
    """,
    "a stuck head of one pool leaves other pools alone": """
        nodes  H100: 8 | L4: 4
        quota  a H100 16 | b L4 4
        policy backfill, backfill_after_s=0
        at 0
          + r     a 1x4 H100 -> starts
          + head  a 1x8 H100 -> InsufficientGpus
          + other b 1x4 L4   -> starts
    """,
    "a big job that its tenant's quota refuses is not starved by the tenant's small ones": """
        nodes  H100: 8 8 8
        quota  a H100 8 isolated | b H100 8 isolated
        policy backfill, backfill_after_s=30
        at 0
          + r      a 1x4 H100 -> starts
          + big    a 1x8 H100 -> WaitingForQuota
          + small1 a 1x1 H100 -> starts
        at 30
          + small2 a 1x1 H100 -> BehindInQueue ahead=big
          + b1     b 1x1 H100 -> starts
        at 40
          ends r small1
          big    -> starts
          small2 -> WaitingForQuota
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_backfill(name: str) -> None:
    play(SCENARIOS[name])


def test_the_reservation_is_visible_and_given_up_when_the_head_leaves() -> None:
    world = play("""
        nodes  H100: 8 8
        quota  a H100 64
        policy backfill
        at 0
          + r1   a 1x8 H100 s=100
          + r2   a 1x8 H100 s=50
          + head a 2x8 H100
          r1 -> starts
          r2 -> starts
    """)
    record = world.state.jobs["head"]
    assert record.expected is not None
    assert (record.expected.at, sorted(record.expected.nodes)) == (100.0, ["n0", "n1"])
    assert world.cycle(1.0).reservations == ()
    world.pending.append(d.JobEnded("head", succeeded=False))
    assert world.cycle(2.0).reservations == ()
    assert world.state.reserving == set()


def test_a_reservation_lies_in_the_pools_that_the_head_leads() -> None:
    world = play("""
        nodes  H100: 8 8 | L4: 4
        quota  a H100 64 | a L4 64
        policy backfill
        at 0
          + r1    a 1x8 H100 s=100 -> starts
          + r2    a 1x8 H100 s=50  -> starts
          + r3    a 1x4 L4   s=70  -> starts
          + first a 1x8 H100       -> InsufficientGpus
          + both  a 1x4 H100|L4    -> InsufficientGpus
          + joint a 1x8+1x4 H100+L4 -> InsufficientGpus
    """)
    assert set(world.last.reservations) == {
        Reservation("first", 50.0, ("n1",)),
        Reservation("both", 70.0, ("n2",)),
    }
    world.pending.append(d.JobEnded("first", succeeded=False))
    told = world.cycle(1.0).reservations
    assert told == (Reservation("both", 50.0, ("n1",)),)


@pytest.mark.parametrize(("times", "at"), [((), 100.0), ((0.0, 60.0), 160.0)])
def test_pods_of_a_service_that_was_found_running_end_as_they_began(times, at) -> None:
    world = play("""
        nodes  H100: 8
        quota  a H100 64
        policy backfill
        at 0
    """)
    service = job("service", "a", "2x4 H100", "pods", "s=100")
    halves = ((0, 1, 2, 3), (4, 5, 6, 7))
    places = tuple(PodPlacement(0, i, "n0", half, 1000) for i, half in enumerate(halves))
    world.pending.append(d.JobRestored(service, places, 0.0, (), times))
    world.pending.append(d.JobSubmitted(job("head", "a", "1x8 H100", at=1)))
    assert world.cycle(70.0).reservations == (Reservation("head", at, ("n0",)),)


def test_a_reservation_is_told_and_told_to_be_gone_when_another_job_becomes_the_head() -> None:
    world = play("""
        nodes  H100: 8
        quota  a H100 64
        policy backfill
        at 0
          + r1   a 1x8 H100 s=100 -> starts
    """)
    world.pending.append(d.JobSubmitted(job("head", "a", "1x8 H100", at=1)))
    assert world.cycle(1.0).reservations == (Reservation("head", 100.0, ("n0",)),)
    world.pending.append(d.JobSubmitted(job("first", "a", "1x4 H100", "p9", at=2)))
    told = world.cycle(2.0).reservations
    assert set(told) == {Reservation("first", 100.0, ("n0",)), Reservation("head", None)}
    world.pending.append(d.PolicyChanged(Policy()))
    assert world.cycle(3.0).reservations == (Reservation("first", None),)
