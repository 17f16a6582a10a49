from django.urls import path

from webhooks.pages import views

urlpatterns = [
    path("webhooks/", views.webhooks, name="webhooks"),
    path("webhooks/new/", views.webhook_new, name="webhook-new"),
    path("webhooks/<uuid:webhook_id>/", views.webhook, name="webhook"),
    path("webhooks/<uuid:webhook_id>/settings/", views.webhook_settings, name="webhook-settings"),
    path("webhooks/<uuid:webhook_id>/<slug:verb>/", views.webhook_act, name="webhook-act"),
    path(
        "webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id>/",
        views.delivery,
        name="webhook-delivery",
    ),
    path(
        "webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id>/again/",
        views.delivery_again,
        name="webhook-again",
    ),
]
