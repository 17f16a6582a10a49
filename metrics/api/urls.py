from django.urls import path

from metrics.api import usage, views

urlpatterns = [
    path("metrics", views.MetricsView.as_view(), name="api-metrics"),
    path("metrics/samples", views.SamplesView.as_view(), name="api-metric-samples"),
    path("usage", usage.UsageView.as_view(), name="api-usage"),
]
