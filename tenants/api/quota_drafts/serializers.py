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
    """A quota in the draft.

    A guarantee of null removes it from the draft. `mode` and limits: the other fields to change; a
    limit of null means no limit. If you give some of these, the others keep the quota's values; if
    you give none, those in the draft stay. Alternatively give `typed` instead of all of these.
    """

    tenant = Text(max_length=63)
    gpu_type = Text(max_length=63)
    guaranteed = Gpus(allow_null=True, required=False)
    typed = Text(
        max_length=LONGEST,
        required=False,
        help_text="The cell as text, as in the CSV of the quotas page: “8”, “8 isolated”, “8 "
        "shared borrow 4 lend any”. Parts it does not name keep their values. Text that cannot "
        "be read is kept too; `fault` then says why.",
    )
    mode = Choice(QuotaMode.values, required=False)
    borrow_limit = Gpus(required=False, allow_null=True)
    lend_limit = Gpus(required=False, allow_null=True)
    version = Integer(
        min_value=0,
        max_value=MOST_VERSION,
        required=False,
        help_text="Version of the quota as you read it; 0 = there was no quota. Default: the "
        "version in the draft, or the current one if the draft does not have this quota yet.",
    )

    def to_internal_value(self, data: Any) -> Any:
        found = super().to_internal_value(data)
        if "typed" not in found and "guaranteed" not in found:
            raise serializers.ValidationError({"guaranteed": [texts.MISSING]})
        if "typed" in found and (twice := [n for n in NAMES if n in found]):
            text = "`typed` already has this. Give one or the other."
            raise serializers.ValidationError({name: [text] for name in twice})
        return found


class DraftTenantInput(Serializer):
    """A tenant in the draft: its new place in the tree (`parent` null = a root) and the weight of
    its fair share. A field that is left out stays; one that equals the current value is removed
    from the draft."""

    tenant = Text(max_length=63)
    parent = Text(max_length=63, allow_null=True, required=False)  # type: ignore[assignment]
    weight = Number(min_value=LEAST_WEIGHT, max_value=MOST_WEIGHT, required=False)
    over = Boolean(
        required=False, help_text="Overwrite a change that somebody else has made since."
    )

    def to_internal_value(self, data: Any) -> Any:
        found = super().to_internal_value(data)
        if not found.keys() & TITLES.keys():
            raise serializers.ValidationError({"parent": ["Give `parent`, `weight` or both."]})
        return found


class DraftInput(Serializer):
    """Changes to the draft; what is left out stays."""

    reason = Text(max_length=2000, allow_blank=True, required=False)
    cells = List(child=DraftCellInput(), required=False, max_length=MOST_CELLS)
    tenants = List(child=DraftTenantInput(), required=False, max_length=MOST_CELLS)
    refuse_unreadable = Boolean(
        required=False,
        help_text="Refuse the whole request if a `typed` cannot be read; otherwise the text is "
        "kept in the draft.",
    )


class DraftApplyInput(Serializer):
    reason = Text(
        max_length=2000,
        required=False,
        help_text="Reason, kept in the audit trail. Default: the reason in the draft.",
    )
    starts_at = Moment(
        required=False, allow_null=True, help_text="Time to apply it; null = at once."
    )
    ends_at = Moment(
        required=False,
        allow_null=True,
        help_text="Time at which the quotas go back to their old values; null = never.",
    )


class FieldConflictOutput(serializers.Serializer[Any]):
    """A field of a quota in words, e.g. “8” or “no limit”.

    `mine`: the value of the edit; null = the edit does not set it. `theirs`: the value that
    somebody else set; null = the quota is gone. `base`: the value when the edit began; null =
    unknown, or there was none.
    """

    field = serializers.CharField()
    mine = serializers.CharField(allow_null=True)
    theirs = serializers.CharField(allow_null=True)
    base = serializers.CharField(allow_null=True)


class OvertakenOutput(serializers.Serializer[Any]):
    """Who changed the quota since the edit began, and its values then; null = unknown, or there was
    none. `conflicts`: the fields that somebody else changed, or that the edit sets to another value
    than theirs."""

    by = serializers.CharField(allow_null=True)
    reason = serializers.CharField()
    before = serializers.FloatField(allow_null=True)
    conflicts = FieldConflictOutput(many=True, source="fields")


class DraftCellOutput(serializers.Serializer[Any]):
    """One edit.

    `guaranteed`: null = `typed` cannot be read; then `fault` says why, otherwise it is "". `terms`:
    mode and limits that the edit sets, as typed ("" = no limit). `now`: the current guarantee; null
    = there is no quota. `version`: of the quota when the edit began; `now_version`: its current
    one; 0 = there was, or is, none. If they differ, `overtaken` says who changed the quota.
    """

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
    """Who changed the tenant since the edit began; `conflicts`: as for a quota; "none" = a root."""

    by = serializers.CharField()
    reason = serializers.CharField()
    conflicts = FieldConflictOutput(many=True, source="fields")


class TenantFieldsOutput(serializers.Serializer[Any]):
    """Fields of a tenant; `parent` null = a root. A missing field is not set. “a hidden tenant”
    stands for one that you may not see."""

    parent = serializers.CharField(allow_null=True, required=False)  # type: ignore[assignment]
    weight = serializers.FloatField(required=False)

    def to_representation(self, texts: Any) -> dict[str, Any]:
        return {name: told_place(name, texts[name]) for name in TITLES if name in texts}


def told_place(name: str, text: str) -> Any:
    if name == "weight":
        return float(text)
    return text or None


class DraftTenantOutput(serializers.Serializer[Any]):
    """One tenant that gets another parent or weight. `sets`: the fields that the edit sets;
    `typed`: the same as typed. `fault`: why one cannot be read; then `sets` is null. `now`: the
    current values. `overtaken`: who changed them in the meantime."""

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
    """A draft; of somebody else's, only the quotas that you may change too. It is deleted at
    `kept_until` unless somebody writes to it."""

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
    """One quota of an order.

    `terms`: the mode and limits (in GPUs) that it also sets. `before`: the guarantee when the order
    was carried out; null = it was not yet, or there was no quota. `now`: the current guarantee;
    null = there is no quota. `overtaken`: the quota has changed since the order was placed, so the
    order will fail. `outcome`: why it was not taken back; "" = it was, or need not be.
    """

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
    """One tenant of an order: the fields that it `sets`, and their values `before` it was carried
    out; until then, the current ones. `overtaken` and `outcome`: as for quotas."""

    tenant = serializers.CharField(source="one.tenant.name")
    sets = TenantFieldsOutput(source="fields")
    before = TenantFieldsOutput()
    overtaken = serializers.SerializerMethodField()
    outcome = serializers.CharField(source="one.outcome")

    def get_overtaken(self, seen: SeenOrderTenant) -> bool:
        return seen.overtaken is not None


class OrderOutput(serializers.Serializer[Any]):
    """A change of quotas that takes effect at a given time, until a given time, or once somebody
    else approves it (`waiting`). Lists only the quotas that you see.

    `starts_at`: null = at once. `ends_at`: null = permanent. `outcome`: how it went, if there is
    anything to report.
    """

    id = serializers.UUIDField()
    state = serializers.ChoiceField(OrderState.values)
    author = serializers.CharField(source="author_name")
    approver = serializers.CharField(
        source="approver_name",
        help_text="Who approved it; “” = no approval needed, or not approved yet.",
    )
    reason = serializers.CharField()
    starts_at = serializers.DateTimeField(allow_null=True)
    ends_at = serializers.DateTimeField(allow_null=True)
    lapses_at = serializers.SerializerMethodField(
        help_text="If not approved by this time, it fails; null = needs no approval."
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
    """The quotas and tenants that changed, and the order for what is still to be done; null =
    nothing."""

    order = OrderOutput(allow_null=True)
    quotas = AppliedQuotaOutput(many=True)
    tenants = AppliedTenantOutput(many=True)
    warnings = serializers.ListField(child=serializers.CharField())
