"""Random histories: Kant decides about jobs with GPUs and jobs without as if the others did not
exist. Where jobs without GPUs may run anywhere, each of them starts in the end."""

import random
from dataclasses import replace
from itertools import product

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.memo import Memo
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.types import (
    CpuJobs,
    Policy,
    PreemptionKind,
    QueueingPolicy,
    QuotaSpec,
    TenantSpec,
)
from scheduling.engine.verdict import Reason
from tests.cases import NIGHTLY, seeds
from tests.engine.scenario import ASKS, job, node

STEPS = 150
KINDS = ((), (PreemptionKind.PRIORITY, PreemptionKind.RECLAIM), tuple(PreemptionKind))
# By day, each order and each choice of kinds once.
ORDERS = list(product(QueueingPolicy, KINDS))[:: 1 if NIGHTLY else len(KINDS) + 1]
NODES = [
    *(node(f"g{i}", 8, "H100", topology=(f"l{i}", "", "")) for i in range(3)),
    *(node(f"s{i}", 4, "L4", topology=(f"l{i}", "", "")) for i in range(2)),
]
BARE = [
    node(f"c{i}", 0, "", cpu_milli=8_000, memory_mib=16_000, topology=(f"l{i}", "", ""))
    for i in range(3)
]


class History:
    """One scheduler with all jobs, one that tries every job anew, and for each sort of job one with
    no others."""

    def __init__(
        self,
        seed: int,
        queueing: QueueingPolicy,
        kinds: tuple[PreemptionKind, ...],
        allowed: CpuJobs = CpuJobs.NEVER,
    ):
        self.rng = random.Random(seed)
        self.all = SchedulerState()
        self.apart = allowed is CpuJobs.NEVER
        self.alone = {sort: SchedulerState() for sort in "gc" if self.apart}
        self.anew = SchedulerState(memo=Memo.off())
        self.pending: list[d.Delta] = [d.NodeChanged(each) for each in NODES + BARE]
        quotas = [QuotaSpec(t, m, 8_000) for t, m in product("ab", ("H100", "L4"))]
        self.pending.append(d.TenantsChanged((TenantSpec("a"), TenantSpec("b")), tuple(quotas)))
        policy = Policy(
            queueing,
            backfill_after_s=40,
            preemption=kinds,
            min_runtime_s=5,
            cpu_jobs_on_gpu_nodes=allowed,
        )
        fair = self.rng.random() < 0.5
        if fair:  # GPU use of a tenant then orders its other jobs, too
            self.alone.pop("c", None)
        self.pending.append(d.PolicyChanged(replace(policy, fair_share=fair, fair_users=fair)))
        self.now = 0.0
        self.made = 0

    def submit(self) -> None:
        rng, sort = self.rng, self.rng.choice("gc")
        words = [f"p{rng.choice((0, 0, 5))}", f"user={rng.choice('xy')}"]
        words += ["pods"] if (pods := rng.random() < 0.3) else []
        words += ["min=1"] if not pods and rng.random() < 0.3 else []
        words += [f"s={rng.choice((20, 100))}"] if rng.random() < 0.6 else []
        asks = rng.choice(ASKS)
        if sort == "c":
            asks = rng.choice(("1x0 *", "1x0 *", "3x0 *", "1x0+2x0 *"))
            words += [f"cpu_milli={rng.choice((1_000, 3_000, 8_000, 9_000))}"]
            words += ["required_level=leaf"] if rng.random() < 0.1 else []
        self.made += 1
        request = job(f"{sort}{self.made}", rng.choice("ab"), asks, *words, at=self.now)
        self.pending.append(d.JobSubmitted(request))

    def act(self) -> None:
        rng = self.rng
        running = sorted(set(self.all.running) - set(self.all.promised))
        if running and rng.random() < 0.3:
            self.pending.append(d.JobEnded(rng.choice(running)))
        elif running and rng.random() < 0.1:
            self.pending.append(d.JobRequeued(rng.choice(running), self.now + 10))
        elif rng.random() < 0.1:
            bare = rng.choice(BARE)
            news = (d.NodeChanged(bare), d.NodeChanged(replace(bare, schedulable=False)))
            self.pending.append(rng.choice((*news, d.NodeRemoved(bare.name))))
        else:
            self.submit()

    def cycle(self) -> None:
        self.now += self.rng.choice((1.0, 5.0, 30.0))
        result = run_cycle(self.all, self.pending, self.now)
        assert run_cycle(self.anew, self.pending, self.now).started == result.started
        for sort, state in self.alone.items():
            mine = [delta for delta in self.pending if of(delta) in ("", sort)]
            alone = run_cycle(state, mine, self.now)
            assert [s for s in result.started if s.job_id[0] == sort] == list(alone.started)
            assert [p for p in result.preempted if p.job_id[0] == sort] == list(alone.preempted)
            # An overdue job may end at any moment, so each event recomputes when and where.
            assert reserved(self.all, sort) == reserved(state, sort)
            for name, record in state.jobs.items():
                told, verdict = self.all.jobs[name].verdict, record.verdict
                assert (told is None) == (verdict is None), name
                if told is not None and verdict is not None:
                    assert told.will_never_run == verdict.will_never_run, name
        self.pending = [
            d.JobRequeued(v.job_id, self.now)
            if v.whole
            else d.PodRequeued(v.job_id, *pod, self.now)
            for v in result.preempted
            for pod in (v.pods[:1] if v.whole else v.pods)
        ]

    def check(self) -> None:
        cluster = self.all.cluster
        assert all(cluster.cpu[slot] >= 0 for slot in range(len(cluster.names)))
        for name, record in self.all.jobs.items():
            on = {p.node[0] for p in cluster.placements_of(name)}
            if self.apart or not record.job.without_gpus:
                assert on <= ({"c"} if record.job.without_gpus else {"g", "s"})


def reserved(state: SchedulerState, sort: str) -> set[str]:
    """Return the heads of a sort that have a reservation."""
    return {name for name in state.reserving if name[0] == sort}


def of(delta: d.Delta) -> str:
    """Return the sort of the job concerned; "" if there is none."""
    request = getattr(delta, "job", None)
    return (request.id if request is not None else getattr(delta, "job_id", ""))[:1]


@pytest.mark.parametrize("seed", seeds(4))
@pytest.mark.parametrize(("queueing", "kinds"), ORDERS)
def test_neither_sort_of_job_is_in_the_way_of_the_other(queueing, kinds, seed):
    world = History(seed, queueing, kinds)
    started = 0
    for _ in range(STEPS):
        world.act()
        if world.rng.random() < 0.6:
            world.cycle()
            world.check()
            started += sum(name[0] == "c" for name in world.all.running)
    assert started


@pytest.mark.parametrize("seed", seeds(4))
@pytest.mark.parametrize("queueing", QueueingPolicy)
def test_where_they_may_be_anywhere_each_starts_in_the_end(queueing, seed):
    world = History(seed, queueing, (), CpuJobs.FREELY)
    # Little CPU beside the GPUs, so that many jobs wait.
    world.pending += [d.NodeChanged(replace(each, cpu_milli=3_000)) for each in NODES]
    for _ in range(STEPS):
        world.act()
        if world.rng.random() < 0.6:
            world.cycle()
            world.check()
    world.pending += [d.NodeChanged(bare) for bare in BARE]
    for _ in range(STEPS):
        world.cycle()
        assert not any(
            r.verdict and r.verdict.reason is Reason.PENDING_EVALUATION for r in waiting(world)
        )
        world.pending += [d.JobEnded(name) for name in sorted(world.all.running)]
    assert not [r.job.id for r in waiting(world) if not (r.verdict and r.verdict.will_never_run)]


def waiting(world: History) -> list[JobRecord]:
    """Return the waiting jobs without GPUs."""
    records = world.all.jobs.items()
    return [r for name, r in records if name[0] == "c" and name not in world.all.running]
