"""REST for snapshots of clusters."""

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.queries import selectors
from scheduling.queries.known import CannotTell
from scheduling.queries.snapshots.anonymise import anonymised
from scheduling.queries.snapshots.document import FORMAT, VERSION, document_of
from scheduling.queries.standing.snapshot import snapshot_of_cluster
from tenants.api.base import View
from tenants.api.schema import Shape
from tenants.errors import Conflict, NotAllowed


class SnapshotScopeOutput(serializers.Serializer[Any]):
    """What the scheduler of a scope (empty = the whole cluster) would be told at its start.

    `fact` names the type of each entry; its other fields are the engine's.
    """

    scope = serializers.CharField()
    facts = serializers.ListField(child=serializers.DictField())


class SnapshotOutput(serializers.Serializer[Any]):
    """A snapshot of a cluster.

    `at`: in seconds since the epoch. `names`: job names by id, empty if names are left out.
    """

    format = serializers.ChoiceField([FORMAT])
    version = serializers.ChoiceField([VERSION])
    cluster = serializers.CharField()
    at = serializers.FloatField()
    anonymised = serializers.BooleanField()
    names = serializers.DictField(child=serializers.CharField())
    scopes = SnapshotScopeOutput(many=True)


class SnapshotView(View):
    """A snapshot of everything that a cluster's schedulers decide by.

    It holds nodes, quotas, queues, the policy, and waiting and running jobs. `manage.py rehearse`
    makes the same decisions from it without a cluster. For operators.
    """

    shapes = {
        "GET": Shape(
            SnapshotOutput,
            flags={
                "anonymise": "true = replace names with meaningless ones; decisions stay the same."
            },
        )
    }
    query = {"GET": frozenset({"anonymise"})}

    def get(self, _request: Request, name: str) -> Response:
        if not self.actor.is_operator:
            raise NotAllowed("A snapshot shows all tenants together; only operators can take one.")
        without_names = self.flag("anonymise")
        try:
            found = snapshot_of_cluster(selectors.cluster_by_name(name))
        except CannotTell as error:
            raise Conflict(str(error)) from None
        return Response(document_of(anonymised(found) if without_names else found))
