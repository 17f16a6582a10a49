"""Revert a recorded change of a queue, as for quotas (docs/decisions/0014): only the settings of
that change are set back, and only where nobody has changed them since."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tenants.errors import Conflict
from tenants.models import AuditRecord, Queue, Tenant, User
from tenants.services.audit import Why
from tenants.services.queues.change import (
    QueueChangeResult,
    change_queue,
    create_queue,
    delete_queue,
)
from tenants.services.queues.terms import NAMES, QueueTerms, as_document
from tenants.services.transactions import unit_of_work

FIELDS = ("state", *NAMES)
Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class QueueReversal:
    """What a revert does to the queue as it is now. `undone`: the settings that it sets; None = it
    deletes the queue. `queue`: None = it creates the queue again."""

    tenant: Tenant
    name: str
    queue: Queue | None
    undone: Document | None

    @property
    def now(self) -> Document | None:
        return as_document(self.queue)


def queue_reversal_of(record: AuditRecord) -> QueueReversal:
    """Return what reverting the change of `record` means now.

    Raises Conflict when it is impossible, naming the obstacle.
    """
    tenant_name, _, name = record.subject.partition("/")
    tenant = record.tenant
    if tenant is None:
        raise Conflict(f"Tenant “{tenant_name}” and its queues have been deleted since.")
    queue = Queue.objects.select_related("tenant").filter(tenant=tenant, name=name).first()
    before, after, now = record.before, record.after, as_document(queue)
    if before is None or after is None:
        return _whole(record, QueueReversal(tenant, name, queue, before))
    if now is None:
        raise Conflict(f"The queue has been deleted since.{_since(record)} Revert that first.")
    changed = [field for field in FIELDS if before.get(field) != after.get(field)]
    conflicts = [field for field in changed if now[field] not in (before[field], after[field])]
    if conflicts:
        raise Conflict(" ".join(_conflict(record, field, now) for field in conflicts))
    undone = {field: before[field] for field in changed if now[field] != before[field]}
    if not undone:
        raise Conflict(f"The queue already has its values from before this change.{_since(record)}")
    return QueueReversal(tenant, name, queue, undone)


def revert_queue_change(
    actor: User,
    record: AuditRecord,
    *,
    expected_version: int,
    why: Why,
    dry_run: bool = False,
) -> QueueChangeResult | None:
    """Revert the change of `record`, as a change of its own; return None when that deletes the
    queue.

    `expected_version`: of the queue as it was shown; 0 = there was none. Raises as
    `queue_reversal_of` and the services of queues.
    """
    why = Why(why.reason, why.source, record)
    with unit_of_work(dry_run):
        found = queue_reversal_of(record)
        if found.queue is None:
            assert found.undone is not None
            terms, state = QueueTerms.given(found.undone), found.undone["state"]
            return create_queue(actor, found.tenant, found.name, terms, why=why, state=state)
        if found.undone is None:
            delete_queue(actor, found.queue, expected_version=expected_version, why=why)
            return None
        return change_queue(
            actor, found.queue, found.undone, expected_version=expected_version, why=why
        )


def said(field: str, document: Document | None) -> str:
    """Return a setting of a queue in words."""
    if document is None:
        return "none"
    value = document.get(field)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {each:g}" for name, each in sorted(value.items())) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "all"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value in (None, ""):
        return "–"
    return f"{value:,.13g}" if isinstance(value, int | float) else str(value)


def _whole(record: AuditRecord, found: QueueReversal) -> QueueReversal:
    """Handle a change that created or deleted the queue."""
    if record.after is None:
        if found.queue is None:
            return found
        raise Conflict(f"A queue of that name exists again.{_since(record)} Edit it instead.")
    if found.queue is None:
        raise Conflict(f"The queue is already gone, as before this change.{_since(record)}")
    now = found.now or {}
    changed = [field for field in FIELDS if now[field] != record.after[field]]
    if changed:
        raise Conflict(" ".join(_conflict(record, field, now) for field in changed))
    return QueueReversal(found.tenant, found.name, found.queue, None)


def _conflict(record: AuditRecord, field: str, now: Document) -> str:
    return (
        f"{field} was set to {said(field, record.after)} by this change and is "
        f"{said(field, now)} now.{_since(record, field)} Revert that first, or edit the queue."
    )


def _since(record: AuditRecord, field: str | None = None) -> str:
    """Return who last changed the queue, or that setting of it."""
    later = AuditRecord.objects.filter(
        tenant=record.tenant, action__startswith="queue.", subject=record.subject, at__gt=record.at
    )
    for one in later:
        if field is None or (one.before or {}).get(field) != (one.after or {}).get(field):
            return f" {one.actor_name} changed it at {one.at:%Y-%m-%d %H:%M:%S} UTC."
    return ""
