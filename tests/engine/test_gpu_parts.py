"""Nodes with many GPU slices: Kant gives out every slice, never twice, takes them back, and knows
them by name."""

from dataclasses import replace

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.placement.strategies.by_name import STRATEGIES
from scheduling.engine.types import (
    Device,
    JobKind,
    JobRequest,
    Node,
    PodSetSpec,
    Policy,
    QuotaSpec,
    TenantSpec,
)
from scheduling.engine.verdict import Reason

H100, SLICE, BY_NAME = "H100", "H100-MIG-1g.10gb", "nvidia.com/mig-1g.10gb"


def node(name, devices, model=SLICE, **facts):
    return Node(
        name,
        model,
        tuple(Device(i, numa=2 * i // devices, memory_mib=9984) for i in range(devices)),
        **{"cpu_milli": 192_000, "memory_mib": 2_000_000, "max_pods": 256, **facts},
    )


def job(name, count=1, gpus=1, models=(SLICE,), **fields):
    return JobRequest(name, "t", 0.0, (PodSetSpec("pods", count, gpus, models, **fields),))


def cycle(state, *news, now=0.0):
    return run_cycle(state, list(news), now)


def held(result):
    return sorted(
        (p.node, device) for s in result.started for p in s.placements for device in p.devices
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("devices", [56, 112, 256])
def test_every_slice_of_a_node_is_given_out_once_and_given_back(strategy, devices):
    state = SchedulerState()
    tenancy = d.TenantsChanged((TenantSpec("t"),), (QuotaSpec("t", SLICE, 10**9),))
    policy = d.PolicyChanged(Policy(strategies={JobKind.TRAINING: strategy}))
    nodes = [d.NodeChanged(node(name, devices, gives_shares=False)) for name in ("n0", "n1")]
    every = [(name, device) for name in ("n0", "n1") for device in range(devices)]
    jobs = [d.JobSubmitted(job("ones", devices)), d.JobSubmitted(job("twos", devices // 2, 2))]
    first = cycle(state, tenancy, policy, *nodes, *jobs)
    assert held(first) == every
    assert state.cluster.allocated_milli(SLICE) == 2 * devices * 1000
    full = cycle(state, d.JobSubmitted(job("late")), now=1.0)
    assert [w.job_id for w in full.waiting] == ["late"]
    # First an unnamed slice fails, then a named one, whose pod must go.
    bad = node("n0", devices, gives_shares=False, unnamed_unhealthy=1)
    assert cycle(state, d.NodeChanged(bad), now=2.0).lost == ()
    devices_now = (*bad.devices[:-1], replace(bad.devices[-1], healthy=False))
    named = cycle(state, d.NodeChanged(replace(bad, devices=devices_now)), now=3.0)
    assert len(named.lost) == 1
    gone = [d.JobEnded(name, succeeded=True) for name in ("ones", "twos")]
    again = cycle(state, *gone, *nodes, now=4.0)
    assert [s.job_id for s in again.started] == ["late"]
    assert state.cluster.allocated_milli(SLICE) == 1000


def test_no_slice_gives_a_share():
    state = SchedulerState()
    tenancy = d.TenantsChanged((TenantSpec("t"),), (QuotaSpec("t", SLICE, 10**9),))
    share = d.JobSubmitted(job("share", gpu_milli=500))
    found = cycle(state, tenancy, d.NodeChanged(node("n0", 56, gives_shares=False)), share)
    [verdict] = [waiting.verdict for waiting in found.waiting]
    assert verdict.reason is Reason.EXCEEDS_CAPACITY
    assert "a MIG slice or a GPU that is shared already cannot be split" in verdict.summary
    assert verdict.remedies[0] == "ask for a whole one (gpu_milli 1000)"


def test_whole_gpus_are_not_looked_for_among_slices():
    state = SchedulerState()
    quotas = (QuotaSpec("t", H100, 10**9), QuotaSpec("t", SLICE, 10**9))
    tenancy = d.TenantsChanged((TenantSpec("t"),), quotas)
    found = cycle(
        state,
        tenancy,
        d.NodeChanged(node("n0", 56, gives_shares=False)),
        d.NodeChanged(node("n1", 4, H100)),
        d.JobSubmitted(job("whole", 1, 8, (H100,))),
    )
    assert [w.verdict.reason for w in found.waiting] == [Reason.EXCEEDS_CAPACITY]


def test_slices_under_a_name_of_their_own_go_to_jobs_that_hold_a_gpu_and_count_for_no_quota():
    state = SchedulerState()
    tenancy = d.TenantsChanged((TenantSpec("t"),), (QuotaSpec("t", H100, 4000),))
    mixed = node("n0", 4, H100, extended={BY_NAME: 13})
    cut = node("n1", 0, "", extended={BY_NAME: 28}, gpu_parts=True)
    trains = PodSetSpec("trains", 1, 2, (H100,), extended={BY_NAME: 1})
    checks = PodSetSpec("checks", 10, 0, extended={BY_NAME: 2}, cpu_milli=1000)
    both = JobRequest("both", "t", 0.0, (trains, checks))
    news = (tenancy, d.NodeChanged(mixed), d.NodeChanged(cut))
    found = cycle(state, *news, d.JobSubmitted(both))
    placed = [p for s in found.started for p in s.placements]
    assert [p.node for p in placed if p.pod_set == 0] == ["n0"]
    assert {p.node for p in placed if p.pod_set == 1} == {"n1"}
    assert [state.cluster.extended[slot][BY_NAME] for slot in (0, 1)] == [12, 8]
    late = cycle(state, d.JobSubmitted(replace(both, id="late")), now=1.0)
    assert [w.verdict.reason for w in late.waiting] == [Reason.FRAGMENTED_CAPACITY]
    ended = cycle(state, d.JobEnded("both", succeeded=True), now=2.0)
    assert [s.job_id for s in ended.started] == ["late"]
    alone = JobRequest("alone", "t", 0.0, (checks,))
    refused = cycle(state, d.JobSubmitted(alone), now=3.0)
    [verdict] = [w.verdict for w in refused.waiting]
    assert verdict.reason is Reason.EXCEEDS_CAPACITY
    assert verdict.evidence == {"nodes_without_gpus": 0}
