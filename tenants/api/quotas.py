"""REST for quotas: read with an ETag, change with it."""

import uuid
from typing import Any

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import facts, selectors
from tenants.api.base import ListView, View, etag, expected_version, rehearsed
from tenants.api.effects import DryRunWithEffects, EffectsOutput, QuotaPreviewInput, effects_body
from tenants.api.filters import QuotaFilter
from tenants.api.idempotency import idempotent
from tenants.api.quota_drafts.named import cell_named
from tenants.api.schema import Shape
from tenants.api.serializers import (
    QuotaAnswer,
    QuotaInput,
    QuotaOutput,
    RevertAnswer,
    RevertInput,
)
from tenants.errors import DomainError, FieldError, Invalid, NotAllowed, NotFound
from tenants.models import AuditRecord, GpuType, Quota, Scope, Tenant, User
from tenants.permissions import access_of
from tenants.services.audit import API
from tenants.services.previews.kept import quota_effects
from tenants.services.quota_revert import revert_quota_change
from tenants.services.quota_sheet import SheetRefused, rehearse_quotas
from tenants.services.quota_terms import QuotaChange, QuotaTerms
from tenants.services.quotas import change_quota, delete_quota

OVERCOMMIT = {"overcommit": "Guarantee more GPUs than are installed (operators only)."}
REASON = {"reason": "Reason, kept in the audit trail. Required."}


class QuotasView(ListView):
    """Quotas of the tenants you see, by tenant and GPU type."""

    scope = Scope.QUOTA
    shapes = {
        "GET": Shape(QuotaOutput, many=True),
    }

    page_order = ("tenant__name", "gpu_type__name")
    filterset_class = QuotaFilter
    serializer_class = QuotaOutput

    def get_queryset(self) -> QuerySet[Quota]:
        return selectors.visible_quotas(self.request.user)

    def get(self, _request: Request) -> Response:
        return self.page(QuotaOutput)

    def get_serializer_context(self) -> dict[str, object]:
        return {**super().get_serializer_context(), **_context(self.actor)}


class QuotaView(View):
    scope = Scope.QUOTA
    shapes = {
        "GET": Shape(QuotaOutput),
        "PUT": Shape(
            QuotaAnswer,
            QuotaInput,
            may_create=True,
            versioned=True,
            flags=OVERCOMMIT,
            rehearsal=DryRunWithEffects,
        ),
        "DELETE": Shape(versioned=True, texts=REASON, rehearsal=DryRunWithEffects),
    }

    query = {"PUT": frozenset(OVERCOMMIT), "DELETE": frozenset(REASON)}

    def get(self, _request: Request, tenant: str, gpu_type: str) -> Response:
        owner, model = self.cell(tenant, gpu_type)
        quota = selectors.visible_quotas(self.actor).filter(tenant=owner, gpu_type=model).first()
        if quota is None:
            raise NotFound(
                f"“{tenant}” has no quota for {gpu_type}. PUT with `If-None-Match: *` creates it."
            )
        body = QuotaOutput(quota, context=_context(self.actor)).data
        return Response(body, headers=etag(quota.version))

    def put(self, request: Request, tenant: str, gpu_type: str) -> Response:
        owner, model = self.cell(tenant, gpu_type)
        given = self.body(QuotaInput)
        result = change_quota(
            self.actor,
            QuotaChange(owner, model, expected_version(request), given["reason"], API),
            QuotaTerms.given(given),
            overcommit=self.flag("overcommit"),
            dry_run=self.dry_run,
        )
        # In a dry run, compute the use with the new quota, which is not stored.
        context = _context(self.actor, instead=result.quota)
        body = dict(QuotaOutput(result.quota, context=context).data)
        warnings = list(result.warnings)
        if self.dry_run:
            would = "create" if result.created else "update"
            return rehearsed(
                would, body, warnings, effects=self.effects(owner, model, result.quota)
            )
        status = 201 if result.created else 200
        return Response({**body, "warnings": warnings}, status, headers=etag(result.quota.version))

    def delete(self, request: Request, tenant: str, gpu_type: str) -> Response:
        owner, model = self.cell(tenant, gpu_type)
        reason = request.query_params.get("reason", "")
        warnings = delete_quota(
            self.actor,
            QuotaChange(owner, model, expected_version(request), reason, API),
            dry_run=self.dry_run,
        )
        if self.dry_run:
            effects = self.effects(owner, model, None)
            return rehearsed("delete", None, list(warnings), effects=effects)
        return Response(status=204)

    def effects(self, owner: Tenant, model: GpuType, after: Quota | None) -> dict[str, Any]:
        key = (owner.name, model.name)
        return effects_body(quota_effects(self.actor, {key: after}))

    def cell(self, tenant: str, gpu_type: str) -> tuple[Tenant, GpuType]:
        owner = selectors.tenant_by_name(access_of(self.actor), tenant)
        return owner, selectors.gpu_type_by_name(gpu_type)


class QuotaPreviewView(View):
    """What several quotas together would do to jobs; nothing is changed."""

    scope = Scope.QUOTA
    shapes = {"POST": Shape(EffectsOutput, QuotaPreviewInput)}

    @idempotent()
    def post(self, _request: Request) -> Response:
        given, access = self.body(QuotaPreviewInput), access_of(self.actor)
        wanted: list[tuple[Tenant, GpuType, QuotaTerms]] = []
        for at, one in enumerate(given["quotas"]):
            owner, model = cell_named(access, one, ("quotas", at))
            if (owner, model) in {of[:2] for of in wanted}:
                detail = f"The quota of {owner.name} for {model.name} is given twice. Give it once."
                raise Invalid.fields([FieldError(("quotas", at, "tenant"), detail)])
            wanted.append((owner, model, QuotaTerms.given(one)))
        try:
            quotas = rehearse_quotas(self.actor, wanted, source=API)
        except SheetRefused as refused:
            raise _all_of(refused) from None
        after: dict[tuple[str, str], Quota | None] = {
            (quota.tenant.name, quota.gpu_type.name): quota for quota in quotas
        }
        return Response(effects_body(quota_effects(self.actor, after)))


def _all_of(refused: SheetRefused) -> DomainError:
    """Return the error of a refused sheet as that of one document; missing rights come first."""
    for error in refused.errors.values():
        if isinstance(error, NotAllowed | NotFound):
            return error
    return Invalid.fields(
        [
            FieldError(("quotas", at, *one.path), one.detail)
            for at, error in refused.errors.items()
            for one in error.errors or [FieldError((), error.detail)]
        ]
    )


class RevertView(View):
    """Reverts a change of a quota, given the id of its record in the audit trail, as a change of
    its own. The version is that of the quota; `If-None-Match: *` if there is none now."""

    scope = Scope.QUOTA
    shapes = {
        "POST": Shape(RevertAnswer, RevertInput, versioned=True),
    }

    @idempotent()
    def post(self, request: Request, record_id: uuid.UUID) -> Response:
        given = self.body(RevertInput)
        version = expected_version(request)
        reverted = revert_quota_change(
            self.actor,
            self.record(record_id),
            expected_version=version,
            reason=given["reason"],
            source=API,
            dry_run=self.dry_run,
        )
        quota, warnings, body = reverted.quota, list(reverted.warnings), None
        if quota is not None:
            context = _context(self.actor, instead=quota)
            body = dict(QuotaOutput(quota, context=context).data)
        if self.dry_run:
            would = "delete" if quota is None else "update" if version else "create"
            return rehearsed(would, body, warnings)
        headers = etag(quota.version) if quota else {}
        return Response({"quota": body, "warnings": warnings}, headers=headers)

    def record(self, record_id: uuid.UUID) -> AuditRecord:
        records = selectors.visible_audit_records(self.actor).filter(action__startswith="quota.")
        record = records.filter(pk=record_id).first()
        if record is None:
            raise NotFound(
                f"There is no change of a quota {record_id} that you may see. "
                "GET /api/v1/audit?action=quota lists them."
            )
        return record


def _context(viewer: User, instead: Quota | None = None) -> dict[str, object]:
    uses = facts.scheduling().quota_uses(instead)
    return {"uses": uses, "visible": selectors.visible_names(viewer)}
