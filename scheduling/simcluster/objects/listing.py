"""Lists: selectors, pages that agree with each other, and the bytes of the reply."""

import base64
import binascii

import msgspec

from scheduling.simcluster.objects import rules
from scheduling.simcluster.objects.kinds import EVENTS_V1, ResourceKind
from scheduling.simcluster.objects.selectors import Match, combined, field_selector, label_selector
from scheduling.simcluster.objects.status import (
    ApiError,
    bad_request,
    expired,
    forbidden_field,
    invalid_options,
)
from scheduling.simcluster.objects.store import Store, Stored


class Continue(msgspec.Struct):
    """Where the next page starts; opaque to clients."""

    v: str
    rv: int
    start: str


def selection(kind: ResourceKind, query: dict[str, str]) -> Match | None:
    """Return the predicate of labelSelector and fieldSelector; None = everything."""
    return combined(
        label_selector(query.get("labelSelector", ""))
        + field_selector(kind, query.get("fieldSelector", ""))
    )


def wire_body(kind: ResourceKind, stored: Stored) -> bytes:
    """Return an object's fields in the shape of `kind`, without kind and apiVersion."""
    if kind is EVENTS_V1:
        return msgspec.json.encode(rules.from_stored(kind, stored.decode()))
    return stored.body


def wire_object(kind: ResourceKind, body: bytes) -> bytes:
    """Return a single object as sent on the wire."""
    return kind.prefix + body[1:]


def number(query: dict[str, str], name: str) -> int:
    """Return a whole number of the query; 0 if absent or negative."""
    text = query.get(name) or "0"
    if not text.removeprefix("-").isdecimal():
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return max(0, int(text))


def version(query: dict[str, str]) -> int:
    """Return the resourceVersion of the query; 0 if absent.

    Raises:
        ApiError: 400 if it is invalid.
    """
    text = query.get("resourceVersion") or "0"
    if not text.isdecimal():
        raise bad_request(
            f'invalid resource version: resourceVersion: Invalid value: "{text}": '
            f'strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    return int(text)


def _check_matching(query: dict[str, str]) -> None:
    matching = query.get("resourceVersionMatch", "")
    why = ""
    if matching and not query.get("resourceVersion"):
        why = "resourceVersionMatch is forbidden unless resourceVersion is provided"
    elif matching and query.get("continue"):
        why = "resourceVersionMatch is forbidden when continue is provided"
    elif matching == "Exact" and query.get("resourceVersion") == "0":
        why = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
    if why:
        raise invalid_options("ListOptions", [forbidden_field("resourceVersionMatch", why)])


def too_large(wanted: int, current: int) -> ApiError:
    return ApiError(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {wanted}, current: {current}",
        {
            "causes": [
                {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
            ],
            "retryAfterSeconds": 1,
        },
    )


def list_objects(store: Store, kind: ResourceKind, namespace: str, query: dict[str, str]) -> bytes:
    """Return the body of a list reply.

    Raises:
        ApiError: 400 for a bad parameter, 410 for an expired page, 504 for a future version.
    """
    match = selection(kind, query)
    limit = number(query, "limit")
    number(query, "timeoutSeconds")
    _check_matching(query)
    if token := query.get("continue"):
        rv, start, objects = _resume(store, kind, token)
    else:
        if version(query) > store.rv:
            raise too_large(version(query), store.rv)
        rv, start = store.rv, ""
        objects = store.snapshot(kind.table) if limit else store.sorted(kind.table)
    rest = [
        o
        for o in objects
        if o.key > start
        and (not namespace or o.namespace == namespace)
        and (match is None or match(o))
    ]
    page = rest[:limit] if limit else rest
    meta: dict[str, object] = {"resourceVersion": str(rv)}
    if len(page) < len(rest):
        token = msgspec.json.encode(Continue("meta.k8s.io/v1", rv, page[-1].key)).decode()
        meta["continue"] = base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")
        if match is None:
            meta["remainingItemCount"] = len(rest) - len(page)
    head = f'{{"kind":"{kind.kind}List","apiVersion":"{kind.api_version}","metadata":'.encode()
    items = b",".join([wire_body(kind, o) for o in page])
    return b'%b%b,"items":[%b]}\n' % (head, msgspec.json.encode(meta), items)


def _resume(store: Store, kind: ResourceKind, token: str) -> tuple[int, str, list[Stored]]:
    try:
        text = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        at = msgspec.json.decode(text, type=Continue)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise bad_request(
            "invalid continue token: continue key is not valid: it was not issued by this server"
        ) from None
    objects = store.snapshots.get((kind.table, at.rv))
    if objects is None:
        raise expired(
            "The provided continue parameter is too old to display a consistent list result. You "
            "can start a new list without the continue parameter."
        )
    return at.rv, at.start, objects
