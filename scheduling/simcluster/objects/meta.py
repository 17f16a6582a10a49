"""Rules of ObjectMeta that all kinds share (apimachinery `validation`, registry `rest`)."""

import re
import secrets
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import uuid4

import msgspec

from scheduling.simcluster.objects.kinds import ResourceKind
from scheduling.simcluster.objects.status import (
    ApiError,
    bad_request,
    forbidden_field,
    invalid,
    invalid_value,
    required,
)

Obj = dict[str, Any]
Causes = list[dict[str, str]]

_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_QUALIFIED = re.compile(r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
_VALUE = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")
# The alphabet of generated names: no vowels, no characters that look alike.
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"

SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex "
    "used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or "
    "'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_KEY_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used "
    "for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


def rfc3339(at: float) -> str:
    """Return a time in whole seconds, as Kubernetes writes metav1.Time."""
    return _second(int(at))


@lru_cache(maxsize=64)
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str) -> float:
    """Return an RFC 3339 time in seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


def decode_body(data: bytes, kind: ResourceKind) -> Obj:
    """Decode a body. Raises ApiError 400 if it is not a single JSON object."""
    try:
        obj = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise bad_request(
            f"the object provided is unrecognized (must be of type {kind.kind}): couldn't get "
            f"version/kind; json parse error: {_go_words(str(error))}"
        ) from None
    if not isinstance(obj, dict):
        raise bad_request(
            f"the object provided is unrecognized (must be of type {kind.kind}): couldn't get "
            "version/kind; json parse error: json: cannot unmarshal into Go value of type struct"
        )
    return obj


def _go_words(error: str) -> str:
    return "unexpected end of JSON input" if "truncated" in error else error


def strip_type(kind: ResourceKind, obj: Obj) -> Obj:
    """Check kind and apiVersion of a body and remove them."""
    named = obj.pop("kind", "") or kind.kind
    version = obj.pop("apiVersion", "") or kind.api_version
    if named != kind.kind or version != kind.api_version:
        raise bad_request(
            f'{named} in version "{version}" cannot be handled as a {kind.kind}: expected '
            f"{kind.kind} in {kind.api_version}"
        )
    return obj


def name_causes(name: str, field: str = "metadata.name", *, label: bool = False) -> Causes:
    if label and "." in name:
        return [invalid_value(field, name, "must not contain dots")]
    pattern, rule, limit = (_LABEL, LABEL_RULE, 63) if label else (_SUBDOMAIN, SUBDOMAIN_RULE, 253)
    if not pattern.match(name):
        return [invalid_value(field, name, rule)]
    if len(name) > limit:
        return [invalid_value(field, name, f"must be no more than {limit} characters")]
    return []


def label_causes(labels: dict[str, str], field: str) -> Causes:
    causes: Causes = []
    for key, value in labels.items():
        if _good_label(key, value):
            continue
        if not valid_key(key):
            causes.append(invalid_value(field, key, _KEY_RULE))
        if len(value) > 63:
            causes.append(invalid_value(field, value, "must be no more than 63 characters"))
        elif not _VALUE.match(value):
            causes.append(invalid_value(field, value, _VALUE_RULE))
    return causes


@lru_cache(maxsize=4096)
def _good_label(key: str, value: str) -> bool:
    # All pods of a job have the same few labels.
    return valid_key(key) and len(value) <= 63 and _VALUE.match(value) is not None


@lru_cache(maxsize=4096)
def valid_key(key: str) -> bool:
    """Whether `key` is a qualified name: [prefix/]name."""
    prefix, slash, name = key.rpartition("/")
    if slash and (not _SUBDOMAIN.match(prefix) or len(prefix) > 253):
        return False
    return len(name) <= 63 and _QUALIFIED.match(name) is not None


def meta_causes(kind: ResourceKind, meta: Obj) -> Causes:
    """Return the field errors of name, labels and annotations."""
    causes = name_causes(meta["name"], label=kind.plural in ("namespaces", "services"))
    causes += label_causes(meta.get("labels") or {}, "metadata.labels")
    annotations = meta.get("annotations") or {}
    for key in annotations:
        if not valid_key(key.lower()):
            causes.append(invalid_value("metadata.annotations", key, _KEY_RULE))
    if sum(len(k) + len(v) for k, v in annotations.items()) > 256 * 1024:
        causes.append(
            {
                "reason": "FieldValueTooLong",
                "message": "Too long: may not be more than 262144 bytes",
                "field": "metadata.annotations",
            }
        )
    return causes


def new_meta(kind: ResourceKind, obj: Obj, namespace: str, now: float) -> Obj:
    """Return the metadata of a new object: name, uid, times; without what clients may not set.

    Raises:
        ApiError: 400 for a wrong namespace, 422 without a name.
    """
    given = obj.get("metadata") or {}
    if given.get("resourceVersion"):
        raise ApiError(500, "", "resourceVersion should not be set on objects to be created")
    if kind.namespaced and (given.get("namespace") or namespace) != namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    name = given.get("name") or ""
    prefix = given.get("generateName") or ""
    if not name and prefix:
        name = prefix[:58] + "".join(secrets.choice(_SUFFIX) for _ in range(5))
    if not name:
        raise invalid(kind, "", [required("metadata.name", "name or generateName is required")])
    meta: Obj = {"name": name}
    if prefix:
        meta["generateName"] = prefix
    if kind.namespaced:
        meta["namespace"] = namespace
    meta["uid"] = str(uuid4())
    meta["resourceVersion"] = ""
    meta["creationTimestamp"] = rfc3339(now)
    for field in ("labels", "annotations", "ownerReferences", "finalizers"):
        if given.get(field):
            meta[field] = given[field]
    return meta


def kept_meta(kind: ResourceKind, new: Obj, old: Obj) -> Obj:
    """Return the metadata after an update, in which clients may change only some fields.

    Those are labels, annotations, owners and finalizers.

    Raises:
        ApiError: 400 for another name or namespace, 422 for a new finalizer during deletion.
    """
    given = new.get("metadata") or {}
    meta: Obj = dict(old)
    if given.get("name") not in (None, "", old["name"]):
        raise bad_request(
            f"the name of the object ({given['name']}) does not match the name on the URL "
            f"({old['name']})"
        )
    if given.get("namespace") not in (None, "", old.get("namespace")):
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    for field in ("labels", "annotations", "ownerReferences", "finalizers"):
        if given.get(field):
            meta[field] = given[field]
        else:
            meta.pop(field, None)
    if old.get("deletionTimestamp"):
        added = [f for f in meta.get("finalizers") or () if f not in (old.get("finalizers") or ())]
        shown = ", ".join(f'"{f}"' for f in added)
        if added:
            raise invalid(
                kind,
                old["name"],
                [
                    forbidden_field(
                        "metadata.finalizers",
                        "no new finalizers can be added if the object is being deleted, found "
                        f"new finalizers []string{{{shown}}}",
                    )
                ],
            )
    return meta
