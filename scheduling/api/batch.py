"""REST for submitting many jobs at once."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.api.job_outputs import JobArrayOutput, JobOutput
from scheduling.api.job_serializers import JobInput
from scheduling.models import Job
from scheduling.queries.selectors import JobArray
from scheduling.services.jobs.submission.batch import MOST_DOCUMENTS, submit_batch
from tenants.api.base import View, rehearsed, shared, shown
from tenants.api.fields import List, Serializer, Told
from tenants.api.idempotency import idempotent
from tenants.api.problems import described
from tenants.api.schema import PROBLEM_SCHEMA, Shape
from tenants.errors import DomainError
from tenants.models import Scope


@extend_schema_field(JobInput)
class Document(Told, serializers.Field[Any, Any, Any, Any]):
    """A job document, unchanged; each document is validated by itself."""

    def to_internal_value(self, data: Any) -> Any:
        return data


class JobBatchInput(Serializer):
    """Job documents, also ones with `array`, in the order in which they enter the queue."""

    jobs = List(child=Document(allow_null=True), allow_empty=False, max_length=MOST_DOCUMENTS)


@extend_schema_field(PROBLEM_SCHEMA)
class ProblemOutput(serializers.DictField):
    """A problem document."""


class JobBatchAnswerOutput(serializers.Serializer[Any]):
    """The result for one document.

    `status`: what `POST /api/v1/jobs` would have returned, with the `job` (or the `array` for a
    document with `array`) or with the `problem`, whose pointers point into that document. The
    others are null.
    """

    status = serializers.IntegerField()
    job = JobOutput(allow_null=True)
    array = JobArrayOutput(allow_null=True)
    problem = ProblemOutput(allow_null=True)


class JobBatchOutput(serializers.Serializer[Any]):
    """How many documents were accepted and refused, and the result for each, in their order."""

    accepted = serializers.IntegerField()
    refused = serializers.IntegerField()
    answers = JobBatchAnswerOutput(many=True)


class JobBatchView(View):
    """Submit up to 1,000 different jobs at once, or up to 10,000 including those of arrays.

    Each document is accepted or refused by itself: the answer is 200 and says for each what
    `POST /api/v1/jobs` would have returned. This is cheaper than one call per job. `after` and
    `after_ok` may name only jobs that existed before. A dry run changes nothing and says which
    would be accepted.
    """

    scope = Scope.SUBMIT
    shapes = {"POST": Shape(JobBatchOutput, JobBatchInput)}

    @idempotent()
    def post(self, request: Request) -> Response:
        answers: dict[int, dict[str, Any]] = {}
        documents: dict[int, dict[str, Any]] = {}
        for index, raw in enumerate(self.body(JobBatchInput)["jobs"]):
            try:
                documents[index] = dict(shared(JobInput).run_validation(raw))
            except serializers.ValidationError as error:
                answers[index] = _refused(error, request)
        given = submit_batch(self.actor, list(documents.values()), dry_run=self.dry_run)
        for index, made in zip(documents, given, strict=True):
            answers[index] = self._answer(made)
        in_order = [answers[index] for index in sorted(answers)]
        accepted = sum(answer["problem"] is None for answer in in_order)
        body = {
            "accepted": accepted,
            "refused": len(in_order) - accepted,
            "answers": in_order,
        }
        return rehearsed("create", body) if self.dry_run else Response(body)

    def _answer(self, made: Job | JobArray | DomainError) -> dict[str, Any]:
        if isinstance(made, DomainError):
            return _refused(made, self.request)
        of_job = isinstance(made, Job)
        told = shown(JobOutput if of_job else JobArrayOutput, made)
        if self.dry_run:
            del told["id"]
        job, array = (told, None) if of_job else (None, told)
        return {"status": 201, "job": job, "array": array, "problem": None}


def _refused(error: Exception, request: Request) -> dict[str, Any]:
    problem = described(error, request)
    return {"status": problem["status"], "job": None, "array": None, "problem": problem}
