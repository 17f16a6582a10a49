from django.contrib.auth.views import LogoutView
from django.urls import path

from tenants import views
from tenants.oidc import views as oidc

urlpatterns = [
    path("login/oidc/", oidc.start, name="oidc"),
    path("login/oidc/callback/", oidc.callback, name="oidc-callback"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("quotas/changes/", views.quota_changes, name="quota-changes"),
    path("settings/tokens/", views.tokens, name="tokens"),
    path("settings/tokens/<int:token_id>/revoke/", views.token_revoke, name="token-revoke"),
]
