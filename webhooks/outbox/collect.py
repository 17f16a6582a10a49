"""One step of the reader: what happened becomes deliveries of the webhooks that asked for it."""

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Count, F, Max

from scheduling.models import JobEvent
from tenants.database.chunks import CHUNK, chunks
from tenants.selectors import parents_by_id, subtree_ids
from webhooks.models import TEST, DeliveryState, HookDelivery, HookEvent, HookOutbox, Webhook
from webhooks.outbox.happened import job_news, quota_news
from webhooks.outbox.messages import HookMessage, body_of
from webhooks.outbox.watched import EVERY, fragmented, gfr_of_clusters, overdue

# More than that do not wait for one webhook: events beyond are counted, and not told.
MOST_WAITING = 10_000
QUOTA = HookEvent.QUOTA.value


def outbox_now(now: datetime) -> HookOutbox:
    """The one row, made where there is none yet, which has read all that there is."""
    found = HookOutbox.objects.filter(pk=1).first()
    if found is None:
        new = {"read_to": _newest(), "audited_to": now, "watched_at": now}
        found, _ = HookOutbox.objects.get_or_create(pk=1, defaults=new)
    return found


def begin_at(now: datetime) -> None:
    """For the first webhook that is on: nothing that happened before is read. To be called in the
    transaction that turns it on, before it does."""
    outbox_now(now)
    if not Webhook.objects.filter(is_on=True).exists():
        HookOutbox.objects.filter(pk=1).update(
            read_to=_newest(), gaps=[], audited_to=now, watched_at=now, version=F("version") + 1
        )


def collect(now: datetime) -> int:
    """Write the deliveries that are due to what happened; returns how many. Nothing is read while
    no webhook is on. Of two that do so at once one does nothing."""
    hooks = list(Webhook.objects.filter(is_on=True).select_related("tenant"))
    if not hooks:
        return 0
    outbox = outbox_now(now)
    wanted = {event for hook in hooks for event in hook.events}
    served = _served(hooks)
    jobs = job_news(outbox, wanted, now)
    messages = list(jobs.messages)
    audited_to = now
    if QUOTA in wanted:
        quotas, audited_to = quota_news(outbox, now)
        messages += quotas
    told = {hook.pk: [m for m in messages if _is_told(m, hook, served[hook.pk])] for hook in hooks}
    looks = now - outbox.watched_at >= EVERY
    changed = _look(hooks, served, told, now) if looks else []
    news = any(told.values())
    read_on = jobs.read_to > outbox.read_to or list(map(list, jobs.gaps)) != outbox.gaps
    # Records of the audit trail are looked at again, so that nothing need be written for them.
    if not (news or read_on or looks or audited_to - outbox.audited_to > timedelta(minutes=1)):
        return 0
    with transaction.atomic():
        mine = HookOutbox.objects.filter(pk=1, version=outbox.version).update(
            version=F("version") + 1,
            read_to=jobs.read_to,
            gaps=[list(gap) for gap in jobs.gaps],
            audited_to=audited_to,
            watched_at=now if looks else outbox.watched_at,
        )
        if not mine:
            return 0
        written = _write(hooks, told, now)
        Webhook.objects.bulk_update(changed, ["high", "pending_until"], batch_size=CHUNK)
    return written


def _look(
    hooks: Iterable[Webhook],
    served: Mapping[uuid.UUID, Collection[int] | None],
    told: Mapping[uuid.UUID, list[HookMessage]],
    now: datetime,
) -> list[Webhook]:
    """Add to what is told what has lasted too long or become too much; returns the hooks that have
    to remember it."""
    gfr: dict[str, float] | None = None
    changed = []
    for hook in hooks:
        waits: list[HookMessage] = []
        high = hook.high
        if HookEvent.PENDING_LONG in hook.events:
            waits, until = overdue(hook, served[hook.pk], now)
            told[hook.pk].extend(waits)
        if HookEvent.GFR in hook.events:
            gfr = gfr_of_clusters(now) if gfr is None else gfr
            found, high = fragmented(hook, gfr, now)
            told[hook.pk].extend(found)
        if waits:
            hook.pending_until = until
        if waits or high != hook.high:
            hook.high = high
            changed.append(hook)
    return changed


def _write(
    hooks: Iterable[Webhook], told: Mapping[uuid.UUID, list[HookMessage]], now: datetime
) -> int:
    waiting = Counter(
        dict(
            HookDelivery.objects.filter(state=DeliveryState.WAITING)
            .exclude(event=TEST)
            .order_by()
            .values_list("webhook")
            .annotate(Count("id"))
        )
        if any(told.values())
        else {}
    )
    rows = []
    for hook in hooks:
        messages = _not_told_yet(hook, told[hook.pk])
        room = max(0, MOST_WAITING - waiting[hook.pk])
        rows += [delivery_of(hook, message, now) for message in messages[:room]]
        if skipped := len(messages[room:]):
            Webhook.objects.filter(pk=hook.pk).update(skipped=F("skipped") + skipped)
    HookDelivery.objects.bulk_create(rows, batch_size=CHUNK, ignore_conflicts=True)
    return len(rows)


def _not_told_yet(hook: Webhook, messages: list[HookMessage]) -> list[HookMessage]:
    """Some are read twice, so that none is missed."""
    if not messages:
        return []
    keys = [message.key for message in messages]
    known: set[str] = set()
    for some in chunks(keys):
        known.update(hook.deliveries.filter(key__in=some).values_list("key", flat=True))
    return [message for message in messages if message.key not in known]


def delivery_of(hook: Webhook, message: HookMessage, now: datetime) -> HookDelivery:
    """The row of a message that a webhook is to be told at once."""
    return HookDelivery(
        webhook=hook,
        key=message.key,
        event=message.event,
        subject=message.subject,
        body=body_of(message, hook),
        created_at=now,
        next_at=now,
    )


def _is_told(message: HookMessage, hook: Webhook, served: Collection[int] | None) -> bool:
    if message.event not in hook.events or message.at < hook.since:
        return False
    return served is None or message.tenant_id in served


def _served(hooks: Iterable[Webhook]) -> dict[uuid.UUID, Collection[int] | None]:
    """Of each webhook the tenants whose events it is told; None = all."""
    parents = parents_by_id()
    return {
        hook.pk: None if hook.tenant_id is None else subtree_ids(hook.tenant_id, parents)
        for hook in hooks
    }


def _newest() -> int:
    return JobEvent.objects.aggregate(newest=Max("id"))["newest"] or 0
