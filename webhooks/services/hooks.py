"""Make, change, turn off and delete webhooks, with the rights and the audit record they need."""

import hashlib
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from tenants.errors import Conflict, FieldError, Invalid, NotAllowed, NotFound, Stale
from tenants.models import Tenant, User
from tenants.permissions import access_of
from tenants.services import audit, locks
from tenants.services.audit import Why
from tenants.services.transactions import checked, unit_of_work
from webhooks.models import DeliveryState, HookEvent, HookFormat, Webhook
from webhooks.outbox.collect import begin_at
from webhooks.sending.addresses import check_url
from webhooks.signing import BOTH_HOLD, secret_of

log = logging.getLogger(__name__)

# Of one tenant, or of the deployment: each is told of each event.
MOST_HOOKS = 50
DEPLOYMENT = "deployment"
# What people set, as REST names it.
SETTINGS = ("name", "url", "format", "events", "pending_s", "gfr_percent", "is_on")
GIVEN_UP = "The webhook was turned off."
KANT = "Kant"


class NewSecret(NamedTuple):
    """A webhook and its secret, which is shown once; "" = its format has none."""

    hook: Webhook
    secret: str


def create_hook(
    actor: User,
    tenant: Tenant | None,
    values: Mapping[str, Any],
    *,
    why: Why,
    dry_run: bool = False,
) -> NewSecret:
    """A new webhook of a tenant, None = of the whole deployment. `values`: some of SETTINGS, at
    least `name`, `url` and `events`. Raises NotFound, NotAllowed, Invalid naming each field, and
    Conflict where there are MOST_HOOKS."""
    _may_change(actor, tenant)
    now = timezone.now()
    hook = Webhook(
        tenant=tenant, maker=actor, maker_name=actor.get_username(), since=now, pending_until=now
    )
    _set(hook, values, why)
    with unit_of_work(dry_run):
        if Webhook.objects.filter(tenant=tenant).count() >= MOST_HOOKS:
            raise Conflict(f"There are {MOST_HOOKS} webhooks of {_whose(hook)}. Delete one first.")
        if hook.is_on:
            begin_at(now)
        hook.save(force_insert=True)
        _record(actor, "webhook.created", hook, None, document_of(hook), why)
    return NewSecret(hook, _shown_secret(hook))


def change_hook(
    actor: User,
    hook: Webhook,
    values: Mapping[str, Any],
    *,
    expected_version: int,
    why: Why,
    dry_run: bool = False,
) -> Webhook:
    """Set some of SETTINGS; the others stay. Turned off, what waits is given up; turned on, what
    happened meanwhile is not told. Raises as `create_hook` does, and Stale."""
    with unit_of_work(dry_run):
        found = _locked(actor, hook, expected_version)
        before, was_on = document_of(found), found.is_on
        waited_for = found.pending_s
        _set(found, values, why)
        if document_of(found) == before:
            return found
        now = timezone.now()
        if found.is_on and not was_on:
            begin_at(now)
            found.since, found.off_reason, found.failing_since = now, "", None
        if found.is_on and (not was_on or found.pending_s != waited_for):
            found.pending_until = now
        found.version += 1
        found.save()
        if was_on and not found.is_on:
            _give_up(Webhook.objects.filter(pk=found.pk))
        _record(actor, "webhook.changed", found, before, document_of(found), why)
    return found


def delete_hook(
    actor: User, hook: Webhook, *, expected_version: int, why: Why, dry_run: bool = False
) -> None:
    """With its deliveries. Raises NotFound, NotAllowed, Stale."""
    with unit_of_work(dry_run):
        found = _locked(actor, hook, expected_version)
        _refuse([*why.faults(required=False)])
        _record(actor, "webhook.deleted", found, document_of(found), None, why)
        found.delete()


def rotate_secret(actor: User, hook: Webhook, *, why: Why, dry_run: bool = False) -> NewSecret:
    """A new secret; the old one signs as well for BOTH_HOLD. Raises NotFound, NotAllowed, and
    Conflict where the format has no secret."""
    with unit_of_work(dry_run):
        found = _locked(actor, hook, None)
        _refuse([*why.faults(required=False)])
        if found.format != HookFormat.STANDARD:
            raise Conflict("Slack messages are not signed, so there is no secret to rotate.")
        found.secret_number += 1
        found.previous_until = timezone.now() + BOTH_HOLD
        found.version += 1
        found.save(update_fields=["secret_number", "previous_until", "version"])
        _record(actor, "webhook.rotated", found, None, None, why)
    return NewSecret(found, secret_of(found))


def turn_off(hooks: QuerySet[Webhook], reason: str) -> None:
    """Turn off those of them that are on, as Kant itself; says so in the audit trail."""
    with transaction.atomic():
        locks.keep(Tenant, hooks.filter(is_on=True).values_list("tenant", flat=True))
        found = list(hooks.select_for_update(of=("self",)).filter(is_on=True))
        for hook in found:
            before = document_of(hook)
            Webhook.objects.filter(pk=hook.pk).update(
                is_on=False, off_reason=reason[:500], version=F("version") + 1
            )
            hook.is_on = False
            _give_up(Webhook.objects.filter(pk=hook.pk))
            why = Why(reason, audit.SCHEDULE)
            kant = User(username=KANT)
            _record(kant, "webhook.changed", hook, before, document_of(hook), why)
            log.warning("webhook %s of %s is turned off: %s", hook.name, _whose(hook), reason)


def document_of(hook: Webhook) -> dict[str, Any]:
    """As the audit trail keeps it. Addresses may be secrets themselves, as those of Slack are: of
    each stands the host, and what tells whether it is another one."""
    host = urlsplit(hook.url).netloc
    digest = hashlib.sha256(hook.url.encode()).hexdigest()[:8]
    found = {name: getattr(hook, name) for name in SETTINGS}
    return {**found, "url": f"{host}/… ({digest})"}


# --- the parts ------------------------------------------------------------------------------------
def _set(hook: Webhook, values: Mapping[str, Any], why: Why) -> None:
    for name, value in values.items():
        assert name in SETTINGS, name
        setattr(hook, name, value)
    faults = [*why.faults(required=False)]
    hook.name = hook.name.strip()
    if not hook.name:
        faults.append(
            FieldError(("name",), "Give a name that says what it is for, e.g. “on-call channel”.")
        )
    try:
        check_url(hook.url)
    except Invalid as error:
        faults += error.errors
    faults += _faults_of_events(hook)
    _refuse(faults)
    hook.events = [event for event in HookEvent.values if event in hook.events]
    checked(hook)


def _faults_of_events(hook: Webhook) -> list[FieldError]:
    if not hook.events:
        return [FieldError(("events",), f"Choose from {', '.join(HookEvent.values)}.")]
    unknown = [str(event) for event in hook.events if event not in HookEvent.values]
    if unknown:
        detail = f"There is no event “{unknown[0]}”. Choose from {', '.join(HookEvent.values)}."
        return [FieldError(("events",), detail)]
    if HookEvent.GFR in hook.events and hook.tenant is not None:
        detail = (
            f"“{HookEvent.GFR.value}” is about clusters, which belong to all tenants. Only "
            "webhooks of the whole deployment can send it."
        )
        return [FieldError(("events",), detail)]
    return []


def _may_change(actor: User, tenant: Tenant | None) -> None:
    access = access_of(actor)
    if tenant is None:
        if not access.operator:
            raise NotAllowed(
                "Only operators can create webhooks of the whole deployment. Name a tenant that "
                "you administer."
            )
        return
    if not access.may_view(tenant.pk):
        raise NotFound(f"There is no tenant “{tenant.name}” that you may see.")
    if not access.may_administer(tenant.pk):
        raise NotAllowed(
            f"Only tenant admins of “{tenant.name}” and operators can change its webhooks."
        )


def _locked(actor: User, hook: Webhook, expected_version: int | None) -> Webhook:
    """The row as it is, which nobody else changes until the end of the transaction."""
    locks.keep(Tenant, [hook.tenant_id])
    rows = Webhook.objects.select_for_update(of=("self",)).select_related("tenant")
    found = rows.filter(pk=hook.pk).first()
    if found is None:
        raise NotFound(f"The webhook “{hook.name}” was deleted meanwhile.")
    _may_change(actor, found.tenant)
    if expected_version is not None and found.version != expected_version:
        raise Stale(
            f"The webhook “{found.name}” is at version {found.version}; you expected "
            f"{expected_version}. Read it again.",
            current_version=found.version,
            current=document_of(found),
        )
    return found


def _give_up(hooks: QuerySet[Webhook]) -> None:
    for hook in hooks:
        hook.deliveries.filter(state=DeliveryState.WAITING).update(
            state=DeliveryState.FAILED, outcome=GIVEN_UP, next_at=None
        )


def _shown_secret(hook: Webhook) -> str:
    return secret_of(hook) if hook.format == HookFormat.STANDARD else ""


def _refuse(faults: list[FieldError]) -> None:
    if faults:
        raise Invalid.fields(faults)


def _whose(hook: Webhook) -> str:
    return hook.tenant.name if hook.tenant else DEPLOYMENT


def _record(
    actor: User,
    action: str,
    hook: Webhook,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
    why: Why,
) -> None:
    audit.record(
        actor,
        action,
        f"{_whose(hook)} / {hook.name}",
        tenant=hook.tenant,
        before=before,
        after=after,
        reason=why.reason.strip(),
        source=why.source,
    )
