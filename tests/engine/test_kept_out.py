"""A job that no node admits is told which label, affinity or taint blocks it, and on how many
nodes."""

from dataclasses import replace

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import (
    NodeExpression,
    NodeRules,
    Policy,
    QueueingPolicy,
    QuotaSpec,
    Taint,
    TenantSpec,
    Toleration,
)
from scheduling.engine.verdict import Reason
from tests.engine.scenario import job, node

TEAM = Taint("team", "x", "NoSchedule")
AWAY = Taint("node.kubernetes.io/unreachable", "", "NoSchedule")
IN_MARS = ((NodeExpression("zone", "In", ("mars",)),),)


NODES = (
    ("n0", "H100", 8, {"zone": "a"}, (AWAY,)),
    ("n1", "H100", 8, {"zone": "a", "disk": "ssd"}, (TEAM,)),
    ("n2", "H100", 8, {"zone": "b"}, ()),
    ("n3", "L4", 4, {"zone": "mars"}, ()),
    ("c0", "", 0, {"zone": "c"}, ()),
)


def verdict(asks, *words, queueing=QueueingPolicy.STRICT_FIFO, there=NODES, **wishes):
    """Return what a job of these pods is told on an idle cluster; `wishes`: fields of its pod
    sets."""
    state = SchedulerState(policy=Policy(queueing))
    quotas = tuple(QuotaSpec("a", model, 64_000) for model in ("H100", "L4"))
    come = [
        d.NodeChanged(node(name, gpus, model, labels=labels, taints=taints))
        for name, model, gpus, labels, taints in there
    ]
    run_cycle(state, [d.TenantsChanged((TenantSpec("a"),), quotas), *come], 0.0)
    asked = job("new", "a", asks, *words, at=1.0)
    sets = tuple(replace(s, **wishes) for s in asked.pod_sets)
    run_cycle(state, [d.JobSubmitted(replace(asked, pod_sets=sets))], 1.0)
    return state.jobs["new"].verdict


@pytest.mark.parametrize(
    ("wishes", "text", "evidence"),
    [
        (
            {"nodes": NodeRules({"zone": "mars"})},
            "no node may run such pods: no node with such GPUs "
            "has the label zone=mars; zone is a or b there",
            {"missing_label": "zone=mars", "nodes_without_label": 3},
        ),
        (
            {"nodes": NodeRules({"rack": "7"})},
            "no node with such GPUs has the label rack=7; none has a label rack",
            {"missing_label": "rack=7", "nodes_without_label": 3},
        ),
        (
            {"nodes": NodeRules({"disk": "ssd", "zone": "b"})},
            "2 nodes with such GPUs do not have the label disk=ssd; disk is ssd there; 2 nodes "
            "with such GPUs do not have the label zone=b; 1 node with such GPUs has the taint "
            "team=x:NoSchedule, which it does not tolerate",
            {"missing_label": "disk=ssd", "nodes_without_label": 2, "tainted_nodes": 1},
        ),
        (
            {"nodes": NodeRules(node_affinity=IN_MARS)},
            "no node with such GPUs matches the node affinity zone in mars",
            {"unmatched_affinity": "zone in mars", "nodes_unmatched": 3},
        ),
        (
            {"nodes": NodeRules({"disk": "ssd"})},
            "2 nodes with such GPUs do not have the label disk=ssd; disk is ssd there; 1 node with "
            "such GPUs has the taint team=x:NoSchedule, which it does not tolerate",
            {"untolerated_taint": "team=x:NoSchedule", "tainted_nodes": 1},
        ),
    ],
)
@pytest.mark.parametrize("sort", ["gang", "elastic", "pods", "backfill"])
def test_what_keeps_a_job_from_every_node_is_named(wishes, text, evidence, sort):
    words = {"gang": [], "elastic": ["min=1"], "pods": ["pods"], "backfill": []}[sort]
    queueing = QueueingPolicy.BACKFILL if sort == "backfill" else QueueingPolicy.STRICT_FIFO
    told = verdict("2x1 H100", *words, queueing=queueing, **wishes)
    assert told.reason is Reason.EXCEEDS_CAPACITY
    assert text in told.summary
    assert evidence.items() <= told.evidence.items()


def test_labels_of_other_gpu_types_are_no_help():
    told = verdict("1x1 H100", nodes=NodeRules({"zone": "mars"}))
    assert "zone is a or b there" in told.summary
    assert verdict("1x1 L4", nodes=NodeRules({"zone": "mars"})) is None


def test_every_node_may_have_the_taint():
    told = verdict("1x8 H100", nodes=NodeRules({"disk": "ssd"}))
    assert told.remedies == ("relax the node selector", "tolerate the taint team=x:NoSchedule")
    tolerant = NodeRules({"disk": "ssd"}, tolerations=(Toleration("team", "Exists"),))
    assert verdict("1x8 H100", nodes=tolerant) is None


def test_where_too_few_nodes_are_left_it_says_what_keeps_from_the_others():
    told = verdict("2x8 H100", nodes=NodeRules({"zone": "b"}))
    assert (told.reason, told.evidence["possible_pods"]) == (Reason.EXCEEDS_CAPACITY, 1)
    assert (
        "the only node that may run such pods would hold 1 when empty: 2 nodes with such GPUs do "
    )
    assert "do not have the label zone=b" in told.summary


def test_many_values_are_counted():
    there = [(f"n{at}", "H100", 8, {"host": f"h{at}"}, ()) for at in range(6)]
    told = verdict("1x1 H100", there=there, nodes=NodeRules({"host": "h9"}))
    assert "host has 6 values there, h0 and h1 among them" in told.summary


def test_a_job_without_gpus_hears_of_nodes_without_gpus():
    told = verdict("1x0 *", cpu_milli=100, nodes=NodeRules({"zone": "mars"}))
    assert "no node without GPUs has the label zone=mars; zone is c there" in told.summary
