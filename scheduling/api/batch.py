"""REST for many jobs submitted at once."""

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
    """A job document as it came; each is judged for itself."""

    def to_internal_value(self, data: Any) -> Any:
        return data


class JobBatchInput(Serializer):
    """Job documents, also such with `array`, in the order in which they are to stand in the
    queue."""

    jobs = List(child=Document(allow_null=True), allow_empty=False, max_length=MOST_DOCUMENTS)


@extend_schema_field(PROBLEM_SCHEMA)
class ProblemOutput(serializers.DictField):
    """A problem document."""


class JobBatchAnswerOutput(serializers.Serializer[Any]):
    """What became of one document: `status` as `POST /api/v1/jobs` would have answered it, with the
    `job`, or of a document with `array` the `array`, or the `problem`, whose pointers lead into
    that document. The other two are null."""

    status = serializers.IntegerField()
    job = JobOutput(allow_null=True)
    array = JobArrayOutput(allow_null=True)
    problem = ProblemOutput(allow_null=True)


class JobBatchOutput(serializers.Serializer[Any]):
    """How many of the documents were accepted and how many refused, and for each its answer, in
    their order."""

    accepted = serializers.IntegerField()
    refused = serializers.IntegerField()
    answers = JobBatchAnswerOutput(many=True)


class JobBatchView(View):
    """Submits up to 1,000 unlike jobs at once, with those of arrays up to 10,000, each document
    accepted or refused for itself: the answer is 200 and says of each what `POST /api/v1/jobs`
    would have answered. Cheaper than one call for each. `after` and `after_ok` name jobs that were
    there before. A dry run changes nothing and says which would be accepted."""

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
