"""All addresses. Pages and REST of each app are included from the app itself."""

from django.contrib import admin
from django.urls import include, path

from metrics import exporter

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/v1/", include("kant.api_urls")),
    path("metrics", exporter.page, name="prometheus"),
    path("", include("tenants.urls")),
    path("", include("scheduling.urls")),
    path("", include("metrics.urls")),
]
