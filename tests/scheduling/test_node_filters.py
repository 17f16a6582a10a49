"""Count the nodes that cannot take a pod, by the first obstacle."""

from dataclasses import replace

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import (
    NO_GPUS,
    NodeRules,
    PodSetSpec,
    Policy,
    QuotaSpec,
    Taint,
    TenantSpec,
)
from scheduling.session.pods.filters import TOLD, nodes_by_filter
from tests.engine.scenario import job, node

TEAM = Taint("team", "x", "NoSchedule")
NODES = (
    ("n0", "H100", 8, {"zone": "mars"}, ()),
    ("n1", "H100", 8, {"zone": "mars"}, ()),
    ("n2", "H100", 8, {"zone": "mars"}, (TEAM,)),
    ("n3", "L4", 4, {"zone": "mars"}, ()),
    ("n4", "H100", 8, {"zone": "a"}, ()),
    ("c0", "", 0, {"zone": "mars"}, ()),
)


@pytest.fixture
def cluster():
    state = SchedulerState(policy=Policy())
    come = [
        d.NodeChanged(node(name, gpus, model, labels=labels, taints=taints))
        for name, model, gpus, labels, taints in NODES
    ]
    closed = node("n5", 8, "H100", labels={"zone": "mars"})
    come.append(d.NodeChanged(replace(closed, schedulable=False)))
    quota = QuotaSpec("a", "H100", 64_000)
    run_cycle(state, [d.TenantsChanged((TenantSpec("a"),), (quota,)), *come], 0.0)
    run_cycle(state, [d.JobSubmitted(job("runs", "a", "1x6 H100", at=1.0))], 1.0)
    return state.cluster


def test_each_node_counts_once_where_it_is_filtered_first(cluster):
    asked = PodSetSpec("w", 1, 8, ("H100",), nodes=NodeRules({"zone": "mars"}))
    text = nodes_by_filter(cluster, asked)
    assert text.startswith("1/7 nodes can take it: 2 no H100, ")
    parts = set(text.partition(": ")[2].split(", "))
    assert parts == {
        "2 no H100",
        "1 too few free GPUs",
        "1 untolerated taint team",
        "1 no label zone=mars",
        "1 out of service",
    }


def test_what_is_beside_the_gpus_counts_too(cluster):
    asked = PodSetSpec("w", 1, 1, ("H100",), cpu_milli=10**9)
    assert "too little CPU, memory or others" in nodes_by_filter(cluster, asked)


def test_pods_without_gpus_may_be_kept_from_nodes_that_have_some(cluster):
    asked = PodSetSpec("w", 1, 0, (NO_GPUS,))
    assert "4 kept for GPUs" in nodes_by_filter(cluster, asked)


def test_a_text_names_only_so_many_filters(cluster):
    asked = PodSetSpec("w", 1, 8, ("H100",), nodes=NodeRules({"zone": "mars"}))
    many = [
        replace(cluster.facts[0], name=f"x{n}", taints=(Taint(f"t{n}", "", "NoSchedule"),))
        for n in range(9)
    ]
    for one in many:
        cluster.upsert_node(one)
    text = nodes_by_filter(cluster, asked)
    assert len(text.partition(": ")[2].split(", ")) == TOLD + 1
    assert text.endswith(" other reasons")
