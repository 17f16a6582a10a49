"""Preemption against an exact solver: cost of Kant's victims ÷ the least possible, by milp."""

import random
from statistics import median

import numpy as np
import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import (
    JobRequest,
    PodPlacement,
    PodSet,
    Policy,
    PreemptionKind,
    Quota,
    Tenant,
)
from tests.engine.scenario import node

scipy = pytest.importorskip("scipy.optimize", reason="install requirements-dev.txt")

GPUS, NOW = 8, 1_000.0


def random_cluster(
    rng: random.Random, nodes: int
) -> list[tuple[JobRequest, list[PodPlacement], float]]:
    """Running jobs on full nodes: gangs of whole nodes, and pods of 1, 2 or 4 GPUs."""
    order = list(range(nodes))
    rng.shuffle(order)
    running = []
    while order:
        if rng.random() < 0.4 and len(order) > 1:
            size = min(len(order), rng.choice((2, 2, 3, 4)))
            mine = [order.pop() for _ in range(size)]
            pods = (PodSet("pods", size, GPUS, ("H100",)),)
            places = [
                PodPlacement(0, i, f"n{n}", tuple(range(GPUS)), 1000) for i, n in enumerate(mine)
            ]
            running.append((pods, places))
            continue
        n, at = order.pop(), 0
        while at < GPUS:
            gpus = rng.choice([g for g in (1, 2, 4, 8) if at + g <= GPUS])
            pods = (PodSet("pods", 1, gpus, ("H100",)),)
            running.append((pods, [PodPlacement(0, 0, f"n{n}", tuple(range(at, at + gpus)), 1000)]))
            at += gpus
    return [
        (JobRequest(f"r{i}", "a", 0.0, pods), places, float(rng.randrange(0, 900)))
        for i, (pods, places) in enumerate(running)
    ]


def least_cost(running: list, nodes: int, pods: int, gpus: int) -> float:
    """Exact: choose victims x (whole jobs) and pods y of each node, the cheapest that fit."""
    jobs, cost = len(running), [job.gpu_milli / 1000 * (NOW - at) for job, _, at in running]
    rows = np.zeros((nodes + 1, jobs + nodes))
    for j, (_, places, _) in enumerate(running):
        for p in places:
            rows[int(p.node[1:]), j] += len(p.devices)
    for n in range(nodes):
        rows[n, jobs + n] = -gpus
    rows[nodes, jobs:] = 1
    lower = np.array([0.0] * nodes + [pods])
    done = scipy.milp(
        np.array(cost + [0.0] * nodes),
        constraints=scipy.LinearConstraint(rows, lower, np.inf),
        integrality=np.ones(jobs + nodes),
        bounds=scipy.Bounds(0, np.array([1] * jobs + [GPUS // gpus] * nodes)),
    )
    assert done.success
    return float(done.fun)


def test_victims_cost_hardly_more_than_the_least_possible() -> None:
    ratios = []
    for seed in range(60):
        rng = random.Random(seed)
        nodes = rng.choice((6, 10, 16))
        running = random_cluster(rng, nodes)
        gpus = rng.choice((2, 4, 8, 8))
        pods = rng.randint(1, max(1, nodes // 3))
        policy = Policy(preemption=(PreemptionKind.PRIORITY,), min_runtime_s=0.0)
        state = SchedulerState(policy=policy)
        facts: list[d.Delta] = [d.NodeChanged(node(f"n{i}", GPUS)) for i in range(nodes)]
        facts.append(d.TenantsChanged((Tenant("a"),), (Quota("a", "H100", 10**9),)))
        facts += [d.JobRestored(job, tuple(places), at) for job, places, at in running]
        asked = PodSet("pods", pods, gpus, ("H100",))
        facts.append(d.JobSubmitted(JobRequest("by", "a", NOW, (asked,), priority=5)))
        result = run_cycle(state, facts, NOW)
        cost = sum(victim.cost_gpu_s for victim in result.preempted)
        assert result.preempted
        best = least_cost(running, nodes, pods, gpus)
        assert cost >= best * (1 - 1e-9), f"seed {seed}: better than the optimum is a mistake"
        ratios.append(cost / best if best else 1.0)
    print(f"cost over optimum: median {median(ratios):.3f}, max {max(ratios):.3f}")
    assert median(ratios) == pytest.approx(1.0)
    assert max(ratios) <= 1.05
