"""Shapes of drafts of quota changes in REST."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from tenants import texts
from tenants.api.fields import (
    Boolean,
    Choice,
    Gpus,
    Integer,
    List,
    Moment,
    Number,
    Serializer,
    Text,
)
from tenants.models import OrderState, QuotaDraft, QuotaMode, QuotaOrder
from tenants.services.drafts.edits import KEPT, LONGEST, MOST_CELLS
from tenants.services.drafts.seen import SeenCell, SeenTenant
from tenants.services.moves.typed import LEAST_WEIGHT, MOST_WEIGHT, TITLES
from tenants.services.orders.seen import SeenOrderCell, SeenOrderTenant, lapses_at
from tenants.services.quota_terms import NAMES, gpus, in_gpus

MOST_VERSION = 2**63 - 1


class DraftCellInput(Serializer):
    """A quota in the draft; a guarantee of null takes it out of the draft. `mode` and limits: what
    shall be another beside, a limit of null = no limit. Where some of them are given the others
    stay as the quota has them; where none is, what the draft has of them stays. Or `typed` in place
    of all of these."""

    tenant = Text(max_length=63)
    gpu_type = Text(max_length=63)
    guaranteed = Gpus(allow_null=True, required=False)
    typed = Text(
        max_length=LONGEST,
        required=False,
        help_text="A cell of a table, as the CSV of the page of quotas has it: “8”, “8 isolated”, "
        "“8 shared borrow 4 lend any”. What it does not name stays. Kept also where it cannot be "
        "read; then `fault` says why.",
    )
    mode = Choice(QuotaMode.values, required=False)
    borrow_limit = Gpus(required=False, allow_null=True)
    lend_limit = Gpus(required=False, allow_null=True)
    version = Integer(
        min_value=0,
        max_value=MOST_VERSION,
        required=False,
        help_text="Of the quota as you read it; 0 = there was none. Default: the one in the draft, "
        "or for a quota new to it the current one.",
    )

    def to_internal_value(self, data: Any) -> Any:
        found = super().to_internal_value(data)
        if "typed" not in found and "guaranteed" not in found:
            raise serializers.ValidationError({"guaranteed": [texts.MISSING]})
        if "typed" in found and (twice := [n for n in NAMES if n in found]):
            text = "It is in `typed` already; give one of them."
            raise serializers.ValidationError({name: [text] for name in twice})
        return found


class DraftTenantInput(Serializer):
    """A tenant in the draft: where it shall stand in the tree, `parent` null = below nobody, and
    the weight of its fair share. A field that is not named stays; one that says what is so already
    leaves the draft."""

    tenant = Text(max_length=63)
    parent = Text(max_length=63, allow_null=True, required=False)  # type: ignore[assignment]
    weight = Number(min_value=LEAST_WEIGHT, max_value=MOST_WEIGHT, required=False)
    over = Boolean(
        required=False, help_text="Whether to overwrite what somebody else has set meanwhile."
    )

    def to_internal_value(self, data: Any) -> Any:
        found = super().to_internal_value(data)
        if not found.keys() & TITLES.keys():
            raise serializers.ValidationError({"parent": ["Name the parent, the weight or both."]})
        return found


class DraftInput(Serializer):
    """Changes to the draft; what is not named stays."""

    reason = Text(max_length=2000, allow_blank=True, required=False)
    cells = List(child=DraftCellInput(), required=False, max_length=MOST_CELLS)
    tenants = List(child=DraftTenantInput(), required=False, max_length=MOST_CELLS)
    refuse_unreadable = Boolean(
        required=False,
        help_text="Whether a `typed` that cannot be read is refused, and nothing is written, "
        "instead of kept.",
    )


class DraftApplyInput(Serializer):
    reason = Text(
        max_length=2000,
        required=False,
        help_text="Why; kept in the audit trail. Not given: the reason in the draft.",
    )
    starts_at = Moment(
        required=False, allow_null=True, help_text="When it is applied; null = at once."
    )
    ends_at = Moment(
        required=False,
        allow_null=True,
        help_text="When the quotas go back to what they were; null = never.",
    )


class FieldConflictOutput(serializers.Serializer[Any]):
    """A field of a quota in words, e.g. “8” or “no limit”: `mine` as the edit would have it, null =
    it leaves it; `theirs` as somebody else has set it, null = there is no quota any more; `base` as
    it was when the edit began, null = not known, or there was none."""

    field = serializers.CharField()
    mine = serializers.CharField(allow_null=True)
    theirs = serializers.CharField(allow_null=True)
    base = serializers.CharField(allow_null=True)


class OvertakenOutput(serializers.Serializer[Any]):
    """Who changed the quota since the edit began, and what it said then; null = not known, or
    there was none. `conflicts`: the fields that theirs makes others than
    they were, or the edit others than theirs."""

    by = serializers.CharField(allow_null=True)
    reason = serializers.CharField()
    before = serializers.FloatField(allow_null=True)
    conflicts = FieldConflictOutput(many=True, source="fields")


class DraftCellOutput(serializers.Serializer[Any]):
    """One edit. `guaranteed`: null = what is `typed` cannot be read, and `fault` says why ("" = it
    can). `terms`: mode and limits, as typed ("" = no limit), that it sets. `now`: what is
    guaranteed, null = there is no quota. `version`: of the quota when the edit began,
    `now_version`: as it is, 0 = there was, or is, none; where they differ `overtaken` says who was
    faster."""

    tenant = serializers.CharField(source="cell.tenant.name")
    gpu_type = serializers.CharField(source="cell.gpu_type.name")
    guaranteed = Gpus(allow_null=True)
    typed = serializers.CharField(source="cell.typed")
    terms = serializers.DictField(child=serializers.CharField())
    fault = serializers.CharField()
    version = serializers.IntegerField(source="cell.version")
    edited_at = serializers.DateTimeField(source="cell.edited_at")
    now = serializers.SerializerMethodField()
    now_version = serializers.SerializerMethodField()
    overtaken = OvertakenOutput(allow_null=True)

    def get_now(self, seen: SeenCell) -> float | None:
        return gpus(seen.quota.guaranteed_milli) if seen.quota else None

    def get_now_version(self, seen: SeenCell) -> int:
        return seen.quota.version if seen.quota else 0


class OvertakenPlaceOutput(serializers.Serializer[Any]):
    """Who changed the tenant since the edit began; `conflicts`: as of a quota, "none" = below
    nobody."""

    by = serializers.CharField()
    reason = serializers.CharField()
    conflicts = FieldConflictOutput(many=True, source="fields")


class TenantFieldsOutput(serializers.Serializer[Any]):
    """Fields of a tenant; `parent` null = below nobody, a field that is not there is not set.
    “a hidden tenant” stands for one that you may not see."""

    parent = serializers.CharField(allow_null=True, required=False)  # type: ignore[assignment]
    weight = serializers.FloatField(required=False)

    def to_representation(self, texts: Any) -> dict[str, Any]:
        return {name: told_place(name, texts[name]) for name in TITLES if name in texts}


def told_place(name: str, text: str) -> Any:
    if name == "weight":
        return float(text)
    return text or None


class DraftTenantOutput(serializers.Serializer[Any]):
    """One tenant that shall stand elsewhere or weigh more or less. `sets`: the fields that it sets,
    and `typed`: as they were typed. `fault`: why one cannot be read; then `sets` is null. `now`: as
    they are. `overtaken`: who was faster."""

    tenant = serializers.CharField(source="edit.tenant.name")
    sets = serializers.SerializerMethodField()
    typed = serializers.DictField(child=serializers.CharField(), source="fields")
    fault = serializers.CharField()
    now = TenantFieldsOutput()
    edited_at = serializers.DateTimeField(source="edit.edited_at")
    overtaken = OvertakenPlaceOutput(allow_null=True)

    @extend_schema_field(TenantFieldsOutput(allow_null=True))
    def get_sets(self, seen: SeenTenant) -> dict[str, Any] | None:
        return None if seen.fault else TenantFieldsOutput().to_representation(seen.fields)


class DraftOutput(serializers.Serializer[Any]):
    """Of a draft of somebody else only the quotas that you may change, too. It is deleted at
    `kept_until`, unless it is written to."""

    author = serializers.CharField(source="author.username")
    reason = serializers.CharField()
    version = serializers.IntegerField()
    updated_at = serializers.DateTimeField()
    kept_until = serializers.SerializerMethodField()
    cells = serializers.SerializerMethodField()
    tenants = serializers.SerializerMethodField()

    @extend_schema_field(serializers.DateTimeField())
    def get_kept_until(self, draft: QuotaDraft) -> str:
        field = serializers.DateTimeField()
        return str(field.to_representation(draft.updated_at + KEPT))

    @extend_schema_field(DraftCellOutput(many=True))
    def get_cells(self, draft: QuotaDraft) -> list[dict[str, Any]]:
        cells = self.context["cells"][draft.pk]
        return [dict(one) for one in DraftCellOutput(cells, many=True).data]

    @extend_schema_field(DraftTenantOutput(many=True))
    def get_tenants(self, draft: QuotaDraft) -> list[dict[str, Any]]:
        tenants = self.context["tenants"][draft.pk]
        return [dict(one) for one in DraftTenantOutput(tenants, many=True).data]


class AppliedQuotaOutput(serializers.Serializer[Any]):
    tenant = serializers.CharField(source="tenant.name")
    gpu_type = serializers.CharField(source="gpu_type.name")
    guaranteed = Gpus(source="guaranteed_milli")
    mode = serializers.CharField()
    borrow_limit = Gpus(source="borrow_limit_milli", allow_null=True)
    lend_limit = Gpus(source="lend_limit_milli", allow_null=True)
    version = serializers.IntegerField()


class OrderCellOutput(serializers.Serializer[Any]):
    """One quota of an order. `terms`: mode and limits in GPUs that it sets beside. `before`: what
    was guaranteed when it was carried out, null = it is not yet, or there was no quota. `now`:
    what is guaranteed, null = there is no quota. `overtaken`: the quota was changed since this was
    asked for, so that the order will fail. `outcome`: why it did not go back; "" = it did, or has
    not to."""

    tenant = serializers.CharField(source="cell.tenant.name")
    gpu_type = serializers.CharField(source="cell.gpu_type.name")
    guaranteed = Gpus(source="cell.guaranteed_milli")
    terms = serializers.SerializerMethodField()
    before = serializers.FloatField(allow_null=True)
    now = serializers.FloatField(allow_null=True)
    overtaken = serializers.BooleanField(source="is_overtaken")
    outcome = serializers.CharField(source="cell.outcome")

    @extend_schema_field(serializers.DictField())
    def get_terms(self, seen: SeenOrderCell) -> dict[str, Any]:
        return in_gpus(seen.cell.terms)


class OrderTenantOutput(serializers.Serializer[Any]):
    """One tenant of an order: the fields that it `sets`, and what they said `before` it was carried
    out, or say as long as it was not. `overtaken` and `outcome`: as of quotas."""

    tenant = serializers.CharField(source="one.tenant.name")
    sets = TenantFieldsOutput(source="fields")
    before = TenantFieldsOutput()
    overtaken = serializers.SerializerMethodField()
    outcome = serializers.CharField(source="one.outcome")

    def get_overtaken(self, seen: SeenOrderTenant) -> bool:
        return seen.overtaken is not None


class OrderOutput(serializers.Serializer[Any]):
    """A change of quotas that is made at a time, until a time, or once somebody else has approved
    it (`waiting`); of its quotas those that you see. `starts_at`: null = at once. `ends_at`: null =
    for good. `outcome`: how it went, where that is worth a word."""

    id = serializers.UUIDField()
    state = serializers.ChoiceField(OrderState.values)
    author = serializers.CharField(source="author_name")
    approver = serializers.CharField(
        source="approver_name", help_text="Who approved it; “” = nobody had to, or has yet."
    )
    reason = serializers.CharField()
    starts_at = serializers.DateTimeField(allow_null=True)
    ends_at = serializers.DateTimeField(allow_null=True)
    lapses_at = serializers.SerializerMethodField(
        help_text="Latest time to approve it, then it fails; null = needs no approval."
    )
    applied_at = serializers.DateTimeField(allow_null=True)
    over_at = serializers.DateTimeField(allow_null=True)
    outcome = serializers.CharField()
    created_at = serializers.DateTimeField()
    cells = serializers.SerializerMethodField()
    tenants = serializers.SerializerMethodField()

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_lapses_at(self, order: QuotaOrder) -> str | None:
        at = lapses_at(order)
        return None if at is None else str(serializers.DateTimeField().to_representation(at))

    @extend_schema_field(OrderCellOutput(many=True))
    def get_cells(self, order: QuotaOrder) -> list[dict[str, Any]]:
        cells = self.context["cells"][order.pk]
        return [dict(one) for one in OrderCellOutput(cells, many=True).data]

    @extend_schema_field(OrderTenantOutput(many=True))
    def get_tenants(self, order: QuotaOrder) -> list[dict[str, Any]]:
        tenants = self.context["tenants"][order.pk]
        return [dict(one) for one in OrderTenantOutput(tenants, many=True).data]


class AppliedTenantOutput(serializers.Serializer[Any]):
    tenant = serializers.CharField(source="tenant.name")
    parent = serializers.CharField(source="planned.parent", allow_null=True)  # type: ignore[assignment]
    weight = serializers.FloatField(source="planned.weight")


class AppliedDraftOutput(serializers.Serializer[Any]):
    """The quotas and tenants that are others now, and what is still to happen to them; null =
    nothing."""

    order = OrderOutput(allow_null=True)
    quotas = AppliedQuotaOutput(many=True)
    tenants = AppliedTenantOutput(many=True)
    warnings = serializers.ListField(child=serializers.CharField())
