"""Jobs whose demands on nodes not even empty nodes could meet: Kant says so at once, and they block
nobody."""

from dataclasses import replace

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.types import NodeExpression, NodeRules, Taint, Toleration
from scheduling.engine.verdict import Reason
from tests.engine.scenario import job, node, play

KEEP_OUT = Taint("team", "x", "NoSchedule")

TOLERATES = (Toleration("team", "Exists"),)
AT_A_OR_B = (NodeExpression("zone", "In", ("a", "b")),)
NOT_N0 = (NodeExpression("metadata.name", "NotIn", ("n0",), of_name=True),)

WISHES = {
    "a selector that no node meets": (
        {"nodes": NodeRules({"zone": "b"}, tolerations=TOLERATES)},
        "no node may run",
        "relax the node selector",
    ),
    "an affinity that no node meets": (
        {"nodes": NodeRules(node_affinity=(AT_A_OR_B,))},
        "no node may run",
        "relax the node affinity",
    ),
    "an affinity that leaves too few nodes": (
        {"nodes": NodeRules(node_affinity=(NOT_N0,))},
        "the 2 nodes that may run",
        "relax the node affinity",
    ),
    "taints that it does not tolerate": (
        {"nodes": NodeRules({"closed": "yes"})},
        "no node may run",
        "tolerate the taint team=x:NoSchedule",
    ),
    "pods per node": (
        {"max_per_node": 1},
        "the 3 nodes that may run",
        "allow more pods in a node or leaf",
    ),
    "pods per leaf": (
        {"max_per_leaf": 1},
        "the 3 nodes that may run",
        "allow more pods in a node or leaf",
    ),
    "a network level": (
        {"required_level": "leaf", "gpus": 6},
        "the 3 nodes that may run",
        "ask for a wider network level than leaf, or for none",
    ),
}


def cluster(policy="strict-fifo"):
    """42 of 48 GPUs are taken; a job of four pods waits, and a job behind it wants the rest."""
    world = play(f"""
        nodes  H100: 8@l0 8@l0 8@l1
        quota  a H100 64
        policy {policy}
        at 0
          + r  a 3x6 H100 max_per_node=1 -> starts
    """)
    taken = (KEEP_OUT,)
    for name in ("n3", "n4", "n5"):
        facts = {"taints": taken, "labels": {"closed": "yes"} if name != "n5" else {}}
        world.pending.append(d.NodeChanged(node(name, 8, **facts)))
    world.cycle(1.0)
    return world


@pytest.mark.parametrize("policy", ["strict-fifo", "backfill, backfill_after_s=5"])
@pytest.mark.parametrize("name", WISHES)
def test_it_is_told_at_once_and_keeps_nobody_waiting(name, policy):
    wishes, text, remedy = WISHES[name]
    world = cluster(policy)
    head = job("head", "a", "4x6 H100", at=2.0)
    sets = (replace(head.pod_sets[0], **wishes),)
    world.pending.append(d.JobSubmitted(replace(head, pod_sets=sets)))
    world.cycle(2.0)
    world.cycle(20.0)
    verdict = world.state.jobs["head"].verdict
    assert verdict.reason is Reason.EXCEEDS_CAPACITY
    assert text in verdict.summary
    assert remedy in verdict.remedies
    world.pending.append(d.JobSubmitted(job("behind", "a", "3x2 H100", at=21.0)))
    assert [start.job_id for start in world.cycle(21.0).started] == ["behind"]


def test_it_is_asked_again_when_the_nodes_change():
    world = cluster()
    head = job("head", "a", "1x8 H100", at=2.0)
    sets = (replace(head.pod_sets[0], nodes=NodeRules({"zone": "b"})),)
    world.pending.append(d.JobSubmitted(replace(head, pod_sets=sets)))
    world.cycle(2.0)
    assert world.state.jobs["head"].verdict.reason is Reason.EXCEEDS_CAPACITY
    world.pending.append(
        d.NodeChanged(node("n0", 8, topology=("l0", "", ""), labels={"zone": "b"}))
    )
    world.cycle(3.0)
    assert not world.state.jobs["head"].verdict.will_never_run
    world.pending.append(d.JobEnded("r"))
    (start,) = world.cycle(4.0).started
    assert start.job_id == "head"


def test_a_node_that_does_not_answer_is_not_gone_for_good():
    world = cluster()
    away = (Taint("node.kubernetes.io/unreachable", "", "NoSchedule"),)
    world.pending.append(d.NodeChanged(node("n0", 8, topology=("l0", "", ""), taints=away)))
    world.pending.append(d.JobSubmitted(job("head", "a", "3x8 H100", "max_per_node=1", at=2.0)))
    world.cycle(2.0)
    assert world.state.jobs["head"].verdict.reason is Reason.INSUFFICIENT_GPUS


@pytest.mark.parametrize(
    ("asked", "wishes", "text"),
    [
        ("3x4 H100", {"gpu_models": ("H100", "L4"), "max_per_node": 1}, "would hold 2 when"),
        ("2x5 H100", {"required_level": "leaf", "slice_size": 2}, "would hold 0 when"),
        ("10x1 H100", {"cpu_milli": 30_000}, "would hold 8 when"),
        ("10x1 H100", {"memory_mib": 240_000}, "would hold 8 when"),
    ],
    ids=["a gang runs on one GPU model", "slices that no leaf holds", "CPU", "memory"],
)
def test_what_fits_only_in_parts_is_told_and_keeps_nobody_waiting(asked, wishes, text):
    world = play("""
        nodes  H100: 8@l0 8@l1 | L4: 8@l0 8@l1
        quota  a H100 64 | a L4 64
        policy strict-fifo
        at 0
          + r   a 1x8 H100 -> starts
          + r2  a 2x8 L4   -> starts
    """)
    head = job("head", "a", asked, at=1.0)
    wishes = {"gpu_models": ("H100", "L4")} | wishes
    sets = (replace(head.pod_sets[0], **wishes),)
    world.pending.append(d.JobSubmitted(replace(head, pod_sets=sets)))
    world.pending.append(d.JobSubmitted(job("behind", "a", "1x8 H100", at=2.0)))
    assert [start.job_id for start in world.cycle(2.0).started] == ["behind"]
    verdict = world.state.jobs["head"].verdict
    assert verdict.reason is Reason.EXCEEDS_CAPACITY
    assert text in verdict.summary


@pytest.mark.parametrize("outside", ["n0", "n2"])
@pytest.mark.parametrize("elsewhere", ["", "h1"])
@pytest.mark.parametrize("wishes", ["slice_size=2", ""])
def test_a_limit_per_leaf_counts_in_each_hyper_node(outside, elsewhere, wishes):
    """The rest of a leaf, in another hyper-node or in none, is of no use to the pods."""
    world = play("""
        nodes  L4: 1
        quota  a H100 64
        policy strict-fifo
        at 0
    """)
    for name, hyper in ((outside, elsewhere), ("n1", "h0")):
        at = {"topology": ("l0", "s0", "t0"), "hyper_node": hyper}
        world.pending.append(d.NodeChanged(node(name, 8, **at)))
    words = ("required_level=hyper-node", "max_per_leaf=2", *wishes.split())
    world.pending.append(d.JobSubmitted(job("fits", "a", "2x4 H100", *words, at=1.0)))
    world.pending.append(d.JobSubmitted(job("never", "a", "2x4 H100", "max_per_leaf=1", at=2.0)))
    result = world.cycle(3.0)
    assert [start.job_id for start in result.started] == ["fits"]
    assert len({p.node for p in result.started[0].placements}) == 1
    verdict = world.state.jobs["never"].verdict
    assert verdict is not None
    assert verdict.reason is Reason.EXCEEDS_CAPACITY
