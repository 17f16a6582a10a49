from django.urls import URLPattern, path

from scheduling.api import (
    batch,
    chosen,
    clusters,
    events,
    global_queue,
    jobs,
    logs,
    nodes,
    organisation,
    plan_orders,
    snapshots,
    startable,
)
from scheduling.api.job_templates import resources as templates
from scheduling.api.standing import holders, loans, pending, schedulers

urlpatterns: list[URLPattern] = [
    path("jobs", jobs.JobsView.as_view(), name="api-jobs"),
    path("jobs:act", chosen.JobActView.as_view(), name="api-jobs-act"),
    path("jobs:batch", batch.JobBatchView.as_view(), name="api-job-batch"),
    path("jobs/<uuid:job_id>", jobs.JobView.as_view(), name="api-job"),
    path("jobs/<uuid:job_id>/document", jobs.JobDocumentView.as_view(), name="api-job-document"),
    path("jobs/<uuid:job_id>/cancel", jobs.JobCancelView.as_view(), name="api-job-cancel"),
    path("jobs/<uuid:job_id>/hold", jobs.JobHoldView.as_view(), name="api-job-hold"),
    path("jobs/<uuid:job_id>/release", jobs.JobReleaseView.as_view(), name="api-job-release"),
    path("jobs/<uuid:job_id>/explain", jobs.JobExplainView.as_view(), name="api-job-explain"),
    path("jobs/<uuid:job_id>/outlook", jobs.JobOutlookView.as_view(), name="api-job-outlook"),
    path("jobs/<uuid:job_id>/events", jobs.JobEventsView.as_view(), name="api-job-events"),
    path("jobs/<uuid:job_id>/pods", jobs.JobPodsView.as_view(), name="api-job-pods"),
    path("jobs/<uuid:job_id>/logs", logs.JobLogsView.as_view(), name="api-job-logs"),
    path("job-arrays/<uuid:array_id>", jobs.JobArrayView.as_view(), name="api-job-array"),
    path(
        "job-arrays/<uuid:array_id>/document",
        jobs.JobArrayDocumentView.as_view(),
        name="api-job-array-document",
    ),
    path(
        "job-arrays/<uuid:array_id>/cancel",
        jobs.JobArrayCancelView.as_view(),
        name="api-job-array-cancel",
    ),
    path(
        "job-arrays/<uuid:array_id>/hold",
        jobs.JobArrayHoldView.as_view(),
        name="api-job-array-hold",
    ),
    path(
        "job-arrays/<uuid:array_id>/release",
        jobs.JobArrayReleaseView.as_view(),
        name="api-job-array-release",
    ),
    path("templates", templates.TemplatesView.as_view(), name="api-templates"),
    path("templates/<uuid:template_id>", templates.TemplateView.as_view(), name="api-template"),
    path("organisation", organisation.OrganisationView.as_view(), name="api-organisation"),
    path("events", events.EventsView.as_view(), name="api-events"),
    path("holders", holders.HoldersView.as_view(), name="api-holders"),
    path("loans", loans.LoansView.as_view(), name="api-loans"),
    path("pending", pending.PendingView.as_view(), name="api-pending"),
    path("schedulers", schedulers.SchedulersView.as_view(), name="api-schedulers"),
    path("startable", startable.StartableView.as_view(), name="api-startable"),
    path("clusters", clusters.ClustersView.as_view(), name="api-clusters"),
    path("clusters/<str:name>", clusters.ClusterView.as_view(), name="api-cluster"),
    path("clusters/<str:name>/nodes", nodes.NodesView.as_view(), name="api-nodes"),
    path(
        "clusters/<str:name>/nodes:preview",
        nodes.NodePreviewView.as_view(),
        name="api-node-preview",
    ),
    path("clusters/<str:name>/nodes:plan", nodes.NodePlanView.as_view(), name="api-node-plan"),
    path("clusters/<str:name>/nodes:empty", nodes.NodeEmptyView.as_view(), name="api-node-empty"),
    path("clusters/<str:name>/nodes/<str:node>", nodes.NodeView.as_view(), name="api-node"),
    *(
        path(
            f"clusters/<str:name>/nodes/<str:node>/{verb}",
            view.as_view(),
            name=f"api-node-{verb}",
        )
        for verb, view in nodes.NODE_ACTIONS.items()
    ),
    path(
        "clusters/<str:name>/plan-orders",
        plan_orders.PlanOrdersView.as_view(),
        name="api-plan-orders",
    ),
    path(
        "clusters/<str:name>/plan-orders/<uuid:order_id>",
        plan_orders.PlanOrderView.as_view(),
        name="api-plan-order",
    ),
    path(
        "clusters/<str:name>/plan-orders/<uuid:order_id>/cancel",
        plan_orders.PlanOrderCancelView.as_view(),
        name="api-plan-order-cancel",
    ),
    path("clusters/<str:name>/snapshot", snapshots.SnapshotView.as_view(), name="api-snapshot"),
    path(
        "clusters/<str:name>/queue",
        global_queue.GlobalQueueView.as_view(),
        name="api-global-queue",
    ),
    path("clusters/<str:name>/policy", clusters.PolicyView.as_view(), name="api-policy"),
    path(
        "clusters/<str:name>/policy/changes/<uuid:record_id>/revert",
        clusters.PolicyRevertView.as_view(),
        name="api-policy-revert",
    ),
]
