"""REST for jobs."""

import uuid

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling import selectors
from scheduling.api.filters import JobFilter
from scheduling.api.job_serializers import JobInput, JobOutput
from scheduling.models import Job
from scheduling.services.jobs import cancel_job, submit_job
from tenants.api.base import ListView, View, location, rehearsed
from tenants.api.idempotency import idempotent


class JobsView(ListView):
    """Submitted jobs, the newest first."""

    page_order = ("-submitted_at", "-id")
    filterset_class = JobFilter
    serializer_class = JobOutput

    def get_queryset(self) -> QuerySet[Job]:
        return selectors.visible_jobs(self.request.user)

    def get(self, _request: Request) -> Response:
        return self.page(JobOutput)

    @idempotent()
    def post(self, _request: Request) -> Response:
        document = self.body(JobInput)
        job = submit_job(self.actor, document, dry_run=self.dry_run)
        body = JobOutput(job).data
        if self.dry_run:
            return rehearsed("create", body)
        return Response(body, 201, headers=location(self.request, "api-job", job.pk))


class JobView(View):
    def get(self, _request: Request, job_id: uuid.UUID) -> Response:
        return Response(JobOutput(selectors.job_by_id(self.actor, job_id)).data)


class JobCancelView(View):
    @idempotent()
    def post(self, _request: Request, job_id: uuid.UUID) -> Response:
        job = selectors.job_by_id(self.actor, job_id)
        job = cancel_job(self.actor, job, dry_run=self.dry_run)
        body = JobOutput(job).data
        return rehearsed("update", body) if self.dry_run else Response(body)
