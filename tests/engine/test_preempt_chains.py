"""A preempted job that returns by its own right evicts the next job: random clusters, and
tables."""

import random

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.decisions import Preempted
from scheduling.engine.types import (
    MILLI,
    Policy,
    PreemptionKind,
    QueueingPolicy,
    QuotaSpec,
    Sharing,
    TenantSpec,
)
from tests.cases import NIGHTLY
from tests.engine.scenario import job, node, play

PRIORITY, RECLAIM, BACKFILL = (
    PreemptionKind.PRIORITY,
    PreemptionKind.RECLAIM,
    PreemptionKind.BACKFILL,
)
KINDS = ((PRIORITY,), (RECLAIM,), (PRIORITY, RECLAIM), (PRIORITY, RECLAIM, BACKFILL))
TENANTS = (
    TenantSpec("a"),
    TenantSpec("b"),
    TenantSpec("dept"),
    TenantSpec("c", "dept"),
    TenantSpec("d", "dept"),
)
SMALL = ("1x1 H100", "1x2 H100", "1x4 H100", "2x2 H100", "1x1 L4", "1x2 L4", "1x1 H100|L4")
LARGE = ("1x8 H100", "2x8 H100", "4x2 H100", "3x8 H100", "2x4+1x2 H100", "1x4 L4", "2x4 H100|L4")


class Crowd:
    """A cluster full of random jobs; counts the evicted jobs, and those of them that evict
    others."""

    def __init__(self, seed: int, kinds: tuple[PreemptionKind, ...]) -> None:
        self.rng = rng = random.Random(seed)
        self.state = SchedulerState()
        self.now = 0.0
        self.count = 0
        self.alive: list[str] = []
        self.evictions = 0
        self.chained = 0
        facts: list[d.Delta] = []
        quotas: list[QuotaSpec] = []
        for model, nodes, gpus in (("H100", rng.choice((4, 6, 8)), 8), ("L4", 3, 4)):
            facts += [
                d.NodeChanged(
                    node(f"{model}-{i}", gpus, model, topology=(f"l{i // 2}", f"s{i // 4}", "core"))
                )
                for i in range(nodes)
            ]
            parts = sorted(rng.randrange(nodes * gpus + 1) for _ in range(3))
            own = [b - a for a, b in zip((0, *parts), (*parts, nodes * gpus), strict=True)]
            quotas += [
                QuotaSpec(tenant, model, amount * MILLI, self.mode(), self.limit(), self.limit())
                for tenant, amount in zip(
                    ("a", "b", "c", "d", "dept"), (*own, own[2] + own[3]), strict=True
                )
            ]
        policy = Policy(
            rng.choice(tuple(QueueingPolicy)),
            preemption=kinds,
            min_runtime_s=0,
            max_preemptions=1 << 30,
            backfill_after_s=60,
            fair_share=rng.random() < 0.25,
        )
        self.settle([*facts, d.TenantsChanged(TENANTS, tuple(quotas)), d.PolicyChanged(policy)])

    def mode(self) -> Sharing:
        return Sharing.ISOLATED if self.rng.random() < 0.15 else Sharing.SHARED

    def limit(self) -> int | None:
        return self.rng.choice((None, None, None, 8 * MILLI))

    def settle(self, deltas: list[d.Delta]) -> None:
        """Run cycles until no cycle evicts anything. An evicted job that evicts another is counted
        with the jobs that evicted it."""
        self.now += self.rng.randint(1, 60)
        events: list[Preempted] = []
        gone = run_cycle(self.state, deltas, self.now).preempted
        while gone:
            events += gone
            left: list[d.Delta] = []
            for victim in gone:
                if victim.whole:
                    left.append(d.JobRequeued(victim.job_id, self.now))
                else:
                    left += [d.PodEnded(victim.job_id, *pod) for pod in victim.pods]
            self.now += 1
            gone = run_cycle(self.state, left, self.now).preempted
            assert len(events) < 500, "it never comes to rest"
        self.evictions += len(events)
        for at, event in enumerate(events):
            self.chained += any(later.by == event.job_id for later in events[at:])

    def submit(self, asks: str, *words: str) -> None:
        name = f"j{self.count}"
        self.count += 1
        self.alive.append(name)
        tenant = self.rng.choice(("a", "b", "c", "d", "dept"))
        self.settle([d.JobSubmitted(job(name, tenant, asks, *words, at=self.now))])

    def words(self) -> list[str]:
        rng = self.rng
        found = [f"p{rng.choice((-9, 0, 0, 0, 5, 9))}"]
        sort = rng.random()
        if sort < 0.2:
            found.append("pods")
        elif sort < 0.35:
            found.append("min=1")
        if rng.random() < 0.2:
            found += ["pods", "kind=inference"]
        if rng.random() < 0.1:
            found.append("fixed")
        if rng.random() < 0.1:
            found.append("required_level=leaf")
        return found

    def play(self, steps: int) -> None:
        for _ in range(steps):
            if self.rng.random() < 0.25 and self.alive:
                name = self.alive.pop(self.rng.randrange(len(self.alive)))
                self.settle([d.JobEnded(name)])
            else:
                sizes = SMALL if self.rng.random() < 0.7 else LARGE
                self.submit(self.rng.choice(sizes), *self.words())


@pytest.mark.parametrize("kinds", KINDS, ids=lambda kinds: "+".join(kinds))
def test_who_is_evicted_evicts_hardly_ever(kinds: tuple[PreemptionKind, ...]) -> None:
    """Without the rules, every sixth evicted job evicts another. What remains are lenders that take
    their GPUs back from any holder, and do so at once."""
    evictions = chained = 0
    tried = range(100, 340 if NIGHTLY else 130)  # two in a hundred need enough seeds
    for seed in tried:
        crowd = Crowd(seed, kinds)
        crowd.play(60)
        evictions += crowd.evictions
        chained += crowd.chained
    print(f"{evictions} evictions, {chained} of them of jobs that then evicted somebody")
    assert evictions > 2 * len(tried)
    assert chained <= 0.02 * evictions


SCENARIOS = {
    "who made way for a lender takes nobody's place by priority, until ten minutes have passed": """
        nodes  H100: 8 | L4: 8
        quota  a H100 8 | b L4 8 | c H100 0 | c L4 0
        policy best-effort-fifo, preemption=priority,reclaim, min_runtime_s=0
        at 0
          + low   c 1x8 H100        -> starts borrowing 8
        at 1
          + high  c 1x8 L4|H100 p5  -> starts borrowing 8
        at 10
          + owner b 1x8 L4          -> WaitingForPreemption
          high    -> preempted for owner
        at 11
          gone high
          owner   -> starts
          high    -> WaitingForQuota preempts_from=610
        at 609
          high    -> WaitingForQuota
        at 610
          high    -> WaitingForPreemption
          low     -> preempted for high
    """,
    "who made way takes back at once what its tenant is guaranteed": """
        nodes  H100: 8 8
        quota  a H100 8 | b H100 8 | c H100 0
        policy best-effort-fifo, preemption=priority,reclaim, min_runtime_s=0
        at 0
          + own   a 1x8 H100    -> starts borrowing 0
        at 1
          + lent  a 1x8 H100    -> starts borrowing 8
        at 10
          + owner b 1x8 H100    -> WaitingForPreemption
          lent    -> preempted for owner
        at 11
          gone lent
          owner   -> starts
        at 12
          + high  c 1x8 H100 p9 -> WaitingForQuota
        at 20
          ends own
          high    -> starts borrowing 8
        at 21
          lent    -> WaitingForPreemption
          high    -> preempted for lent
    """,
    "of borrowers the one of lowest priority goes, and takes nobody's place in turn": """
        nodes  H100: 1 1 1
        quota  a H100 0 | b H100 3
        policy best-effort-fifo, preemption=priority,reclaim, min_runtime_s=0
        at 0
          + low    a 1x1 H100 p-9 -> starts borrowing 1
        at 100
          + middle a 1x1 H100     -> starts borrowing 1
        at 200
          + high   a 1x1 H100 p9  -> starts borrowing 1
        at 210
          + owner  b 1x1 H100     -> WaitingForPreemption
          low      -> preempted for owner
        at 211
          gone low
          owner    -> starts
    """,
    "a borrower goes, not who would reclaim at once": """
        nodes  H100: 8 8
        quota  a H100 8 | b H100 0 | c H100 8
        policy best-effort-fifo, preemption=priority,reclaim, min_runtime_s=0
        at 0
          + lent   b 1x8 H100    -> starts borrowing 8
        at 50
          + own    a 1x8 H100    -> starts borrowing 0
        at 60
          + high   c 1x8 H100 p9 -> WaitingForPreemption
          lent     -> preempted for high
    """,
    "who is within its guarantee goes where nobody borrows": """
        nodes  H100: 8 8
        quota  a H100 8 | b H100 8 | c H100 8
        policy best-effort-fifo, preemption=priority,reclaim, min_runtime_s=0
        at 0
          + first  b 1x8 H100    -> starts
        at 50
          + second a 1x8 H100    -> starts
        at 60
          + high   c 1x8 H100 p9 -> WaitingForPreemption
          second   -> preempted for high
    """,
    "who goes for one job takes the place that the victim of another would have": """
        nodes  H100: 8 8 7
        quota  v H100 7 | p H100 16 | c H100 0
        policy best-effort-fifo, preemption=priority,reclaim, min_runtime_s=0
        at 0
          + lent    c 1x2 H100 p9 -> starts on n2
          + x       p 1x5 H100    -> starts on n2
        at 1
          + early   v 1x2 H100    -> starts on n0
          + y       p 1x6 H100    -> starts on n0
        at 2
          + late    v 1x5 H100    -> starts on n1
        at 3
          ends x
          ends y
        at 10
          + first   p 1x8 H100 p5 -> WaitingForPreemption
          + second  p 1x8 H100 p5 -> FragmentedCapacity
          early     -> preempted for first
        at 11
          gone early
          first     -> starts on n0
          early     -> starts on n1
          second    -> FragmentedCapacity
        at 20
          ends early
          second    -> WaitingForPreemption
          late      -> preempted for second
        at 21
          gone late
          second    -> starts on n1
          late      -> starts on n2
    """,
    "a victim that was cancelled comes back to no place": """
        nodes  H100: 8 8 7
        quota  v H100 7 | p H100 16 | c H100 0
        policy best-effort-fifo, preemption=priority,reclaim, min_runtime_s=0
        at 0
          + lent    c 1x2 H100 p9 -> starts on n2
          + x       p 1x5 H100    -> starts on n2
        at 1
          + early   v 1x2 H100    -> starts on n0
          + y       p 1x6 H100    -> starts on n0
        at 2
          + late    v 1x5 H100    -> starts on n1
        at 3
          ends x
          ends y
        at 10
          + first   p 1x8 H100 p5 -> WaitingForPreemption
          + second  p 1x8 H100 p5 -> FragmentedCapacity
          early     -> preempted for first
        at 11
          ends early
          first     -> starts on n0
          second    -> WaitingForPreemption
          late      -> preempted for second
    """,
    "for one GPU a job of one goes, not a gang that has just begun": """
        nodes  H100: 8 8 8 8 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + small  a 8x1 H100 pods    -> starts on n0
        at 900
          + gang   a 4x8 H100         -> starts on n1 n2 n3 n4
        at 901
          + one    a 1x1 H100 p9      -> WaitingForPreemption
          small    -> preempted for one
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_who_goes(name: str) -> None:
    play(SCENARIOS[name])
