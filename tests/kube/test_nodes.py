"""From a Kubernetes node to engine facts: sources, overrides, and input that cannot be trusted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.engine.types import Nic, Taint
from scheduling.kube.seam import Sourced
from scheduling.kube.translate.gpu_parts import GKE_PARTITION, GKE_SHARING, MIG_STRATEGY, REPLICAS
from scheduling.kube.translate.labels import TABLE, WrongRow, label_table
from scheduling.kube.translate.nodes import NodeTranslator
from scheduling.kube.translate.objects import (
    Condition,
    KubeNode,
    Meta,
    NodeSpec,
    NodeStatus,
    NodeTaint,
)

GPU = "nvidia.com/gpu"
COUNT = "nvidia.com/gpu.count"
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", COUNT: "8"}
READY = Condition("Ready", "True")


def kube_node(
    name="n1",
    labels=H100,
    annotations=None,
    capacity=None,
    allocatable=None,
    conditions=(READY,),
    **spec,
):
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: "8"}
    capacity = amounts if capacity is None else capacity
    return KubeNode(
        Meta(name=name, uid=f"uid-{name}", labels=dict(labels), annotations=annotations or {}),
        NodeSpec(**spec),
        NodeStatus(capacity, capacity if allocatable is None else allocatable, list(conditions)),
    )


def facts_of(label_map=None, **parts):
    return NodeTranslator(label_map or {}).translate(kube_node(**parts))


def healthy(facts):
    return [device.index for device in facts.node.devices if device.healthy]


def network(leaf="", spine="", core=""):
    keys = {"leaf": leaf, "spine": spine, "core": core}
    return {f"network.topology.nvidia.com/{key}": value for key, value in keys.items() if value}


# --- GPUs -----------------------------------------------------------------------------------------
def test_an_ordinary_gpu_node():
    facts = facts_of(labels={**H100, "nvidia.com/gpu.memory": "81559"})
    node = facts.node
    assert node.gpu_model == "NVIDIA-H100-80GB-HBM3"
    assert [device.numa for device in node.devices] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {device.memory_mib for device in node.devices} == {81559}
    assert (node.cpu_milli, node.memory_mib, node.max_pods) == (64_000, 512 * 1024, 110)
    assert node.link_model == "nvswitch-8"
    assert node.schedulable
    assert node.problems == ()
    assert facts.facts["gpu_model"] == Sourced("NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.product")
    assert facts.facts["gpus"] == Sourced(8, "status.capacity[nvidia.com/gpu]")
    assert facts.facts["link_model"].source.startswith("assumed")


@pytest.mark.parametrize(
    ("labels", "model", "source"),
    [
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X"}, "AMD_Instinct_MI300X", 1),
        ({"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}, "nvidia-h100-80gb", 3),
        ({"node.kubernetes.io/instance-type": "p5.48xlarge"}, "NVIDIA-H100-80GB-HBM3", 4),
        (
            {"nvidia.com/gpu.product": "A", "cloud.google.com/gke-accelerator": "b"},
            "A",
            0,
        ),
    ],
)
def test_where_the_gpu_model_comes_from(labels, model, source):
    facts = facts_of(labels=labels)
    assert facts.facts["gpu_model"] == Sourced(model, TABLE["gpu_model"][source].label)


def test_named_bad_gpus_are_those():
    facts = facts_of(
        annotations={"kant.io/unhealthy-gpus": "[2, 5]"},
        allocatable={"cpu": "64", "memory": "1Gi", GPU: "6"},
    )
    assert healthy(facts) == [0, 1, 3, 4, 6, 7]
    assert facts.facts["healthy_gpus"].value == 6
    assert facts.node.problems == ()


def test_unnamed_bad_gpus_are_counted_with_a_warning_and_none_is_guessed():
    facts = facts_of(allocatable={"cpu": "64", "memory": "1Gi", GPU: "6"})
    assert healthy(facts) == list(range(8))
    assert (facts.node.unnamed_unhealthy, facts.node.healthy_gpus) == (2, 6)
    assert facts.facts["healthy_gpus"].value == 6
    assert facts.facts["unnamed_unhealthy_gpus"] == Sourced(2, f"status.allocatable[{GPU}]")
    [problem] = facts.node.problems
    assert "2 of 8 GPUs are not allocatable, and nothing names which; that many fewer" in problem


def test_of_bad_gpus_only_those_without_a_name_stay_open():
    facts = facts_of(
        annotations={"kant.io/unhealthy-gpus": "[3]"}, allocatable={"cpu": "64", GPU: "6"}
    )
    assert healthy(facts) == [0, 1, 2, 4, 5, 6, 7]
    assert (facts.node.unnamed_unhealthy, facts.node.healthy_gpus) == (1, 6)
    [problem] = facts.node.problems
    assert "2 of 8 GPUs are not allocatable, and nothing names 1 of them" in problem


def test_gpus_that_no_plugin_advertises_are_never_free():
    """A kubelet that does not know the resource would admit the pod and give it no GPU."""
    facts = facts_of(capacity={"cpu": "64", "memory": "1Gi"})
    assert len(facts.node.devices) == 8
    assert (facts.node.unnamed_unhealthy, facts.node.healthy_gpus) == (8, 0)
    assert "device_choice" not in facts.facts
    assert any("is the device plugin running?" in each for each in facts.node.problems)


@pytest.mark.parametrize("amounts", [{GPU: "0"}, {}])
def test_gpus_that_no_plugin_advertises_are_for_a_driver_of_devices_to_give(amounts):
    """Feature discovery counts GPUs in labels even without a device plugin."""
    facts = facts_of(capacity={"cpu": "64", "memory": "1Gi", **amounts})
    bare = facts.unplugged
    assert (bare.devices, bare.unnamed_unhealthy, bare.problems, bare.gpu_resource) == (
        (),
        0,
        (),
        "",
    )
    assert (bare.gpu_model, bare.cpu_milli) == (facts.node.gpu_model, 64_000)
    assert facts_of().unplugged is None


@pytest.mark.parametrize("amounts", [{GPU: "0"}, {}])
def test_gpus_that_a_starting_kubelet_does_not_tell_of_are_not_gone(amounts):
    """The kubelet reports no GPUs until the device plugin is back; running pods go on."""
    translator, labels = NodeTranslator({}), {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    told = {"cpu": "64", GPU: "8"}
    before = translator.translate(kube_node(labels=labels, capacity=told)).node
    starting = kube_node(labels=labels, capacity={"cpu": "64", **amounts})
    facts = translator.translate(starting)
    assert facts.node.devices == before.devices
    assert (facts.node.gpu_model, facts.node.healthy_gpus) == ("nvidia-l4", 0)
    assert facts.facts["gpus"] == Sourced(8, "what the node told before")
    assert "status.capacity has no GPUs, it had 8" in " ".join(facts.node.problems)
    assert translator.translate(starting).node == facts.node
    assert translator.translate(kube_node(labels=labels, capacity=told)).node == before
    translator.forget("n1")
    assert translator.translate(starting).node.devices == ()


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({"labels": {**H100, "nvidia.com/gpu.count": "7"}}, "says 7 GPUs, status.capacity says 8"),
        ({"labels": {**H100, "nvidia.com/gpu.count": "9"}}, "says 9 GPUs, status.capacity says 8"),
        ({"labels": {**H100, "nvidia.com/gpu.count": "many"}}, "must be a whole number"),
        ({"labels": {}}, "the GPU model is unknown"),
        ({"annotations": {"kant.io/unhealthy-gpus": "[8]"}}, "names [8]; indices are 0 to 7"),
        ({"annotations": {"kant.io/unhealthy-gpus": "3"}}, "must be a JSON list"),
        ({"annotations": {"kant.io/unhealthy-gpus": "[true]"}}, "must be a JSON list"),
        ({"annotations": {"kant.io/unhealthy-gpus": "{"}}, "must be a JSON list"),
        ({"annotations": {"kant.io/gpu-ids": '["a"]'}}, "names 1 GPUs, the node has 8"),
        (
            {"annotations": {"kant.io/gpu-ids": '["a","b","c","a","d","e","f","g"]'}},
            "names a more than once",
        ),
        ({"annotations": {"kant.io/nics": "lots"}}, "must be a number up to 64"),
        ({"labels": {**H100, "kant.io/link-model": "warp-9"}}, "unknown link model 'warp-9'"),
        ({"labels": {**H100, "kant.io/link-model": "pcie-4"}}, "is for 4 GPUs, the node has 8"),
        ({"capacity": {"cpu": "lots", GPU: "8"}}, "'lots' is not a quantity"),
        ({"capacity": {"cpu": "-1", GPU: "8"}}, "cpu is -1, which is impossible"),
        ({"capacity": {"cpu": "1e300", GPU: "8"}}, "cpu is 1e300, which is impossible"),
        ({"labels": {**H100, "nvidia.com/gpu.memory": "9" * 40}}, "must be a whole number"),
        ({"labels": {**H100, COUNT: "300"}, "capacity": {GPU: "300"}}, "only the first 256 are"),
        (
            {"conditions": [READY, Condition("SysLogsXIDError", "True", "", "XID 79")]},
            "SysLogsXIDError: XID 79",
        ),
    ],
)
def test_what_is_wrong_with_a_node_is_a_problem_of_it(parts, problem):
    facts = facts_of(**parts)
    assert any(problem in each for each in facts.node.problems), facts.node.problems


def test_device_ids_are_taken_over():
    ids = [f"GPU-{i}" for i in range(8)]
    facts = facts_of(annotations={"kant.io/gpu-ids": str(ids).replace("'", '"')})
    assert [device.id for device in facts.node.devices] == ids


def test_equal_nodes_share_their_devices():
    translator = NodeTranslator({})
    one, other = (translator.translate(kube_node(name)) for name in ("n1", "n2"))
    assert one.node.devices is other.node.devices
    assert one.node.labels["nvidia.com/gpu.product"] is other.node.labels["nvidia.com/gpu.product"]


def test_a_node_without_gpus():
    facts = facts_of(labels={}, capacity={"cpu": "8", "memory": "8Gi"})
    assert facts.node.devices == ()
    assert facts.node.gpu_model == ""
    assert facts.node.problems == ()


def test_amd_gpus():
    labels = {"amd.com/gpu.product-name": "MI300X"}
    facts = facts_of(labels=labels, capacity={"cpu": "8", "amd.com/gpu": "8"})
    assert len(healthy(facts)) == 8
    assert facts.node.gpu_resource == "amd.com/gpu"
    assert facts_of().node.gpu_resource == GPU


def test_a_resource_that_its_plugin_left_behind_counts_no_gpus():
    facts = facts_of(labels={}, capacity={"cpu": "8", GPU: "0", "amd.com/gpu": "8"})
    assert (len(facts.node.devices), facts.node.gpu_resource) == (8, "amd.com/gpu")


def test_a_plugin_that_knows_only_counts_gives_no_shares():
    facts = facts_of()
    assert not facts.node.gives_shares
    assert facts.facts["device_choice"] == Sourced("count", f"status.capacity[{GPU}]")
    assert "shares" not in facts.facts


def test_a_plugin_that_advertises_shares_gives_them_on_the_gpus_that_kant_chose():
    amounts = {"cpu": "64", GPU: "8", "kant.io/gpu-milli": "8k"}
    facts = facts_of(capacity=amounts)
    assert facts.node.gives_shares
    assert facts.facts["shares"] == Sourced(8000, "status.allocatable[kant.io/gpu-milli]")
    assert facts.facts["device_choice"] == Sourced("exact", "status.capacity[kant.io/gpu-milli]")
    # One GPU less in both is a bad GPU; shares for fewer GPUs than exist are a contradiction.
    fewer = facts_of(capacity=amounts, allocatable={GPU: "7", "kant.io/gpu-milli": "7k"})
    assert fewer.node.gives_shares
    away = facts_of(capacity=amounts, allocatable={GPU: "8", "kant.io/gpu-milli": "0"})
    assert not away.node.gives_shares
    assert away.node.problems == (
        "status.allocatable[kant.io/gpu-milli] is 0, its 8 GPUs are 8000; no shares are placed "
        "here",
    )
    assert away.facts["device_choice"].value == "exact"


# --- NICs, extended resources ---------------------------------------------------------------------
def test_nics_from_the_annotation_and_their_health():
    facts = facts_of(annotations={"kant.io/nics": "4", "kant.io/unhealthy-nics": "[1]"})
    assert facts.node.nics == (
        *(Nic(0, numa=0), Nic(1, numa=0, healthy=False)),
        *(Nic(2, numa=1), Nic(3, numa=1)),
    )
    # The annotation only counts NICs; pods do not request them as a resource.
    amounts = {GPU: "8", "rdma/shared": "1000"}
    told = facts_of(annotations={"kant.io/nics": "8"}, capacity=amounts)
    assert [nic.resource for nic in told.node.nics] == [""] * 8


def test_nics_from_their_resources():
    facts = facts_of(capacity={GPU: "8", "vpc.amazonaws.com/efa": "32"})
    assert {nic.resource for nic in facts.node.nics} == {"vpc.amazonaws.com/efa"}
    assert len(facts.node.nics) == 32
    rails = facts_of(capacity={GPU: "8", "rdma/b": "1", "rdma/a": "2", "rdma/c": "0"})
    assert [nic.resource for nic in rails.node.nics] == ["rdma/a", "rdma/a", "rdma/b"]
    shared = facts_of(capacity={GPU: "8", "rdma/hca_shared_devices_a": "1000"})
    assert shared.node.nics == ()
    assert any("is not a number of NICs" in each for each in shared.node.problems)


def test_other_extended_resources_are_kept():
    amounts = {GPU: "8", "kant.io/gpu-milli": "8000", "example.com/fpga": "2"}
    assert facts_of(capacity=amounts).node.extended == {"example.com/fpga": 2}


# --- health ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("parts", "value", "source"),
    [
        ({"unschedulable": True}, "cordoned", "spec.unschedulable"),
        ({"conditions": [Condition("Ready", "Unknown")]}, "not ready", "status.conditions[Ready]"),
        ({"conditions": []}, "not ready", "status.conditions[Ready]"),
        (
            {"conditions": [READY, Condition("DiskPressure", "True")]},
            "DiskPressure",
            "status.conditions[DiskPressure]",
        ),
        (
            {"labels": {**H100, "dgxc.nvidia.com/nvsentinel-state": "quarantined"}},
            "quarantined",
            "dgxc.nvidia.com/nvsentinel-state",
        ),
    ],
)
def test_why_a_node_takes_no_pods(parts, value, source):
    facts = facts_of(**parts)
    assert not facts.node.schedulable
    assert facts.facts["health"] == Sourced(value, source)


def test_taints_that_block_are_kept_for_the_engine():
    taints = [
        NodeTaint("team", "a", "NoSchedule"),
        NodeTaint("soft", "", "PreferNoSchedule"),
        NodeTaint("kant.io/managed", "", "NoSchedule"),
        NodeTaint(GPU, "present", "NoSchedule"),
        NodeTaint("node.kubernetes.io/unreachable", "", "NoExecute", "2026-11-25T12:00:00Z"),
    ]
    facts = facts_of(taints=taints)
    assert facts.node.taints == (
        Taint("team", "a", "NoSchedule"),
        Taint("node.kubernetes.io/unreachable", "", "NoExecute"),
    )
    assert facts.tainted_at == {facts.node.taints[1]: 1795608000.0}
    assert facts.node.schedulable


# --- operator's overrides -------------------------------------------------------------------------
def test_an_operator_overrides_a_row():
    labels = {**H100, **network("l1", "s1"), "example.com/rack": "r7"}
    facts = facts_of({"leaf": ["example.com/none", "example.com/rack"]}, labels=labels)
    assert facts.node.topology == ("s1/r7", "s1", "")
    assert facts.facts["leaf"] == Sourced("r7", "example.com/rack")


@pytest.mark.parametrize(
    ("label_map", "words"),
    [
        ({"rack": "x"}, "There is no fact 'rack'; facts are"),
        ({"leaf": 7}, "Give a label key"),
        ({"leaf": []}, "Give a label key"),
        ({"leaf": ["a b"]}, "'a b' is not a Kubernetes label key"),
        ({"leaf": [7]}, "7 is not a Kubernetes label key"),
    ],
)
def test_an_override_that_cannot_be_used_names_its_row(label_map, words):
    with pytest.raises(WrongRow, match=words) as caught:
        label_table(label_map)
    assert [caught.value.fact] == list(label_map)


# --- anything at all ------------------------------------------------------------------------------
text = st.text(max_size=12)
amount = st.one_of(text, st.integers(-5, 40).map(str), st.sampled_from(["1e400", "8", "1Ei"]))
known_labels = st.sampled_from(
    sorted(
        {source.label for row in TABLE.values() for source in row}
        | {REPLICAS, MIG_STRATEGY, GKE_PARTITION, GKE_SHARING}
    )
)
label_values = st.one_of(
    text, st.sampled_from(["8", "16", "-1", "0", "mixed", "A-MIG-1g.5gb-SHARED", "A-MIG-INVALID"])
)
known_annotations = st.sampled_from(
    [
        *("kant.io/unhealthy-gpus", "kant.io/unhealthy-nics", "kant.io/nics"),
        *("kant.io/gpu-ids", "kant.io/link-model"),
    ]
)
resources = st.dictionaries(st.sampled_from([GPU, "amd.com/gpu", "cpu", "memory", "pods"]), amount)


@given(
    labels=st.dictionaries(known_labels, label_values),
    annotations=st.dictionaries(
        known_annotations, st.one_of(text, st.sampled_from(["[0]", "[9]", "[[]]", '["a","a"]']))
    ),
    capacity=resources,
    allocatable=resources,
)
def test_no_node_can_raise(labels, annotations, capacity, allocatable):
    node = facts_of(
        labels=labels, annotations=annotations, capacity=capacity, allocatable=allocatable
    ).node
    assert len(node.devices) <= 256
    assert len(node.gpu_model) <= 63
    assert len(node.topology) == 3
    assert 0 <= node.cpu_milli < 2**60
    assert 0 <= node.memory_mib < 2**60
