from django.urls import URLPattern, path

from scheduling.api import jobs

urlpatterns: list[URLPattern] = [
    path("jobs", jobs.JobsView.as_view(), name="api-jobs"),
    path("jobs/<uuid:job_id>", jobs.JobView.as_view(), name="api-job"),
    path("jobs/<uuid:job_id>/cancel", jobs.JobCancelView.as_view(), name="api-job-cancel"),
]
