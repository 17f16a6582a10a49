"""With `reclaim`, a tenant within its guarantee gets its GPUs back, whatever others run by then.

Nodes have one GPU each, because quota does not decide whether larger pods fit on one node.
"""

import random
from dataclasses import replace

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import (
    MILLI,
    Policy,
    PreemptionKind,
    QueueingPolicy,
    QuotaSpec,
    Sharing,
    TenantSpec,
)
from tests.cases import seeds
from tests.engine.scenario import job, node

MODELS = ("H100", "L4")
TENANTS = tuple(
    TenantSpec(name, parent)
    for name, parent in (("a", None), ("b", None), ("dept", None), ("c", "dept"), ("d", "dept"))
)
ASKS = ("1x1 H100", "2x1 H100", "4x1 H100", "3x1 L4", "2x1 H100|L4", "2x1+1x1 H100+L4", "6x1 *")


class Lenders:
    """A cluster exactly as large as the guarantees of its tenants (parents first) together."""

    def __init__(self, rng: random.Random, tenants: tuple[TenantSpec, ...] = TENANTS) -> None:
        self.rng = rng
        self.state = SchedulerState()
        self.now = 0.0
        self.alive: list[str] = []
        self.count = 0
        self.names = [tenant.id for tenant in tenants]
        self.below = {t.id: [c.id for c in tenants if c.parent == t.id] for t in tenants}
        self.guaranteed: dict[tuple[str, str], int] = {}
        facts: list[d.Delta] = []
        for model in MODELS:
            for tenant in reversed(tenants):
                below = sum(self.guaranteed[child, model] for child in self.below[tenant.id])
                more = rng.randrange(4 if self.below[tenant.id] else 7)
                self.guaranteed[tenant.id, model] = below + more
            gpus = sum(self.guaranteed[t.id, model] for t in tenants if t.parent is None)
            facts += [d.NodeChanged(node(f"{model}-{i}", 1, model)) for i in range(gpus)]
        quotas = tuple(
            QuotaSpec(
                *key,
                gpus * MILLI,
                rng.choice((*Sharing, Sharing.SHARED)),
                rng.choice((None, None, 4 * MILLI)),
                rng.choice((None, None, 3 * MILLI)),
            )
            for key, gpus in self.guaranteed.items()
        )
        kinds = rng.choice(((PreemptionKind.RECLAIM,), tuple(PreemptionKind)))
        policy = Policy(
            rng.choice(tuple(QueueingPolicy)),
            preemption=kinds,
            min_runtime_s=0,
            max_preemptions=1 << 30,
            backfill_after_s=20,
            fair_share=rng.random() < 0.3,
        )
        self.cycle([*facts, d.TenantsChanged(tenants, quotas), d.PolicyChanged(policy)])

    def cycle(self, deltas: list[d.Delta]) -> None:
        """Run a cycle, and further ones until no cycle preempts anything."""
        self.now += 5
        gone = run_cycle(self.state, deltas, self.now).preempted
        while gone:
            left: list[d.Delta] = []
            for victim in gone:
                if victim.whole:
                    left.append(d.JobRequeued(victim.job_id, self.now))
                else:
                    left += [d.PodEnded(victim.job_id, *pod) for pod in victim.pods]
            self.now += 5
            gone = run_cycle(self.state, left, self.now).preempted

    def submit(self, tenant: str, asks: str, *words: str) -> str:
        name = f"j{self.count}"
        self.count += 1
        self.alive.append(name)
        self.cycle([d.JobSubmitted(job(name, tenant, asks, *words, at=self.now))])
        return name

    def step(self) -> None:
        if self.rng.random() < 0.3 and self.alive:
            self.cycle([d.JobEnded(self.alive.pop(self.rng.randrange(len(self.alive))))])
            return
        words = [w for w in ("pods", "min=1", "p5") if self.rng.random() < 0.3]
        non_preemptible = ["fixed"] if self.rng.random() < 0.5 else []
        self.submit(self.rng.choice(self.names), self.rng.choice(ASKS), *words, *non_preemptible)

    def left(self, tenant: str, model: str) -> int:
        """Return the unused GPUs of the tenant's own guarantee, without those of its children."""
        below = sum(self.guaranteed[child, model] for child in self.below[tenant])
        own = self.guaranteed[tenant, model] - below
        held = (
            milli
            for record in self.state.jobs.values()
            if record.job.tenant == tenant
            for on, milli in record.pods.values()
            if on == model
        )
        return own - sum(held) // MILLI

    def rest(self) -> None:
        """Withdraw all waiting jobs."""
        waiting = [n for n in self.alive if self.state.jobs[n].started_at is None]
        self.alive = [n for n in self.alive if n not in waiting]
        self.cycle([d.JobEnded(name) for name in waiting])


def tree(rng: random.Random, depth: int) -> tuple[TenantSpec, ...]:
    """Return tenants on this many levels, parents first; at least one branch reaches the last."""
    tenants = [TenantSpec("t0", None)]
    level = ["t0"]
    for _ in range(1, depth):
        above = [rng.choice(level) for _ in range(rng.randrange(1, 4))]
        level = [f"t{len(tenants) + i}" for i in range(len(above))]
        tenants += [TenantSpec(name, parent) for name, parent in zip(level, above, strict=True)]
    if rng.random() < 0.5:
        tenants.append(TenantSpec("other", None))
    return tuple(tenants)


@pytest.mark.parametrize("seed", seeds(60))
def test_a_lender_gets_all_it_is_guaranteed(seed: int) -> None:
    rng = random.Random(seed)
    everybody_gets_its_guarantee(rng, Lenders(rng))


@pytest.mark.parametrize("depth", range(1, 6))
@pytest.mark.parametrize("seed", seeds(24))
def test_so_it_is_at_any_depth(seed: int, depth: int) -> None:
    rng = random.Random(1000 * depth + seed)
    everybody_gets_its_guarantee(rng, Lenders(rng, tree(rng, depth)))


@pytest.mark.parametrize("above", range(1, 5))
@pytest.mark.parametrize("mode", ["shared", "isolated"])
def test_a_sibling_far_below_gives_back_and_is_named_until_then(above: int, mode: str) -> None:
    """16 GPUs: batch holds all of them, rec is guaranteed half."""
    chain = [TenantSpec(f"above-{i}", f"above-{i - 1}" if i else None) for i in range(above)]
    parent = chain[-1].id if chain else None
    tenants = (*chain, TenantSpec("rec", parent), TenantSpec("batch", parent))
    quotas = [QuotaSpec(t.id, "H100", 16 * MILLI, Sharing(mode)) for t in chain]
    quotas += [QuotaSpec(name, "H100", 8 * MILLI, Sharing.SHARED) for name in ("rec", "batch")]
    state = SchedulerState()
    patient = Policy(preemption=(), min_runtime_s=0)
    facts = [d.NodeChanged(node(f"n{i}", 8, "H100")) for i in range(2)]
    start = [*facts, d.TenantsChanged(tenants, tuple(quotas)), d.PolicyChanged(patient)]
    run_cycle(state, [*start, d.JobSubmitted(job("b", "batch", "16x1 H100", "pods"))], 0.0)
    run_cycle(state, [d.JobSubmitted(job("r", "rec", "8x1 H100"))], 1.0)
    verdict = state.jobs["r"].verdict
    assert verdict is not None
    assert verdict.reason == "WaitingForQuota"
    assert (verdict.evidence["owed_by"], verdict.evidence["owed"]) == ("batch", 8)
    assert not any(name in verdict.summary for name in ("above", "None"))
    reclaims = replace(patient, preemption=(PreemptionKind.RECLAIM,))
    result = run_cycle(state, [d.PolicyChanged(reclaims)], 2.0)
    assert {(v.job_id, len(v.pods)) for v in result.preempted} == {("b", 8)}


def everybody_gets_its_guarantee(rng: random.Random, world: Lenders) -> None:
    for _ in range(rng.randrange(10, 60)):
        world.step()
    world.rest()
    lenders = [(tenant, model) for tenant in world.names for model in MODELS]
    rng.shuffle(lenders)
    for tenant, model in lenders:
        gpus = world.left(tenant, model)
        if gpus > 0:
            words = ["fixed"] if rng.random() < 0.5 else []
            owner = world.submit(tenant, f"{gpus}x1 {model}", *words, "p9")
            record = world.state.jobs[owner]
            assert record.started_at is not None, (tenant, model, gpus, record.verdict)
            world.rest()
