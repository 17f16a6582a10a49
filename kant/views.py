"""Views of the project itself."""

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from kant.client.archive import archive


@require_safe
def client(_request: HttpRequest) -> HttpResponse:
    """Serve the command line `kant` as one file; it holds no secret, so no sign-in is needed."""
    name = {"Content-Disposition": 'attachment; filename="kant"'}
    return HttpResponse(archive(), content_type="application/octet-stream", headers=name)
