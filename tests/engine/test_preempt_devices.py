"""Preemption for pods whose device needs go beyond counts, checked by trying all victims.

Small clusters whose GPUs are at one of two sockets. A pod needs all of its GPUs at one socket, as a
claim with a constraint does. As in a session, the pod comes with a list of who has to go.
"""

import random
from itertools import combinations

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import (
    FreeableDevices,
    JobRequest,
    PodPlacement,
    PodRules,
    PodSetSpec,
    Policy,
    PreemptionKind,
    QuotaSpec,
    TenantSpec,
)
from tests.cases import seeds
from tests.engine.scenario import node

GPUS, NOW = 4, 1_000.0


def any_running(rng, nodes):
    """Return jobs of one pod, or of two pods on two nodes; some GPUs are free."""
    free = {n: rng.sample(range(GPUS), GPUS) for n in range(nodes)}
    running = []
    while any(free.values()):
        size = 2 if rng.random() < 0.25 and nodes > 1 else 1
        gpus = rng.choice((1, 1, 2))
        where = rng.sample(range(nodes), size)
        for n in where:
            if len(free[n]) < gpus:
                free[n].clear()
        if any(not free[n] for n in where):
            continue
        mine = [tuple(sorted(free[n].pop() for _ in range(gpus))) for n in where]
        places = tuple(
            PodPlacement(0, i, f"n{n}", gpus_of, 1000)
            for i, (n, gpus_of) in enumerate(zip(where, mine, strict=True))
        )
        pods = (PodSetSpec("pods", size, gpus, ("H100",)),)
        stays = rng.random() < 0.2
        job = JobRequest(f"r{len(running)}", "a", 0.0, pods, preempts=False, preemptible=not stays)
        running.append((job, places, float(rng.randrange(900))))
    return running


def room(running, sockets, name, gpus):
    """Return how many pods with this many GPUs at one socket the node holds beside these jobs."""
    taken = {g for _, places, _ in running for p in places if p.node == name for g in p.devices}
    left = [g for g in range(GPUS) if g not in taken]
    return sum(sum(sockets[name, g] == socket for g in left) // gpus for socket in (0, 1))


def freeable(running, sockets, name, gpus, count):
    here = [one for one in running if any(p.node == name for p in one[1]) and one[0].preemptible]
    fixed = [one for one in running if not one[0].preemptible]
    steps = []
    for pods in range(1, count + 1):
        found = []
        for size in range(len(here) + 1):
            for gone in combinations(range(len(here)), size):
                stay = [one for n, one in enumerate(here) if n not in gone]
                smaller = any(set(known) <= set(gone) for known in found)
                if not smaller and room(fixed + stay, sockets, name, gpus) >= pods:
                    found.append(gone)
        if not found:
            break
        steps.append(
            tuple(tuple(key for n in gone for key in keys(here[n], name)) for gone in found)
        )
    return FreeableDevices(name, tuple(steps))


def keys(one, name):
    job, places, _ = one
    return [(job.id, p.pod_set, p.ordinal) for p in places if p.node == name]


def least(running, sockets, nodes, gpus, count):
    """Return the least loss in GPU-seconds; None if no victims help."""
    best = None
    for size in range(len(running) + 1):
        for gone in combinations([one for one in running if one[0].preemptible], size):
            stay = [one for one in running if one not in gone]
            if sum(room(stay, sockets, f"n{n}", gpus) for n in range(nodes)) >= count:
                cost = sum(job.gpu_milli / 1000 * (NOW - at) for job, _, at in gone)
                best = cost if best is None else min(best, cost)
    return best


@pytest.mark.parametrize("count", [1, 2, 3])
def test_victims_free_the_devices_at_the_least_cost(count):
    kinds = set()
    for seed in seeds(60, usual=40):
        rng = random.Random(f"{count} {seed}")
        nodes, gpus = rng.choice((1, 2, 3)), rng.choice((1, 2, 2))
        names = [f"n{n}" for n in range(nodes)]
        sockets = {(name, g): rng.choice((0, 1)) for name in names for g in range(GPUS)}
        running = any_running(rng, nodes)
        devices = tuple(freeable(running, sockets, name, gpus, count) for name in names)
        facts = [d.NodeChanged(node(name, GPUS)) for name in names]
        facts.append(d.TenantsChanged((TenantSpec("a"),), (QuotaSpec("a", "H100", 10**9),)))
        facts += [d.JobRestored(job, places, at) for job, places, at in running]
        rules = PodRules(devices=devices)
        asked = PodSetSpec("pods", count, gpus, ("H100",), rules=rules)
        facts.append(d.JobSubmitted(JobRequest("by", "a", NOW, (asked,), priority=5)))
        policy = Policy(preemption=(PreemptionKind.PRIORITY,), min_runtime_s=0.0)
        state = SchedulerState(policy=policy)
        result = run_cycle(state, facts, NOW)
        best = least(running, sockets, nodes, gpus, count)
        cost = sum(victim.cost_gpu_s for victim in result.preempted)
        if best is None:
            assert not result.started, seed
            assert not result.preempted, seed
            kinds.add("never")
        elif best == 0:
            assert result.started, seed
            assert not result.preempted
            kinds.add("now")
        else:
            assert not result.started, seed
            assert cost == pytest.approx(best), seed
            kinds.add("victims")
    assert "victims" in kinds
