"""Create, change, hold and delete the queues of a tenant, with the rights and the audit record that
this needs. Jobs already in a queue keep what they have."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from tenants import facts
from tenants.errors import Conflict, FieldError, Invalid, NotAllowed, NotFound, Stale
from tenants.models import Queue, QueueState, Tenant, User
from tenants.permissions import access_of
from tenants.services import audit, locks
from tenants.services.audit import Why
from tenants.services.queues.terms import QueueTerms, as_document, may_be_deleted, subject_of
from tenants.services.quota_terms import in_words
from tenants.services.transactions import checked, unit_of_work

# Each queue is a row on every page and a label on every metric.
MOST_QUEUES = 64
DEFAULTS = QueueTerms()
CREATED, CHANGED, DELETED = "queue.created", "queue.changed", "queue.deleted"


@dataclass(frozen=True, slots=True)
class QueueChangeResult:
    """The queue as it is (or would be) now, and warnings. Not `changed`: it was already so."""

    queue: Queue
    warnings: tuple[str, ...] = ()
    changed: bool = True


def create_queue(
    actor: User,
    tenant: Tenant,
    name: str,
    terms: QueueTerms = DEFAULTS,
    *,
    why: Why,
    state: str = QueueState.OPEN.value,
    dry_run: bool = False,
) -> QueueChangeResult:
    """Create a queue of a tenant. Raises NotFound, NotAllowed, Invalid naming each field, and
    Conflict for a name that is taken."""
    _may_change(actor, tenant)
    _refuse_faults([*terms.faults(), *why.faults(required=False)])
    queue = checked(Queue(tenant=tenant, name=name, state=state, **terms.columns()))
    with unit_of_work(dry_run):
        if not locks.in_turn(Tenant, [tenant.pk]):
            raise NotFound(f"There is no tenant “{tenant.name}” that you may see.")
        if Queue.objects.filter(tenant=tenant).count() >= MOST_QUEUES:
            raise Conflict(f"“{tenant.name}” has {MOST_QUEUES} queues, which is the limit.")
        try:
            with transaction.atomic():
                queue.save(force_insert=True)
        except IntegrityError:
            raise Conflict(
                f"Tenant “{tenant.name}” has a queue “{name}” already. Choose another name."
            ) from None
        _record(actor, CREATED, tenant, None, queue, why)
    return QueueChangeResult(queue)


def change_queue(
    actor: User,
    queue: Queue,
    values: Mapping[str, Any],
    *,
    expected_version: int,
    why: Why,
    dry_run: bool = False,
) -> QueueChangeResult:
    """Set some settings of a queue, named as in `QueueTerms`, and its `state`; keep the others.

    Raises NotFound, NotAllowed, Invalid naming each field, Stale.
    """
    _may_change(actor, queue.tenant)
    with unit_of_work(dry_run):
        before = _locked(queue)
        if before.version != expected_version:
            raise _stale(before, expected_version)
        terms = QueueTerms.given(values, QueueTerms.of(before))
        _refuse_faults([*terms.faults(), *why.faults(required=False)])
        return _changed(actor, before, terms, values.get("state", before.state), why)


def set_state(
    actor: User, queue: Queue, state: str, *, why: Why, dry_run: bool = False
) -> QueueChangeResult:
    """Open, hold, drain or close a queue, at any version: nothing else of it changes.

    Raises NotFound, NotAllowed, Invalid without a reason, and Conflict when it is already in that
    state.
    """
    _may_change(actor, queue.tenant)
    _refuse_faults([*why.faults(required=True)])
    with unit_of_work(dry_run):
        before = _locked(queue)
        if before.state == state:
            raise Conflict(f"{subject(before)} is {state} already{_since(before)}.")
        return _changed(actor, before, QueueTerms.of(before), state, why)


def release_queue(
    actor: User, queue: Queue, *, why: Why, dry_run: bool = False
) -> QueueChangeResult:
    """Open a held queue. Raises as `set_state` does, and Conflict when it is not held."""
    _may_change(actor, queue.tenant)
    _refuse_faults([*why.faults(required=True)])
    with unit_of_work(dry_run):
        before = _locked(queue)
        if before.state != QueueState.HELD:
            helps = "" if before.state == QueueState.OPEN else " Open it instead."
            raise Conflict(f"{subject(before)} is {before.state}, not held.{helps}")
        return _changed(actor, before, QueueTerms.of(before), QueueState.OPEN.value, why)


def delete_queue(
    actor: User, queue: Queue, *, expected_version: int, why: Why, dry_run: bool = False
) -> None:
    """Delete a queue whose jobs are all over; those jobs keep its name.

    Raises NotFound, NotAllowed, Invalid without a reason, Stale, and Conflict for the default
    queue, a tenant's last queue and one with open jobs.
    """
    _may_change(actor, queue.tenant)
    _refuse_faults([*why.faults(required=True)])
    with unit_of_work(dry_run):
        before = _locked(queue)
        if before.version != expected_version:
            raise _stale(before, expected_version)
        if no := may_be_deleted(before):
            raise Conflict(no)
        load = facts.scheduling().queue_load(before.tenant_id, before.name)
        if load.open:
            jobs = f"{load.open} job{'' if load.open == 1 else 's'}"
            raise Conflict(
                f"{subject(before)} has {jobs} not over, {load.waiting} of which wait "
                f"({', '.join(load.examples)}). Move the waiting jobs, drain the queue, and let "
                "the other jobs end."
            )
        if maps := facts.scheduling().queue_named_by(before.tenant.name, before.name):
            raise Conflict(
                f"queue_map of {', '.join(maps)} sends pods to {subject(before).lower()}. Change "
                "the map first."
            )
        _record(actor, DELETED, before.tenant, before, None, why)
        before.delete()


def subject(queue: Queue) -> str:
    """Return the queue's name for the beginning of a sentence."""
    return f"Queue {subject_of(queue.tenant.name, queue.name)}"


def warnings_of(queue: Queue) -> tuple[str, ...]:
    """Return what its limits mean for jobs already there: they stay, whatever the limit."""
    load = facts.scheduling().queue_load(queue.tenant_id, queue.name)
    found = []
    if queue.max_running is not None and load.running > queue.max_running:
        found.append(
            f"{load.running} of its jobs run, and the limit is {queue.max_running}: they keep "
            "running, and no job starts until fewer run."
        )
    for model, most in sorted(queue.max_gpus.items()):
        held = load.held.get(model, 0)
        if held > 1000 * most:
            found.append(
                f"Its jobs hold {in_words(held)} of {model}, and the limit is "
                f"{in_words(round(1000 * most))}: they keep running, and no job starts there "
                "until they hold less."
            )
    if queue.max_waiting is not None and load.waiting > queue.max_waiting:
        found.append(
            f"{load.waiting} of its jobs wait, and the limit is {queue.max_waiting}: they stay, "
            "and no new job is accepted until fewer wait."
        )
    return tuple(found)


def _changed(
    actor: User, before: Queue, terms: QueueTerms, state: str, why: Why
) -> QueueChangeResult:
    """Write what differs; the caller has locked the row of `before`."""
    columns = terms.columns()
    if QueueTerms.of(before).columns() == columns and before.state == state:
        return QueueChangeResult(before, changed=False)
    if before.state != state:
        columns |= {
            "state": state,
            "state_reason": why.reason.strip(),
            "state_by": actor.get_username(),
            "state_at": timezone.now(),
        }
    Queue.objects.filter(pk=before.pk).update(version=F("version") + 1, **columns)
    queue = Queue.objects.select_related("tenant").get(pk=before.pk)
    _record(actor, CHANGED, queue.tenant, before, queue, why)
    return QueueChangeResult(queue, warnings_of(queue))


def _record(
    actor: User, action: str, tenant: Tenant, before: Queue | None, after: Queue | None, why: Why
) -> None:
    named = after or before
    assert named is not None
    audit.record(
        actor,
        action,
        subject_of(tenant.name, named.name),
        tenant=tenant,
        before=as_document(before),
        after=as_document(after),
        reason=why.reason.strip(),
        source=why.source,
        reverts=why.reverts,
    )


def _may_change(actor: User, tenant: Tenant) -> None:
    access = access_of(actor)
    if not access.may_view(tenant.pk):
        raise NotFound(f"There is no tenant “{tenant.name}” that you may see.")
    if not access.may_administer(tenant.pk):
        raise NotAllowed(
            f"Only tenant admins of “{tenant.name}” or of a tenant above it, and operators, can "
            "change its queues."
        )


def _refuse_faults(faults: list[FieldError]) -> None:
    if faults:
        raise Invalid.fields(faults)


def _locked(queue: Queue) -> Queue:
    """Return the row, locked until the end of the transaction."""
    locks.keep(Tenant, [queue.tenant_id])
    rows = Queue.objects.select_for_update(of=("self",)).select_related("tenant")
    found = rows.filter(pk=queue.pk).first()
    if found is None:
        raise NotFound(f"{subject(queue)} was deleted meanwhile.")
    return found


def _stale(now: Queue, expected: int) -> Stale:
    return Stale(
        f"{subject(now)} is at version {now.version}; you expected {expected}. Read it again.",
        current_version=now.version,
        current=as_document(now),
    )


def _since(queue: Queue) -> str:
    if queue.state_at is None:
        return ""
    return f", since {queue.state_at:%Y-%m-%d %H:%M} UTC, by {queue.state_by}"
