"""Turns an inventory into Kubernetes nodes with the labels of real clusters."""

from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from scheduling.simcluster.controllers.devices import GPU, GPU_MILLI, WHOLE
from scheduling.simcluster.objects.meta import rfc3339
from scheduling.simulator.fleet import Fleet, FleetError, FleetNode, parse_inventory, parse_openb
from scheduling.text_files import InputError, yaml_of

SHIPPED = ("demo", "paper", "large")
OPENB = "openb:"
Obj = dict[str, Any]


def load_fleet(source: str) -> Fleet:
    """Return the fleet named `demo`, `paper`, `large`, `openb:FILE.csv` or by a YAML file's path.

    Raises:
        FleetError: the file is missing, unreadable or wrong; names the file and the field.
    """
    if source in SHIPPED:
        package = resources.files("scheduling.simcluster.fleets")
        return parse_inventory(yaml.safe_load((package / f"{source}.yaml").read_text()))
    path = Path(source.removeprefix(OPENB))
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        names = ", ".join(SHIPPED)
        raise FleetError(
            f"{path}: cannot be read ({error}); a fleet is one of {names}, {OPENB}FILE.csv or "
            "the path of an inventory"
        ) from None
    try:
        if source.startswith(OPENB):
            return parse_openb(text)
        return parse_inventory(yaml_of(text))
    except yaml.YAMLError as error:
        raise FleetError(f"{path}: is not YAML: {error}") from None
    except RecursionError:
        raise FleetError(f"{path}: is nested far too deeply for an inventory") from None
    except (FleetError, InputError) as error:
        raise FleetError(f"{path}: {error}") from None


def node_object(node: FleetNode, number: int, now: float) -> Obj:
    """Return the Node that this machine's kubelet registers; its address is made from `number`."""
    at = rfc3339(now)
    capacity = {
        "cpu": f"{node.cpu_milli}m",
        "memory": f"{node.memory_mib}Mi",
        "pods": str(node.max_pods),
        **{name: str(amount) for name, amount in node.extended.items()},
    }
    annotations: dict[str, str] = {}
    if node.gpus:
        capacity[GPU] = str(node.gpus)
        if node.gives_shares:
            capacity[GPU_MILLI] = str(node.gpus * WHOLE)
    if node.nics:
        annotations["kant.io/nics"] = str(node.nics)
    spec: Obj = {}
    if node.taints:
        spec["taints"] = [{"key": k, "value": v, "effect": e} for k, v, e in node.taints]
    address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    return {
        "metadata": {"name": node.name, "labels": _labels(node), "annotations": annotations},
        "spec": spec,
        "status": {
            "capacity": capacity,
            "allocatable": dict(capacity),
            "conditions": [ready_condition(at)],
            "addresses": [
                {"type": "InternalIP", "address": address},
                {"type": "Hostname", "address": node.name},
            ],
            "nodeInfo": {
                "architecture": "amd64",
                "operatingSystem": "linux",
                "kubeletVersion": "v1.36.3",
            },
        },
    }


def ready_condition(at: str) -> Obj:
    return {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastHeartbeatTime": at,
        "lastTransitionTime": at,
    }


def _labels(node: FleetNode) -> dict[str, str]:
    labels = {
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "kant.io/pool": node.pool,
    }
    if node.gpus:
        labels |= {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": node.gpu_model,
            "nvidia.com/gpu.count": str(node.gpus),
        }
    for label, value in (
        ("nvidia.com/gpu.memory", str(node.gpu_memory_mib or "")),
        ("network.topology.nvidia.com/leaf", node.leaf),
        ("network.topology.nvidia.com/spine", node.spine),
        ("network.topology.nvidia.com/core", node.superspine),
        ("nvidia.com/gpu.clique", node.hyper_node),
        ("kant.io/link-model", node.link_model),
        ("kant.io/zone", node.zone),
    ):
        if value:
            labels[label] = value
    return labels | dict(node.labels)
