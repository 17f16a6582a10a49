"""All addresses. Each app brings its own pages and REST."""

from django.contrib import admin
from django.urls import include, path, re_path

from kant.demo.accounts import ACCOUNTS, PASSWORD
from kant.views import client
from metrics.prometheus import exporter
from tenants.api.problems import not_found
from tenants.views import SignIn, admin_sign_in

urlpatterns = [
    path("admin/login/", admin_sign_in),
    path("admin/", admin.site.urls),
    path("api/v1/", include("kant.api_urls")),
    re_path(r"^api(?:/|$)", not_found),
    path("metrics", exporter.PrometheusView.as_view(), name="prometheus"),
    path("cli/kant", client, name="client"),
    path("login/", SignIn.as_view(demo_accounts=ACCOUNTS, demo_password=PASSWORD), name="login"),
    path("", include("tenants.urls")),
    path("", include("scheduling.urls")),
    path("", include("metrics.urls")),
    path("", include("webhooks.urls")),
]

# Below /api/ every error is a problem document, even one that reached no view.
handler400 = "tenants.api.problems.bad_request"
handler500 = "tenants.api.problems.server_error"
