"""Shapes of tenants, members, GPU types, quotas and audit records in REST."""

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from tenants.api.fields import Boolean, Choice, Gpus, Integer, Number, Serializer, Text
from tenants.api.kept_previews import PreviewKeptOutput
from tenants.facts import HIDDEN, QuotaUse
from tenants.models import MAX_MIN_RUNTIME_S, QuotaMode, Role
from tenants.permissions import Access
from tenants.services.previews.seen import preview_seen
from tenants.services.tenant_terms import MAX_JOBS

MAX_PRIORITY = 1_000_000
REASON = {"max_length": 2000, "allow_blank": True, "required": False}


class ReasonInput(Serializer):
    """The reason; kept in the audit trail."""

    reason = Text(**REASON)


def limit(what: str) -> Integer:
    return Integer(
        min_value=0,
        max_value=MAX_JOBS,
        required=False,
        allow_null=True,
        help_text=f"Most jobs of the tenant and all tenants below it that may {what} at once; "
        "null = no limit.",
    )


class TenantFields(Serializer):
    """The settings that a new tenant may have and that may be changed later."""

    title = Text(max_length=200, allow_blank=True, required=False)
    parent = Text(max_length=63, allow_null=True, required=False)  # type: ignore[assignment]
    weight = Number(min_value=0.001, max_value=1e6, required=False)
    max_running = limit("run")
    max_waiting = limit("wait")
    max_priority = Integer(
        min_value=-MAX_PRIORITY,
        max_value=MAX_PRIORITY,
        required=False,
        allow_null=True,
        help_text="Highest priority of jobs of the tenant and all tenants below it; null = no "
        "limit.",
    )
    min_runtime_s = Number(
        min_value=0,
        max_value=MAX_MIN_RUNTIME_S,
        required=False,
        allow_null=True,
        help_text="Seconds that a job of the tenant, or of a tenant below it, runs before it may "
        "be preempted. Also applies to jobs already running. null = as the tenant above; for a "
        "root tenant, as the cluster's policy. Only operators can set it.",
    )
    namespace = Text(
        max_length=63,
        required=False,
        allow_null=True,
        help_text="Kubernetes namespace for pods of the tenant and all tenants below it. null = "
        "as the tenant above; for a root tenant, as the cluster. Only operators can set it.",
    )


class TenantInput(TenantFields):
    name = Text(max_length=63)


class TenantChange(TenantFields, ReasonInput):
    is_active = Boolean(required=False)


class TenantOutput(serializers.Serializer[Any]):
    """A tenant.

    `parent`: null = it is a root, or you may not see its parent. `effective_min_runtime_s`: how
    long its jobs are safe from preemption; null = as the cluster's policy says.
    `effective_namespace`: where pods of its jobs are created from now on; null = in the cluster's
    namespace.
    """

    name = serializers.CharField()
    title = serializers.CharField()
    parent = serializers.SerializerMethodField()  # type: ignore[assignment]
    weight = serializers.FloatField()
    max_running = serializers.IntegerField(allow_null=True)
    max_waiting = serializers.IntegerField(allow_null=True)
    max_priority = serializers.IntegerField(allow_null=True)
    min_runtime_s = serializers.FloatField(allow_null=True)
    effective_min_runtime_s = serializers.SerializerMethodField()
    namespace = serializers.CharField(allow_null=True)
    effective_namespace = serializers.SerializerMethodField()
    is_active = serializers.BooleanField()
    created_at = serializers.DateTimeField()

    def get_parent(self, tenant: Any) -> str | None:
        access: Access = self.context["access"]
        above = tenant.parent
        return above.name if above and access.may_view(above.pk) else None

    def get_effective_min_runtime_s(self, tenant: Any) -> float | None:
        return self._effective(tenant, "min_runtime_s")

    def get_effective_namespace(self, tenant: Any) -> str | None:
        return self._effective(tenant, "namespace")

    def _effective(self, tenant: Any, field: str) -> Any:
        # Its own value comes from the object, not the database: a dry run has been rolled back by
        # now.
        if (own := getattr(tenant, field)) is not None:
            return own
        above = tenant.parent and self.context["given"][field][tenant.parent.name]
        return above.value if above else None


class MemberInput(ReasonInput):
    role = Choice(Role.values)


class MemberOutput(serializers.Serializer[Any]):
    user = serializers.CharField(source="user.username")
    tenant = serializers.CharField(source="tenant.name")
    role = serializers.CharField()
    by_group = serializers.BooleanField(
        help_text="The role comes from a group of the OpenID provider; each sign-in renews it."
    )
    created_at = serializers.DateTimeField()


class GpuTypeInput(Serializer):
    name = Text(max_length=63)
    title = Text(max_length=200, allow_blank=True, required=False)
    memory_mib = Integer(min_value=0, max_value=10**7, required=False)


class GpuTypeChange(Serializer):
    title = Text(max_length=200, allow_blank=True, required=False)
    memory_mib = Integer(min_value=0, max_value=10**7, required=False)


class GpuTypeOutput(serializers.Serializer[Any]):
    name = serializers.CharField()
    title = serializers.CharField()
    memory_mib = serializers.IntegerField()
    created_at = serializers.DateTimeField()


class QuotaValues(Serializer):
    """What a tenant is guaranteed of a GPU type; a limit of null means unlimited."""

    guaranteed = Gpus()
    mode = Choice(QuotaMode.values, required=False)
    borrow_limit = Gpus(required=False, allow_null=True)
    lend_limit = Gpus(required=False, allow_null=True)


class QuotaInput(QuotaValues):
    """What a tenant is guaranteed of a GPU type; a limit of null means unlimited."""

    reason = Text(max_length=2000)


class LoanOutput(serializers.Serializer[Any]):
    """GPUs borrowed from a tenant, or lent to it; null = from or to tenants you may not see."""

    tenant = serializers.CharField(allow_null=True)
    gpus = serializers.FloatField()


class QuotaOutput(serializers.Serializer[Any]):
    """A quota, in GPUs.

    `used` counts all jobs of the tenant and of tenants below it; `non_preemptible` the part that
    cannot be preempted; `lent` what others use. An ancestor lends what it has left for its
    children. When a quota was cut while jobs ran, some use may have no lender: that part is in
    `borrowed` alone.
    """

    tenant = serializers.CharField(source="tenant.name")
    gpu_type = serializers.CharField(source="gpu_type.name")
    guaranteed = Gpus(source="guaranteed_milli")
    mode = serializers.ChoiceField(QuotaMode.values)
    borrow_limit = Gpus(source="borrow_limit_milli", allow_null=True)
    lend_limit = Gpus(source="lend_limit_milli", allow_null=True)
    used = serializers.SerializerMethodField()
    non_preemptible = serializers.SerializerMethodField()
    borrowed = serializers.SerializerMethodField()
    borrowed_from = serializers.SerializerMethodField()
    lent = serializers.SerializerMethodField()
    lent_to = serializers.SerializerMethodField()
    version = serializers.IntegerField()
    updated_at = serializers.DateTimeField()

    def get_used(self, quota: Any) -> float:
        return self._use(quota).used / 1000

    def get_non_preemptible(self, quota: Any) -> float:
        return self._use(quota).fixed / 1000

    def get_borrowed(self, quota: Any) -> float:
        return self._use(quota).borrowed / 1000

    @extend_schema_field(LoanOutput(many=True))
    def get_borrowed_from(self, quota: Any) -> list[dict[str, Any]]:
        return self._told(self._use(quota).borrowed_from)

    def get_lent(self, quota: Any) -> float:
        return self._use(quota).lent / 1000

    @extend_schema_field(LoanOutput(many=True))
    def get_lent_to(self, quota: Any) -> list[dict[str, Any]]:
        return self._told(self._use(quota).lent_to)

    def _use(self, quota: Any) -> QuotaUse:
        key = quota.tenant.name, quota.gpu_type.name
        # A quota that was withdrawn after its row was read has no use.
        use: QuotaUse = self.context["uses"].get(key) or QuotaUse(*key, 0, 0, 0, 0, {}, {})
        return use.seen_by(self.context["visible"])

    def _told(self, amounts: Mapping[str, int]) -> list[dict[str, Any]]:
        return [
            {"tenant": None if name == HIDDEN else name, "gpus": milli / 1000}
            for name, milli in amounts.items()
        ]


class QuotaAnswer(QuotaOutput):
    warnings = serializers.ListField(child=serializers.CharField())


class RevertInput(Serializer):
    reason = Text(max_length=2000)


class RevertAnswer(serializers.Serializer[Any]):
    """The quota as it is now; null = withdrawn."""

    quota = QuotaOutput(allow_null=True)
    warnings = serializers.ListField(child=serializers.CharField())


_DOCUMENT = serializers.DictField(allow_null=True)


class AuditOutput(serializers.Serializer[Any]):
    """One change. `before`, `after`: in those of a tenant, `parent` is also null if you may not see
    the parent. `preview`: null = nobody previewed the change."""

    id = serializers.UUIDField()
    at = serializers.DateTimeField()
    actor = serializers.CharField(source="actor_name")
    action = serializers.CharField()
    tenant = serializers.SerializerMethodField()
    subject = serializers.CharField()
    before = serializers.SerializerMethodField()
    after = serializers.SerializerMethodField()
    reason = serializers.CharField()
    source = serializers.CharField()  # type: ignore[assignment]
    reverts = serializers.UUIDField(
        source="reverts_id",
        allow_null=True,
        help_text="Id of the change that this one reverts.",
    )

    preview = serializers.SerializerMethodField()

    def get_tenant(self, record: Any) -> str | None:
        return record.tenant.name if record.tenant else None

    @extend_schema_field(PreviewKeptOutput(allow_null=True))
    def get_preview(self, record: Any) -> dict[str, Any] | None:
        found = preview_seen(record, self.context["visible"])
        return None if found is None else dict(PreviewKeptOutput(found).data)

    @extend_schema_field(_DOCUMENT)
    def get_before(self, record: Any) -> dict[str, Any] | None:
        return self._seen(record.before)

    @extend_schema_field(_DOCUMENT)
    def get_after(self, record: Any) -> dict[str, Any] | None:
        return self._seen(record.after)

    def _seen(self, document: dict[str, Any] | None) -> dict[str, Any] | None:
        if document is None or document.get("parent") in (None, *self.context["visible"]):
            return document
        return {**document, "parent": None}
