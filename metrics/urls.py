from django.urls import path

from metrics import overview, usage_views, views
from metrics.replays import views as replay_views

urlpatterns = [
    path("", overview.overview, name="overview"),
    path("usage/", usage_views.page, name="usage"),
    path("usage/chart.json", usage_views.chart, name="usage-chart"),
    path(
        "usage/usage.csv",
        usage_views.as_csv,
        {"name": "usage", "by": ("tenant", "user", "gpu_type")},
        name="usage-csv",
    ),
    path(
        "usage/tenants.csv",
        usage_views.as_csv,
        {"name": "usage-by-tenant", "by": ("tenant", "gpu_type", "day")},
        name="usage-tenants-csv",
    ),
    path("ops/", views.operations, name="operations"),
    path("ops/charts/<slug:name>.json", views.chart, name="chart"),
    path("ops/nodes/", views.nodes, name="nodes"),
    path("ops/nodes/<slug:cluster>/<str:name>/", views.node, name="node"),
    path("replays/", replay_views.replays, name="replays"),
    path("replays/new/", replay_views.replay_new, name="replay-new"),
    path("replays/<uuid:replay_id>/", replay_views.replay, name="replay"),
    path("replays/<uuid:replay_id>/cancel/", replay_views.replay_cancel, name="replay-cancel"),
    path(
        "replays/<uuid:replay_id>/charts/<slug:name>.json", replay_views.chart, name="replay-chart"
    ),
]
