"""Nodes whose GPUs are handed out in parts, with the labels of NVIDIA's and GKE's own nodes."""

import msgspec
import pytest

from scheduling.kube.seam import Sourced
from scheduling.kube.translate.gpu_parts import advertised
from scheduling.kube.translate.nodes import NodeTranslator
from scheduling.kube.translate.objects import KubeNode

GPU, SHARED_GPU = "nvidia.com/gpu", "nvidia.com/gpu.shared"
H100 = "NVIDIA-H100-80GB-HBM3"
ALLOCATABLE = {"cpu": "223500m", "memory": "2113191936Ki", "pods": "110"}
CAPACITY = {"cpu": "224", "memory": "2113294336Ki", "pods": "110", "hugepages-1Gi": "0"}
# From GPU Operator 25.3, on a node of eight whole GPUs.
WHOLE = {
    "kubernetes.io/hostname": "dgx-07",
    "nvidia.com/cuda.driver-version.full": "570.124.06",
    "nvidia.com/gpu.compute.major": "9",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.family": "hopper",
    "nvidia.com/gpu.machine": "DGXH100",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.mode": "compute",
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.product": H100,
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.sharing-strategy": "none",
    "nvidia.com/mig.capable": "true",
    "nvidia.com/mig.config": "all-disabled",
    "nvidia.com/mig.config.state": "success",
    "nvidia.com/mig.strategy": "single",
}
SINGLE = WHOLE | {
    "nvidia.com/gpu.count": "56",
    "nvidia.com/gpu.engines.copy": "1",
    "nvidia.com/gpu.memory": "9984",
    "nvidia.com/gpu.multiprocessors": "16",
    "nvidia.com/gpu.product": f"{H100}-MIG-1g.10gb",
    "nvidia.com/gpu.slices.ci": "1",
    "nvidia.com/gpu.slices.gi": "1",
    "nvidia.com/mig.config": "all-1g.10gb",
}
INVALID = WHOLE | {
    "nvidia.com/gpu.count": "0",
    "nvidia.com/gpu.memory": "0",
    "nvidia.com/gpu.product": f"{H100}-MIG-INVALID",
    "nvidia.com/gpu.replicas": "0",
    "nvidia.com/mig.config": "all-balanced",
}
# Two GPUs are whole, six are divided; `gpu.count` covers all of them.
MIXED = WHOLE | {
    "nvidia.com/mig-1g.10gb.count": "28",
    "nvidia.com/mig-1g.10gb.memory": "9984",
    "nvidia.com/mig-1g.10gb.product": f"{H100}-MIG-1g.10gb",
    "nvidia.com/mig-1g.10gb.replicas": "1",
    "nvidia.com/mig-3g.40gb.count": "4",
    "nvidia.com/mig.config": "two-whole",
    "nvidia.com/mig.strategy": "mixed",
}
ALL_CUT = MIXED | {"nvidia.com/gpu.replicas": "0", "nvidia.com/mig.config": "all-balanced"}
SLICES = {"nvidia.com/mig-1g.10gb": "28", "nvidia.com/mig-3g.40gb": "4"}
TIME_SLICED = WHOLE | {
    "nvidia.com/gpu.product": f"{H100}-SHARED",
    "nvidia.com/gpu.replicas": "4",
    "nvidia.com/gpu.sharing-strategy": "time-slicing",
}
RENAMED = TIME_SLICED | {"nvidia.com/gpu.product": H100}
MPS = TIME_SLICED | {
    "nvidia.com/gpu.sharing-strategy": "mps",
    "nvidia.com/mps.capable": "true",
}


def manifest(labels, gpus, allocatable=None, annotations=None):
    """Return a Node; `gpus`: its GPU capacity, and its allocatable unless that is given."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "dgx-07",
            "uid": "7b1e1d0c-6f0e-4d43-a61f-0a9f4f1c2f11",
            "labels": labels,
            "annotations": annotations or {},
        },
        "spec": {"podCIDR": "10.244.7.0/24", "providerID": "bare://dgx-07"},
        "status": {
            "capacity": CAPACITY | gpus,
            "allocatable": ALLOCATABLE | (gpus if allocatable is None else allocatable),
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def told(*manifests, label_map=None):
    """Return what one translator makes of a node that it sees repeatedly."""
    translator = NodeTranslator(label_map or {})
    seen = [msgspec.convert(each, KubeNode) for each in manifests]
    return [translator.translate(each) for each in seen]


def node_of(*args, label_map=None, **parts):
    [facts] = told(manifest(*args, **parts), label_map=label_map)
    return facts.node


# --- MIG, strategy single -------------------------------------------------------------------------
@pytest.mark.parametrize("gpus", [8, 16])
def test_slices_of_strategy_single_are_a_gpu_model_of_their_own(gpus):
    labels = SINGLE | {"nvidia.com/gpu.count": str(7 * gpus)}
    [facts] = told(manifest(labels, {GPU: str(7 * gpus)}))
    node = facts.node
    assert (node.gpu_model, len(node.devices)) == (f"{H100}-MIG-1g.10gb", 7 * gpus)
    assert (node.healthy_gpus, node.gpu_memory_mib) == (7 * gpus, 9984)
    assert (node.gpu_resource, node.gives_shares, node.problems) == (GPU, False, ())
    assert facts.facts["gpu_model"] == Sourced(node.gpu_model, "nvidia.com/gpu.product")
    assert facts.facts["device_choice"].value == "count"


@pytest.mark.parametrize("declared", [{}, {"kant.io/link-model": "nvswitch-8"}])
def test_nothing_joins_slices(declared):
    """Eight slices of a node of four GPUs are not a node of eight GPUs at NVSwitches."""
    labels = SINGLE | {
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.product": f"{H100}-MIG-3g.40gb",
        **declared,
    }
    [facts] = told(manifest(labels, {GPU: "8"}))
    assert (facts.node.link_model, facts.node.problems) == ("", ())
    assert "link_model" not in facts.facts


def test_slices_that_fail_are_counted_like_gpus():
    node = node_of(SINGLE, {GPU: "56"}, allocatable={GPU: "49"})
    assert (len(node.devices), node.unnamed_unhealthy, node.healthy_gpus) == (56, 7, 49)
    named = node_of(
        SINGLE,
        {GPU: "56"},
        allocatable={GPU: "55"},
        annotations={"kant.io/unhealthy-gpus": "[55]"},
    )
    assert (named.healthy_gpus, named.devices[55].healthy, named.problems) == (55, False, ())


def test_there_are_no_shares_of_slices():
    shares = {GPU: "56", "kant.io/gpu-milli": "56k"}
    node = node_of(SINGLE, shares)
    assert not node.gives_shares
    assert node.problems == (
        "status.allocatable[kant.io/gpu-milli] is 56000, but these GPUs are parts of GPUs "
        "(MIG-1g.10gb); no shares are placed here",
    )


def test_a_node_that_single_cannot_describe_has_no_free_gpu():
    """The device plugin stops; the kubelet keeps the last capacity for a while."""
    node = node_of(INVALID, {GPU: "8"}, allocatable={GPU: "0"})
    assert (len(node.devices), node.healthy_gpus) == (8, 0)
    gone = node_of(INVALID, {GPU: "0"})
    assert gone.devices == ()
    for each in (node, gone):
        assert any(
            "nvidia.com/gpu.product ends with -MIG-INVALID: MIG strategy single needs all GPUs of "
            "the node cut into slices of one size; change nvidia.com/mig.config" in problem
            for problem in each.problems
        )


# --- while GPUs are cut or shared anew ------------------------------------------------------------
@pytest.mark.parametrize(
    ("labels", "advertised", "expected"),
    [(WHOLE, 56, 8), (WHOLE, 32, 8), (SINGLE, 8, 56), (SINGLE, 24, 56), (TIME_SLICED, 8, 32)],
)
def test_devices_of_a_kind_that_the_labels_do_not_tell_are_never_free(labels, advertised, expected):
    """Feature discovery and the device plugin restart one after the other."""
    node = node_of(labels, {GPU: str(advertised)})
    assert (node.healthy_gpus, len(node.devices)) == (0, advertised)  # current holders keep them
    [why] = node.problems
    assert why.startswith("nvidia.com/gpu.count")
    assert "none is used until labels and status agree" in why
    assert f"says {expected} GPUs, status.capacity says {advertised}" in why


def test_where_whole_gpus_are_missing_the_others_are_used():
    node = node_of(WHOLE, {GPU: "7"})
    assert (len(node.devices), node.healthy_gpus) == (7, 7)
    assert node.problems == ("nvidia.com/gpu.count says 8 GPUs, status.capacity says 7",)


def test_a_node_that_is_cut_and_made_whole_again():
    cut = manifest(SINGLE, {GPU: "56"})
    down = manifest(WHOLE, {GPU: "56"}, allocatable={GPU: "0"})
    whole = manifest(WHOLE, {GPU: "8"})
    first, between, last = (facts.node for facts in told(cut, down, whole))
    assert [each.healthy_gpus for each in (first, between, last)] == [56, 0, 8]
    assert (last.gpu_model, last.link_model, last.problems) == (H100, "nvswitch-8", ())


# --- MIG, strategy none ---------------------------------------------------------------------------
def test_gpus_that_are_cut_though_the_strategy_is_none_are_not_whole():
    labels = {key: value for key, value in WHOLE.items() if key != "nvidia.com/mig.strategy"}
    assert node_of(labels, {GPU: "8"}).problems == ()
    node = node_of(labels | {"nvidia.com/gpu.replicas": "0"}, {GPU: "8"})
    assert (node.gpu_model, node.healthy_gpus) == (H100, 0)
    [problem] = node.problems
    assert "nvidia.com/gpu.replicas is 0: MIG is on, but MIG strategy none" in problem
    assert "set it to single or mixed, or turn MIG off" in problem


# --- MIG, strategy mixed --------------------------------------------------------------------------
def test_with_strategy_mixed_the_whole_gpus_are_gpus_and_slices_extended_resources():
    [facts] = told(manifest(MIXED, {GPU: "2"} | SLICES))
    node = facts.node
    told_parts = "28 nvidia.com/mig-1g.10gb, 4 nvidia.com/mig-3g.40gb"
    assert facts.facts["gpu_parts"] == Sourced(told_parts, "status.capacity")
    assert (node.gpu_model, len(node.devices), node.healthy_gpus) == (H100, 2, 2)
    assert node.extended == {"nvidia.com/mig-1g.10gb": 28, "nvidia.com/mig-3g.40gb": 4}
    assert (node.gpu_memory_mib, node.gpu_resource, node.problems) == (81559, GPU, ())


@pytest.mark.parametrize("left_behind", [{}, {GPU: "0"}])
def test_with_strategy_mixed_a_node_may_have_slices_only(left_behind):
    node = node_of(ALL_CUT, left_behind | SLICES)
    assert (node.devices, node.gpu_model) == ((), "")
    assert node.problems == (
        "its GPUs are advertised as nvidia.com/mig-1g.10gb and nvidia.com/mig-3g.40gb only, which "
        "count for no quota and which no job can ask for without a GPU; use MIG strategy single",
    )
    assert node.extended == {"nvidia.com/mig-1g.10gb": 28, "nvidia.com/mig-3g.40gb": 4}


def test_gpus_that_were_cut_are_gone_and_those_of_a_starting_plugin_are_not():
    whole = MIXED | {"nvidia.com/mig.config": "all-disabled"}
    before, starting, cut = (
        facts.node
        for facts in told(
            manifest(whole, {GPU: "8"}),
            manifest(whole, {GPU: "0"} | SLICES),
            manifest(ALL_CUT, {GPU: "0"} | SLICES),
        )
    )
    assert (before.healthy_gpus, len(starting.devices), starting.healthy_gpus) == (8, 8, 0)
    assert cut.devices == ()


def test_a_whole_gpu_that_all_labels_say_is_cut_is_not_free():
    node = node_of(ALL_CUT, {GPU: "2"} | SLICES)
    assert (len(node.devices), node.healthy_gpus) == (2, 0)
    assert "status.capacity[nvidia.com/gpu] is 2, but" in node.problems[0]


# --- time slicing, MPS ----------------------------------------------------------------------------
@pytest.mark.parametrize("labels", [TIME_SLICED, MPS])
def test_replicas_of_shared_gpus_are_a_gpu_model_of_their_own(labels):
    node = node_of(labels, {GPU: "32"})
    assert (node.gpu_model, len(node.devices), node.healthy_gpus) == (f"{H100}-SHARED", 32, 32)
    assert (node.gives_shares, node.link_model, node.problems) == (False, "", ())


def test_shared_slices_are_both():
    product = f"{H100}-MIG-1g.10gb-SHARED"
    labels = SINGLE | {"nvidia.com/gpu.product": product, "nvidia.com/gpu.replicas": "2"}
    node = node_of(labels, {GPU: "112"})
    assert (node.gpu_model, node.healthy_gpus, node.problems) == (product, 112, ())


def test_replicas_under_a_name_of_their_own_are_an_extended_resource():
    for left_behind in ({}, {GPU: "0"}):
        node = node_of(RENAMED, left_behind | {SHARED_GPU: "32"})
        assert (node.devices, node.gpu_model, node.extended) == ((), "", {SHARED_GPU: 32})
        [problem] = node.problems
        assert problem.startswith("its GPUs are advertised as nvidia.com/gpu.shared only")
        assert problem.endswith("set renameByDefault of the device plugin to false")


def test_more_replicas_than_pods_are_cut_off_with_a_warning():
    labels = TIME_SLICED | {"nvidia.com/gpu.replicas": "40"}
    node = node_of(labels, {GPU: "320"})
    assert (len(node.devices), node.healthy_gpus) == (256, 256)
    assert node.problems == ("320 GPUs on one node; only the first 256 are used",)


# --- without GPU feature discovery ----------------------------------------------------------------
def test_more_gpus_than_a_server_has_are_not_taken_for_whole_ones():
    labels = {"node.kubernetes.io/instance-type": "Standard_ND96asr_v4"}
    node = node_of(labels, {GPU: "56"})
    assert (node.gpu_model, len(node.devices)) == ("NVIDIA-A100-SXM4-40GB", 56)
    assert node.healthy_gpus == 0
    [problem] = node.problems
    assert problem.startswith("56 GPUs are more than a server has, and no label counts them")
    assert node_of(labels, {GPU: "8"}).healthy_gpus == 8


@pytest.mark.parametrize(
    ("labels", "label_map", "resource"),
    [
        (WHOLE | {"nvidia.com/gpu.count": "32"}, None, GPU),
        (
            {"amd.com/gpu.product-name": "MI300X-CPX", "example.com/gpus": "32"},
            {"gpu_count": "example.com/gpus"},
            "amd.com/gpu",
        ),
    ],
)
def test_as_many_as_a_label_counts_are_used(labels, label_map, resource):
    node = node_of(labels, {resource: "32"}, label_map=label_map)
    assert (node.healthy_gpus, node.problems) == (32, ())


# --- GKE, operators' own labels -------------------------------------------------------------------
GKE = {
    "cloud.google.com/gke-accelerator": "nvidia-tesla-a100",
    "node.kubernetes.io/instance-type": "a2-highgpu-1g",
}


@pytest.mark.parametrize(
    ("labels", "gpus", "model"),
    [
        ({}, 1, ""),
        ({"cloud.google.com/gke-gpu-partition-size": "1g.5gb"}, 7, "-MIG-1g.5gb"),
        (
            {
                "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
                "cloud.google.com/gke-max-shared-clients-per-gpu": "4",
            },
            4,
            "-SHARED",
        ),
        (
            {
                "cloud.google.com/gke-gpu-partition-size": "3g.20gb",
                "cloud.google.com/gke-gpu-sharing-strategy": "mps",
            },
            6,
            "-MIG-3g.20gb-SHARED",
        ),
    ],
)
@pytest.mark.parametrize("discovery", [{}, {"nvidia.com/gpu.count": "1"}])
def test_parts_of_gpus_on_gke(labels, gpus, model, discovery):
    node = node_of(GKE | labels | discovery, {GPU: str(gpus)})
    assert (node.gpu_model, node.healthy_gpus) == (f"nvidia-tesla-a100{model}", gpus)
    assert node.problems == ()


def test_an_operators_own_name_of_a_model_is_not_that_of_its_parts():
    label_map = {"gpu_model": "example.com/gpu"}
    own = {"example.com/gpu": "h100"}
    for labels, gpus, model in (
        (WHOLE, 8, "h100"),
        (SINGLE, 56, "h100-MIG-1g.10gb"),
        (TIME_SLICED, 32, "h100-SHARED"),
        (SINGLE | {"example.com/gpu": "h100-MIG-1g.10gb"}, 56, "h100-MIG-1g.10gb"),
    ):
        node = node_of(own | labels, {GPU: str(gpus)}, label_map=label_map)
        assert (node.gpu_model, node.healthy_gpus) == (model, gpus)


def test_names_of_models_stay_as_long_as_labels_may_be():
    long = "x" * 63
    assert advertised(SINGLE).model(long) == "x" * 51 + "-MIG-1g.10gb"
    assert advertised(WHOLE).model(long) == long
