"""A head that waits for quota or for a job limit starts when declared ends free what it needs.

The tests compare histories with the same ones without a quota obstacle: quota that frees together
with the places delays nobody.
"""

import random

import pytest

from scheduling.engine.decisions import Reservation
from scheduling.engine.types import (
    Policy,
    PreemptionKind,
    QueueingPolicy,
    QuotaSpec,
    Sharing,
    TenantSpec,
)
from scheduling.simulator.loop import Simulation
from tests.engine.scenario import play
from tests.engine.test_backfill_histories import Watched
from tests.simulator.runs import arrival, machines, rows

BACKFILL = Policy(QueueingPolicy.BACKFILL, backfill_after_s=600)
NODES = 4
FULL, AMPLE = NODES * 8_000, 2 * NODES * 8_000
KINDS = [(), (PreemptionKind.PRIORITY, PreemptionKind.RECLAIM), tuple(PreemptionKind)]


def own(size: int, mode: Sharing = Sharing.SHARED) -> tuple:
    return (TenantSpec("a"),), (QuotaSpec("a", "H100", size, mode),)


def isolated(size: int) -> tuple:
    return own(size, Sharing.ISOLATED)


def borrowed(size: int) -> tuple:
    """a owns half of the quota; another tenant lends the rest."""
    half = size // 2
    quotas = (QuotaSpec("a", "H100", half), QuotaSpec("lender", "H100", size - half))
    return (TenantSpec("a"), TenantSpec("lender")), quotas


def limited(size: int) -> tuple:
    """The head may borrow exactly what is left, no more."""
    quotas = (
        QuotaSpec("a", "H100", 8_000, borrow_limit=size - 8_000),
        QuotaSpec("lender", "H100", AMPLE),
    )
    return (TenantSpec("a"), TenantSpec("lender")), quotas


def deep(size: int) -> tuple:
    """The quota belongs to a tenant three levels above."""
    tenants = (
        TenantSpec("root"),
        TenantSpec("org", "root"),
        TenantSpec("team", "org"),
        TenantSpec("a", "team"),
    )
    quotas = (
        QuotaSpec("root", "H100", size, Sharing.ISOLATED),
        QuotaSpec("org", "H100", size // 2),
        QuotaSpec("a", "H100", 0),
    )
    return tenants, quotas


TREES = [own, isolated, borrowed, limited, deep]


def run_of(arrivals, tree, policy=BACKFILL, *, nodes=NODES, of=Simulation):
    tenants, quotas = tree
    ordered = sorted(arrivals, key=lambda a: a.job.submitted_at)
    return of(machines(nodes), ordered, policy=policy, tenants=tenants, quotas=quotas)


def crowd(gang: bool = True) -> list:
    """Three jobs run until 240, the head needs all nodes, and small jobs keep arriving."""
    first = [
        arrival(f"r{i}", 0.0, 240.0, declared_s=240.0, gang=gang or i > 0) for i in range(NODES - 1)
    ]
    head = arrival("head", 1.0, 60.0, pods=NODES, declared_s=60.0)
    small = [arrival(f"s{i:02}", 2.0 + 20 * i, 100.0, gpus=4, declared_s=100.0) for i in range(30)]
    return [*first, head, *small]


@pytest.mark.parametrize("kinds", KINDS, ids=["never", "by right", "all"])
@pytest.mark.parametrize("gang", [True, False], ids=["gangs", "services"])
@pytest.mark.parametrize("tree", TREES)
def test_it_starts_as_with_a_larger_quota(tree, gang, kinds) -> None:
    policy = Policy(QueueingPolicy.BACKFILL, backfill_after_s=600, preemption=kinds)
    found = rows(run_of(crowd(gang), tree(FULL), policy).run())
    ample = rows(run_of(crowd(gang), tree(AMPLE), policy).run())
    assert found["head"][0] == ample["head"][0] == 240.0
    passed = {name for name, (at, *_) in found.items() if name[0] == "s" and at < 240.0}
    assert passed == {n for n, (at, *_) in ample.items() if n[0] == "s" and at < 240.0} != set()
    assert all(found[name][1] <= 240.0 for name in passed)


@pytest.mark.parametrize("above", [False, True], ids=["own limit", "of the department"])
def test_nor_does_a_limit_of_jobs_delay_it(above: bool) -> None:
    """All but one of the jobs that may run end at 240; each job that passes the head is over by
    then."""
    dept, a = (4, None) if above else (None, 4)
    tenants = (TenantSpec("dept", max_running=dept), TenantSpec("a", "dept", max_running=a))
    quotas = (QuotaSpec("dept", "H100", AMPLE), QuotaSpec("a", "H100", AMPLE))
    found = rows(run_of(crowd(), (tenants, quotas)).run())
    assert found["head"][0] == 240.0
    passed = [name for name, (at, *_) in found.items() if name[0] == "s" and at < 240.0]
    assert passed
    assert all(found[name][1] <= 240.0 for name in passed)


@pytest.mark.parametrize("tree", TREES)
def test_without_declared_times_it_waits_for_the_threshold_as_ever(tree) -> None:
    undeclared = [
        arrival(
            a.job.id,
            a.job.submitted_at,
            a.duration_s,
            pods=a.job.pods,
            gpus=8 if a.job.id[0] != "s" else 4,
        )
        for a in crowd()
    ]
    found = rows(run_of(undeclared, tree(FULL)).run())
    assert 601.0 <= found["head"][0] <= 601.0 + 240.0


def test_what_does_not_compete_for_its_quota_or_nodes_is_not_held_back() -> None:
    """Another tenant's endless jobs use all nodes except those that the head will get."""
    tenants = (TenantSpec("a"), TenantSpec("b"))
    quotas = (
        QuotaSpec("a", "H100", 16_000, Sharing.ISOLATED),
        QuotaSpec("b", "H100", AMPLE, Sharing.ISOLATED),
    )
    arrivals = [
        arrival("r0", 0.0, 100.0, declared_s=100.0),
        arrival("r1", 0.0, 200.0, declared_s=200.0),
        arrival("head", 1.0, 50.0, pods=2, declared_s=50.0),
        *[arrival(f"b{i}", 2.0, 5_000.0, tenant="b") for i in range(3)],
    ]
    found = rows(run_of(arrivals, (tenants, quotas)).run())
    assert found["head"][0] == 200.0
    assert [found[f"b{i}"][0] for i in range(3)] == [2.0, 2.0, 250.0]


def test_a_head_behind_it_that_waits_for_places_keeps_its_reservation() -> None:
    """The quota frees in 10,000 s, the places of another tenant's head in 100 s."""
    world = play("""
        nodes  H100: 8 8 8 8
        quota  a H100 8 isolated | b H100 64 isolated
        policy backfill, backfill_after_s=600
        at 0
          + ra    a 1x8 H100 s=10000 -> starts
          + rb    b 2x8 H100 s=100   -> starts
          + late  a 1x8 H100 s=50    -> WaitingForQuota
          + next  b 3x8 H100 s=50    -> InsufficientGpus
          + long  b 1x8 H100 s=101   -> ReservedForHead ahead=next starts_at=100
        at 1
          + short b 1x8 H100 s=99    -> starts
        at 100
          ends rb short
          next -> starts
          long -> InsufficientGpus
    """)
    assert world.state.jobs["late"].expected.at == 10_000


SCENARIOS = {
    "its start is told, and quota is kept for it from those that run for longer": """
        nodes  H100: 8 8 8 8
        quota  a H100 16 isolated | b H100 16 isolated
        policy backfill
        at 0
          + r     a 1x8 H100 s=100 -> starts
          + head  a 2x8 H100 s=50  -> WaitingForQuota
          + long  a 1x4 H100 s=101 -> ReservedForHead ahead=head starts_at=100
          + open  a 1x1 H100       -> ReservedForHead ahead=head
          + short a 1x4 H100 s=100 -> starts
          + b1    b 2x8 H100       -> starts
        at 100
          ends r short
          head  -> starts
          long  -> WaitingForQuota
    """,
    "what it leaves of its quota goes to those that run for longer": """
        nodes  H100: 8 8 8 8
        quota  a H100 16 isolated
        policy backfill
        at 0
          + r     a 1x8 H100 s=100 -> starts
          + head  a 3x4 H100 s=50  -> WaitingForQuota
          + long  a 1x4 H100       -> starts
          + more  a 1x4 H100       -> ReservedForHead ahead=head
        at 100
          ends r
          head  -> starts
          more  -> WaitingForQuota
    """,
    "an owner does not wait for a head that waits to borrow, nor for its nodes": """
        nodes  H100: 8 8
        quota  a H100 0 | b H100 8 lend=0 | c H100 16
        policy backfill
        at 0
          + r    c 1x8 H100 s=100 -> starts
          + head a 2x8 H100 s=50  -> WaitingForQuota
          + own  b 1x8 H100       -> starts borrowing 0
    """,
    "its own tenant's small jobs do, also within what the tenant is guaranteed": """
        nodes  H100: 8 8
        quota  a H100 8 | c H100 8
        policy backfill
        at 0
          + r     c 1x8 H100 s=100 -> starts
          + head  a 2x8 H100 s=50  -> WaitingForQuota
          + open  a 1x1 H100       -> ReservedForHead ahead=head
          + short a 1x1 H100 s=100 -> starts
        at 100
          ends r short
          head -> starts borrowing 8
    """,
    "borrowers of another tenant do as well": """
        nodes  H100: 8 8 8
        quota  a H100 0 | b H100 0 | c H100 16
        policy backfill
        at 0
          + r     c 1x8 H100 s=100 -> starts
          + head  a 2x8 H100 s=50  -> WaitingForQuota
          + open  b 1x1 H100       -> ReservedForHead ahead=head
          + short b 1x1 H100 s=100 -> starts borrowing 1
        at 100
          ends r short
          head -> starts borrowing 16
    """,
    "at a limit of jobs": """
        nodes  H100: 8 8 8
        quota  a H100 32 | b H100 32
        tenant a max_running=2
        policy backfill
        at 0
          + r     a 1x8 H100 s=100 -> starts
          + r2    a 1x8 H100 s=50  -> starts
          + head  a 3x8 H100 s=50  -> WaitingForQuota
          + b1    b 1x1 H100 s=100 -> starts
        at 50
          ends r2
          + open  a 1x1 H100       -> ReservedForHead ahead=head starts_at=100
          + b2    b 1x1 H100       -> ReservedForHead ahead=head
        at 60
          + short a 1x1 H100 s=40  -> starts
        at 100
          ends r short b1
          head -> starts
          open -> InsufficientGpus
          b2   -> InsufficientGpus
    """,
    "preempting by right goes on past it": """
        nodes  H100: 8 8
        quota  a H100 8 isolated | b H100 8 | c H100 0
        policy backfill, preemption=reclaim, min_runtime_s=0
        at 0
          + r    a 1x8 H100 s=100 -> starts
          + lent c 1x8 H100 s=999 -> starts borrowing 8
          + head a 1x8 H100 s=50  -> WaitingForQuota
        at 1
          + own  b 1x8 H100       -> WaitingForPreemption
          lent   -> preempted
    """,
    "another GPU model is not its matter": """
        nodes  H100: 8 8 | L4: 4
        quota  a H100 8 isolated | a L4 4 isolated
        policy backfill
        at 0
          + r    a 1x8 H100 s=100 -> starts
          + head a 1x8 H100 s=50  -> WaitingForQuota
          + l4   a 1x4 L4         -> starts
    """,
    "strict FIFO stays as it is": """
        nodes  H100: 8 8
        quota  a H100 8 isolated
        policy strict-fifo
        at 0
          + r     a 1x4 H100 s=100 -> starts
          + head  a 1x8 H100 s=50  -> WaitingForQuota
          + short a 1x1 H100 s=50  -> BehindInQueue ahead=head
    """,
    "best-effort FIFO stays as it is": """
        nodes  H100: 8 8
        quota  a H100 8 isolated
        policy best-effort-fifo
        at 0
          + r    a 1x4 H100 s=100 -> starts
          + head a 1x8 H100 s=50  -> WaitingForQuota
          + open a 1x1 H100       -> starts
    """,
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_table(name: str) -> None:
    play(SCENARIOS[name])


def test_its_start_is_told_once_and_given_up_when_it_leaves() -> None:
    world = play("""
        nodes  H100: 8 8 8
        quota  a H100 8 isolated
        policy backfill
        at 0
          + r    a 1x8 H100 s=100 -> starts on n0
          + head a 1x8 H100       -> WaitingForQuota
    """)
    (told,) = world.last.reservations
    assert told == Reservation("head", 100.0, ("n0",)), "places that are free now stay so"
    assert world.cycle(1.0).reservations == ()
    assert world.state.reserving == {"head"}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("seed", range(4))
def test_what_is_told_is_kept_on_random_histories(seed: int, tree) -> None:
    """With exact declared times, a job that waits for quota starts no later than announced."""
    rng = random.Random(seed)
    sizes = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 4), (2, 8), (3, 8))
    arrivals, at = [], 0.0
    for number in range(100):
        pods, gpus = rng.choice(sizes)
        seconds = float(rng.randint(5, 150))
        arrivals.append(
            arrival(
                f"j{number:03}", at, seconds,
                pods=pods, gpus=gpus, declared_s=seconds, gang=rng.random() < 0.7,
            )
        )  # fmt: skip
        at += rng.choice((0, 5, 20))
    run = run_of(arrivals, tree(24_000), nodes=NODES, of=Watched)
    assert {state for _, _, state in rows(run.run()).values()} == {"SUCCEEDED"}
    assert run.kept_by_quota > 5, "nobody waited for quota: the history proves nothing"
    assert run.overtaken > 5
