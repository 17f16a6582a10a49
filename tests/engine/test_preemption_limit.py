"""No job is preempted more often than the policy allows, by any mix of kinds, while nodes are
drained, replicas move and schedulers restart."""

import random
from collections import Counter

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import (
    MILLI,
    JobKind,
    Policy,
    PreemptionKind,
    QueueingPolicy,
    QuotaSpec,
    TenantSpec,
)
from tests.cases import seeds
from tests.engine.scenario import job, node

TENANTS = (
    TenantSpec("a", max_running=4),
    TenantSpec("b", weight=2.0),
    TenantSpec("dept"),
    TenantSpec("c", "dept"),
    TenantSpec("d", "dept", max_running=6),
)
ASKS = ("1x1 H100", "1x2 H100", "1x4 H100", "2x2 H100", "1x8 H100", "4x2 H100", "1x0.5 H100")
WORDS = ((), (), ("pods",), ("min=1",), ("pods", "kind=inference"), ("required_level=leaf",))
NODES = 4


class World:
    """Random acts; `lost`: how often each job was preempted, as a whole or, for a service, per
    pod."""

    def __init__(self, seed: int, most: int) -> None:
        self.rng = rng = random.Random(seed)
        self.most = most
        self.now, self.count = 0.0, 0
        self.lost: Counter[str] = Counter()
        self.by: dict[str, list[str]] = {}
        self.gave: dict[str, list[str]] = {}
        self.requests: dict[str, d.JobSubmitted] = {}
        self.facts = {f"n{i}": self.node(i) for i in range(NODES)}
        parts = sorted(rng.randrange(8 * NODES + 1) for _ in range(3))
        own = [b - a for a, b in zip((0, *parts), (*parts, 8 * NODES), strict=True)]
        names = ("a", "b", "c", "d", "dept")
        amounts = (*own, own[2] + own[3])
        self.tenancy = d.TenantsChanged(
            TENANTS,
            tuple(QuotaSpec(t, "H100", n * MILLI) for t, n in zip(names, amounts, strict=True)),
        )
        self.policy = self.any_policy()
        self.state = SchedulerState()
        self.cycle(
            self.tenancy, d.PolicyChanged(self.policy), *map(d.NodeChanged, self.facts.values())
        )

    def node(self, i: int, schedulable: bool = True):
        return node(f"n{i}", 8, "H100", topology=(f"l{i // 2}", "s0", "x"), schedulable=schedulable)

    def any_policy(self) -> Policy:
        rng = self.rng
        return Policy(
            rng.choice(tuple(QueueingPolicy)),
            strategies=dict.fromkeys(JobKind, rng.choice(("e-binpack", "spread"))),
            preemption=tuple(k for k in PreemptionKind if rng.random() < 0.8),
            min_runtime_s=0,
            max_preemptions=self.most,
            backfill_after_s=30,
            consolidation=rng.random() < 0.5,
            defrag_loss=rng.choice((0.0, 1.0)),
            fair_share=rng.random() < 0.4,
            fair_users=rng.random() < 0.3,
        )

    def cycle(self, *deltas: d.Delta) -> None:
        """Run cycles until no cycle evicts anything."""
        while True:
            self.now += self.rng.randint(1, 30)
            out = run_cycle(self.state, deltas, self.now)
            left: list[d.Delta] = []
            for victim in out.preempted:
                gang = self.requests[victim.job_id].job.gang
                counts = victim.whole or not gang
                told = self.by if counts else self.gave
                told.setdefault(victim.job_id, []).append(victim.by)
                self.lost[victim.job_id] += counts
                assert self.lost[victim.job_id] <= self.most, victim
                left += self.gone(victim.job_id, victim.pods, victim.whole)
            for move in out.moved:
                left += self.gone(move.job_id, ((move.pod_set, move.ordinal),), move.whole)
            if not left:
                return
            deltas = tuple(left)

    def gone(self, name, pods, whole) -> list[d.Delta]:
        if whole:
            return [d.JobRequeued(name, self.now)]
        return [d.PodEnded(name, *pod) for pod in pods]

    def submit(self) -> None:
        rng, name = self.rng, f"j{self.count}"
        self.count += 1
        words = [f"p{rng.choice((-9, 0, 0, 5, 9))}", *rng.choice(WORDS)]
        tenant = rng.choice(("a", "b", "c", "d", "dept"))
        request = job(name, tenant, rng.choice(ASKS), *words, at=self.now)
        self.requests[name] = d.JobSubmitted(request)
        self.cycle(self.requests[name])

    def end(self) -> None:
        if self.requests:
            name = self.rng.choice(sorted(self.requests))
            del self.requests[name]
            self.cycle(d.JobEnded(name))

    def drain(self) -> None:
        """Drain a node: its jobs are requeued, then the node returns."""
        i = self.rng.randrange(NODES)
        here = sorted({key[0] for key in self.state.cluster.pods_on(f"n{i}")})
        self.cycle(
            d.NodeChanged(self.node(i, schedulable=False)),
            *[d.JobRequeued(name, self.now) for name in here],
        )
        self.cycle(d.NodeChanged(self.node(i)))

    def switch(self) -> None:
        self.policy = self.any_policy()
        self.cycle(d.PolicyChanged(self.policy))

    def restart(self) -> None:
        """Let another scheduler take over from the stored state."""
        before, self.state = self.state, SchedulerState()
        deltas = [self.tenancy, d.PolicyChanged(self.policy)]
        deltas += map(d.NodeChanged, self.facts.values())
        for name, submitted in self.requests.items():
            record = before.jobs[name]
            places = tuple(before.cluster.placements_of(name))
            if places and record.started_at is not None and record.nomination is None:
                deltas.append(d.JobRestored(submitted.job, places, record.started_at))
            else:
                deltas.append(submitted)
            if name in self.by or name in self.gave:
                by, gave = self.by.get(name, ()), self.gave.get(name, ())
                deltas.append(d.JobHistory(name, tuple(by), None, gave_way_to=tuple(gave)))
        self.cycle(*deltas)

    def play(self, steps: int) -> None:
        for _ in range(steps):
            draw = self.rng.random()
            if draw < 0.6:
                self.submit()
            elif draw < 0.85:
                self.end()
            else:
                self.rng.choice((self.drain, self.switch, self.restart))()


@pytest.mark.parametrize("most", [0, 1, 2, 5])
def test_no_job_is_preempted_more_than_its_limit(most: int) -> None:
    reached = 0
    for seed in seeds(20, usual=72):
        world = World(1_000 * most + seed, most)
        world.play(60)
        reached += sum(times == most for times in world.lost.values())
    assert reached > 0 or not most
