"""REST for drafts of quota changes: one per user, written, previewed and applied as a whole."""

from collections.abc import Sequence
from typing import Any

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import selectors
from tenants.api.base import ListView, View, etag, expected_version, rehearsed, shown
from tenants.api.effects import DryRunWithEffects, effects_body
from tenants.api.filters import DraftFilter
from tenants.api.idempotency import idempotent
from tenants.api.quota_drafts.named import cell_named
from tenants.api.quota_drafts.orders import shown_order
from tenants.api.quota_drafts.serializers import (
    AppliedDraftOutput,
    AppliedQuotaOutput,
    AppliedTenantOutput,
    DraftApplyInput,
    DraftInput,
    DraftOutput,
)
from tenants.api.schema import Shape
from tenants.errors import (
    Conflict,
    DomainError,
    FieldError,
    Invalid,
    NotAllowed,
    NotFound,
    Stale,
)
from tenants.models import QuotaDraft, Scope, User
from tenants.permissions import Access, access_of
from tenants.services.audit import API
from tenants.services.drafts.apply import DraftTried
from tenants.services.drafts.edits import DraftEdit, TenantEdit, discard_draft, edit_draft
from tenants.services.drafts.seen import (
    SeenCell,
    SeenTenant,
    cells_seen,
    tenants_seen,
    visible_draft,
    visible_drafts,
)
from tenants.services.drafts.wanted import TERMS, fault_of
from tenants.services.moves.typed import typed
from tenants.services.orders.placing import submit_draft
from tenants.services.previews.kept import quota_effects
from tenants.services.quota_terms import LIMITS
from tenants.services.typed_gpus import as_typed


class DraftsView(ListView):
    """Non-empty drafts of quota changes: yours, and of others' drafts the quotas that you may
    change too."""

    scope = Scope.QUOTA
    shapes = {"GET": Shape(DraftOutput, many=True)}

    page_order = ("author__username",)
    filterset_class = DraftFilter
    serializer_class = DraftOutput

    def get_queryset(self) -> QuerySet[QuotaDraft]:
        return visible_drafts(self.actor)

    def get(self, _request: Request) -> Response:
        rows = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        data = DraftOutput(rows, many=True, context=_context(self.actor, rows)).data
        return self.get_paginated_response(data)


class DraftView(View):
    """A user's draft. Only its author writes into it; its contents change no quota until it is
    applied."""

    scope = Scope.QUOTA
    shapes = {
        "GET": Shape(DraftOutput),
        "PATCH": Shape(DraftOutput, DraftInput),
        "DELETE": Shape(),
    }

    def get(self, _request: Request, username: str) -> Response:
        return self.told(visible_draft(self.actor, username))

    def patch(self, _request: Request, username: str) -> Response:
        self.check_author(username)
        given = self.changes(DraftInput)
        access = access_of(self.actor)
        edits = []
        if given.get("refuse_unreadable"):
            _refuse_unreadable(given.get("cells", []))
        for at, one in enumerate(given.get("cells", [])):
            tenant, gpu_type = cell_named(access, one, ("cells", at))
            milli = one.get("guaranteed")
            typed = one.get("typed") if milli is None else as_typed(milli)
            given_terms = {name: one[name] for name in TERMS if name in one}
            terms = {
                name: as_typed(value) if name in LIMITS else value
                for name, value in given_terms.items()
            }
            edits.append(DraftEdit(tenant, gpu_type, typed, one.get("version"), terms or None))
        draft = edit_draft(
            self.actor,
            edits,
            tenants=_tenant_edits(access, given.get("tenants", [])),
            reason=given.get("reason"),
            dry_run=self.dry_run,
        )
        if self.dry_run:
            return rehearsed("update", None)
        return self.told(draft)

    def delete(self, _request: Request, username: str) -> Response:
        self.check_author(username)
        discard_draft(self.actor, dry_run=self.dry_run)
        return rehearsed("delete", None) if self.dry_run else Response(status=204)

    def told(self, draft: QuotaDraft) -> Response:
        context = _context(self.actor, [draft])
        return Response(DraftOutput(draft, context=context).data, headers=etag(draft.version))

    def check_author(self, username: str) -> None:
        if username == self.actor.get_username():
            return
        visible_draft(self.actor, username)
        raise NotAllowed("Only the author of a draft can edit it.")


def _context(viewer: User, drafts: Sequence[QuotaDraft]) -> dict[str, Any]:
    return {
        "cells": {draft.pk: cells_seen(viewer, draft) for draft in drafts},
        "tenants": {draft.pk: tenants_seen(viewer, draft) for draft in drafts},
    }


def _refuse_unreadable(cells: Sequence[dict[str, Any]]) -> None:
    """Raise Invalid (`cells`, by position) for each text that cannot be read."""
    faults = [
        FieldError(("cells", at, "typed"), fault)
        for at, one in enumerate(cells)
        if "typed" in one and (fault := fault_of(one["typed"]))
    ]
    if faults:
        raise Invalid.fields(faults)


def _tenant_edits(access: Access, given: Sequence[dict[str, Any]]) -> list[TenantEdit]:
    """Read the tenants of a draft. Raises Invalid (`tenants`, by position) for one that the user
    does not see, or whose new parent they do not see."""
    edits = []
    for at, one in enumerate(given):
        field = "tenant"
        try:
            tenant = selectors.tenant_by_name(access, one["tenant"])
            if one.get("parent") is not None:
                field = "parent"
                selectors.tenant_by_name(access, one["parent"])
        except NotFound as error:
            raise Invalid.fields([FieldError(("tenants", at, field), error.detail)]) from None
        texts = typed(one.get("parent"), one.get("weight", 1.0))
        fields = {name: texts[name] for name in texts if name in one}
        edits.append(TenantEdit(tenant, fields, one.get("over", False)))
    return edits


class DraftApplyView(View):
    """Applies your draft to quotas and tenants, all of it or nothing; then the draft is empty.

    It takes effect at once or at a given time, permanently or until a given time. The version is
    that of the draft. A dry run says what it would do to jobs.
    """

    scope = Scope.QUOTA
    shapes = {
        "POST": Shape(
            AppliedDraftOutput, DraftApplyInput, versioned=True, rehearsal=DryRunWithEffects
        )
    }

    @idempotent()
    def post(self, request: Request, username: str) -> Response:
        given = self.body(DraftApplyInput)
        draft = visible_draft(self.actor, username)
        if draft.author != self.actor:
            raise NotAllowed("Only the author of a draft can apply it.")
        submitted = submit_draft(
            self.actor,
            reason=given.get("reason", draft.reason),
            source=API,
            starts_at=given.get("starts_at"),
            ends_at=given.get("ends_at"),
            expected_version=expected_version(request),
            dry_run=self.dry_run,
        )
        found, order = submitted.tried, submitted.order
        if found.refused:
            seen = tenants_seen(self.actor, draft)
            raise refused(found, cells_seen(self.actor, draft), seen)
        is_done = order is None or order.applied_at is not None
        body = {
            "order": shown_order(self.actor, order.pk) if order and not self.dry_run else None,
            "quotas": [
                shown(AppliedQuotaOutput, found.results[at].quota)
                for at in range(len(found.cells) if is_done else 0)
            ],
            "tenants": [
                shown(AppliedTenantOutput, one)
                for one in (found.tenant_results.values() if is_done else ())
            ],
            "warnings": found.warnings,
        }
        if self.dry_run:
            effects = quota_effects(self.actor, found.after, found.planned)
            return rehearsed("update", body, found.warnings, effects=effects_body(effects))
        return Response(body)


def refused(
    found: DraftTried, seen: Sequence[SeenCell], tenants: Sequence[SeenTenant]
) -> DomainError:
    """Return the error of a refused draft, with the positions of its cells and tenants. Missing
    rights come first, then invalid values, then conflicts with other changes."""
    places: dict[Any, tuple[int, SeenCell]] = {
        one.cell.pk: (at, one) for at, one in enumerate(seen)
    }
    faults, overtaken = [], []
    for index, error in found.errors.items():
        if isinstance(error, NotAllowed | NotFound):
            return error
        if found.cells[index].pk not in places:
            return NotAllowed("Your draft changes tenants that this token does not cover.")
        at, one = places[found.cells[index].pk]
        if isinstance(error, Stale) and one.overtaken is not None:
            name = f"{one.cell.tenant.name} / {one.cell.gpu_type.name}"
            told = f"{name}: {one.overtaken.told}"
            overtaken.append(FieldError(("cells", at, "version"), told))
            continue
        of_cell = error.errors or [FieldError((), error.detail)]
        faults += [FieldError(("cells", at, *fault.path), fault.detail) for fault in of_cell]
    of_tenants = {one.edit.pk: at for at, one in enumerate(tenants)}
    for index, error in found.tenant_errors.items():
        if isinstance(error, NotAllowed | NotFound):
            return error
        row = found.tenants[index]
        if row.pk not in of_tenants:
            return NotAllowed("Your draft changes tenants that this token does not cover.")
        path = ("tenants", of_tenants[row.pk])
        if isinstance(error, Conflict):
            overtaken.append(FieldError(path, f"{row.tenant.name}: {error.detail}"))
            continue
        of_row = error.errors or [FieldError((), error.detail)]
        faults += [FieldError((*path, *fault.path), fault.detail) for fault in of_row]
    if faults:
        return Invalid.fields([*faults, *overtaken])
    advice = (
        "Nothing was changed. Write the cell again with the current version, or remove it from "
        "the draft."
    )
    if overtaken[0].path[0] == "tenants":
        advice = (
            "Nothing was changed. Write the tenant again with `over`, or remove it from the draft."
        )
    return Conflict(f"{overtaken[0].detail} {advice}", errors=overtaken)
