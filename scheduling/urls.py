from django.urls import path

from scheduling.pages import feed
from scheduling.pages.clusters import rules, schedulers
from scheduling.pages.events import events
from scheduling.pages.jobs import (
    acts,
    chosen,
    columns,
    export,
    logs,
    saved_views,
    submission,
    submit_text,
    table,
    templates,
)
from scheduling.pages.jobs import job as job_views
from scheduling.pages.queues import global_queue
from scheduling.pages.queues import overview as queue_lists
from scheduling.pages.queues import previews as queue_previews
from scheduling.pages.queues import queue as queue_views
from scheduling.pages.queues import revert as queue_reverts
from scheduling.pages.quotas import edits, loans, matrix, orders, quota, revert
from scheduling.pages.tenants import members, place
from scheduling.pages.tenants import tenants as tenant_views

urlpatterns = [
    path("feed/", feed.changes, name="feed"),
    path("events/", events.events, name="events"),
    path("jobs/", table.jobs, name="jobs"),
    path("jobs/jobs.csv", export.as_csv, name="jobs-csv"),
    path("jobs/chosen/", chosen.chosen, name="jobs-chosen"),
    path("jobs/chosen/preview/", chosen.chosen_preview, name="jobs-chosen-preview"),
    path("jobs/columns/", columns.choose_columns, name="jobs-columns"),
    path("jobs/views/", saved_views.save_view, name="jobs-view-save"),
    path("jobs/views/remove/", saved_views.forget_view, name="jobs-view-remove"),
    path("jobs/new/", submission.job_new, name="job-new"),
    path("jobs/new/preview/", submission.job_preview, name="job-preview"),
    path("jobs/new/text/", submit_text.job_text, name="job-text"),
    path("jobs/new/text/preview/", submit_text.job_text_preview, name="job-text-preview"),
    path("jobs/templates/", templates.templates, name="templates"),
    path("jobs/templates/new/", templates.template_new, name="template-new"),
    path(
        "jobs/templates/<uuid:template_id>/change/",
        templates.template_change,
        name="template-change",
    ),
    path(
        "jobs/templates/<uuid:template_id>/delete/",
        templates.template_delete,
        name="template-delete",
    ),
    path("jobs/<uuid:job_id>/", job_views.job, name="job"),
    path("jobs/<uuid:job_id>/outlook/", job_views.job_outlook, name="job-outlook"),
    path("jobs/<uuid:job_id>/logs/", logs.job_logs, name="job-logs"),
    path("jobs/<uuid:job_id>/cancel/", job_views.job_cancel, name="job-cancel"),
    path("jobs/<uuid:job_id>/hold/", job_views.job_hold, name="job-hold"),
    path("jobs/<uuid:job_id>/release/", job_views.job_release, name="job-release"),
    path("jobs/<uuid:job_id>/change/", job_views.job_change, name="job-change"),
    path(
        "jobs/<uuid:job_id>/change/preview/",
        job_views.job_change_preview,
        name="job-change-preview",
    ),
    path("jobs/<uuid:job_id>/<slug:act>/preview/", acts.job_act_preview, name="job-act-preview"),
    path("jobs/arrays/<uuid:array_id>/cancel/", job_views.array_cancel, name="array-cancel"),
    path(
        "jobs/arrays/<uuid:array_id>/<slug:act>/preview/",
        acts.array_act_preview,
        name="array-act-preview",
    ),
    path("jobs/arrays/<uuid:array_id>/hold/", job_views.array_hold, name="array-hold"),
    path("jobs/arrays/<uuid:array_id>/release/", job_views.array_release, name="array-release"),
    path("schedulers/", schedulers.schedulers, name="schedulers"),
    path("clusters/<slug:name>/rules/", rules.job_rules, name="job-rules"),
    path("clusters/<slug:name>/queue/", global_queue.global_queue, name="global-queue"),
    path("queues/", queue_lists.queues, name="queues"),
    path("queues/new/", queue_views.queue_new, name="queue-new"),
    path(
        "queues/changes/<uuid:record_id>/revert/", queue_reverts.queue_revert, name="queue-revert"
    ),
    path("queues/<slug:tenant>/<slug:name>/", queue_views.queue, name="queue"),
    path(
        "queues/<slug:tenant>/<slug:name>/settings/",
        queue_views.queue_settings,
        name="queue-settings",
    ),
    path(
        "queues/<slug:tenant>/<slug:name>/settings/preview/",
        queue_previews.settings_preview,
        name="queue-settings-preview",
    ),
    path(
        "queues/<slug:tenant>/<slug:name>/<slug:verb>/preview/",
        queue_previews.state_preview,
        name="queue-state-preview",
    ),
    path("queues/<slug:tenant>/<slug:name>/delete/", queue_views.queue_delete, name="queue-delete"),
    path(
        "queues/<slug:tenant>/<slug:name>/<slug:verb>/",
        queue_views.queue_state,
        name="queue-state",
    ),
    path("quotas/", matrix.quotas, name="quotas"),
    path("quotas/loans/", loans.loan_ledger, name="loans"),
    path("quotas/quotas.csv", matrix.as_csv, name="quotas-csv"),
    path("quotas/changes/<uuid:record_id>/revert/", revert.quota_revert, name="quota-revert"),
    path(
        "quotas/changes/<uuid:record_id>/revert/preview/",
        revert.quota_revert_preview,
        name="quota-revert-preview",
    ),
    path(
        "quotas/changes/<uuid:record_id>/revert-tenant/", place.tenant_revert, name="tenant-revert"
    ),
    path(
        "quotas/changes/<uuid:record_id>/revert-tenant/preview/",
        place.tenant_revert_preview,
        name="tenant-revert-preview",
    ),
    path("quotas/check/", edits.check, name="quota-check"),
    path("quotas/preview/", edits.preview, name="quota-preview"),
    path("quotas/discard/", edits.discard, name="quota-discard"),
    path("quotas/orders/<uuid:order_id>/", orders.quota_order, name="quota-order"),
    path(
        "quotas/orders/<uuid:order_id>/preview/",
        orders.quota_order_preview,
        name="quota-order-preview",
    ),
    path("quotas/editors/", matrix.who_edits, name="quota-editors"),
    path(
        "quotas/<slug:tenant>/<str:gpu_type>/preview/",
        quota.quota_preview,
        name="quota-preview-one",
    ),
    path("quotas/<slug:tenant>/<str:gpu_type>/", quota.quota, name="quota"),
    path("tenants/", tenant_views.tenants, name="tenants"),
    path("tenants/<slug:name>/", tenant_views.tenant, name="tenant"),
    path("tenants/<slug:name>/members/", members.members, name="tenant-members"),
    path(
        "tenants/<slug:name>/members/<str:username>/remove/",
        members.member_remove,
        name="member-remove",
    ),
    path("tenants/<slug:name>/place/", place.place, name="tenant-place"),
    path("tenants/<slug:name>/place/preview/", place.place_preview, name="place-preview"),
    path("tenants/<slug:name>/limits/", tenant_views.limits, name="tenant-limits"),
    path("tenants/<slug:name>/limits/preview/", tenant_views.limits_preview, name="limits-preview"),
]
