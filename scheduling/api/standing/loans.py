"""REST for who borrows whose guarantee now."""

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.queries.names import gpu_type_names
from scheduling.queries.standing.loans import loans
from tenants.api.base import View
from tenants.api.fields import Gpus
from tenants.api.filters import asked_for
from tenants.api.schema import Shape
from tenants.names import tenant_names

QUERY = {
    "tenant": "Name of a tenant that borrows or lends.",
    "gpu_type": "GPU type; all if absent.",
}


class LoanJobOutput(serializers.Serializer[Any]):
    """`job`, `name` and `tenant` are null where its tenant is not yours to see, and where what a
    tenant borrows for all below it is explained by no one job."""

    job = serializers.UUIDField(source="job.pk", allow_null=True, default=None)
    name = serializers.CharField(source="job.name", allow_null=True, default=None)
    tenant = serializers.CharField(source="job.tenant.name", allow_null=True, default=None)
    gpus = Gpus(source="milli")
    since = serializers.DateTimeField(allow_null=True)


class StandingLoanOutput(serializers.Serializer[Any]):
    """`borrower` with all below it holds `gpus` beyond its guarantee, out of the idle one of
    `lender`, since the start of the first of `jobs`; `wanted`: so many of them waiting jobs of the
    lender and of those below it ask for now, without the borrower's own. Null: a tenant that you
    may not see; a lender "": no guarantee covers it any more, for its owner has come to use it, or
    a quota was cut."""

    borrower = serializers.CharField(allow_null=True)
    lender = serializers.CharField(allow_null=True, allow_blank=True)
    gpu_type = serializers.CharField()
    gpus = Gpus(source="milli")
    wanted = Gpus(source="wanted_milli")
    since = serializers.DateTimeField(allow_null=True)
    jobs = LoanJobOutput(many=True)


class LoanSumOutput(serializers.Serializer[Any]):
    """What a tenant `borrowed` in all and how much of it the owners have `wanted` back, and what it
    `lent` and `asks_for` of that. They do not add up over tenants. Null: tenants that you may not
    see, together."""

    tenant = serializers.CharField(allow_null=True)
    borrowed = Gpus(source="borrowed_milli")
    wanted = Gpus(source="wanted_milli")
    lent = Gpus(source="lent_milli")
    asks_for = Gpus(source="asked_milli")


class LoanLedgerOutput(serializers.Serializer[Any]):
    """`sums`: by tenant, first who borrows most. `reclaiming`: the clusters whose policy has what
    was lent taken back by preemption; on others it comes back as jobs end."""

    items = StandingLoanOutput(many=True, source="loans")
    sums = LoanSumOutput(many=True)
    reclaiming = serializers.ListField(child=serializers.CharField())


class LoansView(View):
    """Who borrows how much of whose guarantee now, and who wants it back: the loans of which you
    see one end, first those that most is wanted back of."""

    shapes = {"GET": Shape(LoanLedgerOutput, texts=QUERY)}
    query = {"GET": frozenset(QUERY)}

    def get(self, request: Request) -> Response:
        tenant = request.query_params.get("tenant", "")
        gpu_type = request.query_params.get("gpu_type", "")
        if tenant:
            asked_for("tenant", tenant, tenant_names(self.actor))
        if gpu_type:
            asked_for("gpu_type", gpu_type, gpu_type_names())
        found = loans(self.actor, (tenant,) if tenant else None, gpu_type or None)
        return Response(LoanLedgerOutput(found).data)
