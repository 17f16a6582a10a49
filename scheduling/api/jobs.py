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
    """Submitted jobs, the newest first. A document with `array` is answered by the array. A dry
    run also says whether the job, of an array the first one, would start now, and if not, why."""

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
    """One job. PATCH changes what it asks for while it waits, of one that has started only
    `run_limit_s`, `declared_s` and the counts of its pods: what is beyond a smaller count leaves,
    the highest ordinals first, and for a larger one places are looked for. Pods that run keep the
    `KANT_WORLD_SIZE` that they began with. A dry run tells what the change would do to all jobs."""

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
    """What an act on one job would make of it, and do to all. Raises what refuses it."""
    tried = try_on_job(actor, job.pk, act, changes)
    body = shown(JobOutput, tried.job)
    return rehearsed("update", body, effects=effects_body(tried.effects))


class JobActionView(View):
    """What is done to one job, without a body. A dry run tells what it would do to all jobs."""

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
    """Ends the job; its pods are deleted."""

    act = JobAct.CANCEL


class JobHoldView(JobActionView):
    """Keeps a waiting job from being started; it keeps its place in the queue."""

    act = JobAct.HOLD


class JobReleaseView(JobActionView):
    """Lets a held job be started again."""

    act = JobAct.RELEASE


class JobDocumentView(View):
    """The document that submits the same job again, as it is now, without what is assumed where
    nothing is said. There is none (409) of a job that was taken up from a pod of somebody else."""

    scope = Scope.SUBMIT
    shapes = {
        "GET": Shape(JobInput),
    }

    def get(self, _request: Request, job_id: uuid.UUID) -> Response:
        job = selectors.job_by_id(self.actor, job_id)
        return Response(document_of(job, given_to(job)))


class JobArrayView(View):
    """Jobs that were submitted as one, and how far they are. PATCH changes those that wait. A dry
    run tells what the change would do to all jobs."""

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
    """What an act on an array would make of it, and do to all jobs. Raises what refuses it."""
    tried = try_on_array(actor, array_id, act)
    body = shown(JobArrayOutput, tried.array)
    return rehearsed("update", body, effects=effects_body(tried.effects))


class JobArrayDocumentView(View):
    """The document that submits the same array again, all its jobs as the first one is now."""

    scope = Scope.SUBMIT
    shapes = {
        "GET": Shape(JobInput),
    }

    def get(self, _request: Request, array_id: uuid.UUID) -> Response:
        first = selectors.first_of_array(self.actor, array_id)
        count = selectors.array_by_id(self.actor, array_id).count
        return Response(document_of_array(first, count, given_to(first)))


class JobArrayActionView(View):
    """What is done to an array, without a body. A dry run tells what it would do to all jobs."""

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
    """Ends all jobs of the array that are not over."""

    act = cancel_array


class JobArrayHoldView(JobArrayActionView):
    """Keeps all waiting jobs of the array from being started; they keep their places."""

    act = hold_array


class JobArrayReleaseView(JobArrayActionView):
    """Lets all held jobs of the array be started again."""

    act = release_array


class JobExplainView(View):
    """Why the job waits, and what would help."""

    scope = Scope.SUBMIT
    shapes = {
        "GET": Shape(ExplanationOutput),
    }

    def get(self, _request: Request, job_id: uuid.UUID) -> Response:
        job = selectors.job_by_id(self.actor, job_id)
        return Response(ExplanationOutput(explain_job(self.actor, job)).data)


class JobOutlookView(View):
    """Of a job that waits: whether it would start now, and if not, when, and what would start
    instead, as a dry run tells it before a job is submitted."""

    scope = Scope.SUBMIT
    shapes = {
        "GET": Shape(RehearsalOutput),
    }

    def get(self, _request: Request, job_id: uuid.UUID) -> Response:
        job = selectors.job_by_id(self.actor, job_id)
        said = review_job(self.actor, job)
        if said is None:
            raise Conflict("The job does not wait: it has its places, or is over.")
        return Response(RehearsalOutput(said).data)


class JobEventsView(ListView):
    """What happened to the job, in order."""

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
    """Where the pods of every attempt went, the oldest first."""

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
