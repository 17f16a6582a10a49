"""How much one pod can get of a node whose kubelet aligns it to one NUMA zone."""

import msgspec
import pytest

from scheduling.engine.cluster.affinity import matches
from scheduling.engine.types import Node, PodSetSpec
from scheduling.kube.network.numa_zones import KubeNodeZones, zone_facts
from scheduling.kube.translate.nodes import GPUS_IN_ZONE, NodeTranslator
from scheduling.session.memory.zones import NumaZones
from tests.kube.test_nodes import H100, kube_node

SINGLE = [
    {"name": "topologyManagerScope", "value": "container"},
    {"name": "topologyManagerPolicy", "value": "single-numa-node"},
]


def zones(*gpus, resource="nvidia.com/gpu", **more):
    """Return a node's zones as facts, from its agent's report."""

    def zone(n, count):
        told = dict.fromkeys(("capacity", "allocatable", "available"), count)
        return {"name": f"node-{n}", "type": "Node", "resources": [{"name": resource, **told}]}

    body = {
        "metadata": {"name": "n1", "uid": "u"},
        "zones": [zone(n, count) for n, count in enumerate(gpus)],
        "attributes": SINGLE,
        **more,
    }
    return zone_facts(msgspec.convert(body, KubeNodeZones))


@pytest.mark.parametrize(
    ("facts", "most"),
    [
        (zones(4, 4), 4),
        (zones("2", 6), 6),
        (zones(4, 4, attributes=[{"name": "topologyManagerPolicy", "value": "restricted"}]), 0),
        (zones(4, 4, attributes=None), 0),
        (zones(4, 4, attributes=None, topologyPolicies=["SingleNUMANodePodLevel"]), 4),
        (zones(4, 4, attributes=None, topologyPolicies=["BestEffortPodLevel"]), 0),
        # Attributes are the newer form.
        (zones(4, 4, topologyPolicies=["BestEffortPodLevel"]), 4),
        # Devices that report no zone belong to all zones.
        (zones(4, 4, resource="cpu"), 0),
    ],
)
def test_the_largest_zone_is_what_one_pod_can_get(facts, most):
    assert (facts.gpus("nvidia.com/gpu"), facts.wrong) == (most, "")


def seen(facts=None, **fields):
    translator = NodeTranslator({})
    translator.zones = {facts.name: facts} if facts is not None else {}
    return translator.translate(kube_node(name="n1", labels=H100, **fields))


def test_a_node_tells_it_by_a_label_of_kants_own():
    found = seen(zones(4, 4))
    assert found.node.labels[GPUS_IN_ZONE] == "4"
    assert found.facts["gpus_in_zone"] == (4, "NodeResourceTopology: single-numa-node")
    assert GPUS_IN_ZONE not in seen(zones(8)).node.labels
    assert GPUS_IN_ZONE not in seen(zones(0, 0)).node.labels


def test_nobody_else_gives_a_node_that_label():
    labels = {**H100, GPUS_IN_ZONE: "x"}
    node = NodeTranslator({}).translate(kube_node(name="n1", labels=labels)).node
    assert GPUS_IN_ZONE not in node.labels


def test_a_node_is_told_anew_when_its_zones_come_and_go():
    translator = NodeTranslator({})
    before = translator.translate(kube_node(name="n1", labels=H100))
    translator.zones = {"n1": zones(4, 4)}
    with_zones = translator.placed_anew(before)
    assert with_zones == seen(zones(4, 4))
    translator.zones = {}
    assert translator.placed_anew(with_zones) == before


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        ({"zones": None}, "Expected `array`, got `null` - at `$.zones`"),
        ({"zones": [{"name": "node-0"}]}, "missing required field `type`"),
        ({"attributes": [{"name": "topologyManagerPolicy", "value": 1}]}, "Expected `str`"),
    ],
)
def test_zones_of_an_unknown_shape_are_told_on_the_page_of_the_node(more, wrong):
    facts = zones(4, 4, **more)
    assert wrong in facts.wrong
    node = seen(facts).node
    assert GPUS_IN_ZONE not in node.labels
    text = "its NodeResourceTopology cannot be read, so its NUMA zones are not used"
    assert node.problems == (f"{text}: {facts.wrong}",)
    assert zones("many").wrong


def test_pods_avoid_nodes_that_have_no_zone_for_them():
    here, small = Node("a", labels={GPUS_IN_ZONE: "4"}), Node("b", labels={GPUS_IN_ZONE: "2"})
    found = NumaZones()
    assert found.terms(PodSetSpec("s", 1, 8)) == ()
    for node in (here, small, Node("c")):
        found.seen(node)
    assert found.least == 2
    assert [found.concern(PodSetSpec("s", 1, gpus)) for gpus in (0, 2, 3)] == [False, False, True]
    may = {
        gpus: [matches(n, found.terms(PodSetSpec("s", 1, gpus))) for n in (here, small, Node("c"))]
        for gpus in (2, 3, 4, 5)
    }
    assert may == {
        2: [True, True, True],
        3: [True, False, True],
        4: [True, False, True],
        5: [False, False, True],
    }
    found.gone("b")
    assert found.least == 4
    found.seen(Node("a"))
    assert found.least == 0
