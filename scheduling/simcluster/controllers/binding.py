"""The binding subresource of pods (registry `core/pod/storage`)."""

from typing import Any

from scheduling.simcluster.objects.kinds import PODS
from scheduling.simcluster.objects.meta import Causes, rfc3339
from scheduling.simcluster.objects.registry import Registry
from scheduling.simcluster.objects.status import (
    ApiError,
    bad_request,
    conflict,
    not_supported,
    precondition_failed,
    required,
)
from scheduling.simcluster.objects.store import Obj


def bind(registry: Registry, namespace: str, name: str, body: Obj, *, dry_run: bool) -> None:
    """POST pods/{name}/binding: set the node and merge the Binding's annotations, atomically.

    Like the real server, it does not check whether the node exists or has room.

    Raises:
        ApiError: 400, 404, 409 (uid, assigned, deleting, gated) or 500 (no usable target).
    """
    meta = _mapping(body, "metadata")
    if meta.get("name") != name:
        raise bad_request("name in URL does not match name in Binding object")
    target = _mapping(body, "target")
    node = target.get("name")
    if not isinstance(node, str) or not node:
        raise _unnamed_failure([required("target.name")])
    if target.get("kind") not in (None, "", "Node"):
        wrong = not_supported("target.kind", target["kind"], ("Node", "<empty>"))
        raise _unnamed_failure([wrong])
    found = registry.stored(PODS, namespace, name)
    if (uid := meta.get("uid")) and uid != found.uid:
        raise precondition_failed(PODS, found.key, name, "UID", str(uid), found.uid)
    if (rv := meta.get("resourceVersion")) and rv != str(found.rv):
        raise precondition_failed(PODS, found.key, name, "ResourceVersion", str(rv), str(found.rv))
    pod = found.decode()
    if why := _unbindable(name, pod):
        raise conflict(PODS, name, why, "pods/binding")
    pod["spec"]["nodeName"] = node
    for field in ("annotations", "labels"):
        if added := _mapping(meta, field):
            if not all(isinstance(v, str) for v in added.values()):
                raise bad_request(f"Binding cannot be handled: metadata.{field} must be strings")
            pod["metadata"][field] = {**(pod["metadata"].get(field) or {}), **added}
    set_condition(pod, {"type": "PodScheduled", "status": "True"}, registry.clock())
    pod["status"].pop("nominatedNodeName", None)
    if not dry_run:
        registry.set(PODS, found.key, pod)


def _unnamed_failure(causes: Causes) -> ApiError:
    """Return a bare 500: kube-apiserver validates a Binding after decoding and reports it so."""
    return ApiError(500, "", "; ".join(f"{c['field']}: {c['message']}" for c in causes))


def _mapping(body: Obj, field: str) -> dict[str, Any]:
    value = body.get(field) or {}
    if not isinstance(value, dict):
        raise bad_request(f"Binding cannot be handled: {field} must be an object")
    return value


def _unbindable(name: str, pod: Obj) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if pod["spec"].get("nodeName"):
        return f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"'
    if pod["spec"].get("schedulingGates"):
        return f"pod {name} has non-empty .spec.schedulingGates"
    return ""


def set_condition(pod: Obj, condition: Obj, now: float) -> None:
    """Set the condition of that type, with `now` as its transition time."""
    conditions = pod["status"].setdefault("conditions", [])
    condition = {
        "type": condition["type"],
        "status": condition["status"],
        "lastProbeTime": None,
        "lastTransitionTime": rfc3339(now),
        **{k: v for k, v in condition.items() if k not in ("type", "status")},
    }
    for at, current in enumerate(conditions):
        if current["type"] == condition["type"]:
            conditions[at] = condition
            return
    conditions.append(condition)
