from django.urls import URLPattern, path, re_path

from tenants.api import docs, problem_pages, queues, quotas, tenants, tokens
from tenants.api.quota_drafts import drafts, orders

urlpatterns: list[URLPattern] = [
    path("openapi.json", docs.OpenApiView.as_view(), name="api-schema"),
    re_path(r"^docs/?$", docs.docs, name="api-docs"),
    path("me", tokens.MeView.as_view(), name="api-me"),
    path("tokens", tokens.TokensView.as_view(), name="api-tokens"),
    path("tokens/<int:token_id>", tokens.TokenView.as_view(), name="api-token"),
    path("tenants", tenants.TenantsView.as_view(), name="api-tenants"),
    path("tenants/<str:name>", tenants.TenantView.as_view(), name="api-tenant"),
    path("tenants/<str:name>/members", tenants.MembersView.as_view(), name="api-members"),
    path(
        "tenants/<str:name>/members/<str:username>",
        tenants.MemberView.as_view(),
        name="api-member",
    ),
    path("gpu-types", tenants.GpuTypesView.as_view(), name="api-gpu-types"),
    path("gpu-types/<str:name>", tenants.GpuTypeView.as_view(), name="api-gpu-type"),
    path("quotas", quotas.QuotasView.as_view(), name="api-quotas"),
    path("quotas:preview", quotas.QuotaPreviewView.as_view(), name="api-quota-preview"),
    path("quotas/<str:tenant>/<str:gpu_type>", quotas.QuotaView.as_view(), name="api-quota"),
    path("quota-drafts", drafts.DraftsView.as_view(), name="api-quota-drafts"),
    path("quota-drafts/<str:username>", drafts.DraftView.as_view(), name="api-quota-draft"),
    path(
        "quota-drafts/<str:username>/apply",
        drafts.DraftApplyView.as_view(),
        name="api-quota-draft-apply",
    ),
    path("quota-orders", orders.OrdersView.as_view(), name="api-quota-orders"),
    path("quota-orders/<uuid:order_id>", orders.OrderView.as_view(), name="api-quota-order"),
    *(
        path(
            f"quota-orders/<uuid:order_id>/{verb}",
            view.as_view(),
            name=f"api-quota-order-{verb}",
        )
        for verb, view in orders.ACTIONS.items()
    ),
    path("queues", queues.QueuesView.as_view(), name="api-queues"),
    path("queues/<str:tenant>/<str:name>", queues.QueueView.as_view(), name="api-queue"),
    *(
        path(
            f"queues/<str:tenant>/<str:name>/{verb}",
            view.as_view(),
            name=f"api-queue-{verb}",
        )
        for verb, view in queues.ACTIONS.items()
    ),
    path(
        "queues/<str:tenant>/<str:name>/changes/<uuid:record_id>/revert",
        queues.QueueRevertView.as_view(),
        name="api-queue-revert",
    ),
    path(
        "tenants/<str:name>/changes/<uuid:record_id>/revert",
        tenants.TenantRevertView.as_view(),
        name="api-tenant-revert",
    ),
    path("audit", tenants.AuditView.as_view(), name="api-audit"),
    path("audit/<uuid:record_id>/revert", quotas.RevertView.as_view(), name="api-quota-revert"),
    path("problems/<str:code>", problem_pages.ProblemView.as_view(), name="api-problem"),
]
