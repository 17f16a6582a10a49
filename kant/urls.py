"""All addresses. Pages and REST of each app are included from the app itself."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/v1/", include("kant.api_urls")),
    path("", include("tenants.urls")),
    path("", include("scheduling.urls")),
    path("", include("metrics.urls")),
]
