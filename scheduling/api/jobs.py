"""REST for jobs."""

import uuid

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling import selectors
from scheduling.api.filters import JobFilter, PodFilter
from scheduling.api.job_serializers import (
    ExplanationOutput,
    JobEventOutput,
    JobInput,
    JobOutput,
    PodOutput,
)
from scheduling.explain import explain_job
from scheduling.models import Job, JobEvent, Placement
from scheduling.services.jobs import cancel_job, submit_job
from tenants.api.base import ListView, View, location, rehearsed, shown
from tenants.api.idempotency import idempotent
from tenants.api.schema import Shape


class JobsView(ListView):
    """Submitted jobs, the newest first."""

    shapes = {
        "GET": Shape(JobOutput, many=True),
        "POST": Shape(JobOutput, JobInput, creates=True),
    }

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
        body = shown(JobOutput, job)
        if self.dry_run:
            return rehearsed("create", body)
        return Response(body, 201, headers=location(self.request, "api-job", job.pk))


class JobView(View):
    shapes = {
        "GET": Shape(JobOutput),
    }

    def get(self, _request: Request, job_id: uuid.UUID) -> Response:
        return Response(shown(JobOutput, selectors.job_by_id(self.actor, job_id)))


class JobCancelView(View):
    shapes = {
        "POST": Shape(JobOutput),
    }

    @idempotent()
    def post(self, _request: Request, job_id: uuid.UUID) -> Response:
        job = selectors.job_by_id(self.actor, job_id)
        job = cancel_job(self.actor, job, dry_run=self.dry_run)
        body = shown(JobOutput, job)
        return rehearsed("update", body) if self.dry_run else Response(body)


class JobExplainView(View):
    """Why the job waits, and what would help."""

    shapes = {
        "GET": Shape(ExplanationOutput),
    }

    def get(self, _request: Request, job_id: uuid.UUID) -> Response:
        job = selectors.job_by_id(self.actor, job_id)
        return Response(ExplanationOutput(explain_job(self.actor, job)).data)


class JobEventsView(ListView):
    """What happened to the job, in order."""

    shapes = {
        "GET": Shape(JobEventOutput, many=True),
    }

    page_order = ("id",)
    queryset = JobEvent.objects.none()
    serializer_class = JobEventOutput

    def get_queryset(self) -> QuerySet[JobEvent]:
        return selectors.events_of(selectors.job_by_id(self.actor, self.kwargs["job_id"]))

    def get(self, _request: Request, job_id: uuid.UUID) -> Response:  # noqa: ARG002
        return self.page(JobEventOutput)


class JobPodsView(ListView):
    """Where the pods of every attempt went, the oldest first."""

    shapes = {
        "GET": Shape(PodOutput, many=True),
    }

    page_order = ("id",)
    filterset_class = PodFilter
    queryset = Placement.objects.none()
    serializer_class = PodOutput

    def get_queryset(self) -> QuerySet[Placement]:
        return selectors.placements_of(selectors.job_by_id(self.actor, self.kwargs["job_id"]))

    def get(self, _request: Request, job_id: uuid.UUID) -> Response:  # noqa: ARG002
        return self.page(PodOutput)
