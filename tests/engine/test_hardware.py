"""What nodes can give although part of it is only guessed: unnamed faults, shares, NICs."""

from dataclasses import replace

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.columns import extended_of
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import (
    Device,
    JobRequest,
    Nic,
    Node,
    NodeRules,
    PodPlacement,
    PodSetSpec,
    QuotaSpec,
    TenantSpec,
)
from scheduling.engine.verdict import Reason

TENANCY = d.TenantsChanged((TenantSpec("t"),), (QuotaSpec("t", "H100", 10**9),))
NODE = Node(
    "n0",
    "H100",
    tuple(Device(i, memory_mib=80_000) for i in range(8)),
    cpu_milli=64_000,
    memory_mib=512_000,
)
RAILS = replace(
    NODE,
    nics=tuple(Nic(i, numa=i // 4, resource="rdma/a" if i < 4 else "rdma/b") for i in range(8)),
    extended={"rdma/a": 4, "rdma/b": 4},
)


def job(name, gpus=1, count=1, **fields):
    return JobRequest(name, "t", 0.0, (PodSetSpec("pods", count, gpus, ("H100",), **fields),))


def cycle(state, *news, now=0.0):
    return run_cycle(state, list(news), now)


def started(result):
    return [start.job_id for start in result.started]


# --- faults that nothing names --------------------------------------------------------------------
@pytest.mark.parametrize("held", [8, 7])
def test_a_fault_without_a_name_costs_room_and_nobody_its_place(held):
    state = SchedulerState()
    first = cycle(state, TENANCY, d.NodeChanged(NODE), d.JobSubmitted(job("runs", held)))
    assert started(first) == ["runs"]
    after = cycle(state, d.NodeChanged(replace(NODE, unnamed_unhealthy=1)), now=1.0)
    assert after.lost == ()
    assert state.cluster.free[0] == 0
    # A GPU in use evidently works, so only an unused GPU is out of service.
    assert state.cluster.available_milli("H100") == (8000 if held == 8 else 7000)
    assert state.cluster.allocated_milli("H100") == held * 1000
    waits = cycle(state, d.JobSubmitted(job("next", 1)), now=2.0)
    assert [w.verdict.reason for w in waits.waiting] == [Reason.INSUFFICIENT_GPUS]
    freed = cycle(state, d.JobEnded("runs", succeeded=True), now=3.0)
    assert started(freed) == ["next"]
    assert (state.cluster.free[0], state.cluster.available_milli("H100")) == (6, 7000)
    well = cycle(state, d.NodeChanged(NODE), d.JobSubmitted(job("last", 7)), now=4.0)
    assert started(well) == ["last"]


def test_a_fault_with_a_name_still_costs_its_job_the_place():
    state = SchedulerState()
    cycle(state, TENANCY, d.NodeChanged(NODE), d.JobSubmitted(job("runs", 8)))
    bad = tuple(replace(each, healthy=each.index != 7) for each in NODE.devices)
    after = cycle(state, d.NodeChanged(replace(NODE, devices=bad)), now=1.0)
    assert after.lost == (("runs", 0, 0),)


def test_pods_of_others_and_faults_without_a_name_add_up():
    state = ClusterState()
    state.upsert_node(replace(NODE, unnamed_unhealthy=2))
    state.upsert_other_pod("u", "n0", 5, 0, 0, {})
    assert (state.free[0], state.allocated_milli("H100")) == (1, 5000)
    state.upsert_other_pod("v", "n0", 2, 0, 0, {})
    assert (state.free[0], state.allocated_milli("H100")) == (0, 7000)
    assert state.available_milli("H100") == 7000
    state.remove_other_pod("u")
    assert (state.free[0], state.available_milli("H100")) == (4, 6000)


# --- shares ---------------------------------------------------------------------------------------
SHARES = [{"gpu_milli": 500}, {"gpu_memory_mib": 20_000}]


@pytest.mark.parametrize("fields", SHARES, ids=["by milli", "by memory"])
def test_shares_go_only_where_the_node_gives_them(fields):
    state = SchedulerState()
    whole = replace(NODE, gives_shares=False)
    found = cycle(
        state,
        TENANCY,
        d.NodeChanged(whole),
        d.NodeChanged(replace(NODE, name="n1")),
        d.JobSubmitted(job("shares", count=4, **fields)),
        d.JobSubmitted(job("whole", 8)),
    )
    assert {p.node for s in found.started for p in s.placements if s.job_id == "shares"} == {"n1"}
    assert {p.node for s in found.started for p in s.placements if s.job_id == "whole"} == {"n0"}


@pytest.mark.parametrize("fields", SHARES, ids=["by milli", "by memory"])
def test_where_no_node_gives_shares_the_reason_says_what_would(fields):
    state = SchedulerState()
    none = d.NodeChanged(replace(NODE, gives_shares=False))
    found = cycle(state, TENANCY, none, d.JobSubmitted(job("shares", **fields)))
    [verdict] = [waiting.verdict for waiting in found.waiting]
    assert verdict.reason is Reason.EXCEEDS_CAPACITY
    assert "no node with such GPUs can share one" in verdict.summary
    assert "kant.io/gpu-milli" in verdict.summary
    assert verdict.remedies[0] == "ask for whole GPUs"
    # The device plugin was replaced.
    assert started(cycle(state, d.NodeChanged(NODE), now=1.0)) == ["shares"]
    # A further cycle leaves placed pods alone.
    after = cycle(state, none, now=2.0)
    assert (after.lost, after.preempted) == ((), ())


def test_a_selector_that_leaves_only_nodes_without_shares_is_told_so():
    state = SchedulerState()
    found = cycle(
        state,
        TENANCY,
        d.NodeChanged(replace(NODE, gives_shares=False, labels={"disk": "ssd"})),
        d.NodeChanged(replace(NODE, name="n1")),
        d.JobSubmitted(job("shares", gpu_milli=500, nodes=NodeRules({"disk": "ssd"}))),
    )
    [verdict] = [waiting.verdict for waiting in found.waiting]
    assert verdict.reason is Reason.EXCEEDS_CAPACITY
    assert "ask for whole GPUs; nodes without shares have them, too" in verdict.remedies
    assert "relax the node selector" in verdict.remedies


# --- NICs that are a resource ---------------------------------------------------------------------
def test_a_pod_asks_for_the_resources_of_the_nics_that_it_got():
    place = PodPlacement(0, 0, "n0", (0, 4), 1000, (0, 4, 5))
    spec = PodSetSpec("pods", 1, 2, nics=3, extended={"rdma/b": 1, "x.io/thing": 1})
    # The pod's own request for the resource is already covered by its NICs.
    assert extended_of(RAILS, place, spec) == {"rdma/a": 1, "rdma/b": 2, "x.io/thing": 1}
    more = replace(spec, extended={"rdma/b": 3})
    assert extended_of(RAILS, place, more) == {"rdma/a": 1, "rdma/b": 3}
    # Shared NICs add nothing to a pod's requests.
    assert extended_of(RAILS, place, replace(spec, nics=0)) == spec.extended
    bare = replace(RAILS, nics=tuple(replace(nic, resource="") for nic in RAILS.nics))
    assert extended_of(bare, place, spec) == spec.extended


def test_nics_that_pods_of_others_hold_are_not_given_twice():
    state = SchedulerState()
    holder = d.OtherPodChanged("u", "n0", extended={"rdma/a": 3})
    news = (TENANCY, d.NodeChanged(RAILS), holder, d.JobSubmitted(job("four", 4, nics=6)))
    found = cycle(state, *news)
    assert [w.verdict.reason for w in found.waiting] == [Reason.INSUFFICIENT_CPU_OR_MEMORY]
    less = cycle(state, d.JobSubmitted(job("less", 4, nics=5)), now=1.0)
    assert [s.placements[0].nics for s in less.started] == [(0, 4, 5, 6, 7)]
    assert state.cluster.extended[0] == {"rdma/a": 0, "rdma/b": 0}
    # A request for the resource by name counts like any other.
    named = cycle(state, d.JobSubmitted(job("named", extended={"rdma/b": 1})), now=2.0)
    assert started(named) == []
    freed = cycle(state, d.JobEnded("less", succeeded=True), now=3.0)
    assert started(freed) == ["named"]
    assert state.cluster.extended[0] == {"rdma/a": 1, "rdma/b": 3}
