"""The REST API, version 1."""

from django.urls import include, path, re_path

from tenants.api.problems import not_found

urlpatterns = [
    path("", include("scheduling.api.urls")),  # first: submissions come by the thousand
    path("", include("tenants.api.urls")),
    path("", include("metrics.api.urls")),
    path("", include("webhooks.api.urls")),
    # Last: an address that does not exist is answered with a problem document, not a page.
    re_path(r"", not_found),
]
