"""Where a node's labels place it in the network, and what its page says if they disagree."""

import pytest

from scheduling.kube.translate.nodes import NodeTranslator
from tests.kube.test_nodes import H100, facts_of, kube_node, network


@pytest.mark.parametrize(
    ("labels", "topology"),
    [
        (network("l1", "s1", "c1"), ("c1/s1/l1", "c1/s1", "c1")),
        (network("l1", "s1"), ("s1/l1", "s1", "")),
        (network("l1"), ("l1", "", "")),
        (network("", "s1", "c1"), ("", "c1/s1", "c1")),
        (
            {"fabric.topograph.run/tier-0": "a", "fabric.topograph.run/tier-1": "b"},
            ("b/a", "b", ""),
        ),
        (
            {"ib.coreweave.cloud/leafgroup": "3", "ib.coreweave.cloud/superpod": "1"},
            ("1/3", "1", ""),
        ),
        (
            {f"topology.k8s.aws/network-node-layer-{n}": f"nn-{n}" for n in (1, 2, 3)},
            ("nn-1/nn-2/nn-3", "nn-1/nn-2", "nn-1"),
        ),
        (
            {f"topology.k8s.aws/network-node-layer-{n}": f"nn-{n}" for n in (1, 2, 3, 4)},
            ("nn-2/nn-3/nn-4", "nn-2/nn-3", "nn-2"),
        ),
        (
            {"oci.oraclecloud.com/rdma.local_block_id": "b", "topology.kubernetes.io/zone": "z"},
            ("z/b", "", "z"),
        ),
    ],
)
def test_groups_are_keyed_by_their_path(labels, topology):
    assert facts_of(labels={**H100, **labels}).node.topology == topology


@pytest.mark.parametrize(
    ("labels", "hyper_node"),
    [
        ({"nvidia.com/gpu.clique": "4b1c.7"}, "4b1c.7"),
        ({"nvidia.com/gpu.clique": "rack-3"}, "rack-3"),
        ({"accelerator.topograph.run/domain": "d", "nvidia.com/gpu.clique": "x.1"}, "d"),
        ({"cloud.google.com/gce-topology-subblock": "s"}, ""),
        (
            {
                "cloud.google.com/gce-topology-subblock": "s",
                "node.kubernetes.io/instance-type": "a4x-highgpu-4g",
            },
            "s",
        ),
    ],
)
def test_hyper_nodes(labels, hyper_node):
    assert facts_of(labels={**H100, **labels}).node.hyper_node == hyper_node


def test_a_leaf_under_two_spines_is_contradictory():
    translator = NodeTranslator({})
    for name in ("n1", "n2"):
        assert not translator.translate(
            kube_node(name, labels={**H100, **network("l1", "s1")})
        ).node.problems
    odd = translator.translate(kube_node("n3", labels={**H100, **network("l1", "s2")})).node
    assert odd.topology == ("s2/l1", "s2", "")
    assert odd.problems == ("leaf 'l1' is under 's1' on other nodes, but under 's2' here",)
    # It is right once the other nodes are gone.
    translator.forget("n1")
    translator.forget("n2")
    again = translator.translate(kube_node("n3", labels={**H100, **network("l1", "s2")}))
    assert not again.node.problems


def test_numbered_groups_may_repeat_under_other_parents():
    translator = NodeTranslator({})
    for number, pod in enumerate(("1", "2")):
        labels = {"ib.coreweave.cloud/leafgroup": "3", "ib.coreweave.cloud/superpod": pod}
        facts = translator.translate(kube_node(f"n{number}", labels={**H100, **labels}))
        assert facts.node.problems == ()


def test_two_names_of_one_fact_must_agree():
    labels = {**H100, **network("l1"), "fabric.topograph.run/tier-0": "l2"}
    facts = facts_of(labels=labels)
    assert facts.node.topology[0] == "l2"
    assert any("disagree" in problem for problem in facts.node.problems)
