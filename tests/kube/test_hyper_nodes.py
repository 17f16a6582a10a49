"""Where HyperNodes of Volcano place nodes, and which level each tier is."""

import msgspec
import pytest

from scheduling.kube.network.hyper_nodes import HyperTree, KubeHyperNode, hyper_node_facts
from scheduling.kube.network.topologies import KUEUE, KubeTopology, network_of, topology_facts
from scheduling.kube.seam import AskedLevel, AskedTier
from scheduling.kube.translate.nodes import NodeTranslator
from scheduling.kube.workloads.contradiction import Contradicts
from scheduling.kube.workloads.registry import workload_of
from tests.kube.test_nodes import H100, kube_node
from tests.kube.test_workloads import GROUPS, Objects, pod


def member(kind, **selector):
    return {"type": kind, "selector": selector}


def exactly(kind, *names):
    return [member(kind, exactMatch={"name": name}) for name in names]


def hyper_node(name, tier, members, **spec):
    """Return the object as facts, from the API server's form."""
    raw = {
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {"tier": tier, "members": members, **spec},
    }
    return hyper_node_facts(msgspec.convert(raw, KubeHyperNode))


# Two leaves under one spine, and one leaf elsewhere.
TREE = (
    hyper_node("s0", 1, exactly("Node", "n0", "n1")),
    hyper_node("s1", 1, [member("Node", regexMatch={"pattern": "^n[23]$"})]),
    hyper_node("s2", 1, [member("Node", labelMatch={"matchLabels": {"ex/row": "b"}})]),
    hyper_node("s3", 2, exactly("HyperNode", "s0", "s1"), tierName="block"),
)


def where(objects, name, **labels):
    """Return a node's topology, nearest level first, and what its page says."""
    translator = NodeTranslator({})
    network = network_of({}, (), (), objects)
    translator.read_places_by(network.rows, network.tree)
    node = translator.translate(kube_node(name=name, labels={**H100, **labels})).node
    return node.topology, [text for text in node.problems if "HyperNode" in text]


@pytest.mark.parametrize(
    ("name", "labels", "topology"),
    [
        ("n0", {}, ("s3/s0", "s3", "")),
        ("n3", {}, ("s3/s1", "s3", "")),
        # No HyperNode is above the node's own, which therefore stands in for the next tier.
        ("n9", {"ex/row": "b"}, ("s2/s2", "s2", "")),
        ("n10", {}, ("", "", "")),
        # Labels no longer count.
        ("n10", {"network.topology.nvidia.com/leaf": "l"}, ("", "", "")),
    ],
)
def test_a_node_is_in_the_groups_of_its_hyper_nodes(name, labels, topology):
    assert where(TREE, name, **labels) == (topology, [])


def test_the_lowest_of_four_tiers_are_hyper_nodes():
    tiers = (*TREE, hyper_node("c", 5, exactly("HyperNode", "s3")))
    assert where(tiers, "n0")[0] == ("c/s3/s0", "c/s3", "c")
    tiers += (hyper_node("rack", 0, exactly("Node", "n0")),)
    # A member of two HyperNodes, neither of which is within the other.
    translator = NodeTranslator({})
    network = network_of({}, (), (), tiers)
    translator.read_places_by(network.rows, network.tree)
    node = translator.translate(
        kube_node(name="n0", labels={**H100, "nvidia.com/gpu.clique": "x"})
    ).node
    assert node.hyper_node == "rack"
    assert network.names.of_tier == {0: "hyper-node", 1: "leaf", 2: "spine", 5: "superspine"}
    tiers += (hyper_node("all", 9, exactly("HyperNode", "c")),)
    assert "HyperNodes of tier 9 are not used: Kant has 4 levels." in HyperTree(tiers).remarks


def test_with_fewer_tiers_labels_tell_hyper_nodes():
    translator = NodeTranslator({})
    network = network_of({}, (), (), TREE)
    translator.read_places_by(network.rows, network.tree)
    labels = {**H100, "nvidia.com/gpu.clique": "x.1"}
    facts = translator.translate(kube_node(name="n0", labels=labels))
    assert facts.node.hyper_node == "x.1"
    assert facts.facts["leaf"].source == "HyperNode of tier 1"
    translator.read_places_by({})
    assert translator.placed_anew(facts) == NodeTranslator({}).translate(
        kube_node(name="n0", labels=labels)
    )


def test_two_hyper_nodes_that_have_one_node_are_told_on_its_page():
    both = (*TREE, hyper_node("s9", 1, exactly("Node", "n0")))
    topology, problems = where(both, "n0")
    assert topology == ("s3/s0", "s3", "")
    assert problems == ["HyperNodes s0 and s9 both have the node: s0 counts"]
    # Nesting is no contradiction.
    above = (*TREE[:3], hyper_node("s3", 2, [*exactly("HyperNode", "s0"), *exactly("Node", "n0")]))
    assert where(above, "n0") == (("s3/s0", "s3", ""), [])


def test_hyper_nodes_within_each_other_are_told_and_the_tiers_are_right():
    ring = (
        hyper_node("a", 1, [*exactly("HyperNode", "b"), *exactly("Node", "n0")]),
        hyper_node("b", 2, exactly("HyperNode", "c")),
        hyper_node("c", 3, exactly("HyperNode", "a")),
        hyper_node("self", 1, exactly("HyperNode", "self")),
    )
    tree = HyperTree(ring)
    assert tree.remarks == [
        "HyperNode a of tier 1 cannot have the member b of tier 2, which is not lower: b is not "
        "within it.",
        "HyperNode b of tier 2 cannot have the member c of tier 3, which is not lower: c is not "
        "within it.",
        "HyperNode self of tier 1 cannot have the member self of tier 1, which is not lower: self "
        "is not within it.",
    ]
    assert where(ring, "n0")[0] == ("c/a/a", "c/a", "c")


def test_members_that_are_missing_or_have_two_parents_are_told():
    odd = (
        hyper_node("s0", 1, exactly("Node", "n0")),
        hyper_node("x", 2, exactly("HyperNode", "s0", "none")),
        hyper_node("y", 2, exactly("HyperNode", "s0")),
    )
    assert HyperTree(odd).remarks == [
        "HyperNode x has the member none, but there is no such usable HyperNode.",
        "HyperNodes x and y both have the member s0: x counts.",
    ]


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        (None, "Its spec cannot be read"),
        ({"tier": "one", "members": []}, "Expected `int`, got `str` - at `$.tier`"),
        ({"members": []}, "missing required field `tier`"),
        ({"tier": 1, "members": [{"type": "Rack"}]}, "Invalid enum value 'Rack'"),
        ({"tier": 1, "members": [{"type": "Node"}]}, "A member has none of exactMatch"),
        ({"tier": 1, "members": [member("Node", regexMatch={"pattern": "["})]}, "a pattern: "),
        (
            {"tier": 2, "members": [member("HyperNode", regexMatch={"pattern": "s."})]},
            "A member of type HyperNode has no exactMatch",
        ),
    ],
)
def test_a_hyper_node_of_an_unknown_shape_is_told_and_not_used(spec, wrong):
    raw = {"metadata": {"name": "odd", "uid": "u"}, "spec": spec}
    facts = hyper_node_facts(msgspec.convert(raw, KubeHyperNode))
    assert wrong in facts.wrong
    found = network_of({}, (), (), [facts, *TREE])
    assert found.remarks == (f"HyperNode odd is not used. {facts.wrong}.",)
    assert found.names.of_tier == {1: "leaf", 2: "spine"}
    alone = network_of({}, (), (), [facts])
    assert (alone.tree, alone.remarks) == (None, found.remarks)


def test_others_say_the_levels_before_hyper_nodes_do():
    raw = {"metadata": {"name": "t"}, "spec": {"levels": [{"nodeLabel": "ex/rack"}]}}
    topology = topology_facts(KUEUE, msgspec.convert(raw, KubeTopology))
    found = network_of({}, [topology], (), TREE)
    assert (found.tree, found.names.of_label["ex/rack"]) == (None, "leaf")
    assert found.remarks == (f"HyperNodes are not used. {topology} says the levels.",)
    assert network_of({"leaf": "own/rack"}, (), (), TREE).tree is None


# --- what groups say ------------------------------------------------------------------------------
def of_group(network, objects=TREE):
    """Return what Kant makes of a Volcano PodGroup."""
    marks, group = GROUPS["volcano"][:2]
    spec = {"minMember": 3, "networkTopology": network}
    names = network_of({}, (), (), objects).names
    return workload_of(pod(**marks), Objects({**group, "spec": spec}), names)


@pytest.mark.parametrize(
    ("network", "levels"),
    [
        ({"mode": "hard", "highestTierAllowed": 1}, ("leaf", "")),
        ({"highestTierAllowed": 2}, ("spine", "")),
        ({"mode": "hard", "highestTierAllowed": 7}, ("spine", "")),
        ({"mode": "soft", "highestTierAllowed": 1}, ("", "leaf")),
        ({"mode": "hard", "highestTierName": "block"}, ("spine", "")),
        ({"mode": "soft"}, ("", "")),
        ({}, ("", "")),
    ],
)
def test_the_highest_tier_of_a_group_is_a_level(network, levels):
    found = of_group(network)
    assert found.wait is None
    assert (found.required_level, found.preferred_level, found.asked) == (*levels, ())


@pytest.mark.parametrize(
    ("network", "objects", "told"),
    [
        (
            {"highestTierAllowed": 0},
            TREE,
            "spec.networkTopology.highestTierAllowed: It is 0; tiers",
        ),
        (
            {"highestTierName": "hall"},
            TREE,
            "No HyperNode has a tier of the name hall; names are bl",
        ),
        (
            {"highestTierAllowed": 1},
            (),
            "Kant knows no tiers of HyperNodes (there are none that count).",
        ),
        ({"mode": "soft", "highestTierAllowed": 1}, (), "Kant knows no tiers of HyperNodes"),
        ({"highestTierAllowed": "x"}, TREE, "spec.networkTopology.highestTierAllowed: It is 'x'"),
    ],
)
def test_a_tier_that_nobody_knows_is_refused(network, objects, told):
    wait = of_group(network, objects).wait
    assert told in wait.text
    assert (wait.reason, wait.is_answer) == ("WorkloadContradicts", True)


def test_a_tier_between_is_the_next_lower_and_a_wish_below_all_the_lowest():
    sparse = (
        hyper_node("s0", 2, exactly("Node", "n0")),
        hyper_node("t", 4, exactly("HyperNode", "s0")),
    )
    names = network_of({}, (), (), sparse).names
    assert names.meant(AskedTier("f", 3, "", required=True)) == "leaf"
    assert names.meant(AskedTier("f", 1, "", required=False)) == "hyper-node"


def test_labels_name_no_level_where_hyper_nodes_say_which_there_are():
    names = network_of({}, (), (), TREE).names
    leaf = AskedLevel("f", "network.topology.nvidia.com/leaf", required=True)
    with pytest.raises(Contradicts, match="HyperNodes of topology"):
        names.meant(leaf)
    assert names.meant(AskedLevel("f", "nvidia.com/gpu.clique", required=True)) == "hyper-node"
