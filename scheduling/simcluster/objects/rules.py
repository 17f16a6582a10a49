"""Rules of all kinds except pods on create and update, and the two shapes of events."""

from collections.abc import Callable
from typing import Any

from scheduling.simcluster.objects import device_rules, storage_rules
from scheduling.simcluster.objects.kinds import EVENTS, EVENTS_V1, ResourceKind
from scheduling.simcluster.objects.meta import Causes, Obj, label_causes, valid_key
from scheduling.simcluster.objects.quantities import parse
from scheduling.simcluster.objects.status import (
    cause,
    forbidden_field,
    invalid,
    invalid_value,
    not_supported,
    required,
)

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def prepare_create(kind: ResourceKind, obj: Obj) -> None:
    """Default and validate a new object in place.

    Raises:
        ApiError: 422 with every field error.
    """
    default = _DEFAULTS.get(kind.kind)
    if default:
        default(obj)
    _validate(kind, obj)


def prepare_update(kind: ResourceKind, new: Obj, old: Obj) -> None:
    """Keep what a plain update may not change (status), count the generation, validate."""
    if "status" in kind.subresources:
        _keep(new, old, "status")
    if kind.kind in ("Node", "Namespace"):
        new["spec"] = new.get("spec") or {}
    if kind.kind == "PriorityClass" and new.get("value", 0) != old["value"]:
        raise invalid(
            kind,
            old["metadata"]["name"],
            [forbidden_field("value", "may not be changed in an update.")],
        )
    immutable = _IMMUTABLE.get(kind.kind)
    if immutable and (causes := immutable(new, old)):
        raise invalid(kind, old["metadata"]["name"], causes)
    if kind is EVENTS_V1 and (causes := _event_changes(new, old)):
        raise invalid(EVENTS, old["metadata"]["name"], causes)
    if "generation" in old["metadata"] and new.get("spec") != old.get("spec"):
        new["metadata"]["generation"] = old["metadata"]["generation"] + 1
    _validate(kind, new)


def prepare_status_update(kind: ResourceKind, new: Obj, old: Obj) -> None:
    """Prepare a write to the status subresource, which must not change the spec."""
    _keep(new, old, "spec")
    null_times(new.get("status") or {}, _CONDITION_TIMES[kind.kind])
    if kind.kind == "Node":
        _validate(kind, new)
    if kind.kind == "ResourceClaim":
        device_rules.drop_given_back(new, old)
    if kind.kind == "ResourceClaim" and (causes := device_rules.status_changes(new, old)):
        raise invalid(kind, old["metadata"]["name"], causes)


# Times of conditions that the API server writes as null if they are not given.
_CONDITION_TIMES: dict[str, tuple[str, ...]] = {
    "Node": ("lastHeartbeatTime", "lastTransitionTime"),
    "Pod": ("lastProbeTime", "lastTransitionTime"),
    "PodDisruptionBudget": ("lastTransitionTime",),
    "Namespace": ("lastTransitionTime",),
    "Service": ("lastTransitionTime",),
    "PersistentVolumeClaim": ("lastProbeTime", "lastTransitionTime"),
    "PersistentVolume": (),
    "ResourceClaim": (),
    "PodGroup": (),
    "ProvisioningRequest": (),
}


def null_times(status: Obj, fields: tuple[str, ...]) -> None:
    for condition in status.get("conditions") or ():
        for field in fields:
            condition.setdefault(field, None)


def _keep(new: Obj, old: Obj, field: str) -> None:
    if field in old:
        new[field] = old[field]
    else:
        new.pop(field, None)


def _validate(kind: ResourceKind, obj: Obj) -> None:
    if kind.kind == "Event":
        causes, kind = _event_causes(kind, obj), EVENTS
    else:
        check = _CAUSES.get(kind.kind)
        causes = check(obj) if check else []
    if causes:
        raise invalid(kind, obj["metadata"]["name"], causes)


# --- defaults -------------------------------------------------------------------------------
def _default_namespace(obj: Obj) -> None:
    obj["spec"] = {"finalizers": ["kubernetes"]}
    obj["status"] = {"phase": "Active"}
    labels = obj["metadata"].setdefault("labels", {})
    labels["kubernetes.io/metadata.name"] = obj["metadata"]["name"]


def _default_node(obj: Obj) -> None:
    obj["spec"] = obj.get("spec") or {}
    status = obj["status"] = obj.get("status") or {}
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])
    null_times(status, _CONDITION_TIMES["Node"])
    status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})
    given = status.get("nodeInfo") or {}
    status["nodeInfo"] = {name: given.get(name, "") for name in _NODE_INFO} | given


_NODE_INFO = (
    "machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion",
    "kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture",
)  # fmt: skip


def _default_event(obj: Obj) -> None:
    for field in ("firstTimestamp", "lastTimestamp", "eventTime"):
        obj.setdefault(field, None)
    for field in ("reportingComponent", "reportingInstance"):
        obj.setdefault(field, "")
    obj["source"] = obj.get("source") or {}


def _default_budget(obj: Obj) -> None:
    obj["metadata"]["generation"] = 1
    obj["spec"] = obj.get("spec") or {}
    obj["status"] = {
        "disruptionsAllowed": 0,
        "currentHealthy": 0,
        "desiredHealthy": 0,
        "expectedPods": 0,
    }


def _default_service(obj: Obj) -> None:
    spec = obj["spec"] = obj.get("spec") or {}
    for field, value in (
        ("clusterIP", ""),
        ("type", "ClusterIP"),
        ("sessionAffinity", "None"),
        ("ipFamilies", ["IPv4"]),
        ("ipFamilyPolicy", "SingleStack"),
        ("internalTrafficPolicy", "Cluster"),
    ):
        spec[field] = spec.get(field) or value
    spec["clusterIPs"] = [spec["clusterIP"]]
    for port in spec.get("ports") or ():
        port["protocol"] = port.get("protocol") or "TCP"
        port["targetPort"] = port.get("targetPort") or port.get("port")
    obj["status"] = {"loadBalancer": {}}


def _default_priority_class(obj: Obj) -> None:
    obj["metadata"]["generation"] = 1
    obj["value"] = obj.get("value") or 0
    if not obj.get("preemptionPolicy"):
        obj["preemptionPolicy"] = "PreemptLowerPriority"


_DEFAULTS: dict[str, Callable[[Obj], None]] = {
    "Event": _default_event,
    "Namespace": _default_namespace,
    "Node": _default_node,
    "PodDisruptionBudget": _default_budget,
    "PersistentVolume": storage_rules.default_volume,
    "PersistentVolumeClaim": storage_rules.default_claim,
    "PriorityClass": _default_priority_class,
    "Service": _default_service,
    "StorageClass": storage_rules.default_storage_class,
}


# --- validation -----------------------------------------------------------------------------
def _node_causes(obj: Obj) -> Causes:
    causes: Causes = []
    seen: set[tuple[str, str]] = set()
    for i, taint in enumerate(obj["spec"].get("taints") or ()):
        at = f"metadata.taints[{i}]"
        key, effect = taint.get("key") or "", taint.get("effect") or ""
        if not valid_key(key):
            causes.append(invalid_value(f"{at}.key", key, "name part must be non-empty"))
        causes += label_causes({"taint": taint.get("value") or ""}, f"{at}.value")
        if not effect:
            causes.append(required(f"{at}.effect"))
        elif effect not in _EFFECTS:
            causes.append(not_supported(f"{at}.effect", effect, _EFFECTS))
        elif (key, effect) in seen:
            causes.append(
                cause(
                    "FieldValueDuplicate",
                    at,
                    "Duplicate value: taints must be unique by key and effect pair",
                )
            )
        seen.add((key, effect))
    status = obj.get("status") or {}
    for part in ("capacity", "allocatable"):
        causes += [
            invalid_value(f"status.{part}.{resource}", text, "must be greater than or equal to 0")
            for resource, text in (status.get(part) or {}).items()
            if parse(text) < 0
        ]
    return causes


def _budget_causes(obj: Obj) -> Causes:
    spec = obj.get("spec") or {}
    causes: Causes = []
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        causes.append(
            invalid_value("spec", spec, "minAvailable and maxUnavailable cannot be both set")
        )
    for field in ("minAvailable", "maxUnavailable"):
        value = spec.get(field)
        if isinstance(value, int) and value < 0:
            causes.append(
                invalid_value(f"spec.{field}", value, "must be greater than or equal to 0")
            )
        if isinstance(value, str) and not (value.endswith("%") and value[:-1].isdigit()):
            causes.append(
                invalid_value(
                    f"spec.{field}",
                    value,
                    "a valid percent string must be a numeric string followed by an ending '%' "
                    "(e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')",
                )
            )
    return causes


def _lease_causes(obj: Obj) -> Causes:
    spec = obj.get("spec") or {}
    causes: Causes = []
    duration = spec.get("leaseDurationSeconds")
    if duration is not None and duration <= 0:
        causes.append(
            invalid_value("spec.leaseDurationSeconds", duration, "must be greater than 0")
        )
    if (spec.get("leaseTransitions") or 0) < 0:
        causes.append(
            invalid_value(
                "spec.leaseTransitions",
                spec["leaseTransitions"],
                "must be greater than or equal to 0",
            )
        )
    return causes


def _priority_class_causes(obj: Obj) -> Causes:
    name = obj["metadata"]["name"]
    if obj["value"] > 1_000_000_000 and not name.startswith("system-"):
        return [
            forbidden_field(
                "value", "maximum allowed value of a user defined priority is 1000000000"
            )
        ]
    if name.startswith("system-") and name not in SYSTEM_PRIORITY_CLASSES:
        return [
            forbidden_field(
                "metadata.name",
                "priority class names with 'system-' prefix are reserved for system use only. "
                f"error: {name} is not a known system priority class",
            )
        ]
    return []


SYSTEM_PRIORITY_CLASSES = {
    "system-cluster-critical": (
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another "
        "node if necessary.",
    ),
    "system-node-critical": (
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
}


def _event_causes(kind: ResourceKind, obj: Obj) -> Causes:
    """Check an event in the stored shape (core/v1); messages name the fields of `kind`."""
    newer = kind is EVENTS_V1
    causes: Causes = []
    regarding = obj.get("involvedObject") or {}
    home = regarding.get("namespace") or "default"
    if not newer and obj["metadata"]["namespace"] != home:
        causes.append(
            invalid_value(
                "involvedObject.namespace",
                regarding.get("namespace") or "",
                "does not match event.namespace",
            )
        )
    if not newer and not obj.get("eventTime"):
        return causes
    if not obj.get("eventTime"):
        causes.append(required("eventTime"))
    for field in ("reportingComponent", "reportingInstance", "action", "reason"):
        if not obj.get(field):
            shown = "reportingController" if field == "reportingComponent" else field
            causes.append(required(shown))
    if len(obj.get("message") or "") > 1024:
        causes.append(invalid_value("message", "", "can have at most 1024 characters"))
    if obj.get("type") not in ("Normal", "Warning"):
        causes.append(invalid_value("type", "", f"has invalid value: {obj.get('type') or ''}"))
    return causes


def _service_causes(obj: Obj) -> Causes:
    """Allow only headless Services: nothing here has an address to give to a Service."""
    spec = obj.get("spec") or {}
    causes = label_causes(spec.get("selector") or {}, "spec.selector")
    if spec.get("clusterIP") != "None" or spec.get("type") != "ClusterIP":
        why = "the embedded cluster serves headless Services only: set it to None"
        causes.append(invalid_value("spec.clusterIP", spec.get("clusterIP"), why))
    return causes


def _event_changes(new: Obj, old: Obj) -> Causes:
    """Allow only changes of series and metadata, as events.k8s.io/v1 does."""
    return [
        invalid_value(field, new.get(field), "field is immutable")
        for field in ("involvedObject", "reason", "message", "type", "eventTime", "action",
                      "reportingComponent", "reportingInstance", "related")
        if new.get(field) != old.get(field)
    ]  # fmt: skip


_CAUSES: dict[str, Callable[[Obj], Causes]] = {
    "Node": _node_causes,
    "PodDisruptionBudget": _budget_causes,
    "Lease": _lease_causes,
    "PriorityClass": _priority_class_causes,
    "Service": _service_causes,
    "PersistentVolume": storage_rules.volume_causes,
    "PersistentVolumeClaim": storage_rules.claim_causes,
    "StorageClass": storage_rules.storage_class_causes,
}
# What an update may not change.
_IMMUTABLE: dict[str, Callable[[Obj, Obj], Causes]] = {
    "PersistentVolume": storage_rules.volume_changes,
    "PersistentVolumeClaim": storage_rules.claim_changes,
    "ResourceClaim": device_rules.claim_changes,
    "StorageClass": storage_rules.storage_class_changes,
}

# --- the two shapes of events -----------------------------------------------------------------
_RENAMED = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_RESTORED = {new: old for old, new in _RENAMED.items()}


def to_stored(kind: ResourceKind, obj: Obj) -> Obj:
    """Return an object of `kind` in the shape in which it is stored."""
    return _renamed(obj, _RESTORED) if kind is EVENTS_V1 else obj


def from_stored(kind: ResourceKind, obj: Obj) -> Obj:
    """Return a stored object in the shape of `kind`."""
    if kind is not EVENTS_V1:
        return obj
    out = _renamed(obj, _RENAMED)
    for field in ("reportingController", "reportingInstance"):
        if not out.get(field):
            out.pop(field, None)  # core/v1 writes empty ones, events.k8s.io/v1 leaves them out
    return out


def _renamed(obj: dict[str, Any], names: dict[str, str]) -> Obj:
    return {names.get(field, field): value for field, value in obj.items()}
