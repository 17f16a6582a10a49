"""The audit trail: each record is written in the transaction of the change that it describes."""

from dataclasses import dataclass
from typing import Any

from tenants.errors import FieldError
from tenants.models import AuditRecord, Tenant, User

ACTIONS = (
    *("cluster.created", "cluster.changed", "cluster.deleted"),
    *("gpu-type.created", "gpu-type.changed", "gpu-type.deleted"),
    *("member.set", "member.removed"),
    *("node.cordoned", "node.drained", "node.uncordoned"),
    *(f"plan-order.{what}" for what in ("placed", "applied", "cancelled", "failed")),
    "policy.changed",
    *("queue.created", "queue.changed", "queue.deleted"),
    *("quota.changed", "quota.deleted"),
    *(f"quota-order.{what}" for what in ("placed", "approved", "refused", "cancelled", "failed")),
    *(f"quota-order.{what}" for what in ("kept", "stayed")),
    *("template.created", "template.changed", "template.deleted"),
    *("tenant.created", "tenant.changed", "tenant.deleted"),
    "user.changed",
    *("webhook.created", "webhook.changed", "webhook.deleted", "webhook.rotated"),
)
PAGE, API, COMMAND, SIGN_IN, SCHEDULE = SOURCES = (
    *("page", "api", "command", "sign-in"),
    "schedule",
)


@dataclass(frozen=True, slots=True)
class Why:
    """What is recorded about a change besides the change itself. `reverts`: the change that it
    reverts."""

    reason: str
    source: str
    reverts: AuditRecord | None = None

    def faults(self, *, required: bool) -> list[FieldError]:
        return reason_faults(self.reason, required=required)


def reason_faults(reason: str, *, required: bool = True) -> list[FieldError]:
    """Return what is wrong with the reason of a change."""
    if required and not reason.strip():
        return [FieldError(("reason",), "Say why; it is kept in the audit trail.")]
    if len(reason) > 2000 or "\0" in reason:
        return [FieldError(("reason",), "Use at most 2,000 characters of plain text.")]
    return []


def record(
    actor: User,
    action: str,
    subject: str,
    *,
    tenant: Tenant | None = None,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    reason: str = "",
    source: str,
    reverts: AuditRecord | None = None,
) -> AuditRecord:
    """Append one record.

    `action` is one of ACTIONS, `source` one of SOURCES; `before` and `after` are JSON documents;
    `reverts` is the record of the change that this one reverts. Of an `actor` who has been deleted,
    only the name is kept.
    """
    assert action in ACTIONS, action
    return AuditRecord.objects.create(
        actor=actor if actor.pk else None,
        actor_name=actor.get_username(),
        action=action,
        tenant=tenant,
        subject=subject[:200],
        before=before,
        after=after,
        reason=reason,
        source=source,
        reverts=reverts,
    )
