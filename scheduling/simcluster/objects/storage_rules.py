"""Rules of volume claims, volumes and storage classes on create and update."""

from typing import Any

from scheduling.simcluster.objects.meta import Causes, Obj
from scheduling.simcluster.objects.quantities import parse
from scheduling.simcluster.objects.status import (
    forbidden_field,
    invalid_value,
    not_supported,
    required,
)

_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
_BINDING = ("Immediate", "WaitForFirstConsumer")
# Fields of a volume besides its single source.
_BESIDE_SOURCE = frozenset(
    {
        *("accessModes", "capacity", "claimRef", "mountOptions", "nodeAffinity"),
        *("persistentVolumeReclaimPolicy", "storageClassName", "volumeMode"),
        "volumeAttributesClassName",
    }
)


# --- defaults -------------------------------------------------------------------------------
def default_claim(obj: Obj) -> None:
    spec = obj["spec"] = obj.get("spec") or {}
    spec["volumeMode"] = spec.get("volumeMode") or "Filesystem"
    obj["status"] = {"phase": "Pending"}


def default_volume(obj: Obj) -> None:
    spec = obj["spec"] = obj.get("spec") or {}
    spec["volumeMode"] = spec.get("volumeMode") or "Filesystem"
    spec["persistentVolumeReclaimPolicy"] = spec.get("persistentVolumeReclaimPolicy") or "Retain"
    since = obj["metadata"]["creationTimestamp"]
    obj["status"] = {"phase": "Pending", "lastPhaseTransitionTime": since}


def default_storage_class(obj: Obj) -> None:
    obj["reclaimPolicy"] = obj.get("reclaimPolicy") or "Delete"
    obj["volumeBindingMode"] = obj.get("volumeBindingMode") or "Immediate"


# --- validation -----------------------------------------------------------------------------
def claim_causes(obj: Obj) -> Causes:
    spec = obj["spec"]
    causes = _mode_causes(spec)
    asked = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    if asked is None:
        causes.append(required("spec.resources[storage]"))
    elif parse(asked) <= 0:
        at = "spec.resources[storage]"
        causes.append(invalid_value(at, asked, "must be greater than zero"))
    return causes


def volume_causes(obj: Obj) -> Causes:
    spec = obj["spec"]
    causes = _mode_causes(spec)
    if (spec.get("capacity") or {}).get("storage") is None:
        given = spec.get("capacity") or {}
        causes.append(required("spec.capacity"))
        causes.append(not_supported("spec.capacity", given, ("storage",)))
    sources = [name for name in sorted(spec.keys() - _BESIDE_SOURCE) if spec[name] is not None]
    sources.sort(key=lambda name: name == "csi")  # the API server checks it last
    if not sources:
        causes.append(required("spec", "must specify a volume type"))
    causes += [
        forbidden_field(f"spec.{name}", "may not specify more than 1 volume type")
        for name in sources[1:]
    ]
    return causes


def storage_class_causes(obj: Obj) -> Causes:
    causes = [] if obj.get("provisioner") else [required("provisioner")]
    mode = obj.get("volumeBindingMode")
    if mode not in _BINDING:
        causes.append(not_supported("volumeBindingMode", mode, _BINDING))
    return causes


def _mode_causes(spec: dict[str, Any]) -> Causes:
    modes = spec.get("accessModes") or ()
    if not modes:
        return [required("spec.accessModes", "at least 1 access mode is required")]
    return [not_supported("spec.accessModes", m, _MODES) for m in modes if m not in _MODES]


# --- what may not change ----------------------------------------------------------------------
def claim_changes(new: Obj, old: Obj) -> Causes:
    before = dict(old["spec"])
    after = {**new["spec"], "resources": before.get("resources")}
    if not before.get("volumeName"):
        before["volumeName"] = after.get("volumeName")
    if before.get("storageClassName") is None:
        before["storageClassName"] = after.get("storageClassName")
    if {k: v for k, v in after.items() if v} == {k: v for k, v in before.items() if v}:
        return []
    why = "spec is immutable after creation except resources.requests and volumeName for unbound"
    return [forbidden_field("spec", f"{why} claims")]


def volume_changes(new: Obj, old: Obj) -> Causes:
    causes: Causes = []
    for field in sorted((old["spec"].keys() | new["spec"].keys()) - _BESIDE_SOURCE):
        if new["spec"].get(field) != old["spec"].get(field):
            why = "spec.persistentvolumesource is immutable after creation"
            causes.append(forbidden_field("spec.persistentvolumesource", why))
    before = old["spec"].get("nodeAffinity")
    if before and new["spec"].get("nodeAffinity") != before:
        causes.append(invalid_value("spec.nodeAffinity", "", "field is immutable"))
    return causes


def storage_class_changes(new: Obj, old: Obj) -> Causes:
    return [
        invalid_value(field, new.get(field), "field is immutable")
        for field in ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode")
        if (new.get(field) or None) != (old.get(field) or None)
    ]
