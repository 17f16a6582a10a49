"""GPUs handed out in parts: MIG slices, and replicas that share a GPU by time-slicing or MPS.

A node's labels say what it advertises as GPUs. Sources: labels of NVIDIA GPU feature discovery and
the code that writes them, README of the NVIDIA device plugin, GKE documentation.
"""

from collections.abc import Mapping
from typing import NamedTuple

from scheduling.engine.devices.links import MAX_DEVICES
from scheduling.engine.types import PART_OF_GPU

PRODUCT = "nvidia.com/gpu.product"
REPLICAS = "nvidia.com/gpu.replicas"
MIG_STRATEGY = "nvidia.com/mig.strategy"
GKE_PARTITION = "cloud.google.com/gke-gpu-partition-size"
GKE_SHARING = "cloud.google.com/gke-gpu-sharing-strategy"
SHARED, INVALID = "-SHARED", "-MIG-INVALID"
UNTIL_THEY_AGREE = "none is used until labels and status agree (is GPU feature discovery running?)"
UNNAMED = "set renameByDefault of the device plugin to false"
# Names of GPU models may be as long as label values.
NAME_LENGTH = 63


class Advertised(NamedTuple):
    """What a node's labels say of the GPUs that it advertises.

    - `part`: what each of them is, as the suffix of its model's name: "-MIG-1g.10gb", "-SHARED", or
      both; "" = a whole GPU.
    - `per_counted`: how many are advertised for each GPU that the label `nvidia.com/gpu.count`
      counts, 0 = that label also counts other GPUs.
    - `elsewhere`: all are advertised under resource names other than those of GPUs, and this
      setting would change that; "" = not all are.
    - `fault`: why none of them may be used, "" = they may.
    """

    part: str = ""
    per_counted: int = 1
    elsewhere: str = ""
    fault: str = ""

    def model(self, name: str) -> str:
        """Return the devices' GPU model, given the name of the GPUs that they are parts of."""
        if name.endswith(self.part):
            return name
        return name[: NAME_LENGTH - len(self.part)] + self.part

    def doubt(self, resource: str, installed: int, expected: int, counted_by: str) -> str:
        """Say why the `installed` GPUs of `resource` must not be used, "" = they may.

        `expected`: their number by the label `counted_by` and by replicas, 0 = unknown. While GPUs
        are being repartitioned, labels and status change one after the other.
        """
        if self.fault:
            return self.fault
        if self.elsewhere and installed:
            return (
                f"status.capacity[{resource}] is {installed}, but {PRODUCT}, {REPLICAS} and "
                f"{MIG_STRATEGY} say that GPUs are advertised by other names; {UNTIL_THEY_AGREE}"
            )
        if installed > MAX_DEVICES and not (self.part or expected):
            return (
                f"{installed} GPUs are more than a server has, and no label counts them: they may "
                "be parts of GPUs; none is used until GPU feature discovery, or a label that "
                "label_map.gpu_count names, says how many there are"
            )
        fewer = installed < expected and not self.part  # some whole GPUs may be missing
        if expected and installed and installed != expected and not fewer:
            times = f" times {REPLICAS}" if self.per_counted > 1 else ""
            return (
                f"{counted_by}{times} says {expected} GPUs, status.capacity says {installed}; "
                f"{UNTIL_THEY_AGREE}"
            )
        return ""


def advertised(labels: Mapping[str, str]) -> Advertised:
    """Read a node's labels. Never raises: a label that cannot be read says nothing."""
    found = PART_OF_GPU.search(labels.get(PRODUCT, ""))
    part = found[0] if found else ""
    if part == INVALID:
        text = (
            f"{PRODUCT} ends with {INVALID}: MIG strategy single needs all GPUs of the node cut "
            "into slices of one size; change nvidia.com/mig.config, or the strategy to mixed; "
            "none is used until then"
        )
        return Advertised(part, fault=text)
    on_gke = _on_gke(labels)
    if on_gke:
        # Feature discovery does not know GKE's partitions: it counts whole GPUs, if it runs.
        return Advertised(part or on_gke, per_counted=0)
    text = labels.get(REPLICAS, "")
    replicas = int(text) if text.isdecimal() else 1
    strategy = labels.get(MIG_STRATEGY, "none")
    is_shared = part.endswith(SHARED)
    renamed = replicas > 1 and not is_shared
    if strategy == "mixed":
        # The label counts partitioned GPUs, too. If none has even one replica, all are partitioned.
        cut = "use MIG strategy single" if replicas == 0 else ""
        return Advertised(part, per_counted=0, elsewhere=UNNAMED if renamed else cut)
    if renamed:
        return Advertised(part, per_counted=0, elsewhere=UNNAMED)
    if replicas == 0 and strategy == "none":
        text = (
            f"{REPLICAS} is 0: MIG is on, but MIG strategy none hands out GPUs as whole ones, of "
            "which programs can use one slice; set it to single or mixed, or turn MIG off; none is "
            "used until then"
        )
        return Advertised(part, fault=text)
    return Advertised(part, replicas if is_shared else 1)


def is_part(resource: str) -> bool:
    """Whether an extended resource of this name stands for parts of GPUs."""
    return resource.startswith("nvidia.com/mig-") or resource == "nvidia.com/gpu.shared"


def _on_gke(labels: Mapping[str, str]) -> str:
    partition = labels.get(GKE_PARTITION)
    return (f"-MIG-{partition}" if partition else "") + (SHARED if labels.get(GKE_SHARING) else "")
