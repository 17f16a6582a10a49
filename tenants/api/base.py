"""What all REST views share: strict input, dry runs, preconditions, lists."""

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import Http404
from rest_framework import exceptions, serializers
from rest_framework.generics import GenericAPIView
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse
from rest_framework.views import APIView

from tenants.api.parsers import StrictJSONParser
from tenants.api.problems import Problem, bad_header, bad_query, request_id_of
from tenants.api.schema import KantSchema, Shape
from tenants.errors import Invalid, NotAllowed, unknown_name
from tenants.models import ApiToken, Scope, User

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def check_scope(request: Request, scope: str) -> None:
    """Raise NotAllowed when the request's token lacks the scope. `scope`: the one that writes need;
    reads need `read`. "" = every token may."""
    token = request.auth
    wanted = scope if request.method in WRITES else scope and Scope.READ
    if isinstance(token, ApiToken) and wanted and wanted not in token.scope_names:
        raise NotAllowed(
            f"This API token has the scopes {', '.join(token.scope_names)}; this request needs "
            f"“{wanted}”. Create a token with that scope."
        )


class OperatorsOnly(BasePermission):
    """For data that shows all tenants together. Raises NotAllowed, with a message, for any other
    signed-in user."""

    def has_permission(self, request: Request, view: APIView) -> bool:  # noqa: ARG002
        if not isinstance(request.user, User):
            return False
        if not request.user.is_operator:
            raise NotAllowed("This shows all tenants together; only operators may read it.")
        return True


class View(APIView):
    """A REST view.

    `shapes` describes the bodies of each method for OpenAPI; `query` names the parameters a
    method takes besides `dry_run`.
    """

    parser_classes = [StrictJSONParser]
    schema = KantSchema()
    shapes: ClassVar[Mapping[str, Shape]] = {}
    query: ClassVar[Mapping[str, frozenset[str]]] = {}
    # The scope that a token needs for writes.
    scope: ClassVar[str] = Scope.OPERATE

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        check_scope(request, self.scope)
        if any("\0" in value for value in kwargs.values() if isinstance(value, str)):
            raise Http404
        # HEAD is GET without the body.
        known = self.known_query("GET" if request.method == "HEAD" else request.method or "")
        for name, value in request.query_params.items():
            if name not in known:
                raise bad_query(name, unknown_name("parameter", name, sorted(known)))
            if "\0" in value:
                raise bad_query(name, "Contains a NUL character.")

    def known_query(self, method: str) -> frozenset[str]:
        return self.query.get(method, frozenset()) | (
            {"dry_run"} if method in WRITES else frozenset()
        )

    def finalize_response(
        self, request: Request, response: Response, *args: Any, **kwargs: Any
    ) -> Response:
        response = super().finalize_response(request, response, *args, **kwargs)
        response["X-Request-ID"] = request_id_of(request)
        # Answers depend on who asks, so no proxy may store them.
        response.setdefault("Cache-Control", "no-store")
        return response

    @property
    def actor(self) -> User:
        user = self.request.user
        if not isinstance(user, User):
            raise exceptions.NotAuthenticated
        return user

    @property
    def token(self) -> ApiToken | None:
        """The token of the request; None for a session or a password."""
        return self.request.auth if isinstance(self.request.auth, ApiToken) else None

    @property
    def dry_run(self) -> bool:
        return self.flag("dry_run")

    def flag(self, name: str) -> bool:
        text = self.request.query_params.get(name, "false")
        if text not in ("true", "false"):
            raise bad_query(name, "Must be “true” or “false”.")
        return text == "true"

    def body(self, serializer: type[serializers.Serializer[Any]]) -> dict[str, Any]:
        """Return the validated body; raise a problem that names every wrong field."""
        return dict(shared(serializer).run_validation(self.request.data))

    def changes(self, serializer: type[serializers.Serializer[Any]]) -> dict[str, Any]:
        """Return the validated body of a PATCH; raise Invalid when it changes nothing."""
        given = self.body(serializer)
        names = [str(name) for name in shared(serializer).fields if name != "reason"]
        if given.keys().isdisjoint(names):
            raise Invalid(f"There is nothing to change. Give at least one of {', '.join(names)}.")
        return given

    def updated(self, serializer: type[serializers.Serializer[Any]], thing: Any) -> Response:
        """Return the answer to a write that changed a thing, or would have."""
        body = shown(serializer, thing)
        return rehearsed("update", body) if self.dry_run else Response(body)


@cache
def shared(serializer: type[serializers.Serializer[Any]]) -> serializers.Serializer[Any]:
    """Return one instance of a serializer without context, for validation and representation.

    Neither of these changes it, and building its fields costs more than the rest of a request.
    """
    return serializer()


def shown(serializer: type[serializers.Serializer[Any]], thing: Any) -> dict[str, Any]:
    """Return the representation of one thing."""
    return dict(shared(serializer).to_representation(thing))


class ListView(View, GenericAPIView[Any]):
    """GET answers with one page of `get_queryset()`, filtered by `filterset_class`."""

    page_order: ClassVar[tuple[str, ...]] = ("id",)

    def known_query(self, method: str) -> frozenset[str]:
        known = super().known_query(method)
        if method == "GET":
            filters = getattr(self, "filterset_class", None)
            known |= {"limit", "cursor"} | set(filters.base_filters if filters else ())
        return known

    def filter_queryset(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        try:
            return super().filter_queryset(queryset)
        except exceptions.ValidationError as error:
            found: Any = error.detail
            errors = [
                {"parameter": name, "detail": str(text)}
                for name, texts in found.items()
                for text in texts
            ]
            raise Problem(
                "bad-query", f"{errors[0]['parameter']}: {errors[0]['detail']}", errors
            ) from None

    def page(self, serializer: type[serializers.BaseSerializer[Any]]) -> Response:
        rows = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        context = self.get_serializer_context()
        return self.get_paginated_response(serializer(rows, many=True, context=context).data)


def rehearsed(action: str, result: Any, warnings: list[str] | None = None, **more: Any) -> Response:
    """Return the answer to `?dry_run=true`: what would be; nothing was changed. `more`: the
    additional fields of a `Shape.rehearsal`."""
    if isinstance(result, dict) and action == "create":
        # Nothing was created, so its identifier would lead nowhere.
        result = {name: value for name, value in result.items() if name != "id"}
    return Response(
        {"dry_run": True, "would": action, "result": result, "warnings": warnings or [], **more}
    )


def location(request: Request, view_name: str, *args: object) -> dict[str, str]:
    return {"Location": reverse(view_name, args, request=request)}


def etag(version: int) -> dict[str, str]:
    return {"ETag": f'"{version}"'}


def expected_version(request: Request) -> int:
    """Return the version in `If-Match: "7"`; 0 for `If-None-Match: *` (it must not exist yet)."""
    match, none_match = request.headers.get("If-Match"), request.headers.get("If-None-Match")
    if match is None and none_match is None:
        raise Problem(
            "precondition-required",
            "Send `If-Match` with the ETag that GET returned, or `If-None-Match: *` to create.",
        )
    if match is None:
        if (none_match or "").strip() != "*":
            raise bad_header("If-None-Match", "Only “*” is allowed here.")
        return 0
    digits = match.strip().removeprefix('"').removesuffix('"')
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise bad_header("If-Match", 'Must be one ETag that GET returned, e.g. "3".')
    return int(digits)
