"""Network levels from Topology objects of Kueue and KAI: which label is which level, which of
several objects counts, and what pods that name a level by its label are told."""

import msgspec
import pytest

from scheduling.kube.network.level_names import DEFAULT_NAMES, LEVELS, default_names
from scheduling.kube.network.topologies import (
    KAI,
    KUEUE,
    FlavorFacts,
    KubeTopology,
    flavor_facts,
    levels_of,
    network_of,
    topology_facts,
)
from scheduling.kube.seam import AskedLevel
from scheduling.kube.translate.labels import TABLE
from scheduling.kube.translate.nodes import NodeTranslator
from scheduling.kube.workloads.contradiction import Contradicts
from scheduling.kube.workloads.levels import SLICES, levels_of_pod
from tests.kube.test_nodes import H100, kube_node

NVLINK, LEAF, SPINE, TOP = LEVELS
ZONE = "topology.kubernetes.io/zone"
GKE = "cloud.google.com/gce-topology-"
AWS = "topology.k8s.aws/network-node-layer-"
KUEUE_REQUIRED = "kueue.x-k8s.io/podset-required-topology"
KUEUE_PREFERRED = "kueue.x-k8s.io/podset-preferred-topology"


def topology(*widest_first, group=KUEUE, name="default", age=0):
    """Return the object as facts, from the API server's form."""
    raw = {
        "metadata": {
            "name": name,
            "uid": f"{group}/{name}",
            "creationTimestamp": f"2026-01-0{9 - age}T00:00:00Z",
        },
        "spec": {"levels": [{"nodeLabel": label} for label in widest_first]},
    }
    return topology_facts(group, msgspec.convert(raw, KubeTopology))


@pytest.mark.parametrize(
    ("nearest_first", "levels"),
    [
        (["ex/rack"], [LEAF]),
        (["ex/rack", "ex/block"], [LEAF, SPINE]),
        (["ex/rack", "ex/block", "ex/hall"], [LEAF, SPINE, TOP]),
        (["ex/nvl", "ex/rack", "ex/block", "ex/hall"], [NVLINK, LEAF, SPINE, TOP]),
        (["ex/a", "ex/b", "ex/c", "ex/d", "ex/e"], [NVLINK, LEAF, SPINE, TOP, ""]),
        # Labels that Kant knows keep their level; the others fall in between.
        (["ex/rack", ZONE], [LEAF, TOP]),
        (["ex/rack", "ex/block", ZONE], [LEAF, SPINE, TOP]),
        (["nvidia.com/gpu.clique", "ex/rack"], [NVLINK, LEAF]),
        ([f"{GKE}host", f"{GKE}subblock", f"{GKE}block"], [NVLINK, LEAF, SPINE]),
        ([ZONE, "ex/region"], [TOP, ""]),
        (["ex/a", "ex/b", f"{GKE}subblock"], [NVLINK, "", LEAF]),
        # AWS layers show only by their number how wide they are.
        ([f"{AWS}3", f"{AWS}2", f"{AWS}1"], [LEAF, SPINE, TOP]),
        # The order differs from Kant's.
        ([ZONE, f"{GKE}subblock"], [LEAF, SPINE]),
    ],
)
def test_labels_are_levels_in_their_order(nearest_first, levels):
    assert levels_of(nearest_first, TABLE) == levels


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        (None, "spec.levels: It has to be a list of 1 to 16 levels"),
        ({"levels": []}, "spec.levels: It has to be a list of 1 to 16 levels"),
        ({"levels": {"a": 1}}, "spec.levels: It has to be a list"),
        ({"levels": [{"nodeLabel": f"ex/{n}"} for n in range(17)]}, "1 to 16 levels"),
        ({"levels": ["ex/rack"]}, "spec.levels[0].nodeLabel: 'None' is not a Kubernetes label"),
        ({"levels": [{"nodeLabel": "ex/a"}, {"nodeLabel": "no label"}]}, "spec.levels[1].nodeLa"),
        ({"levels": [{"nodeLabel": "ex/a"}, {"nodeLabel": "ex/a"}]}, "ex/a is a level already"),
        (
            {"levels": [{"nodeLabel": "kubernetes.io/hostname"}, {"nodeLabel": "ex/a"}]},
            "kubernetes.io/hostname can only be the last level",
        ),
    ],
)
def test_an_object_of_an_unknown_shape_is_told_and_not_used(spec, wrong):
    meta = {"name": "odd", "uid": "u"}
    facts = topology_facts(KAI, msgspec.convert({"metadata": meta, "spec": spec}, KubeTopology))
    assert wrong in facts.wrong
    found = network_of({}, [facts, topology("ex/rack")])
    assert found.names.of_label["ex/rack"] == LEAF
    assert found.remarks == (f"Topology odd of kai.scheduler is not used. {facts.wrong}.",)
    assert network_of({}, [facts]).names == DEFAULT_NAMES


def test_single_nodes_are_no_level():
    assert topology("ex/block", "ex/rack", "kubernetes.io/hostname").labels == (
        "ex/rack",
        "ex/block",
    )
    only = network_of({}, [topology("kubernetes.io/hostname")])
    assert (only.names, only.remarks) == (DEFAULT_NAMES, ())


def test_the_oldest_of_several_objects_counts_and_the_others_are_named():
    old = topology("ex/block", "ex/rack", "kubernetes.io/hostname", name="old", age=3)
    same = topology("ex/block", group=KAI, name="same", age=2)
    other = topology("ex/row", group=KAI, name="other", age=1)
    found = network_of({}, [other, same, old])
    assert found.names.by == "Topology old of kueue.x-k8s.io"
    assert {
        level: found.names.of_label.get(f"ex/{level}") for level in ("rack", "block", "row")
    } == {
        "rack": LEAF,
        "block": SPINE,
        "row": None,
    }
    [remark] = found.remarks
    assert remark == (
        "Topology other of kai.scheduler is not used. Topology old of kueue.x-k8s.io, which is "
        "older, says other levels."
    )


def test_of_kueue_those_count_that_a_flavor_names():
    old, new = topology("ex/row", name="old", age=3), topology("ex/rack", name="new", age=1)
    flavor = flavor_facts(
        msgspec.convert(
            {"metadata": {"name": "h100"}, "spec": {"topologyName": "new"}}, KubeTopology
        )
    )
    assert network_of({}, [old, new], [flavor]).names.by == "Topology new of kueue.x-k8s.io"
    without = FlavorFacts("other", "u", "")
    assert network_of({}, [old, new], [without]).names.by == "Topology old of kueue.x-k8s.io"
    # Flavors do not apply to KAI.
    kai = topology("ex/hall", group=KAI, age=4)
    assert network_of({}, [old, new, kai], [flavor]).names.by == "Topology default of kai.scheduler"


@pytest.mark.parametrize("row", ["leaf", "spine", "superspine", "hyper_node"])
def test_an_operator_who_says_the_levels_is_right(row):
    label_map = {row: "own/label"}
    found = network_of(label_map, [topology("ex/rack")])
    assert (found.rows, found.names.by) == ({}, "")
    assert found.names == default_names(label_map)
    assert found.names.of_label["own/label"] == row.replace("_", "-")
    assert network_of({"gpu_model": "own/label"}, [topology("ex/rack")]).rows


def test_nodes_are_where_the_objects_say():
    translator = NodeTranslator({})
    labels = {**H100, "ex/block": "b1", "ex/rack": "r1", "network.topology.nvidia.com/leaf": "l1"}
    before = translator.translate(kube_node(labels=labels))
    assert before.node.topology == ("l1", "", "")
    translator.read_places_by(network_of({}, [topology("ex/block", "ex/rack")]).rows)
    after = translator.placed_anew(before)
    assert after.node.topology == ("b1/r1", "b1", "")
    assert after.facts["leaf"].source == "ex/rack"
    assert after == translator.translate(kube_node(labels=labels))
    # A node without the label is in no group, whatever else suggests one.
    other = {**H100, "network.topology.nvidia.com/leaf": "l1"}
    assert translator.translate(kube_node(labels=other)).node.topology == ("", "", "")
    translator.read_places_by({})
    assert translator.placed_anew(after) == before


def test_contradictions_are_those_of_the_labels_that_count():
    leaf, spine = "network.topology.nvidia.com/leaf", "network.topology.nvidia.com/spine"
    translator = NodeTranslator({})
    for name, where in (("a", "s1"), ("b", "s1"), ("c", "s2")):
        labels = {**H100, leaf: "l1", spine: where, "ex/rack": "r"}
        facts = translator.translate(kube_node(name=name, labels=labels))
    own = [text for text in facts.node.problems if "l1" in text]
    assert own
    translator.read_places_by(network_of({}, [topology("ex/rack")]).rows)
    moved = translator.placed_anew(facts)
    assert [text for text in moved.node.problems if "l1" in text] == []
    translator.read_places_by({})
    assert translator.placed_anew(moved).node.problems == facts.node.problems


# --- what pods say --------------------------------------------------------------------------------
def asked(label, *, required=True):
    return AskedLevel("annotation x", label, required)


def test_a_label_means_the_level_that_the_object_gives_it():
    names = network_of({}, [topology("ex/block", "ex/rack")]).names
    assert (names.meant(asked("ex/rack")), names.meant(asked("ex/block"))) == (LEAF, SPINE)
    assert names.meant(asked("ex/rack", required=False)) == LEAF
    # That label is no longer a level of these nodes.
    with pytest.raises(Contradicts, match="Topology default of "):
        names.meant(asked("network.topology.nvidia.com/leaf"))


@pytest.mark.parametrize("required", [True, False])
def test_a_level_that_nobody_knows_is_refused(required):
    with pytest.raises(Contradicts, match="annotation x: Kant knows no network level by the label"):
        DEFAULT_NAMES.meant(asked("ex/rack", required=required))


def test_a_level_that_is_left_out_can_be_wished_for_and_not_required():
    names = network_of({}, [topology("ex/e", "ex/d", "ex/c", "ex/b", "ex/a")]).names
    assert names.left_out == {"ex/e": ""}
    with pytest.raises(Contradicts):
        names.meant(asked("ex/e"))
    assert names.meant(asked("ex/e", required=False)) == ""
    narrow = network_of({}, [topology(f"{GKE}subblock", "ex/b", "ex/a")])
    assert narrow.names.meant(asked("ex/b", required=False)) == LEAF
    [remark] = narrow.remarks
    assert remark.startswith("Levels ex/b of Topology default of kueue.x-k8s.io are not used.")


def test_one_node_can_be_wished_for_and_not_required():
    assert DEFAULT_NAMES.meant(asked("kubernetes.io/hostname", required=False)) == LEAF
    with pytest.raises(Contradicts, match="is no network level"):
        DEFAULT_NAMES.meant(asked("kubernetes.io/hostname"))


@pytest.mark.parametrize(
    ("notes", "levels"),
    [
        ({KUEUE_REQUIRED: "ex/rack"}, (LEAF, "")),
        ({KUEUE_PREFERRED: "ex/rack"}, ("", LEAF)),
        ({"kueue.x-k8s.io/podset-unconstrained-topology": "true"}, ("", "")),
        (
            {
                "kai.scheduler/topology": "default",
                "kai.scheduler/topology-required-placement": "ex/block",
                "kai.scheduler/topology-preferred-placement": "ex/rack",
            },
            (SPINE, LEAF),
        ),
    ],
)
def test_annotations_of_pods_name_levels(notes, levels):
    names = network_of({}, [topology("ex/block", "ex/rack")]).names
    assert levels_of_pod(notes, names) == (*levels, "")


@pytest.mark.parametrize("note", [KUEUE_REQUIRED, KUEUE_PREFERRED, *SLICES])
def test_what_cannot_be_honoured_is_said_with_its_annotation(note):
    assert levels_of_pod({note: "ex/other"}, DEFAULT_NAMES).wrong.startswith(f"annotation {note}: ")


def test_a_label_of_several_rows_is_the_level_whose_groups_its_values_are():
    assert DEFAULT_NAMES.of_label[f"{GKE}subblock"] == LEAF
    assert DEFAULT_NAMES.of_label["nvidia.com/gpu.clique"] == NVLINK
