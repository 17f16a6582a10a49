"""The OpenAPI document and a page to try the API."""

from hashlib import sha256
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.cache import get_conditional_response
from django.utils.http import quote_etag
from django.views.decorators.csrf import csrf_exempt
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiJsonRenderer2
from drf_spectacular.views import SpectacularJSONAPIView
from rest_framework.permissions import AllowAny
from rest_framework.request import Request

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


# Media type → (body, headers, ETag). Each takes half a second of CPU to compute.
_computed: dict[str, tuple[bytes, dict[str, str], str]] = {}


class OpenApiView(SpectacularJSONAPIView):
    """The description of this API."""

    permission_classes = [AllowAny]
    custom_settings = SETTINGS
    renderer_classes = [OpenApiJsonRenderer2, OpenApiJsonRenderer]

    def get(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Answer with the document in the requested media type.

        It is computed once per process, because the address needs no sign-in, and a client that
        already has it gets 304.
        """
        kind = request.accepted_renderer.media_type
        if kind not in _computed:
            response = super().get(request, *args, **kwargs)
            rendered = request.accepted_renderer.render(response.data)
            body = rendered.encode() if isinstance(rendered, str) else bytes(rendered)
            headers = {name: value for name, value in response.items() if name != "Content-Type"}
            _computed[kind] = (body, headers, quote_etag(sha256(body).hexdigest()[:32]))
        body, headers, tag = _computed[kind]
        answer = HttpResponse(body, content_type=kind, headers={**headers, "ETag": tag})
        return get_conditional_response(request._request, etag=tag, response=answer) or answer


@csrf_exempt
def docs(request: HttpRequest) -> HttpResponseBase:
    """Swagger UI from vendored files; it needs neither inline scripts nor other sites."""
    if request.method not in ("GET", "HEAD"):
        return method_not_allowed(request, ("GET", "HEAD"))
    return render(request, "api/docs.html")
