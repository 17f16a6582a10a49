from django.urls import path

from metrics.pages.nodes import leaves
from metrics.pages.nodes import orders as node_orders
from metrics.pages.nodes import plans as node_plans
from metrics.pages.nodes import views as node_views
from metrics.pages.operations import views
from metrics.pages.overview import views as overview
from metrics.pages.policies import history
from metrics.pages.policies import views as policy_views
from metrics.pages.replays import views as replay_views
from metrics.pages.usage import views as usage_views

urlpatterns = [
    path("", overview.overview, name="overview"),
    path("can-start/", overview.can_start, name="can-start"),
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
    path("ops/nodes/", node_views.nodes, name="nodes"),
    path("ops/leaves/<slug:cluster>/<path:name>/", leaves.leaf, name="leaf"),
    path("ops/free/<slug:cluster>/", node_plans.node_plan, name="node-plan"),
    path(
        "ops/free/<slug:cluster>/<uuid:order_id>/cancel/",
        node_plans.plan_cancel,
        name="plan-cancel",
    ),
    path("ops/nodes/<slug:cluster>/<str:name>/", node_views.node, name="node"),
    path("ops/nodes/<slug:cluster>/<str:name>/drain/", node_orders.node_order, name="node-order"),
    path(
        "ops/nodes/<slug:cluster>/<str:name>/drain/preview/",
        node_orders.node_preview,
        name="node-preview",
    ),
    path("ops/nodes/<slug:cluster>/<str:name>/uncordon/", node_orders.node_lift, name="node-lift"),
    path("policies/<slug:name>/", policy_views.policy, name="policy"),
    path("policies/<slug:name>/draft/", policy_views.policy_draft, name="policy-draft"),
    path("policies/<slug:name>/check/", policy_views.policy_check, name="policy-check"),
    path("policies/<slug:name>/preview/", policy_views.policy_preview, name="policy-preview"),
    path("policies/<slug:name>/replay/", policy_views.policy_replay, name="policy-replay"),
    path("policies/<slug:name>/save/", policy_views.policy_save, name="policy-save"),
    path("policies/<slug:name>/changes/", history.policy_changes, name="policy-changes"),
    path(
        "policies/<slug:name>/changes/<uuid:record_id>/revert/",
        history.policy_revert,
        name="policy-revert",
    ),
    path(
        "policies/<slug:name>/changes/<uuid:record_id>/revert/preview/",
        history.policy_revert_preview,
        name="policy-revert-preview",
    ),
    path("replays/", replay_views.replays, name="replays"),
    path("replays/new/", replay_views.replay_new, name="replay-new"),
    path("replays/<uuid:replay_id>/", replay_views.replay, name="replay"),
    path("replays/<uuid:replay_id>/cancel/", replay_views.replay_cancel, name="replay-cancel"),
    path(
        "replays/<uuid:replay_id>/charts/<slug:name>.json", replay_views.chart, name="replay-chart"
    ),
]
