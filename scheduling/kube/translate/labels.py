"""The label table: the label, annotation or field from which each fact about a node is read.

The first source that is present wins. An operator overrides a row in `Cluster.label_map`: {"leaf":
"example.com/rack"}, or a list of labels that are tried in order. Sources of the default rows:
NVIDIA GPU feature discovery, topograph (new and old names), CoreWeave, OCI, EKS and GKE
documentation, the AMD node labeller.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from scheduling.kube.seam import Sourced
from scheduling.kube.translate.gpu_parts import PRODUCT

Labels = Mapping[str, str]

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
INSTANCE_MODELS = {
    "p3.16xlarge": "Tesla-V100-SXM2-16GB",
    "p4d.24xlarge": "NVIDIA-A100-SXM4-40GB",
    "p4de.24xlarge": "NVIDIA-A100-SXM4-80GB",
    "p5.48xlarge": "NVIDIA-H100-80GB-HBM3",
    "p5e.48xlarge": "NVIDIA-H200",
    "p5en.48xlarge": "NVIDIA-H200",
    "BM.GPU.H100.8": "NVIDIA-H100-80GB-HBM3",
    "BM.GPU.H200.8": "NVIDIA-H200",
    "Standard_ND96asr_v4": "NVIDIA-A100-SXM4-40GB",
    "Standard_ND96amsr_A100_v4": "NVIDIA-A100-SXM4-80GB",
    "Standard_ND96isr_H100_v5": "NVIDIA-H100-80GB-HBM3",
    "Standard_ND96isr_H200_v5": "NVIDIA-H200",
}
EKS_LAYERS = tuple(f"topology.k8s.aws/network-node-layer-{n}" for n in range(4, 0, -1))


def _as_it_is(value: str, _: Labels) -> str:
    return value


class LabelSource(NamedTuple):
    """A label and how to read its value; `read` returns "" if the value says nothing."""

    label: str
    read: Callable[[str, Labels], str] = _as_it_is


def reads_as_it_is(source: LabelSource) -> bool:
    """Whether the fact is the label's value, unchanged."""
    return source.read is _as_it_is


def _if_nvlink_rack(value: str, labels: Labels) -> str:
    # On GKE a sub-block is an NVLink domain only on A4X machines.
    return value if labels.get(INSTANCE_TYPE, "").startswith("a4x-") else ""


def _by_instance(value: str, _: Labels) -> str:
    return INSTANCE_MODELS.get(value, "")


def _eks_layer(above_nearest: int) -> Callable[[str, Labels], str]:
    # EKS numbers its layers from the top; the last one present is the nearest.
    def read(_: str, labels: Labels) -> str:
        present = [labels[key] for key in EKS_LAYERS if labels.get(key)]
        return present[above_nearest] if above_nearest < len(present) else ""

    return read


TABLE: dict[str, tuple[LabelSource, ...]] = {
    "gpu_model": (
        LabelSource(PRODUCT),
        LabelSource("amd.com/gpu.product-name"),
        LabelSource("beta.amd.com/gpu.product-name"),
        LabelSource("cloud.google.com/gke-accelerator"),
        LabelSource(INSTANCE_TYPE, _by_instance),
    ),
    "gpu_count": (LabelSource("nvidia.com/gpu.count"),),
    "gpu_memory_mib": (LabelSource("nvidia.com/gpu.memory"),),
    "leaf": (
        LabelSource("fabric.topograph.run/tier-0"),
        LabelSource("network.topology.nvidia.com/leaf"),
        LabelSource("backend.coreweave.cloud/leafgroup"),
        LabelSource("ib.coreweave.cloud/leafgroup"),
        LabelSource("oci.oraclecloud.com/rdma.local_block_id"),
        LabelSource(EKS_LAYERS[-1], _eks_layer(0)),
        LabelSource("cloud.google.com/gce-topology-subblock"),
    ),
    "spine": (
        LabelSource("fabric.topograph.run/tier-1"),
        LabelSource("network.topology.nvidia.com/spine"),
        LabelSource("ib.coreweave.cloud/superpod"),
        LabelSource("oci.oraclecloud.com/rdma.network_block_id"),
        LabelSource(EKS_LAYERS[-1], _eks_layer(1)),
        LabelSource("cloud.google.com/gce-topology-block"),
    ),
    "superspine": (
        LabelSource("fabric.topograph.run/tier-2"),
        LabelSource("network.topology.nvidia.com/core"),
        LabelSource("backend.coreweave.cloud/fabric"),
        LabelSource("oci.oraclecloud.com/rdma.hpc_island_id"),
        LabelSource(EKS_LAYERS[-1], _eks_layer(2)),
        LabelSource("topology.kubernetes.io/zone"),
    ),
    "hyper_node": (
        LabelSource("accelerator.topograph.run/domain"),
        # <ClusterUUID>.<CliqueID>: a rack, and the partition of it whose GPUs are joined.
        LabelSource("nvidia.com/gpu.clique"),
        LabelSource("network.topology.nvidia.com/accelerator"),
        LabelSource("ds.coreweave.com/nvlink.domain"),
        LabelSource("topology.k8s.aws/ultraserver-id"),
        LabelSource("cloud.google.com/gce-topology-subblock", _if_nvlink_rack),
    ),
    "zone": (LabelSource("kant.io/zone"),),
    "link_model": (LabelSource("kant.io/link-model"),),
}

# Values of these labels are unique in a cluster, so each has one parent. Values of other labels
# only number the groups inside their parent.
UNIQUE = frozenset(
    f"{family}/{tier}"
    for family, tiers in {
        "fabric.topograph.run": ("tier-0", "tier-1", "tier-2"),
        "network.topology.nvidia.com": ("leaf", "spine", "core"),
    }.items()
    for tier in tiers
)

# Pairs of names for one fact; if both are present they must agree.
SYNONYMS = (
    ("fabric.topograph.run/tier-0", "network.topology.nvidia.com/leaf"),
    ("fabric.topograph.run/tier-1", "network.topology.nvidia.com/spine"),
    ("fabric.topograph.run/tier-2", "network.topology.nvidia.com/core"),
    ("accelerator.topograph.run/domain", "network.topology.nvidia.com/accelerator"),
)

_LABEL_KEY = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)


class WrongRow(ValueError):
    """A row of a label map that cannot be used; `fact`: its key. The text has no full stop."""

    def __init__(self, fact: str, text: str) -> None:
        super().__init__(text)
        self.fact = fact


def is_label_key(text: str) -> bool:
    """Whether the text is a valid Kubernetes label key."""
    return bool(_LABEL_KEY.fullmatch(text))


def label_table(label_map: Mapping[str, Any]) -> dict[str, tuple[LabelSource, ...]]:
    """Return the default table, with the operator's rows replacing its own.

    Raises WrongRow for an unknown fact or an invalid label key.
    """
    table = dict(TABLE)
    for fact, given in label_map.items():
        if fact not in TABLE:
            facts = ", ".join(sorted(TABLE))
            raise WrongRow(fact, f"There is no fact {fact!r}; facts are {facts}")
        keys = [given] if isinstance(given, str) else given
        if not isinstance(keys, list) or not keys:
            raise WrongRow(fact, "Give a label key or a list of them")
        for key in keys:
            if not isinstance(key, str) or not is_label_key(key):
                raise WrongRow(fact, f"{key!r} is not a Kubernetes label key")
        table[fact] = tuple(LabelSource(key) for key in keys)
    return table


def read_fact(sources: tuple[LabelSource, ...], labels: Labels) -> Sourced | None:
    """Return the value of the first source that is present, with its label."""
    for source in sources:
        raw = labels.get(source.label)
        if raw:
            value = source.read(raw, labels)
            if value:
                return Sourced(value, source.label)
    return None
