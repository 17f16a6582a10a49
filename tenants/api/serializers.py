"""Shapes of tenants, members, GPU types, quotas and audit records in REST."""

from typing import Any

from rest_framework import serializers

from tenants.api.fields import Boolean, Choice, Gpus, Integer, Number, Serializer, Text
from tenants.models import QuotaMode, Role

MAX_JOBS = 1_000_000
REASON = {"max_length": 2000, "allow_blank": True, "required": False}


class Reason(Serializer):
    """Why: kept in the audit trail."""

    reason = Text(**REASON)


def limit(what: str) -> Integer:
    return Integer(
        min_value=0,
        max_value=MAX_JOBS,
        required=False,
        allow_null=True,
        help_text=f"Most jobs that may {what} at once, of it and all below it; null = no limit.",
    )


class TenantInput(Serializer):
    name = Text(max_length=63)
    title = Text(max_length=200, allow_blank=True, required=False)
    parent = Text(max_length=63, allow_null=True, required=False)  # type: ignore[assignment]
    weight = Number(min_value=0.001, max_value=1e6, required=False)
    max_running = limit("run")
    max_waiting = limit("wait")


class TenantChange(Reason):
    title = Text(max_length=200, allow_blank=True, required=False)
    parent = Text(max_length=63, allow_null=True, required=False)  # type: ignore[assignment]
    weight = Number(min_value=0.001, max_value=1e6, required=False)
    max_running = limit("run")
    max_waiting = limit("wait")
    is_active = Boolean(required=False)


class TenantOutput(serializers.Serializer[Any]):
    name = serializers.CharField()
    title = serializers.CharField()
    parent = serializers.SerializerMethodField()  # type: ignore[assignment]
    weight = serializers.FloatField()
    max_running = serializers.IntegerField(allow_null=True)
    max_waiting = serializers.IntegerField(allow_null=True)
    is_active = serializers.BooleanField()
    created_at = serializers.DateTimeField()

    def get_parent(self, tenant: Any) -> str | None:
        return tenant.parent.name if tenant.parent else None


class MemberInput(Reason):
    role = Choice(Role.values)


class MemberOutput(serializers.Serializer[Any]):
    user = serializers.CharField(source="user.username")
    tenant = serializers.CharField(source="tenant.name")
    role = serializers.CharField()
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


class QuotaInput(Serializer):
    """What a tenant is guaranteed of a GPU type; a limit of null is unlimited."""

    guaranteed = Gpus()
    mode = Choice(QuotaMode.values, required=False)
    borrow_limit = Gpus(required=False, allow_null=True)
    lend_limit = Gpus(required=False, allow_null=True)
    reason = Text(max_length=2000)


class QuotaOutput(serializers.Serializer[Any]):
    """GPUs. `used` counts all jobs of the tenant and of those below it."""

    tenant = serializers.CharField(source="tenant.name")
    gpu_type = serializers.CharField(source="gpu_type.name")
    guaranteed = Gpus(source="guaranteed_milli")
    mode = serializers.ChoiceField(QuotaMode.values)
    borrow_limit = Gpus(source="borrow_limit_milli", allow_null=True)
    lend_limit = Gpus(source="lend_limit_milli", allow_null=True)
    used = serializers.SerializerMethodField()
    version = serializers.IntegerField()
    updated_at = serializers.DateTimeField()

    def get_used(self, quota: Any) -> float:
        used: int = self.context["used"].get((quota.tenant_id, quota.gpu_type_id), 0)
        return used / 1000


class QuotaAnswer(QuotaOutput):
    warnings = serializers.ListField(child=serializers.CharField())


class AuditOutput(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    at = serializers.DateTimeField()
    actor = serializers.CharField(source="actor_name")
    action = serializers.CharField()
    tenant = serializers.SerializerMethodField()
    subject = serializers.CharField()
    before = serializers.DictField(allow_null=True)
    after = serializers.DictField(allow_null=True)
    reason = serializers.CharField()
    source = serializers.CharField()  # type: ignore[assignment]
    reverts = serializers.UUIDField(
        source="reverts_id",
        allow_null=True,
        help_text="Record of the change that this one takes back.",
    )

    def get_tenant(self, record: Any) -> str | None:
        return record.tenant.name if record.tenant else None
