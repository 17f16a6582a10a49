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
    "tenant": "Name of a tenant, as borrower or lender.",
    "gpu_type": "GPU type; default: all.",
}


class LoanJobOutput(serializers.Serializer[Any]):
    """A job that explains part of a loan.

    `job`, `name` and `tenant` are null if you may not see its tenant, or if no single job explains
    what a tenant borrows for the tenants below it.
    """

    job = serializers.UUIDField(source="job.pk", allow_null=True, default=None)
    name = serializers.CharField(source="job.name", allow_null=True, default=None)
    tenant = serializers.CharField(source="job.tenant.name", allow_null=True, default=None)
    gpus = Gpus(source="milli")
    since = serializers.DateTimeField(allow_null=True)


class StandingLoanOutput(serializers.Serializer[Any]):
    """A loan: `borrower` and the tenants below it hold `gpus` beyond their guarantee.

    They come out of the idle guarantee of `lender`, since the start of the first of `jobs`.
    `wanted`: how many of them waiting jobs of the lender and of tenants below it ask for now,
    without the borrower's own jobs. A null name is a tenant that you may not see. `lender` "" means
    that no guarantee covers the loan any more, because its owner now uses it or a quota was cut.
    """

    borrower = serializers.CharField(allow_null=True)
    lender = serializers.CharField(allow_null=True, allow_blank=True)
    gpu_type = serializers.CharField()
    gpus = Gpus(source="milli")
    wanted = Gpus(source="wanted_milli")
    since = serializers.DateTimeField(allow_null=True)
    jobs = LoanJobOutput(many=True)


class LoanSumOutput(serializers.Serializer[Any]):
    """The loans of one tenant in sum.

    `borrowed`: what it borrows, of which owners want `wanted` back. `lent`: what it lends, of which
    it asks back `asks_for`. The numbers do not add up over tenants. A null `tenant` stands for all
    tenants that you may not see.
    """

    tenant = serializers.CharField(allow_null=True)
    borrowed = Gpus(source="borrowed_milli")
    wanted = Gpus(source="wanted_milli")
    lent = Gpus(source="lent_milli")
    asks_for = Gpus(source="asked_milli")


class LoanLedgerOutput(serializers.Serializer[Any]):
    """Current loans.

    `sums`: per tenant, the largest borrower first. `reclaiming`: clusters whose policy reclaims
    loans by preemption; on other clusters loans return as jobs end.
    """

    items = StandingLoanOutput(many=True, source="loans")
    sums = LoanSumOutput(many=True)
    reclaiming = serializers.ListField(child=serializers.CharField())


class LoansView(View):
    """Who borrows how much of whose guarantee now, and who wants it back.

    Shows loans whose borrower or lender you may see, those with the most wanted back first.
    """

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
