"""REST for tenants, their members, GPU types and the audit trail."""

import uuid
from typing import Any

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import selectors
from tenants.api.base import ListView, View, location, rehearsed
from tenants.api.effects import DryRunWithEffects, effects_body
from tenants.api.filters import AuditFilter, MemberFilter, TenantFilter
from tenants.api.idempotency import idempotent
from tenants.api.schema import Shape
from tenants.api.serializers import (
    AuditOutput,
    GpuTypeChange,
    GpuTypeInput,
    GpuTypeOutput,
    MemberInput,
    MemberOutput,
    RevertInput,
    TenantChange,
    TenantInput,
    TenantOutput,
)
from tenants.errors import NotFound
from tenants.models import AuditRecord, GpuType, Membership, Quota, Tenant, User
from tenants.permissions import access_of
from tenants.services.audit import API
from tenants.services.gpu_types import change_gpu_type, create_gpu_type, delete_gpu_type
from tenants.services.members import remove_member, set_member
from tenants.services.moves.revert import revert_tenant_change
from tenants.services.previews.kept import quota_effects, tenant_effects
from tenants.services.tenant_terms import TenantTerms
from tenants.services.tenants import change_tenant, create_tenant, delete_tenant


class TenantsView(ListView):
    """Tenants in which you hold a role, and all below them."""

    shapes = {
        "GET": Shape(TenantOutput, many=True),
        "POST": Shape(TenantOutput, TenantInput, creates=True),
    }

    page_order = ("name",)
    filterset_class = TenantFilter
    serializer_class = TenantOutput

    def get_queryset(self) -> QuerySet[Tenant]:
        return selectors.visible_tenants(self.request.user)

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), **_context(self.actor)}

    def get(self, _request: Request) -> Response:
        return self.page(TenantOutput)

    @idempotent()
    def post(self, _request: Request) -> Response:
        given = self.body(TenantInput)
        name = given.pop("name")
        terms = TenantTerms(**given)
        tenant = create_tenant(self.actor, name, terms, source=API, dry_run=self.dry_run)
        body = _shown(self.actor, tenant)
        if self.dry_run:
            return rehearsed("create", body)
        return Response(body, 201, headers=location(self.request, "api-tenant", tenant.name))


class TenantView(View):
    """One tenant. A dry run says what a change of its place, weight, limit of running jobs or
    minimum run time would do to jobs, and what deleting it with its quotas would."""

    shapes = {
        "GET": Shape(TenantOutput),
        "PATCH": Shape(TenantOutput, TenantChange, rehearsal=DryRunWithEffects),
        "DELETE": Shape(rehearsal=DryRunWithEffects),
    }

    def get(self, _request: Request, name: str) -> Response:
        return Response(_shown(self.actor, self.tenant(name)))

    def patch(self, _request: Request, name: str) -> Response:
        given = self.changes(TenantChange)
        reason = given.pop("reason", "")
        tenant = change_tenant(
            self.actor,
            self.tenant(name),
            given,
            reason=reason,
            source=API,
            dry_run=self.dry_run,
        )
        body = _shown(self.actor, tenant)
        if not self.dry_run:
            return Response(body)
        effects = tenant_effects(self.actor, tenant, given.keys())
        return rehearsed("update", body, effects=effects_body(effects))

    def delete(self, _request: Request, name: str) -> Response:
        tenant = self.tenant(name)
        delete_tenant(self.actor, tenant, source=API, dry_run=self.dry_run)
        if not self.dry_run:
            return Response(status=204)
        types = Quota.objects.filter(tenant__name=name).values_list("gpu_type__name", flat=True)
        effects = quota_effects(self.actor, {(name, gpu_type): None for gpu_type in types})
        return rehearsed("delete", None, effects=effects_body(effects))

    def tenant(self, name: str) -> Tenant:
        return selectors.tenant_by_name(access_of(self.actor), name)


def _shown(viewer: User, tenant: Tenant) -> dict[str, Any]:
    return dict(TenantOutput(tenant, context=_context(viewer)).data)


def _context(viewer: User) -> dict[str, Any]:
    return {"given": selectors.given_to_all(), "access": access_of(viewer)}


class TenantRevertView(View):
    """Reverts a change of a tenant's place or weight, given the id of its record in the audit
    trail, as a change of its own. `GET /api/v1/audit?action=tenant` lists these records. What
    somebody has changed since stays. A dry run says what it would do to jobs."""

    shapes = {"POST": Shape(TenantOutput, RevertInput, rehearsal=DryRunWithEffects)}

    @idempotent()
    def post(self, _request: Request, name: str, record_id: uuid.UUID) -> Response:
        given = self.body(RevertInput)
        records = selectors.visible_audit_records(self.actor).filter(
            action="tenant.changed", subject=name
        )
        record = records.filter(pk=record_id).first()
        if record is None:
            raise NotFound(
                f"There is no change {record_id} of tenant “{name}” that you may see. "
                "GET /api/v1/audit?action=tenant lists them."
            )
        done = revert_tenant_change(
            self.actor, record, reason=given["reason"], source=API, dry_run=self.dry_run
        )
        body = _shown(self.actor, done.tenant)
        if not self.dry_run:
            return Response(body)
        effects = quota_effects(self.actor, {}, {done.tenant.name: done.planned})
        return rehearsed("update", body, effects=effects_body(effects))


class MembersView(ListView):
    """Members of exactly this tenant. With `inherited=true` also those of its ancestors that you
    may see, who may act here too; `tenant` says where each member has the role."""

    shapes = {
        "GET": Shape(MemberOutput, many=True),
    }

    page_order = ("id",)
    filterset_class = MemberFilter
    queryset = Membership.objects.none()
    serializer_class = MemberOutput

    def get_queryset(self) -> QuerySet[Membership]:
        tenant = selectors.tenant_by_name(access_of(self.actor), self.kwargs["name"])
        if self.request.query_params.get("inherited") != "true":
            return selectors.members_of(tenant)
        access, parents = access_of(self.actor), selectors.parents_by_id()
        return selectors.members_with_inherited(tenant, access, parents).shown

    def get(self, _request: Request, name: str) -> Response:  # noqa: ARG002
        return self.page(MemberOutput)


class MemberView(View):
    """The role of one user in one tenant."""

    shapes = {
        "PUT": Shape(MemberOutput, MemberInput, may_create=True),
        "DELETE": Shape(),
    }

    def put(self, _request: Request, name: str, username: str) -> Response:
        given = self.body(MemberInput)
        member, created = set_member(
            self.actor,
            self.tenant(name),
            username,
            given["role"],
            reason=given.get("reason", ""),
            source=API,
            dry_run=self.dry_run,
        )
        body = MemberOutput(member).data
        if self.dry_run:
            return rehearsed("create" if created else "update", body)
        return Response(body, 201 if created else 200)

    def delete(self, _request: Request, name: str, username: str) -> Response:
        tenant = self.tenant(name)
        remove_member(self.actor, tenant, username, source=API, dry_run=self.dry_run)
        return rehearsed("delete", None) if self.dry_run else Response(status=204)

    def tenant(self, name: str) -> Tenant:
        return selectors.tenant_by_name(access_of(self.actor), name)


class GpuTypesView(ListView):
    shapes = {
        "GET": Shape(GpuTypeOutput, many=True),
        "POST": Shape(GpuTypeOutput, GpuTypeInput, creates=True),
    }

    page_order = ("name",)
    serializer_class = GpuTypeOutput

    def get_queryset(self) -> QuerySet[GpuType]:
        return GpuType.objects.all()

    def get(self, _request: Request) -> Response:
        return self.page(GpuTypeOutput)

    @idempotent()
    def post(self, _request: Request) -> Response:
        given = self.body(GpuTypeInput)
        gpu_type = create_gpu_type(self.actor, **given, source=API, dry_run=self.dry_run)
        body = GpuTypeOutput(gpu_type).data
        if self.dry_run:
            return rehearsed("create", body)
        return Response(body, 201, headers=location(self.request, "api-gpu-type", gpu_type.name))


class GpuTypeView(View):
    shapes = {
        "GET": Shape(GpuTypeOutput),
        "PATCH": Shape(GpuTypeOutput, GpuTypeChange),
        "DELETE": Shape(),
    }

    def get(self, _request: Request, name: str) -> Response:
        return Response(GpuTypeOutput(selectors.gpu_type_by_name(name)).data)

    def patch(self, _request: Request, name: str) -> Response:
        gpu_type = change_gpu_type(
            self.actor,
            selectors.gpu_type_by_name(name),
            **self.changes(GpuTypeChange),
            source=API,
            dry_run=self.dry_run,
        )
        body = GpuTypeOutput(gpu_type).data
        return rehearsed("update", body) if self.dry_run else Response(body)

    def delete(self, _request: Request, name: str) -> Response:
        gpu_type = selectors.gpu_type_by_name(name)
        delete_gpu_type(self.actor, gpu_type, source=API, dry_run=self.dry_run)
        return rehearsed("delete", None) if self.dry_run else Response(status=204)


class AuditView(ListView):
    """Who changed what, and why, in the tenants you administer; newest first."""

    shapes = {
        "GET": Shape(AuditOutput, many=True),
    }

    page_order = ("-at", "-id")
    filterset_class = AuditFilter
    serializer_class = AuditOutput

    def get_queryset(self) -> QuerySet[AuditRecord]:
        return selectors.visible_audit_records(self.request.user)

    def get_serializer_context(self) -> dict[str, Any]:
        visible = selectors.visible_names(self.actor)
        return {**super().get_serializer_context(), "visible": visible}

    def get(self, _request: Request) -> Response:
        return self.page(AuditOutput)
