"""REST for clusters and their policies."""

import uuid
from typing import Any

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.api.cluster_serializers import (
    ClusterChange,
    ClusterInput,
    ClusterOutput,
    PolicyInput,
    PolicyOutput,
)
from scheduling.models import Cluster, ClusterPolicy
from scheduling.policy.document import effective
from scheduling.queries import selectors
from scheduling.services.clusters.changes import change_cluster, create_cluster, delete_cluster
from scheduling.services.policies.changes import (
    change_policy,
    changes_of,
    policy_of,
    previewed,
)
from scheduling.services.policies.revert import revert_policy_change
from tenants.api.base import ListView, View, etag, expected_version, location, rehearsed
from tenants.api.effects import DryRunWithEffects, effects_body
from tenants.api.idempotency import idempotent
from tenants.api.schema import Shape
from tenants.api.serializers import ReasonInput
from tenants.errors import Invalid, NotFound
from tenants.services.audit import API


class ClustersView(ListView):
    shapes = {
        "GET": Shape(ClusterOutput, many=True),
        "POST": Shape(ClusterOutput, ClusterInput, creates=True),
    }

    page_order = ("name",)
    serializer_class = ClusterOutput

    def get_queryset(self) -> QuerySet[Cluster]:
        return Cluster.objects.all()

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "viewer": self.actor}

    def get(self, _request: Request) -> Response:
        return self.page(ClusterOutput)

    @idempotent()
    def post(self, _request: Request) -> Response:
        given = self.body(ClusterInput)
        name = given.pop("name")
        cluster = create_cluster(self.actor, name, given, source=API, dry_run=self.dry_run)
        body = ClusterOutput(cluster, context={"viewer": self.actor}).data
        if self.dry_run:
            return rehearsed("create", body)
        return Response(body, 201, headers=location(self.request, "api-cluster", name))


class ClusterView(View):
    shapes = {
        "GET": Shape(ClusterOutput),
        "PATCH": Shape(ClusterOutput, ClusterChange),
        "DELETE": Shape(),
    }

    def get(self, _request: Request, name: str) -> Response:
        cluster = selectors.cluster_by_name(name)
        return Response(ClusterOutput(cluster, context={"viewer": self.actor}).data)

    def patch(self, _request: Request, name: str) -> Response:
        cluster = change_cluster(
            self.actor,
            selectors.cluster_by_name(name),
            self.changes(ClusterChange),
            source=API,
            dry_run=self.dry_run,
        )
        body = ClusterOutput(cluster, context={"viewer": self.actor}).data
        return rehearsed("update", body) if self.dry_run else Response(body)

    def delete(self, _request: Request, name: str) -> Response:
        cluster = selectors.cluster_by_name(name)
        delete_cluster(self.actor, cluster, source=API, dry_run=self.dry_run)
        return rehearsed("delete", None) if self.dry_run else Response(status=204)


class PolicyView(View):
    """The policy of a cluster. Version 0 = the defaults; nothing is stored yet."""

    shapes = {
        "GET": Shape(PolicyOutput),
        "PUT": Shape(PolicyOutput, PolicyInput, versioned=True, rehearsal=DryRunWithEffects),
    }

    def get(self, _request: Request, name: str) -> Response:
        policy = policy_of(selectors.cluster_by_name(name))
        return Response(_document(policy), headers=etag(policy.version))

    def put(self, request: Request, name: str) -> Response:
        given = self.body(PolicyInput)
        try:
            policy = change_policy(
                self.actor,
                selectors.cluster_by_name(name),
                given["policy"],
                expected_version=expected_version(request),
                reason=given.get("reason", ""),
                source=API,
                dry_run=self.dry_run,
            )
        except Invalid as error:
            raise error.below("policy") from None
        body = _document(policy)
        if self.dry_run:
            found = previewed(self.actor, policy.cluster, effective(policy.document))
            return rehearsed("update", body, effects=effects_body(found))
        return Response(body, headers=etag(policy.version))


class PolicyRevertView(View):
    """Revert a change of a policy, given the id of its audit record.

    The revert is a change of its own. `GET /api/v1/audit?action=policy` lists the records. The
    expected version is the policy's.
    """

    shapes = {"POST": Shape(PolicyOutput, ReasonInput, versioned=True, rehearsal=DryRunWithEffects)}

    @idempotent()
    def post(self, request: Request, name: str, record_id: uuid.UUID) -> Response:
        given = self.body(ReasonInput)
        record = changes_of(selectors.cluster_by_name(name)).filter(pk=record_id).first()
        if record is None:
            raise NotFound(
                f"There is no change {record_id} of the policy of “{name}”. "
                "GET /api/v1/audit?action=policy lists them."
            )
        policy = revert_policy_change(
            self.actor,
            record,
            expected_version=expected_version(request),
            reason=given.get("reason", ""),
            source=API,
            dry_run=self.dry_run,
        )
        body = _document(policy)
        if self.dry_run:
            found = previewed(self.actor, policy.cluster, effective(policy.document))
            return rehearsed("update", body, effects=effects_body(found))
        return Response(body, headers=etag(policy.version))


def _document(policy: ClusterPolicy) -> dict[str, Any]:
    document = {
        "cluster": policy.cluster.name,
        "policy": effective(policy.document),
        "version": policy.version,
        "updated_at": policy.updated_at,
    }
    return dict(PolicyOutput(document).data)
