"""The API's failure replies, worded as kube-apiserver words them (apimachinery `api/errors`)."""

from collections.abc import Sequence
from typing import Any

import msgspec

from scheduling.simcluster.objects.kinds import ResourceKind


class ApiError(Exception):
    """A request that ends in a `Status` object with `code` and `reason`."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: dict[str, Any] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.retry_after = retry_after

    def status(self) -> dict[str, Any]:
        return status_object(self.code, self.message, self.reason, self.details)


def status_object(
    code: int, message: str, reason: str = "", details: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return a `Status` object; clients tell failures apart by `reason`."""
    out: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success" if code < 300 else "Failure",
    }
    if message:
        out["message"] = message
    if reason:
        out["reason"] = reason
    if details is not None:
        out["details"] = details
    if code != 200:
        out["code"] = code
    return out


def encoded(status: dict[str, Any]) -> bytes:
    return msgspec.json.encode(status)


def _details(kind: ResourceKind, name: str, resource: str | None = None) -> dict[str, Any]:
    out: dict[str, Any] = {"name": name}
    if kind.group:
        out["group"] = kind.group
    out["kind"] = resource or kind.plural
    return out


def not_found(kind: ResourceKind, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{kind.qualified} "{name}" not found', _details(kind, name))


def already_exists(kind: ResourceKind, name: str) -> ApiError:
    return ApiError(
        409, "AlreadyExists", f'{kind.qualified} "{name}" already exists', _details(kind, name)
    )


def conflict(kind: ResourceKind, name: str, cause: str, resource: str | None = None) -> ApiError:
    """Return a 409; `resource` overrides what the message names, e.g. "pods/binding"."""
    named = resource or kind.qualified
    return ApiError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {named} "{name}": {cause}',
        _details(kind, name, resource),
    )


MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)


def precondition_failed(
    kind: ResourceKind, key: str, name: str, field: str, want: str, have: str
) -> ApiError:
    """Return the storage layer's refusal of a write whose precondition does not hold."""
    cause = (
        f"StorageError: invalid object, Code: 4, Key: /registry/{kind.plural}/{key}, "
        f"ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: {field} in precondition: "
        f"{want}, {field} in object meta: {have}"
    )
    return conflict(kind, name, cause)


def cause(reason: str, field: str, message: str) -> dict[str, str]:
    """Return one field error; `message` as validation words it, e.g. "Required value"."""
    return {"reason": reason, "message": message, "field": field}


def required(field: str, detail: str = "") -> dict[str, str]:
    return cause(
        "FieldValueRequired", field, f"Required value: {detail}" if detail else "Required value"
    )


def invalid_value(field: str, value: object, detail: str) -> dict[str, str]:
    shown = msgspec.json.encode(value).decode()
    return cause("FieldValueInvalid", field, f"Invalid value: {shown}: {detail}")


def not_supported(field: str, value: object, supported: Sequence[str]) -> dict[str, str]:
    shown = msgspec.json.encode(value).decode()
    names = ", ".join(f'"{s}"' for s in supported)
    return cause(
        "FieldValueNotSupported", field, f"Unsupported value: {shown}: supported values: {names}"
    )


def forbidden_field(field: str, detail: str) -> dict[str, str]:
    return cause("FieldValueForbidden", field, f"Forbidden: {detail}")


def invalid(kind: ResourceKind, name: str, causes: Sequence[dict[str, str]]) -> ApiError:
    """Return a 422; `causes`: at least one field error, made by the functions above."""
    texts = [f"{c['field']}: {c['message']}" for c in causes]
    joined = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    shown = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    details: dict[str, Any] = {"name": name} if name else {}
    if kind.group:
        details["group"] = kind.group
    details["kind"] = kind.kind
    details["causes"] = list(causes)
    return ApiError(422, "Invalid", f'{shown} "{name}" is invalid: {joined}', details)


def invalid_options(options: str, causes: Sequence[dict[str, str]]) -> ApiError:
    """Return a 422 for parameters of a request; `options` as in CreateOptions."""
    return invalid(ResourceKind("", options, group="meta.k8s.io"), "", causes)


def rejected_patch(why: str) -> ApiError:
    """Return a 422 for a patch whose result is not an object of the kind."""
    causes = [cause("FieldValueInvalid", "patch", f"Invalid value: {why}")]
    message = f' "" is invalid: patch: Invalid value: {why}'
    return ApiError(422, "Invalid", message, {"causes": causes})


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def forbidden(kind: ResourceKind, name: str, why: str) -> ApiError:
    return ApiError(
        403, "Forbidden", f'{kind.qualified} "{name}" is forbidden: {why}', _details(kind, name)
    )


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def method_not_allowed() -> ApiError:
    return ApiError(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
        {},
    )


def no_such_resource() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def unsupported_media_type(accepted: Sequence[str]) -> ApiError:
    return ApiError(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: "
        + ", ".join(accepted),
    )


def too_many_requests(retry_after: int) -> ApiError:
    return ApiError(
        429,
        "TooManyRequests",
        "Too many requests, please try again later.",
        {"retryAfterSeconds": retry_after},
        retry_after,
    )


def expired(message: str) -> ApiError:
    return ApiError(410, "Expired", message)


def internal_error(message: str) -> ApiError:
    return ApiError(
        500,
        "InternalError",
        f"Internal error occurred: {message}",
        {"causes": [{"message": message}]},
    )
