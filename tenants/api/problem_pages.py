"""What the `type` of a problem document leads to: its meaning and the remedy."""

from typing import Any

from rest_framework import serializers
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.base import View
from tenants.api.problems import KINDS
from tenants.api.schema import Shape
from tenants.errors import NotFound


class ProblemKindOutput(serializers.Serializer[Any]):
    code = serializers.CharField()
    status = serializers.IntegerField()
    title = serializers.CharField()
    remedy = serializers.CharField()


class ProblemView(View):
    """The meaning of one problem code."""

    scope = ""
    shapes = {
        "GET": Shape(ProblemKindOutput),
    }

    permission_classes = [AllowAny]

    def get(self, _request: Request, code: str) -> Response:
        if code not in KINDS:
            raise NotFound(f"There is no problem “{code}”. Known: {', '.join(sorted(KINDS))}.")
        return Response({"code": code, **KINDS[code]._asdict()})
