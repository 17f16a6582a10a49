from django.urls import URLPattern, path

from tenants.api import tokens

urlpatterns: list[URLPattern] = [
    path("me", tokens.MeView.as_view(), name="api-me"),
    path("tokens", tokens.TokensView.as_view(), name="api-tokens"),
    path("tokens/<int:token_id>", tokens.TokenView.as_view(), name="api-token"),
]
