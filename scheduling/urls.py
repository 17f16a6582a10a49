from django.urls import path

from scheduling import quota_views, tenant_views, views

urlpatterns = [
    path("jobs/", views.jobs, name="jobs"),
    path("jobs/new/", views.job_new, name="job-new"),
    path("jobs/new/preview/", views.job_preview, name="job-preview"),
    path("jobs/<uuid:job_id>/", views.job, name="job"),
    path("jobs/<uuid:job_id>/cancel/", views.job_cancel, name="job-cancel"),
    path("quotas/", quota_views.quotas, name="quotas"),
    path("quotas/check/", quota_views.check, name="quota-check"),
    path("quotas/<slug:tenant>/<str:gpu_type>/", quota_views.quota, name="quota"),
    path("tenants/", tenant_views.tenants, name="tenants"),
    path("tenants/<slug:name>/", tenant_views.tenant, name="tenant"),
]
