from django.urls import URLPattern, path

from webhooks.api import deliveries, hooks

ONE = "webhooks/<uuid:webhook_id>"
DELIVERY = f"{ONE}/deliveries/<uuid:delivery_id>"

urlpatterns: list[URLPattern] = [
    path("webhooks", hooks.WebhooksView.as_view(), name="api-webhooks"),
    path(ONE, hooks.WebhookView.as_view(), name="api-webhook"),
    path(f"{ONE}:test", hooks.WebhookTestView.as_view(), name="api-webhook-test"),
    path(f"{ONE}:rotate", hooks.WebhookRotateView.as_view(), name="api-webhook-rotate"),
    path(f"{ONE}/deliveries", deliveries.DeliveriesView.as_view(), name="api-deliveries"),
    path(DELIVERY, deliveries.DeliveryView.as_view(), name="api-delivery"),
    path(f"{DELIVERY}:redeliver", deliveries.RedeliverView.as_view(), name="api-redeliver"),
]
