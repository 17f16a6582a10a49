"""What the queueing benches need: a scheduler over a cluster at 90 %, and a mix of waiting jobs."""

import random
from collections.abc import Iterable

from metrics.benches.naive import Fixture
from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import JobRequest, PodSetSpec, Policy, QuotaSpec, TenantSpec

TENANTS = tuple(f"tenant-{i}" for i in range(8))
MODEL = "H800"
HOLDER = "holder"  # of what runs
NOW = 10_000.0
# (GPUs, weight): many small jobs, few large ones, as in the paper's figure of job sizes.
SIZES = ((1, 40), (2, 10), (4, 10), (8, 20), (16, 6), (32, 5), (64, 4), (128, 2), (256, 1.5),
         (512, 0.8), (1024, 0.5), (2048, 0.2))  # fmt: skip


def waiting(count: int, seed: int = 1) -> list[JobRequest]:
    """Return `count` jobs of 1 … 2,048 GPUs from eight tenants, with the same mix of shapes for any
    count."""
    rng = random.Random(seed)
    sizes = rng.choices([s for s, _ in SIZES], [w for _, w in SIZES], k=count)
    return [
        JobRequest(
            f"waiting-{i}",
            TENANTS[i % len(TENANTS)],
            NOW + i,
            (gang_of(gpus),),
            priority=rng.choice((0, 0, 0, 5)),
        )
        for i, gpus in enumerate(sizes)
    ]


def fillers() -> list[JobRequest]:
    """Return more one-GPU jobs than any stage has free GPUs, ordered before all other jobs."""
    return [
        JobRequest(f"filler-{i}", TENANTS[0], 0.0, (gang_of(1),), priority=10)
        for i in range(15_000)
    ]


def gang_of(gpus: int) -> PodSetSpec:
    pods, each = (1, gpus) if gpus < 8 else (gpus // 8, 8)
    return PodSetSpec("pods", pods, each, (MODEL,), cpu_milli=4_000 * each, memory_mib=8_000 * each)


def loaded(
    fixture: Fixture,
    *,
    policy: Policy | None = None,
    jobs: Iterable[JobRequest] = (),
) -> SchedulerState:
    state = SchedulerState(policy=policy)
    names = (*TENANTS, HOLDER)
    all_gpus = 8_000 * len(fixture.naive)
    facts: list[d.Delta] = [d.NodeChanged(node.facts) for node in fixture.naive]
    facts.append(
        d.TenantsChanged(
            tuple(TenantSpec(name) for name in names),
            tuple(QuotaSpec(name, MODEL, all_gpus) for name in names),
        )
    )
    for job in fixture.jobs:
        owned = JobRequest(job.id, HOLDER, 0.0, job.pod_sets)
        facts.append(d.JobRestored(owned, fixture.state.placements_of(job.id), 0.0))
    facts += [d.JobSubmitted(job) for job in jobs]
    run_cycle(state, facts, NOW)
    return state
