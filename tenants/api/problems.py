"""Every error as an RFC 9457 problem document; the only place that knows HTTP status codes.

A document has `type, title, status, detail, instance, code, errors, request_id`. `errors` names
each wrong field by a JSON pointer into the body, or the query parameter or header at fault.
"""

import logging
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from django.core.exceptions import (
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.request import RawPostDataException, UnreadablePostError
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.views import defaults
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions
from rest_framework.response import Response

from tenants.errors import (
    Conflict,
    DomainError,
    FieldError,
    Invalid,
    NotAllowed,
    NotFound,
    Path,
    Stale,
)
from tenants.outage import RETRY_AFTER_S, Trouble, trouble_of

log = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"
API = "/api/"
# Nobody fixes more errors than this at once.
MOST_ERRORS = 100
MOST_TEXT = 2000


class ProblemKind(NamedTuple):
    status: int
    title: str
    remedy: str


# code → its meaning. Also served at /api/v1/problems/{code}, which is each document's `type`.
KINDS: dict[str, ProblemKind] = {
    "bad-query": ProblemKind(
        400, "A query parameter is wrong", "Correct the parameters in `errors`."
    ),
    "bad-header": ProblemKind(400, "A header is wrong", "Correct the headers named in `errors`."),
    "bad-request": ProblemKind(400, "The request cannot be read", "Read `detail`."),
    "not-json": ProblemKind(400, "The body is not valid JSON", "Send one JSON object in UTF-8."),
    "not-signed-in": ProblemKind(
        401, "You are not signed in", "Send `Authorization: Bearer kant_…` with an API token."
    ),
    "not-allowed": ProblemKind(403, "You may not do this", "Ask a tenant admin or an operator."),
    "not-found": ProblemKind(
        404,
        "No such thing",
        "It does not exist, or it belongs to a tenant in which you have no role.",
    ),
    "gone": ProblemKind(404, "It is gone for good", "`detail` says what ended it."),
    "method-not-allowed": ProblemKind(
        405, "This address does not answer that method", "Use a method named in `Allow`."
    ),
    "not-acceptable": ProblemKind(
        406, "Kant does not answer in that format", "Send `Accept: application/json`, or none."
    ),
    "too-slow": ProblemKind(
        408, "The body did not arrive in time", "Send it without pauses of a minute or more."
    ),
    "conflict": ProblemKind(
        409, "The current state does not allow it", "`detail` says what prevents it."
    ),
    "key-reused": ProblemKind(
        409,
        "The Idempotency-Key was used for another request",
        "Use a new key for a new request; repeat the very same request to get its answer again.",
    ),
    "key-in-flight": ProblemKind(
        409, "The first request with this Idempotency-Key is not answered yet", "Repeat it later."
    ),
    "stale": ProblemKind(
        412,
        "Somebody has changed it since you read it",
        "Read it again, then repeat your change if you still want it.",
    ),
    "too-large": ProblemKind(
        413, "The body is too large", "Send at most 2.5 MB, and without a token at most 64 KiB."
    ),
    "address-too-long": ProblemKind(
        414, "The address is too long", "Send at most 16 KiB of path and query."
    ),
    "unsupported-media-type": ProblemKind(
        415, "The body must be JSON", "Send `Content-Type: application/json`."
    ),
    "invalid": ProblemKind(422, "Some fields are wrong", "Correct the fields named in `errors`."),
    "ExceedsCapacity": ProblemKind(
        422, "The cluster is too small for this job", "Ask for less, or for another GPU type."
    ),
    "NoMatchingGpuType": ProblemKind(
        422, "The cluster has none of these GPU types", "Choose a GPU type that the cluster has."
    ),
    "precondition-required": ProblemKind(
        428,
        "The version to change is missing",
        "Send `If-Match` with the ETag of a GET, or `If-None-Match: *` to create.",
    ),
    "throttled": ProblemKind(429, "Too many requests", "Wait for the seconds in `Retry-After`."),
    "server-error": ProblemKind(
        500, "Kant failed", "Nothing was changed. Report `request_id` to the operators."
    ),
    "cluster-failed": ProblemKind(
        502, "The cluster did not provide it", "`detail` says what fails there, and who can fix it."
    ),
    "busy": ProblemKind(
        503,
        "Kant has too much to do at once",
        "Repeat the request after `Retry-After` seconds; with an Idempotency-Key it is done once.",
    ),
    "unavailable": ProblemKind(
        503,
        "A part of Kant does not respond",
        "Repeat the request after `Retry-After` seconds; with an Idempotency-Key it is done once.",
    ),
}
_STATUS_CODES = {
    400: "bad-request",
    401: "not-signed-in",
    403: "not-allowed",
    404: "not-found",
    405: "method-not-allowed",
    406: "not-acceptable",
    413: "too-large",
    415: "unsupported-media-type",
    429: "throttled",
}
_DOMAIN_CODES: dict[type[DomainError], str] = {
    Invalid: "invalid",
    NotAllowed: "not-allowed",
    NotFound: "not-found",
    Conflict: "conflict",
    Stale: "stale",
}


class Problem(exceptions.APIException):
    """An error that exists only in HTTP: a bad header, a missing precondition."""

    def __init__(self, code: str, detail: str, errors: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(detail, code)
        self.status_code = KINDS[code].status
        self.code = code
        self.errors = list(errors)
        self.wait: int | None = None  # seconds, for `Retry-After`


def said(code: str) -> str:
    """Return what went wrong and what to do about it, when there is nothing more specific."""
    return f"{KINDS[code].title}. {KINDS[code].remedy}"


def too_many(detail: str, wait_s: int) -> Problem:
    problem = Problem("throttled", f"{detail} Try again in {wait_s} s.")
    problem.wait = wait_s
    return problem


def bad_query(parameter: str, detail: str) -> Problem:
    return Problem("bad-query", detail, [{"parameter": parameter, "detail": detail}])


def bad_header(header: str, detail: str) -> Problem:
    return Problem("bad-header", detail, [{"header": header, "detail": detail}])


def pointer(path: Path) -> str:
    """Return an RFC 6901 pointer; "" is the whole document."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def request_id_of(request: Any) -> str:
    """Return the identifier of a request, creating it on first use."""
    inner = getattr(request, "_request", request)
    if not hasattr(inner, "kant_request_id"):
        inner.kant_request_id = uuid.uuid4().hex
    return str(inner.kant_request_id)


def document(
    request: Any, code: str, detail: str, errors: Sequence[Mapping[str, str]] = (), **extra: Any
) -> dict[str, Any]:
    return problem(request.path, request_id_of(request), code, detail, errors, **extra)


def problem(
    path: str,
    request_id: str,
    code: str,
    detail: str = "",
    errors: Sequence[Mapping[str, str]] = (),
    **extra: Any,
) -> dict[str, Any]:
    """Return the document, with at most MOST_ERRORS errors. `detail` defaults to the remedy."""
    kind = KINDS[code] if code in KINDS else KINDS["invalid"]
    return {
        "type": f"/api/v1/problems/{code}",
        "title": kind.title,
        "status": kind.status,
        "detail": _cut(detail or kind.remedy),
        "instance": path,
        "code": code,
        "errors": [{k: _cut(v) for k, v in each.items()} for each in errors[:MOST_ERRORS]],
        "request_id": request_id,
        **extra,
    }


def _cut(text: str) -> str:
    """Cut a text that repeats the input to a readable length."""
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"


def exception_handler(exc: Exception, context: Mapping[str, Any]) -> Response:
    """DRF's hook: turn any exception of a REST view into a problem document, never a page."""
    request = context["request"]
    body = described(exc, request)
    response = Response(body, status=body["status"], content_type=CONTENT_TYPE)
    for name, attribute in (("WWW-Authenticate", "auth_header"), ("Retry-After", "wait")):
        value = getattr(exc, attribute, None)
        if value is not None:
            response[name] = str(value)
    if body["code"] in ("busy", "unavailable"):
        response["Retry-After"] = str(RETRY_AFTER_S)
    if isinstance(exc, Stale):
        response["ETag"] = f'"{exc.current_version}"'
    return response


def described(exc: Exception, request: Any) -> dict[str, Any]:
    """Return the document for an error in a request, or in one part of it that has its own
    answer."""
    match exc:
        case DomainError():
            code = exc.code if exc.code in KINDS else _domain_code(exc)
            told = exc.errors[:MOST_ERRORS]
            errors = [{"pointer": pointer(e.path), "detail": e.detail} for e in told]
            extra = (
                {"current_version": exc.current_version, "current": exc.current}
                if isinstance(exc, Stale)
                else {}
            )
            return document(request, code, exc.detail, errors, **extra)
        case Problem():
            return document(request, exc.code, str(exc.detail), exc.errors)
        case exceptions.ValidationError():
            faults = faults_of(exc)
            errors = [{"pointer": pointer(f.path), "detail": f.detail} for f in faults]
            where = faults[0].field or "The body"
            return document(request, "invalid", f"{where}: {faults[0].detail}", errors)
        case exceptions.AuthenticationFailed():
            return document(request, "not-signed-in", f"{exc.detail}")
        case exceptions.APIException():
            code = _STATUS_CODES.get(exc.status_code, "bad-request")
            return document(request, code, said(code))
        case Http404():
            return document(request, "not-found", KINDS["not-found"].remedy)
        case PermissionDenied():
            return document(request, "not-allowed", KINDS["not-allowed"].remedy)
        case RequestDataTooBig():
            return document(request, "too-large", KINDS["too-large"].remedy)
        case SuspiciousOperation() | UnreadablePostError() | RawPostDataException():
            return document(request, "bad-request", f"The request cannot be read: {exc}")
        case _ if trouble := trouble_of(exc):
            log.error("request %s: %s (%s)", request_id_of(request), trouble.said, exc)
            return document(request, trouble.code, _told(trouble))
        case _:
            log.exception("request %s failed", request_id_of(request), exc_info=exc)
            return document(request, "server-error", KINDS["server-error"].remedy)


def faults_of(exc: exceptions.ValidationError) -> list[FieldError]:
    """Return each wrong field of a body, at most MOST_ERRORS of them; never an empty list."""
    leaves = islice(_leaves(exc.detail), MOST_ERRORS)
    return [FieldError(path, detail) for path, detail in leaves]


def _told(trouble: Trouble) -> str:
    return f"{trouble.said} {KINDS[trouble.code].remedy}"


def _domain_code(exc: DomainError) -> str:
    return next(code for kind, code in _DOMAIN_CODES.items() if isinstance(exc, kind))


def _leaves(detail: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Flatten DRF's nested error detail to (path, sentence)."""
    if isinstance(detail, Mapping):
        for key, value in detail.items():
            here = path if key == "non_field_errors" else (*path, key)
            yield from _leaves(value, here)
    elif isinstance(detail, list):
        for index, value in enumerate(detail):
            # A list of sentences belongs to its field; a list of mappings belongs to a list of
            # items.
            nested = isinstance(value, Mapping | list)
            yield from _leaves(value, (*path, index) if nested else path)
    else:
        yield path, str(detail)


# --- errors outside REST views ------------------------------------------------------------------
@csrf_exempt
def not_found(request: HttpRequest) -> HttpResponseBase:
    """Answer requests below /api/ whose address does not exist."""
    return _answer(
        request,
        "not-found",
        f"There is nothing at {request.path}. GET /api/v1/openapi.json lists all addresses.",
    )


def method_not_allowed(request: HttpRequest, allowed: Sequence[str]) -> HttpResponseBase:
    """Answer a wrong method on a page below /api/ that is not a REST view."""
    answer = _answer(request, "method-not-allowed", said("method-not-allowed"))
    answer["Allow"] = ", ".join(allowed)
    return answer


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """`handler400`: a request refused before any view, e.g. for its Host header."""
    if not request.path.startswith(API):
        return defaults.bad_request(request, exception)
    return _answer(request, "bad-request", "The Host header or the address is not allowed.")


def server_error(request: HttpRequest) -> HttpResponseBase:
    """`handler500`: an exception outside any REST view; Django has logged it."""
    if trouble := trouble_of(sys.exc_info()[1]):
        return not_available(request, trouble)
    if not request.path.startswith(API):
        return defaults.server_error(request)
    return _answer(request, "server-error", KINDS["server-error"].remedy)


def not_available(request: HttpRequest, trouble: Trouble) -> HttpResponseBase:
    """Answer a request that Kant cannot serve now: with a problem document or a page."""
    answer: HttpResponseBase
    if request.path.startswith(API):
        answer = _answer(request, trouble.code, _told(trouble))
    else:
        answer = HttpResponse(render_to_string("503.html", {"trouble": trouble}), status=503)
    answer["Retry-After"] = str(RETRY_AFTER_S)
    return answer


def _answer(request: HttpRequest, code: str, detail: str) -> HttpResponseBase:
    body = document(request, code, detail)
    return JsonResponse(
        body,
        status=body["status"],
        content_type=CONTENT_TYPE,
        headers={"X-Request-ID": body["request_id"]},
    )
