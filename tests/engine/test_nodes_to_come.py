"""Nodes that an autoscaler may add: a job that needs them waits with a reason of its own, once
quota and the jobs ahead allow a start, and blocks nobody."""

from dataclasses import replace

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.types import Taint
from scheduling.engine.verdict import Reason
from tests.engine.scenario import job, node, play

POLICIES = (
    "strict-fifo",
    "best-effort-fifo",
    "backfill, backfill_after_s=5",
    "strict-fifo, preemption=priority,reclaim",
    "backfill, backfill_after_s=5, fair_share=yes",
)


def to_come(count, gpus=8, model="B200", **facts):
    example = node("x", gpus, model, schedulable=False, to_come=True, **facts)
    example = replace(example, out_of_service="not there yet")
    return [d.NodeChanged(replace(example, name=f"big/{n}")) for n in range(1, count + 1)]


def cluster(policy, come):
    world = play(f"""
        nodes  H100: 8 8
        quota  a H100 640 isolated | b H100 640 isolated | a B200 64 isolated | b B200 64 isolated
        policy {policy}
        at 0
    """)
    world.pending += come
    world.cycle(0.5)
    return world


def told(world, name, asks, *words, at, tenant="a"):
    world.pending.append(d.JobSubmitted(job(name, tenant, asks, *words, at=at)))
    result = world.cycle(at)
    started = [s.job_id for s in result.started]
    assert not result.preempted
    return world.state.jobs[name].verdict if name not in started else None


@pytest.mark.parametrize("policy", POLICIES)
def test_a_model_without_nodes_is_waited_for_by_nobody_else(policy):
    world = cluster(policy, to_come(4))
    verdict = told(world, "head", "4x8 B200", "p5", at=1.0)
    assert verdict.reason is Reason.WAITING_FOR_NODES
    assert not verdict.will_never_run
    assert "the cluster may get 4 of big. Other jobs do not wait for it." in verdict.summary
    assert verdict.evidence["nodes_to_come"] == 4
    assert told(world, "small", "1x8 H100", at=2.0) is None
    # Three of four nodes are there: a job that needs one gets it, though the head came first.
    for n in range(1, 4):
        world.pending.append(d.NodeRemoved(f"big/{n}"))
        world.pending.append(d.NodeChanged(node(f"n{n}", 8, "B200")))
    assert told(world, "one", "1x8 B200", at=3.0, tenant="b") is None
    assert world.state.jobs["head"].verdict.reason is Reason.WAITING_FOR_NODES
    world.pending += [d.JobEnded("one"), d.NodeRemoved("big/4")]
    world.pending.append(d.NodeChanged(node("n4", 8, "B200")))
    assert [s.job_id for s in world.cycle(4.0).started] == ["head"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pod_larger_than_any_node_waits_for_a_larger_one(policy):
    world = cluster(policy, to_come(1, gpus=16, model="H100"))
    assert told(world, "wide", "1x16 H100", at=1.0).reason is Reason.WAITING_FOR_NODES
    assert told(world, "wider", "1x17 H100", at=2.0).reason is Reason.EXCEEDS_CAPACITY
    assert told(world, "small", "2x8 H100", at=3.0) is None
    assert told(world, "more", "1x1 H100", at=4.0).reason is not Reason.WAITING_FOR_NODES


def test_who_does_not_fit_all_that_may_come_is_told_so():
    world = cluster("backfill", to_come(2, taints=(Taint("team", "x"),), labels={"disk": "ssd"}))
    assert told(world, "tainted", "1x8 B200", at=1.0).reason is Reason.EXCEEDS_CAPACITY
    many = told(world, "many", "3x8 B200", at=2.0)
    assert many.reason is Reason.EXCEEDS_CAPACITY
    assert told(world, "none", "1x8 L4", at=3.0).reason is Reason.NO_MATCHING_GPU_TYPE


def test_quota_and_limits_go_before_nodes():
    world = cluster("backfill", to_come(16))
    assert told(world, "all", "8x8 B200", at=1.0).reason is Reason.WAITING_FOR_NODES
    for n in range(1, 9):
        world.pending += [d.NodeRemoved(f"big/{n + 8}")]
        world.pending.append(d.NodeChanged(node(f"n{n}", 8, "B200")))
    assert [s.job_id for s in world.cycle(2.0).started] == ["all"]
    waits = told(world, "more", "1x8 B200", at=3.0)
    assert waits.reason is Reason.WAITING_FOR_QUOTA
    assert told(world, "other", "1x8 B200", at=4.0, tenant="b").reason is Reason.INSUFFICIENT_GPUS
