"""Preemption for pods whose rules name other pods: the preemptor starts in the room made for it."""

import random

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.placement.pod_rules import Around, may_be
from scheduling.engine.types import (
    Apart,
    HostPort,
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
from tests.engine.test_pod_rules import HOST, ZONE, any_rules

GPUS, NOW = 4, 1_000.0


def asked(name, rules, gpus, count=1, **more):
    pods = (PodSetSpec("pods", count, gpus, ("H100",), rules=rules),)
    return JobRequest(name, "a", more.pop("at", 0.0), pods, **more)


def facts_of(nodes, running):
    facts = [
        d.NodeChanged(node(f"n{n}", GPUS, labels={HOST: f"n{n}", ZONE: f"z{n % 2}"}))
        for n in range(nodes)
    ]
    facts.append(d.TenantsChanged((TenantSpec("a"),), (QuotaSpec("a", "H100", 10**9),)))
    return facts + [d.JobRestored(job, places, at) for job, places, at in running]


def decided(nodes, running, job):
    policy = Policy(preemption=(PreemptionKind.PRIORITY,), min_runtime_s=0.0)
    state = SchedulerState(policy=policy)
    result = run_cycle(state, [*facts_of(nodes, running), d.JobSubmitted(job)], NOW)
    return state, result


def starts_in_the_room(state, result, name):
    """Whether the job, and no other, starts once all pods of its victims are gone."""
    over = [d.JobEnded(victim.job_id) for victim in result.preempted]
    later = run_cycle(state, over, NOW + 1)
    return [one.job_id for one in later.started] == [name]


def test_who_may_not_be_beside_a_victim_has_no_use_for_another():
    """One node runs A, which the job must avoid, and B. Only the end of A lets the job start."""
    near = asked("A", PodRules(("x",)), 1)
    other = asked("B", None, 2)
    running = [
        (near, (PodPlacement(0, 0, "n0", (0,), 1000),), 0.0),
        (other, (PodPlacement(0, 0, "n0", (1, 2), 1000),), 0.0),
    ]
    job = asked("by", PodRules(apart=(Apart("x", HOST),)), 3, at=NOW, priority=5)
    state, result = decided(1, running, job)
    assert {victim.job_id for victim in result.preempted} == {"A", "B"}
    assert starts_in_the_room(state, result, "by")


def test_a_host_port_is_kept_free_of_who_returns():
    port = PodRules(ports=(HostPort(80, "TCP", ""),))
    running = [
        (asked("A", port, 1), (PodPlacement(0, 0, "n0", (0,), 1000),), 0.0),
        (asked("B", None, 3), (PodPlacement(0, 0, "n0", (1, 2, 3), 1000),), 0.0),
    ]
    state, result = decided(1, running, asked("by", port, 2, at=NOW, priority=5))
    assert {victim.job_id for victim in result.preempted} == {"A", "B"}
    assert starts_in_the_room(state, result, "by")


def any_running(rng, nodes):
    """Return jobs that may be beside each other under all rules."""
    cluster = ClusterState()
    for fact in facts_of(nodes, ()):
        if isinstance(fact, d.NodeChanged):
            cluster.upsert_node(fact.node)
    running = []
    for n in range(nodes * 4):
        slot, gpus = rng.randrange(nodes), rng.choice((1, 1, 2))
        free = [g for g in range(GPUS) if cluster.free_mask[slot] >> g & 1]
        rules = any_rules(rng) if rng.random() < 0.7 else None
        job = asked(f"r{n}", rules, gpus, preempts=False)
        if len(free) < gpus or not may_be(Around(cluster, []), job.pod_sets[0])[slot]:
            continue
        place = PodPlacement(0, 0, f"n{slot}", tuple(free[:gpus]), 1000)
        cluster.book(job, place)
        running.append((job, (place,), float(rng.randrange(900))))
    return running


@pytest.mark.parametrize("seed", seeds(600, usual=120))
def test_who_was_made_room_for_starts_in_it(seed):
    rng = random.Random(seed)
    nodes = rng.choice((1, 2, 3))
    running = any_running(rng, nodes)
    count = rng.choice((1, 1, 2))
    job = asked("by", any_rules(rng), rng.choice((1, 2, 3)), count, at=NOW, priority=5)
    state, result = decided(nodes, running, job)
    if result.preempted:
        assert starts_in_the_room(state, result, "by")
