"""The REST API, version 1."""

from django.urls import include, path

urlpatterns = [
    path("", include("tenants.api.urls")),
    path("", include("scheduling.api.urls")),
    path("", include("metrics.api.urls")),
]
