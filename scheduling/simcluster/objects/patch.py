"""The four PATCH types on a decoded object. Every function returns a new object.

Strategic merge follows the merge keys of the served kinds (the `patchStrategy` tags of k8s.io/api).
Server-side apply is approximated by it: fields are merged without recording owners, so a field that
an applier no longer names stays.
"""

import copy
from typing import Any

from scheduling.simcluster.objects.status import ApiError, bad_request

Obj = dict[str, Any]

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
TYPES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)

# Lists merged by a key, by the last two names of their path; None merges a list of primitives.
_MERGE_KEYS: dict[tuple[str, ...], str | None] = {
    ("metadata", "ownerReferences"): "uid",
    ("metadata", "finalizers"): None,
    ("status", "conditions"): "type",
    ("status", "addresses"): "type",
    ("status", "podIPs"): "ip",
    ("status", "resourceClaimStatuses"): "name",
    ("spec", "containers"): "name",
    ("spec", "initContainers"): "name",
    ("spec", "ephemeralContainers"): "name",
    ("spec", "volumes"): "name",
    ("spec", "imagePullSecrets"): "name",
    ("spec", "hostAliases"): "ip",
    ("spec", "schedulingGates"): "name",
    ("spec", "resourceClaims"): "name",
    ("spec", "topologySpreadConstraints"): "topologyKey",
    ("containers", "env"): "name",
    ("containers", "ports"): "containerPort",
    ("containers", "volumeMounts"): "mountPath",
    ("containers", "volumeDevices"): "devicePath",
    ("initContainers", "env"): "name",
    ("initContainers", "ports"): "containerPort",
    ("initContainers", "volumeMounts"): "mountPath",
}


def _unprocessable() -> ApiError:
    """Return the API server's refusal of any JSON patch that cannot be applied."""
    message = "the server rejected our request due to an error in our request"
    return ApiError(422, "Invalid", message, {})


# --- RFC 7386 -------------------------------------------------------------------------------
def merge_patch(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    out = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            out.pop(name, None)
        else:
            out[name] = merge_patch(out.get(name), value)
    return out


# --- strategic merge ------------------------------------------------------------------------
def strategic_patch(target: Any, patch: Any, path: tuple[str, ...] = ()) -> Any:
    """Apply the patch.

    Raises ApiError 400 for an unknown directive, 500 for an element without its merge key.
    """
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    directive = patch.get("$patch")
    if directive == "delete":
        return {}
    if directive not in (None, "replace", "merge"):
        raise bad_request(f"Unknown patch type found: {directive}")
    out = dict(target) if isinstance(target, dict) and directive != "replace" else {}
    if (retained := patch.get("$retainKeys")) is not None:
        out = {k: v for k, v in out.items() if k in retained}
    for name, value in patch.items():
        if name.startswith("$deleteFromPrimitiveList/"):
            field = name.partition("/")[2]
            out[field] = [v for v in out.get(field) or () if v not in value]
        elif name.startswith("$"):
            continue  # $patch, $retainKeys: done above; $setElementOrder: order only
        elif value is None:
            out.pop(name, None)
        elif isinstance(value, list):
            out[name] = _merge_list(out.get(name) or [], value, (*path, name))
        else:
            out[name] = strategic_patch(out.get(name), value, (*path, name))
    return out


def _merge_list(current: list[Any], patch: list[Any], path: tuple[str, ...]) -> list[Any]:
    if path[-2:] not in _MERGE_KEYS:
        return copy.deepcopy(patch)
    key = _MERGE_KEYS[path[-2:]]
    if key is None:
        return current + [v for v in patch if v not in current]
    if any(isinstance(v, dict) and v.get("$patch") == "replace" for v in patch):
        return [copy.deepcopy(v) for v in patch if v.get("$patch") != "replace"]
    out = list(current)
    for value in patch:
        if not isinstance(value, dict) or key not in value:
            raise ApiError(500, "", f"map: {value} does not contain declared merge key: {key}")
        at = next((i for i, v in enumerate(out) if v.get(key) == value[key]), None)
        if value.get("$patch") == "delete":
            out = [v for v in out if v.get(key) != value[key]]
        elif at is None:
            out.append(strategic_patch({}, value, path))
        else:
            out[at] = strategic_patch(out[at], value, path)
    return out


# --- RFC 6902 -------------------------------------------------------------------------------
def json_patch(target: Obj, operations: Any) -> Obj:
    """Apply the patch.

    Raises ApiError 400 for a malformed operation, 422 for one that cannot be applied.
    """
    if not isinstance(operations, list):
        raise bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type "
            "[]handlers.jsonPatchOp"
        )
    document = copy.deepcopy(target)
    for op in operations:
        if not isinstance(op, dict) or not isinstance(op.get("path"), str):
            raise bad_request("error decoding patch: an operation is an object with op and path")
        document = _apply_operation(document, op)
    return document


def _apply_operation(document: Obj, op: Obj) -> Obj:
    action, path = op.get("op"), _pointer(op["path"])
    if action in ("add", "replace", "test") and "value" not in op:
        raise _unprocessable()
    if action == "add":
        _add(document, path, copy.deepcopy(op["value"]))
    elif action == "remove":
        _remove(document, path)
    elif action == "replace":
        _remove(document, path)
        _add(document, path, copy.deepcopy(op["value"]))
    elif action == "test":
        if _lookup(document, path) != op["value"]:
            raise _unprocessable()
    elif action in ("move", "copy") and isinstance(op.get("from"), str):
        source = _pointer(op["from"])
        value = copy.deepcopy(_lookup(document, source))
        if action == "move":
            _remove(document, source)
        _add(document, path, value)
    else:
        raise _unprocessable()
    return document


def _pointer(text: str) -> list[str]:
    if not text.startswith("/"):
        raise _unprocessable()
    return [p.replace("~1", "/").replace("~0", "~") for p in text[1:].split("/")]


def _step(node: Any, name: str) -> Any:
    try:
        return node[int(name)] if isinstance(node, list) else node[name]
    except (KeyError, IndexError, ValueError, TypeError):
        raise _unprocessable() from None


def _lookup(document: Any, path: list[str]) -> Any:
    for name in path:
        document = _step(document, name)
    return document


def _add(document: Obj, path: list[str], value: Any) -> None:
    parent = _lookup(document, path[:-1])
    name = path[-1]
    if isinstance(parent, list):
        at = len(parent) if name == "-" else int(name) if name.isdigit() else -1
        if not 0 <= at <= len(parent):
            raise _unprocessable()
        parent.insert(at, value)
    elif isinstance(parent, dict):
        parent[name] = value
    else:
        raise _unprocessable()


def _remove(document: Obj, path: list[str]) -> None:
    parent = _lookup(document, path[:-1])
    _step(parent, path[-1])
    if isinstance(parent, list):
        del parent[int(path[-1])]
    else:
        del parent[path[-1]]
