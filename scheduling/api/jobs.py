"""REST for jobs."""

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.api.filters import JobFilter, PodFilter
from scheduling.api.job_outputs import (
    ExplanationOutput,
    JobArrayOutput,
    JobEventOutput,
    JobOutput,
    PodOutput,
)
from scheduling.api.job_serializers import JobChange, JobInput
from scheduling.api.rehearsal_serializers import JobDryRunOutput, RehearsalOutput
from scheduling.models import Job, JobEvent, Placement
from scheduling.queries import selectors
from scheduling.queries.explain import explain_job
from scheduling.queries.rehearsal import rehearse_job, review_job
from scheduling.queries.secret_viewers import hide_from
from scheduling.services.jobs.array_changes import change_array, hold_array, release_array
from scheduling.services.jobs.changes import change_job, hold_job, release_job
from scheduling.services.jobs.document import document_of, document_of_array
from scheduling.services.jobs.effects import try_on_array, try_on_job
from scheduling.services.jobs.many import JobAct
from scheduling.services.jobs.submit import cancel_array, cancel_job, submit_array, submit_job
from scheduling.services.queues.entry import given_to
from tenants.api.base import ListView, View, location, rehearsed, shown
from tenants.api.effects import DryRunWithEffects, effects_body
from tenants.api.idempotency import Keyed, answered, idempotent, idempotent_at_once
from tenants.api.schema import Shape
from tenants.errors import Conflict
from tenants.models import Scope, User


class JobsView(ListView):
    """Submitted jobs, newest first. POST submits one.

    A document with `array` is answered with the array. A dry run also says whether the job (the
    first one of an array) would start now, and if not, why.
    """

    scope = Scope.SUBMIT
    shapes = {
        "GET": Shape(JobOutput, many=True),
        "POST": Shape(
            JobOutput,
            JobInput,
            creates=True,
            or_answer=JobArrayOutput,
            rehearsal=JobDryRunOutput,
        ),
    }

    page_order = ("-submitted_at", "-id")
    filterset_class = JobFilter
    serializer_class = JobOutput

    def get_queryset(self) -> QuerySet[Job]:
        return selectors.visible_jobs(self.request.user)

    def paginate_queryset(self, queryset: Any) -> Any:
        rows = super().paginate_queryset(queryset)
        hide_from(self.actor, rows or ())
        return rows

    def get(self, _request: Request) -> Response:
        return self.page(JobOutput)

    @idempotent_at_once
    def post(self, _request: Request, keyed: Keyed | None) -> Response:
        document = self.body(JobInput)
        if self.dry_run:
            return self._would(document)
        submit = submit_job if document.get("array") is None else submit_array
        return answered(
            keyed,
            self._created,
            lambda receipt: submit(self.actor, document, receipt=receipt),
        )

    def _created(self, made: Job | selectors.JobArray) -> Response:
        if isinstance(made, Job):
            headers = location(self.request, "api-job", made.pk)
            return Response(shown(JobOutput, made), 201, headers=headers)
        headers = location(self.request, "api-job-array", made.id)
        return Response(shown(JobArrayOutput, made), 201, headers=headers)

    def _would(self, document: dict[str, Any]) -> Response:
        if document.get("array") is None:
            job = submit_job(self.actor, document, dry_run=True)
            return self._rehearsed(job, shown(JobOutput, job))
        array = submit_array(self.actor, document, dry_run=True)
        one = {name: value for name, value in document.items() if name != "array"}
        first = submit_job(self.actor, one, dry_run=True)
        return self._rehearsed(first, shown(JobArrayOutput, array))

    def _rehearsed(self, job: Job, body: dict[str, Any]) -> Response:
        said = rehearse_job(self.actor, job)
        rehearsal = shown(RehearsalOutput, said)
        return rehearsed("create", body, said.warnings, rehearsal=rehearsal)


class JobView(View):
    """One job. PATCH changes what it asks for while it waits.

    Of a job that has started, only `run_limit_s`, `declared_s` and the counts of its pods can
    change. With a smaller count the pods with the highest ordinals leave; with a larger one Kant
    looks for more places. Running pods keep the `KANT_WORLD_SIZE` that they started with. A dry run
    says what the change would do to all jobs.
    """

    scope = Scope.SUBMIT
    shapes = {
        "GET": Shape(JobOutput),
        "PATCH": Shape(JobOutput, JobChange, rehearsal=DryRunWithEffects),
    }

    def get(self, _request: Request, job_id: uuid.UUID) -> Response:
        return Response(shown(JobOutput, selectors.job_by_id(self.actor, job_id)))

    def patch(self, _request: Request, job_id: uuid.UUID) -> Response:
        changes = self.body(JobChange)
        job = selectors.job_by_id(self.actor, job_id)
        if self.dry_run and changes:
            return _tried(self.actor, job, JobAct.CHANGE, changes)
        return self.updated(JobOutput, change_job(self.actor, job, changes))


ACTS = {JobAct.CANCEL: cancel_job, JobAct.HOLD: hold_job, JobAct.RELEASE: release_job}


def _tried(actor: User, job: Job, act: JobAct, changes: Any = None) -> Response:
    """Answer a dry run: the job after the action, and the effects on all jobs.

    Raises what refuses the action.
    """
    tried = try_on_job(actor, job.pk, act, changes)
    body = shown(JobOutput, tried.job)
    return rehearsed("update", body, effects=effects_body(tried.effects))


class JobActionView(View):
    """An action on one job, without a body. A dry run says what it would do to all jobs."""

    scope = Scope.SUBMIT
    shapes = {
        "POST": Shape(JobOutput, rehearsal=DryRunWithEffects),
    }
    act: ClassVar[JobAct]

    @idempotent()
    def post(self, _request: Request, job_id: uuid.UUID) -> Response:
        job = selectors.job_by_id(self.actor, job_id)
        if self.dry_run:
            return _tried(self.actor, job, self.act)
        return self.updated(JobOutput, ACTS[self.act](self.actor, job))


class JobCancelView(JobActionView):
    """Cancel the job; its pods are deleted."""

    act = JobAct.CANCEL


class JobHoldView(JobActionView):
    """Hold a waiting job: it does not start, but keeps its place in the queue."""

    act = JobAct.HOLD


class JobReleaseView(JobActionView):
    """Release a held job, so that it can start."""

    act = JobAct.RELEASE


class JobDocumentView(View):
    """The document that submits the same job again, as it is now, without defaults.

    There is none (409) for a job that stands for a pod that somebody else made.
    """

    scope = Scope.SUBMIT
    shapes = {
        "GET": Shape(JobInput),
    }

    def get(self, _request: Request, job_id: uuid.UUID) -> Response:
        job = selectors.job_by_id(self.actor, job_id)
        return Response(document_of(job, given_to(job)))


class JobArrayView(View):
    """Jobs that were submitted as one array, and their progress.

    PATCH changes the waiting ones. A dry run says what the change would do to all jobs.
    """

    scope = Scope.SUBMIT
    shapes = {
        "GET": Shape(JobArrayOutput),
        "PATCH": Shape(JobArrayOutput, JobChange, rehearsal=DryRunWithEffects),
    }

    def get(self, _request: Request, array_id: uuid.UUID) -> Response:
        return Response(shown(JobArrayOutput, selectors.array_by_id(self.actor, array_id)))

    def patch(self, _request: Request, array_id: uuid.UUID) -> Response:
        changes = self.body(JobChange)
        change = partial(change_array, self.actor, array_id, changes)
        if self.dry_run:
            return _tried_on_array(self.actor, array_id, change)
        return self.updated(JobArrayOutput, change())


def _tried_on_array(
    actor: User, array_id: uuid.UUID, act: Callable[[], selectors.JobArray]
) -> Response:
    """Answer a dry run: the array after the action, and the effects on all jobs.

    Raises what refuses the action.
    """
    tried = try_on_array(actor, array_id, act)
    body = shown(JobArrayOutput, tried.array)
    return rehearsed("update", body, effects=effects_body(tried.effects))


class JobArrayDocumentView(View):
    """The document that submits the same array again, with all jobs like the first one is now."""

    scope = Scope.SUBMIT
    shapes = {
        "GET": Shape(JobInput),
    }

    def get(self, _request: Request, array_id: uuid.UUID) -> Response:
        first = selectors.first_of_array(self.actor, array_id)
        count = selectors.array_by_id(self.actor, array_id).count
        return Response(document_of_array(first, count, given_to(first)))


class JobArrayActionView(View):
    """An action on an array, without a body. A dry run says what it would do to all jobs."""

    scope = Scope.SUBMIT
    shapes = {
        "POST": Shape(JobArrayOutput, rehearsal=DryRunWithEffects),
    }
    act: ClassVar[Callable[..., selectors.JobArray]]

    @idempotent()
    def post(self, _request: Request, array_id: uuid.UUID) -> Response:
        act = partial(type(self).act, self.actor, array_id)
        if self.dry_run:
            return _tried_on_array(self.actor, array_id, act)
        return self.updated(JobArrayOutput, act())


class JobArrayCancelView(JobArrayActionView):
    """Cancel all jobs of the array that have not ended."""

    act = cancel_array


class JobArrayHoldView(JobArrayActionView):
    """Hold all waiting jobs of the array: they do not start, but keep their places in the queue."""

    act = hold_array


class JobArrayReleaseView(JobArrayActionView):
    """Release all held jobs of the array, so that they can start."""

    act = release_array


class JobExplainView(View):
    """Explain why the job waits and what would help."""

    scope = Scope.SUBMIT
    shapes = {
        "GET": Shape(ExplanationOutput),
    }

    def get(self, _request: Request, job_id: uuid.UUID) -> Response:
        job = selectors.job_by_id(self.actor, job_id)
        return Response(ExplanationOutput(explain_job(self.actor, job)).data)


class JobOutlookView(View):
    """The outlook of a waiting job: whether it would start now, otherwise when, or what instead.

    The answer is the same as that of a dry run before submission.
    """

    scope = Scope.SUBMIT
    shapes = {
        "GET": Shape(RehearsalOutput),
    }

    def get(self, _request: Request, job_id: uuid.UUID) -> Response:
        job = selectors.job_by_id(self.actor, job_id)
        said = review_job(self.actor, job)
        if said is None:
            raise Conflict("The job is not waiting: it has its places, or is over.")
        return Response(RehearsalOutput(said).data)


class JobEventsView(ListView):
    """The events of the job, in order."""

    scope = Scope.SUBMIT
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
    """Where the pods of each attempt went, oldest first."""

    scope = Scope.SUBMIT
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
