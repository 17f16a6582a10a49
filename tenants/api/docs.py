"""The OpenAPI document and the page to try it."""

from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.csrf import csrf_exempt
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiJsonRenderer2
from drf_spectacular.views import SpectacularJSONAPIView
from rest_framework.permissions import AllowAny

from tenants.api.problems import method_not_allowed
from tenants.api.schema import PROBLEM_SCHEMA

SETTINGS: dict[str, Any] = {
    "DESCRIPTION": (
        "Control plane for GPU clusters. Send `Authorization: Bearer kant_…`; errors are RFC 9457 "
        "problem documents; lists are pages `{items, next}`, and a filter that names "
        "nothing there is, or nothing you may see, is refused; every write takes `?dry_run=true`, "
        "every POST an `Idempotency-Key`."
    ),
    "APPEND_COMPONENTS": {"schemas": {"Problem": PROBLEM_SCHEMA}},
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "tenants.api.schema.add_problems",
    ],
}


class OpenApiView(SpectacularJSONAPIView):
    """The description of this API."""

    permission_classes = [AllowAny]
    custom_settings = SETTINGS
    renderer_classes = [OpenApiJsonRenderer2, OpenApiJsonRenderer]


@csrf_exempt
def docs(request: HttpRequest) -> HttpResponseBase:
    """Swagger UI from vendored files; needs no inline script, no other site."""
    if request.method not in ("GET", "HEAD"):
        return method_not_allowed(request, ("GET", "HEAD"))
    return render(request, "api/docs.html")
