from django.urls import path

from metrics.api import past, replays, starts, usage, views

urlpatterns = [
    path("metrics", views.MetricsView.as_view(), name="api-metrics"),
    path("metrics/samples", views.SamplesView.as_view(), name="api-metric-samples"),
    path(
        "metrics/start-estimates", starts.StartEstimatesView.as_view(), name="api-start-estimates"
    ),
    path("clusters/<str:name>/past", past.PastView.as_view(), name="api-past"),
    path("usage", usage.UsageView.as_view(), name="api-usage"),
    path("replays", replays.ReplaysView.as_view(), name="api-replays"),
    path("replays/<uuid:replay_id>", replays.ReplayView.as_view(), name="api-replay"),
    path(
        "replays/<uuid:replay_id>/cancel",
        replays.ReplayCancelView.as_view(),
        name="api-replay-cancel",
    ),
]
