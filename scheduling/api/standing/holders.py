"""REST for who holds GPUs now, and who is asking for more."""

from enum import StrEnum
from typing import Any, TypeVar

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.api.standing.asked import WHOSE, whose
from scheduling.queries.standing.holders import HolderOf, HolderOrder, standing
from tenants.api.base import View
from tenants.api.fields import Gpus
from tenants.api.pagination import limit_of
from tenants.api.problems import bad_query
from tenants.api.schema import Shape

Word = TypeVar("Word", bound=StrEnum)

QUERY = {
    "by": "What each row shows: tenant (default), user or job.",
    "sort": "Sort by: held (default), asked or share, the most first, or name.",
    "limit": "Most rows, from 1 to 500; default 50.",
    **WHOSE,
}


class TypeStandingOutput(serializers.Serializer[Any]):
    """The GPUs of one type.

    `held` counts the GPUs of all tenants, also of tenants that you may not see.
    """

    gpu_type = serializers.CharField()
    gpus = serializers.IntegerField()
    healthy = serializers.IntegerField()
    held = Gpus(source="held_milli")


class HolderOutput(serializers.Serializer[Any]):
    """GPUs that a tenant, user or job holds and asks for.

    `user` is null in rows of tenants, and if no user of Kant submitted the job. `name` and `job`
    are null except in rows of jobs. `gpu_type` is empty for waiting jobs that accept any type.
    `held`: GPUs that pods have. `asked`: GPUs that waiting jobs ask for, counted at the first type
    that they accept. `share`: the part of all GPUs of the type that is held, from 0 to 1; null if
    no node has such GPUs.
    """

    tenant = serializers.CharField()
    user = serializers.CharField(allow_null=True)
    name = serializers.CharField(allow_null=True)
    job = serializers.UUIDField(allow_null=True)
    gpu_type = serializers.CharField()
    held = Gpus(source="held_milli")
    asked = Gpus(source="asked_milli")
    share = serializers.FloatField(allow_null=True)


class HoldersOutput(serializers.Serializer[Any]):
    """Who holds GPUs now.

    Each job counts only for its own tenant, so the rows of one type add up. `count`: the total
    number of rows, of which `items` has the first.
    """

    by = serializers.ChoiceField([str(of) for of in HolderOf])
    types = TypeStandingOutput(many=True)
    items = HolderOutput(many=True)
    count = serializers.IntegerField()


class HoldersView(View):
    """Who holds GPUs now and who is asking for more, by tenant, user or job, and by GPU type."""

    shapes = {"GET": Shape(HoldersOutput, texts=QUERY)}
    query = {"GET": frozenset(QUERY)}

    def get(self, request: Request) -> Response:
        query = request.query_params
        of = _one_of(HolderOf, "by", query.get("by", HolderOf.TENANT))
        order = _one_of(HolderOrder, "sort", query.get("sort", HolderOrder.HELD))
        found = standing(of, order, limit_of(request), **whose(request, self.actor)._asdict())
        body = {"by": of, "types": found.types, "items": found.holders, "count": found.count}
        return Response(HoldersOutput(body).data)


def _one_of(words: type[Word], parameter: str, text: str) -> Word:
    """Parse one of the words. Raises a Problem for any other text."""
    try:
        return words(text)
    except ValueError:
        known = ", ".join(words)
        raise bad_query(parameter, f"{text[:40]!r} is none of {known}.") from None
