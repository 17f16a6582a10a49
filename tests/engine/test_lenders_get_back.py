"""With `reclaim`, a tenant within its guarantee gets its GPUs back, whatever others run by then.

Nodes have one GPU each: whether larger pods find room on one node is no matter of quota.
"""

import random

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import (
    MILLI,
    Policy,
    PreemptionKind,
    QueueingPolicy,
    Quota,
    QuotaMode,
    Tenant,
)
from tests.engine.scenario import job, node

MODELS = ("H100", "L4")
TENANTS = tuple(
    Tenant(name, parent)
    for name, parent in (("a", None), ("b", None), ("dept", None), ("c", "dept"), ("d", "dept"))
)
ASKS = ("1x1 H100", "2x1 H100", "4x1 H100", "3x1 L4", "2x1 H100|L4", "2x1+1x1 H100+L4", "6x1 *")


class Lenders:
    """A cluster that is just what its tenants are guaranteed together."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.state = SchedulerState()
        self.now = 0.0
        self.alive: list[str] = []
        self.count = 0
        self.guaranteed = {(t, m): rng.randrange(7) for t in "abcd" for m in MODELS}
        facts: list[d.Delta] = []
        for model in MODELS:
            below = self.guaranteed["c", model] + self.guaranteed["d", model]
            self.guaranteed["dept", model] = below + rng.randrange(4)
            gpus = sum(self.guaranteed[t, model] for t in ("a", "b", "dept"))
            facts += [d.NodeChanged(node(f"{model}-{i}", 1, model)) for i in range(gpus)]
        quotas = tuple(
            Quota(
                *key,
                gpus * MILLI,
                rng.choice((*QuotaMode, QuotaMode.SHARED)),
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
        self.cycle([*facts, d.TenantsChanged(TENANTS, quotas), d.PolicyChanged(policy)])

    def cycle(self, deltas: list[d.Delta]) -> None:
        """A cycle, and the next as soon as all who were preempted are gone."""
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
        fixed = ["fixed"] if self.rng.random() < 0.5 else []
        tenant = self.rng.choice(("a", "b", "c", "d", "dept"))
        self.submit(tenant, self.rng.choice(ASKS), *words, *fixed)

    def left(self, tenant: str, model: str) -> int:
        """GPUs that the tenant itself is guaranteed and does not use."""
        own = self.guaranteed[tenant, model]
        if tenant == "dept":
            own -= self.guaranteed["c", model] + self.guaranteed["d", model]
        held = (
            milli
            for record in self.state.jobs.values()
            if record.job.tenant == tenant
            for on, milli in record.pods.values()
            if on == model
        )
        return own - sum(held) // MILLI

    def rest(self) -> None:
        """Nobody waits any more."""
        waiting = [n for n in self.alive if self.state.jobs[n].started_at is None]
        self.alive = [n for n in self.alive if n not in waiting]
        self.cycle([d.JobEnded(name) for name in waiting])


@pytest.mark.parametrize("seed", range(60))
def test_a_lender_gets_all_it_is_guaranteed(seed: int) -> None:
    rng = random.Random(seed)
    world = Lenders(rng)
    for _ in range(rng.randrange(10, 60)):
        world.step()
    world.rest()
    lenders = [(tenant, model) for tenant in ("a", "b", "c", "d", "dept") for model in MODELS]
    rng.shuffle(lenders)
    for tenant, model in lenders:
        gpus = world.left(tenant, model)
        if gpus > 0:
            words = ["fixed"] if rng.random() < 0.5 else []
            owner = world.submit(tenant, f"{gpus}x1 {model}", *words, "p9")
            record = world.state.jobs[owner]
            assert record.started_at is not None, (tenant, model, gpus, record.verdict)
            world.rest()
