"""The verbs of the API on one target: HTTP in, bytes out."""

from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec
import yaml

from scheduling.simcluster.cluster import EmbeddedCluster
from scheduling.simcluster.controllers.binding import bind
from scheduling.simcluster.controllers.disruption import evict
from scheduling.simcluster.objects import patch as patches
from scheduling.simcluster.objects import rules
from scheduling.simcluster.objects.kinds import (
    CLAIMS,
    PODS,
    SERVICES,
    STORAGE_CLASSES,
    VOLUMES,
    ResourceKind,
)
from scheduling.simcluster.objects.listing import list_objects, selection, wire_body, wire_object
from scheduling.simcluster.objects.meta import decode_body, strip_type
from scheduling.simcluster.objects.registry import delete_options, is_dry_run
from scheduling.simcluster.objects.status import (
    ApiError,
    bad_request,
    encoded,
    invalid_options,
    method_not_allowed,
    required,
    status_object,
    unsupported_media_type,
)
from scheduling.simcluster.objects.store import Obj, Stored
from scheduling.simcluster.routing import Target

_JSON_TYPES = ("application/json", "")


class Call(NamedTuple):
    """One request, read completely."""

    method: str
    target: Target
    query: dict[str, str]
    content_type: str
    body: bytes


class HandlerReply(NamedTuple):
    code: int
    body: bytes


def parse_query(text: str) -> dict[str, str]:
    """Return the query parameters; the last of repeated ones wins."""
    return dict(parse_qsl(text, keep_blank_values=True)) if text else {}


def verb_of(method: str, target: Target, query: dict[str, str]) -> str:
    """Return the API verb of a request, as faults name it.

    Raises:
        ApiError: 405.
    """
    sub = target.subresource
    if sub in ("binding", "eviction"):
        if method != "POST":
            raise method_not_allowed()
        return "bind" if sub == "binding" else "evict"
    if sub == "log":
        if method != "GET":
            raise method_not_allowed()
        return "log"
    single = bool(target.name)
    if method == "GET":
        if not single and query.get("watch", "") in ("1", "true"):
            return "watch"
        return "get" if single else "list"
    verb = {
        ("POST", False): "create",
        ("PUT", True): "update",
        ("PATCH", True): "patch",
        ("DELETE", True): "delete",
        ("DELETE", False): "deletecollection",
    }.get((method, single))
    if verb is None or (sub and verb in ("delete", "create")):
        raise method_not_allowed()
    return verb


def handle(cluster: EmbeddedCluster, verb: str, call: Call) -> HandlerReply:
    """Carry out one request (all verbs but watch and log).

    Raises:
        ApiError: every refusal.
    """
    return _VERBS[verb](cluster, call)


def _dry_run(call: Call) -> bool:
    options = {"PUT": "UpdateOptions", "PATCH": "PatchOptions"}.get(call.method, "CreateOptions")
    return is_dry_run(call.query.get("dryRun", ""), options)


def _require_json(call: Call) -> None:
    kind = call.content_type.partition(";")[0].strip()
    if kind not in _JSON_TYPES:
        raise unsupported_media_type(("application/json",))


def _present(kind: ResourceKind, obj: Obj) -> bytes:
    return wire_object(kind, msgspec.json.encode(rules.from_stored(kind, obj))) + b"\n"


def _get(cluster: EmbeddedCluster, call: Call) -> HandlerReply:
    kind, namespace, name, _ = call.target
    stored = cluster.registry.stored(kind, namespace, name)
    return HandlerReply(200, _wire(kind, stored))


def _wire(kind: ResourceKind, stored: Stored) -> bytes:
    return wire_object(kind, wire_body(kind, stored)) + b"\n"


def _list(cluster: EmbeddedCluster, call: Call) -> HandlerReply:
    kind, namespace = call.target.kind, call.target.namespace
    return HandlerReply(200, list_objects(cluster.store, kind, namespace, call.query))


def _create(cluster: EmbeddedCluster, call: Call) -> HandlerReply:
    _require_json(call)
    kind, namespace = call.target.kind, call.target.namespace
    if kind.namespaced and not namespace:
        raise method_not_allowed()
    obj = strip_type(kind, decode_body(call.body, kind))
    dry = _dry_run(call)
    return HandlerReply(
        201, _present(kind, cluster.registry.create(kind, namespace, obj, dry_run=dry))
    )


def _update(cluster: EmbeddedCluster, call: Call) -> HandlerReply:
    _require_json(call)
    kind, namespace, name, sub = call.target
    obj = strip_type(kind, decode_body(call.body, kind))
    meta = obj.get("metadata")
    given = meta.get("name") if isinstance(meta, dict) else None
    if not given:
        raise bad_request(
            f"the name of the object ({name} based on URL) was undeterminable: name must be "
            "provided"
        )
    dry = _dry_run(call)
    out, created = cluster.registry.update(kind, namespace, name, obj, subresource=sub, dry_run=dry)
    return HandlerReply(201 if created else 200, _present(kind, out))


def _patch(cluster: EmbeddedCluster, call: Call) -> HandlerReply:
    kind, namespace, name, sub = call.target
    content_type = call.content_type.partition(";")[0].strip()
    if content_type not in patches.TYPES:
        raise ApiError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
    dry = _dry_run(call)
    if content_type == patches.APPLY_PATCH:
        return _apply(cluster, call, dry_run=dry)
    try:
        body = msgspec.json.decode(call.body)
    except msgspec.DecodeError as error:
        raise bad_request(f"error decoding patch: {error}") from None
    out = cluster.registry.modify(
        kind, namespace, name, _change(content_type, body), subresource=sub, dry_run=dry
    )
    return HandlerReply(200, _present(kind, out))


def _change(content_type: str, body: Any) -> Callable[[Obj], Obj]:
    if content_type == patches.JSON_PATCH:
        return lambda obj: patches.json_patch(obj, body)
    if not isinstance(body, dict):
        raise bad_request(
            "error decoding patch: json: cannot unmarshal array into Go value of type "
            "map[string]interface {}"
        )
    if content_type == patches.MERGE_PATCH:
        return lambda obj: patches.merge_patch(obj, body)
    return lambda obj: patches.strategic_patch(obj, body)


def _apply(cluster: EmbeddedCluster, call: Call, *, dry_run: bool) -> HandlerReply:
    kind, namespace, name, sub = call.target
    if not call.query.get("fieldManager"):
        causes = [required("fieldManager", "is required for apply patch")]
        raise invalid_options("PatchOptions", causes)
    try:
        body = yaml.safe_load(call.body)
    except yaml.YAMLError as error:
        raise bad_request(f"error decoding YAML: {error}") from None
    if not isinstance(body, dict) or not body.get("apiVersion") or not body.get("kind"):
        raise bad_request("apply needs an object with apiVersion and kind")
    obj = strip_type(kind, body)
    if not isinstance(obj.setdefault("metadata", {}), dict):
        raise bad_request("metadata: must be an object")
    if obj["metadata"].get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    try:
        out = cluster.registry.modify(
            kind,
            namespace,
            name,
            lambda current: patches.strategic_patch(current, obj),
            subresource=sub,
            dry_run=dry_run,
        )
    except ApiError as error:
        if error.code != 404 or sub:
            raise
        obj["metadata"]["name"] = name
        out = cluster.registry.create(kind, namespace, obj, dry_run=dry_run)
        return HandlerReply(201, _present(kind, out))
    return HandlerReply(200, _present(kind, out))


def _delete(cluster: EmbeddedCluster, call: Call) -> HandlerReply:
    kind, namespace, name, _ = call.target
    body = decode_body(call.body, kind) if call.body.strip() else {}
    options = delete_options(body, call.query)
    out = cluster.registry.delete(kind, namespace, name, options)
    waits = out["metadata"].get("deletionTimestamp") is not None
    if kind in (PODS, SERVICES, CLAIMS, VOLUMES, STORAGE_CLASSES) or waits:
        return HandlerReply(200, _present(kind, out))
    details: dict[str, Any] = {"name": name}
    if kind.group:
        details["group"] = kind.group
    details |= {"kind": kind.plural, "uid": out["metadata"]["uid"]}
    return HandlerReply(200, encoded(status_object(200, "", "", details)) + b"\n")


def _delete_collection(cluster: EmbeddedCluster, call: Call) -> HandlerReply:
    kind, namespace = call.target.kind, call.target.namespace
    if kind.namespaced and not namespace:
        raise method_not_allowed()
    body = decode_body(call.body, kind) if call.body.strip() else {}
    options = delete_options(body, call.query)
    match = selection(kind, call.query)
    deleted = cluster.registry.delete_collection(kind, namespace, match, options)
    items = b",".join(msgspec.json.encode(rules.from_stored(kind, o)) for o in deleted)
    head = f'{{"kind":"{kind.kind}List","apiVersion":"{kind.api_version}",'.encode()
    meta = b'"metadata":{"resourceVersion":"%d"},"items":[' % cluster.store.rv
    return HandlerReply(200, head + meta + items + b"]}\n")


def _bind(cluster: EmbeddedCluster, call: Call) -> HandlerReply:
    _require_json(call)
    body = decode_body(call.body, PODS)
    dry = _dry_run(call)
    bind(cluster.registry, call.target.namespace, call.target.name, body, dry_run=dry)
    return _CREATED


_CREATED = HandlerReply(201, encoded(status_object(201, "")) + b"\n")


def _evict(cluster: EmbeddedCluster, call: Call) -> HandlerReply:
    _require_json(call)
    body = decode_body(call.body, PODS)
    namespace, name = call.target.namespace, call.target.name
    meta = body.get("metadata")
    if isinstance(meta, dict) and meta.get("name") not in (None, "", name):
        raise bad_request("name in URL does not match name in Eviction object")
    dry = _dry_run(call)
    evict(cluster.registry, namespace, name, body, dry_run=dry)
    return _CREATED


_VERBS: dict[str, Callable[[EmbeddedCluster, Call], HandlerReply]] = {
    "get": _get,
    "list": _list,
    "create": _create,
    "update": _update,
    "patch": _patch,
    "delete": _delete,
    "deletecollection": _delete_collection,
    "bind": _bind,
    "evict": _evict,
}
