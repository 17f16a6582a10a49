"""What the node lifecycle controller and the device plugin do to a node when something fails."""

import json

from scheduling.simcluster.controllers.devices import (
    GPU,
    GPU_MILLI,
    UNHEALTHY_GPUS,
    UNHEALTHY_NICS,
    WHOLE,
    indices,
)
from scheduling.simcluster.controllers.fleet import ready_condition
from scheduling.simcluster.objects.kinds import NODES
from scheduling.simcluster.objects.meta import rfc3339
from scheduling.simcluster.objects.quantities import amounts, canonical
from scheduling.simcluster.objects.registry import Registry
from scheduling.simcluster.objects.store import Obj

_UNREACHABLE = "node.kubernetes.io/unreachable"


def _save(registry: Registry, obj: Obj) -> None:
    registry.set(NODES, obj["metadata"]["name"], obj)


def mark_unreachable(registry: Registry, name: str) -> None:
    """Mark the node as silent: Ready becomes Unknown and the unreachable taints appear."""
    obj = registry.stored(NODES, "", name).decode()
    at = rfc3339(registry.clock())
    for condition in obj["status"].get("conditions") or ():
        condition.update(
            status="Unknown",
            reason="NodeStatusUnknown",
            message="Kubelet stopped posting node status.",
            lastTransitionTime=at,
        )
    taints = [t for t in obj["spec"].get("taints") or () if t["key"] != _UNREACHABLE]
    taints += [
        {"key": _UNREACHABLE, "effect": "NoSchedule", "timeAdded": at},
        {"key": _UNREACHABLE, "effect": "NoExecute", "timeAdded": at},
    ]
    obj["spec"]["taints"] = taints
    _save(registry, obj)


def mark_reachable(registry: Registry, name: str) -> None:
    obj = registry.stored(NODES, "", name).decode()
    at = rfc3339(registry.clock())
    others = [c for c in obj["status"].get("conditions") or () if c["type"] != "Ready"]
    for condition in others:
        condition.update(status="False", lastTransitionTime=at)
    obj["status"]["conditions"] = [*others, ready_condition(at)]
    taints = [t for t in obj["spec"].get("taints") or () if t["key"] != _UNREACHABLE]
    obj["spec"]["taints"] = taints
    if not taints:
        del obj["spec"]["taints"]
    _save(registry, obj)


def set_gpu_health(registry: Registry, name: str, gpu: int, *, healthy: bool) -> None:
    """Report one GPU as the device plugin does: update allocatable and the annotation."""
    obj = registry.stored(NODES, "", name).decode()
    unhealthy = _set_unhealthy(obj, UNHEALTHY_GPUS, gpu, healthy=healthy)
    usable = amounts(obj["status"]["capacity"])[GPU] - unhealthy
    obj["status"]["allocatable"][GPU] = str(usable)
    if GPU_MILLI in obj["status"]["capacity"]:
        obj["status"]["allocatable"][GPU_MILLI] = canonical(str(usable * WHOLE))
    _save(registry, obj)


def set_nic_health(registry: Registry, name: str, nic: int, *, healthy: bool) -> None:
    obj = registry.stored(NODES, "", name).decode()
    _set_unhealthy(obj, UNHEALTHY_NICS, nic, healthy=healthy)
    _save(registry, obj)


def _set_unhealthy(obj: Obj, annotation: str, index: int, *, healthy: bool) -> int:
    """Mark one device; return how many are unhealthy now."""
    annotations = obj["metadata"].setdefault("annotations", {})
    current = set(indices(annotations.get(annotation, "[]")))
    current = current - {index} if healthy else current | {index}
    if current:
        annotations[annotation] = json.dumps(sorted(current))
    else:
        annotations.pop(annotation, None)
    return len(current)


def device_counts(obj: Obj) -> tuple[int, int]:
    """Return how many GPUs and NICs a node has."""
    capacity = amounts((obj.get("status") or {}).get("capacity"))
    nics = (obj["metadata"].get("annotations") or {}).get("kant.io/nics", "0")
    return capacity.get(GPU, 0), int(nics) if nics.isdigit() else 0
