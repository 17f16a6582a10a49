"""OpenAPI 3.1 from the views: each declares its bodies in `shapes`; the rest is common to all."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drf_spectacular.extensions import OpenApiSerializerExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, PolymorphicProxySerializer
from rest_framework import serializers

from tenants.api.authentication import PASSWORD, TOKEN
from tenants.api.fields import Serializer
from tenants.models import Scope

SerializerType = type[serializers.Serializer[Any]]
PROBLEM = "application/problem+json"
TITLES = {
    401: "Not signed in.",
    403: "Not allowed.",
    404: "It does not exist, or you may not see it.",
    409: "The current state does not allow it.",
    422: "Some fields are wrong; `errors` names them.",
}


_TEXT = {"type": "string"}
PROBLEM_SCHEMA = {
    "type": "object",
    "description": (
        "Every error (RFC 9457). `code` is stable; `type` is the address of its explanation."
    ),
    "properties": {
        "type": {**_TEXT, "format": "uri-reference"},
        "title": _TEXT,
        "status": {"type": "integer"},
        "detail": {**_TEXT, "description": "What is wrong and what to do about it."},
        "instance": _TEXT,
        "code": _TEXT,
        "errors": {
            "type": "array",
            "description": (
                "Each wrong value, by JSON pointer into the body or by parameter name; at most "
                "the first hundred."
            ),
            "items": {
                "type": "object",
                "properties": {
                    "pointer": _TEXT,
                    "parameter": _TEXT,
                    "header": _TEXT,
                    "detail": _TEXT,
                },
                "required": ["detail"],
            },
        },
        "request_id": _TEXT,
        "current_version": {"type": "integer", "description": "With status 412."},
        "current": {"type": ["object", "null"], "description": "With status 412."},
    },
    "required": [
        *("type", "title", "status", "detail", "instance", "code", "errors", "request_id")
    ],
    "examples": [
        {
            "type": "/api/v1/problems/invalid",
            "title": "Some fields are wrong",
            "status": 422,
            "detail": "gpus: Must be from 0 to 1024.",
            "instance": "/api/v1/jobs",
            "code": "invalid",
            "errors": [{"pointer": "/gpus", "detail": "Must be from 0 to 1024."}],
            "request_id": "9f0c4b3e5d3a4a0f8f1f5f0d3c7a2b11",
        }
    ],
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The bodies of one method: what comes in, what goes out.

    `many`: the answer is a page of them. `creates`: answers 201; `may_create`: 201 or 200.
    `versioned`: needs If-Match and answers with an ETag. `flags`, `texts`: query parameters besides
    dry_run and their meanings; a write requires its texts. `or_answer`: what it creates instead,
    depending on the body. `rehearsal`: the answer to a dry run, if it says more than usual.
    `passwords`: accepts user name and password instead of a token. `csv`: the answer is also
    available as CSV. `plain`: the answer is text.
    """

    answer: SerializerType | None = None
    body: SerializerType | None = None
    many: bool = False
    creates: bool = False
    may_create: bool = False
    versioned: bool = False
    flags: Mapping[str, str] | None = None
    texts: Mapping[str, str] | None = None
    or_answer: SerializerType | None = None
    rehearsal: SerializerType | None = None
    passwords: bool = False
    csv: bool = False
    plain: bool = False


class DryRunOutput(serializers.Serializer[Any]):
    """The answer to `?dry_run=true`: what would be. Nothing was changed."""

    dry_run = serializers.BooleanField()
    would = serializers.ChoiceField(["create", "update", "delete"])
    result = serializers.DictField(allow_null=True)
    warnings = serializers.ListField(child=serializers.CharField())


class StrictBodies(OpenApiSerializerExtension):
    """Documents that bodies refuse unknown names."""

    target_class = "tenants.api.fields.Serializer"
    match_subclasses = True

    def map_serializer(self, auto_schema: AutoSchema, direction: str) -> dict[str, Any]:
        schema: dict[str, Any] = auto_schema._map_serializer(
            self.target, direction, bypass_extensions=True
        )
        return {**schema, "additionalProperties": False}


class KantSchema(AutoSchema):
    """Reads a view's `shapes`; views without them are described by drf-spectacular's defaults."""

    def _get_serializer_name(self, *args: Any, **kwargs: Any) -> str:
        name: str = super()._get_serializer_name(*args, **kwargs)
        return name.replace("Output", "").replace("Input", "")

    @property
    def shape(self) -> Shape | None:
        shapes: Mapping[str, Shape] = getattr(self.view, "shapes", {})
        return shapes.get(self.method)

    def get_auth(self) -> list[dict[str, list[str]]]:
        """Return the ways to sign in, any of which suffices: a password only if the shape allows
        it, a token with the scope that it needs."""
        ways: list[dict[str, list[str]]] = super().get_auth()
        scope = getattr(self.view, "scope", "")
        needed = [str(scope if self.method != "GET" else Scope.READ)] if scope else []
        ways = [{name: needed if name == TOKEN else [] for name in way} for way in ways]
        return (
            ways if self.shape and self.shape.passwords else [w for w in ways if PASSWORD not in w]
        )

    def get_description(self) -> str:  # type: ignore[override]
        # Only the view's own docstring; those of its bases are about code.
        return inspect.cleandoc(vars(type(self.view)).get("__doc__") or "")

    def get_request_serializer(self) -> Any:
        return self.shape.body if self.shape else super().get_request_serializer()

    def get_response_serializers(self) -> Any:
        shape = self.shape
        if shape is None:
            return super().get_response_serializers()
        if shape.plain:
            return {(200, "text/plain"): OpenApiTypes.STR}
        if self.method == "GET":
            answer = shape.answer(many=True) if shape.many and shape.answer else shape.answer
            if shape.answer and issubclass(shape.answer, Serializer):
                # The answer has the form of the request: describe it once.
                return {200: self.resolve_serializer(shape.answer, "request").ref}
            if shape.csv:
                return {(200, "application/json"): answer, (200, "text/csv"): OpenApiTypes.STR}
            return {200: answer}
        answers: dict[Any, Any] = {200: shape.rehearsal or DryRunOutput}
        if self.method == "DELETE":
            answers[204] = None
        elif shape.creates:
            answers[201] = (
                _either(shape.answer, shape.or_answer) if shape.or_answer else shape.answer
            )
        else:
            answers[200] = _either(shape.answer, DryRunOutput)
            if shape.may_create:
                answers[201] = shape.answer
        return answers

    def get_override_parameters(self) -> list[Any]:
        if self.shape is None:
            return []
        if self.method == "GET":
            texts = self.shape.texts or {}
            return [OpenApiParameter(name, str, description=text) for name, text in texts.items()]
        flags = {"dry_run": "Validate and return the result; change nothing."}
        found = [
            OpenApiParameter(name, bool, description=text, default=False)
            for name, text in {**flags, **(self.shape.flags or {})}.items()
        ]
        found += [
            OpenApiParameter(name, str, description=text, required=True)
            for name, text in (self.shape.texts or {}).items()
        ]
        if self.method == "POST":
            found.append(
                _header(
                    "Idempotency-Key",
                    "A request repeated with the same key within 24 h is carried out only once.",
                )
            )
        if self.shape.versioned:
            found.append(_header("If-Match", "The ETag of the version you change."))
            found.append(_header("If-None-Match", "`*` to create."))
        return found


def _either(answer: SerializerType | None, other: SerializerType) -> Any:
    assert answer is not None
    names = [one.__name__.removesuffix("Output") for one in (answer, other)]
    return PolymorphicProxySerializer(
        component_name="Or".join(names),
        serializers=[answer, other],
        resource_type_field_name=None,
    )


def _header(name: str, description: str) -> OpenApiParameter:
    return OpenApiParameter(name, str, OpenApiParameter.HEADER, description=description)


def add_problems(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Post-processing hook: add problem documents to the answers of every operation."""
    content = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for path, methods in result["paths"].items():
        for method, operation in methods.items():
            codes = [401, *([404] if "{" in path else [])]
            codes += [403, 409, 422] if method != "get" else []
            texts = {str(code): TITLES[code] for code in codes}
            texts |= {"4XX": "The request is refused.", "5XX": "Kant failed."}
            for code, text in texts.items():
                operation["responses"].setdefault(code, {"description": text, "content": content})
    return result
