"""REST for one action on many jobs."""

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.api.batch import ProblemOutput
from scheduling.api.job_outputs import JobOutput
from scheduling.api.job_serializers import JobChange
from scheduling.queries.secret_viewers import hide_from
from scheduling.services.jobs.effects import try_on_jobs
from scheduling.services.jobs.many import MOST_AT_ONCE, Acted, JobAct, act_on_jobs
from tenants.api.base import View, rehearsed, shown
from tenants.api.effects import DryRunWithEffects, effects_body
from tenants.api.fields import Choice, List, Serializer, Uuid
from tenants.api.idempotency import idempotent
from tenants.api.problems import described
from tenants.api.schema import Shape
from tenants.models import Scope


class JobActInput(Serializer):
    """An action and the jobs to apply it to.

    `ids`: ids of jobs. `changes`: only for `change`, as `PATCH /api/v1/jobs/ID` takes them.
    """

    act = Choice([act.value for act in JobAct])
    ids = List(child=Uuid(), allow_empty=False, max_length=MOST_AT_ONCE)
    changes = JobChange(required=False)


class JobActAnswerOutput(serializers.Serializer[Any]):
    """The result for one job.

    `status`: what the call for this job alone would have returned, with the `job` as it is now or
    with the `problem`. The other is null.
    """

    id = serializers.UUIDField()
    status = serializers.IntegerField()
    job = JobOutput(allow_null=True)
    problem = ProblemOutput(allow_null=True)


class JobActOutput(serializers.Serializer[Any]):
    """For how many jobs the action succeeded and was refused, and the result for each, in order."""

    done = serializers.IntegerField()
    refused = serializers.IntegerField()
    answers = JobActAnswerOutput(many=True)


class JobActView(View):
    """Cancel, hold, release or change up to 500 jobs.

    Each job succeeds or is refused by itself: the answer is 200 and says for each what the call for
    it alone would have returned. A dry run changes nothing and says which would be refused, and
    what the action would do to all jobs.
    """

    scope = Scope.SUBMIT
    shapes = {"POST": Shape(JobActOutput, JobActInput, rehearsal=DryRunWithEffects)}

    @idempotent()
    def post(self, _request: Request) -> Response:
        asked = self.body(JobActInput)
        given = asked["ids"], JobAct(asked["act"]), asked.get("changes")
        tried = try_on_jobs(self.actor, *given) if self.dry_run else None
        acted = tried.acted if tried else act_on_jobs(self.actor, *given)
        hide_from(self.actor, [one.after for one in acted if one.after])
        refused = sum(one.refused is not None for one in acted)
        body = {
            "done": len(acted) - refused,
            "refused": refused,
            "answers": [self._answer(one) for one in acted],
        }
        if tried is None:
            return Response(body)
        return rehearsed("update", body, effects=effects_body(tried.effects))

    def _answer(self, one: Acted) -> dict[str, Any]:
        if one.refused is not None:
            problem = described(one.refused, self.request)
            told = {"status": problem["status"], "job": None, "problem": problem}
        else:
            told = {"status": 200, "job": shown(JobOutput, one.after), "problem": None}
        return {"id": str(one.id), **told}
