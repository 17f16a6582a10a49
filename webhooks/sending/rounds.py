"""Who sends, what, and when again. One process sends at a time, many deliveries at once; each
webhook has its own few of them, so that a slow receiver keeps nobody else waiting."""

import asyncio
import os
import queue
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from random import Random

import aiohttp
from django.db.models import Q, QuerySet
from django.utils import timezone

from webhooks.models import TEST, DeliveryState, HookDelivery, HookFormat, HookOutbox, Webhook
from webhooks.outbox.collect import outbox_now
from webhooks.sending.post import GONE, TIMEOUT_S, Tried, post, session
from webhooks.services.hooks import turn_off
from webhooks.signing import signed

# Pauses after the first, second, … try, as the specification suggests: the last one is 27 hours
# after the event. Tests are not repeated: somebody looks.
PAUSES_S = (5, 300, 1800, 2 * 3600, 5 * 3600, 10 * 3600, 10 * 3600)
JITTER = 0.1
MOST_RETRY_S = 3600  # a receiver may ask for no longer
# Nothing delivered for so long, and one given up: it is turned off.
PATIENCE = timedelta(days=5)
AT_ONCE, OF_A_HOOK = 128, 4
BUDGET_S = 20.0  # of a round: then what is under way ends, and other tasks have their turn
LOOKS_S = 0.5  # how often it is looked for what became due meanwhile
LEASE = timedelta(seconds=3 * (BUDGET_S + TIMEOUT_S))
# What was on its way when its sender died is tried again after this.
LOST = timedelta(seconds=3 * TIMEOUT_S)
OK_EVERY = timedelta(minutes=1)  # a good webhook costs no write for each delivery

_jitter = Random()


def send_due(budget_s: float = BUDGET_S) -> int:
    """Send what is due, for about so long; returns how many tries. Nothing while another process
    does."""
    if not _due(timezone.now()).exists():
        return 0
    with _turn() as mine:
        return _Round(budget_s).run() if mine else 0


class _Round:
    """Deliveries are taken and written down by this thread; another one speaks to receivers."""

    def __init__(self, budget_s: float) -> None:
        self._until = time.monotonic() + budget_s
        self._done: queue.SimpleQueue[tuple[HookDelivery, Tried]] = queue.SimpleQueue()
        self._under_way: Counter[uuid.UUID] = Counter()
        self._loop = asyncio.new_event_loop()

    def run(self) -> int:
        thread = threading.Thread(target=self._loop.run_forever, name="webhooks", daemon=True)
        thread.start()
        client = asyncio.run_coroutine_threadsafe(_opened(), self._loop).result()
        tries = 0
        try:
            while True:
                begun = self._take(client) if time.monotonic() < self._until else 0
                tries += begun
                if not self._under_way.total():
                    return tries
                self._record_finished()
        finally:
            asyncio.run_coroutine_threadsafe(client.close(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    def _record_finished(self) -> None:
        """Of those tries that are over, or will be in a moment."""
        try:
            delivery, tried = self._done.get(timeout=LOOKS_S)
        except queue.Empty:
            return
        self._under_way[delivery.webhook_id] -= 1
        _record(delivery, tried)

    def _take(self, client: aiohttp.ClientSession) -> int:
        """Begin tries of what is due, as many as may be under way; returns how many."""
        now, begun = timezone.now(), 0
        hooks = _due(now).order_by().values_list("webhook", flat=True).distinct()
        for hook_id in list(hooks):
            room = min(OF_A_HOOK - self._under_way[hook_id], AT_ONCE - self._under_way.total())
            if room <= 0:
                continue
            due = _due(now).filter(webhook=hook_id).select_related("webhook")
            for delivery in due.order_by("next_at", "created_at")[:room]:
                # Before it is sent: a sender that dies has tried.
                delivery.tries += 1
                HookDelivery.objects.filter(pk=delivery.pk).update(
                    tries=delivery.tries, tried_at=now, next_at=now + LOST
                )
                self._begin(client, delivery, now)
                begun += 1
        return begun

    def _begin(self, client: aiohttp.ClientSession, delivery: HookDelivery, now: datetime) -> None:
        hook = delivery.webhook
        headers = signed(hook, delivery, now) if hook.format == HookFormat.STANDARD else {}

        async def tried() -> None:
            self._done.put((delivery, await post(client, hook.url, delivery.body, headers)))

        self._under_way[hook.pk] += 1
        asyncio.run_coroutine_threadsafe(tried(), self._loop)


async def _opened() -> aiohttp.ClientSession:
    return session()


def _due(now: datetime) -> QuerySet[HookDelivery]:
    """What is to be tried now; also tests of webhooks that are off."""
    return HookDelivery.objects.filter(
        Q(webhook__is_on=True) | Q(event=TEST), state=DeliveryState.WAITING, next_at__lte=now
    )


@contextmanager
def _turn() -> Iterator[bool]:
    """Whether this thread is the one that sends, as long as the context lasts."""
    now = timezone.now()
    outbox_now(now)
    me = f"{socket.gethostname()[:32]}/{os.getpid()}/{threading.get_ident() % 10**6}"
    free = Q(sender="") | Q(sender_until__lt=now)
    mine = HookOutbox.objects.filter(free, pk=1).update(sender=me, sender_until=now + LEASE)
    try:
        yield bool(mine)
    finally:
        if mine:
            HookOutbox.objects.filter(pk=1, sender=me).update(sender="", sender_until=None)


# --- what became of it ----------------------------------------------------------------------------
def _record(delivery: HookDelivery, tried: Tried) -> None:
    now = timezone.now()
    delivery.status, delivery.took_ms = tried.status, tried.took_ms
    delivery.outcome = tried.outcome[:300]
    delivery.state, delivery.next_at = _what_next(delivery, tried, now)
    # Not of one that was given up meanwhile because its webhook was turned off, unless it arrived.
    there = HookDelivery.objects.filter(pk=delivery.pk)
    if not tried.taken:
        there = there.filter(state=DeliveryState.WAITING)
    there.update(
        **{
            name: getattr(delivery, name)
            for name in ("status", "took_ms", "outcome", "state", "next_at")
        }
    )
    if delivery.event != TEST:
        _remember(delivery, tried, now)


def _what_next(delivery: HookDelivery, tried: Tried, now: datetime) -> tuple[str, datetime | None]:
    if tried.taken:
        return DeliveryState.DELIVERED.value, None
    if delivery.event == TEST or delivery.tries > len(PAUSES_S) or tried.status == GONE:
        return DeliveryState.FAILED.value, None
    pause = PAUSES_S[delivery.tries - 1] * (1 + JITTER * _jitter.random())
    pause = max(pause, min(tried.retry_s or 0, MOST_RETRY_S))
    return DeliveryState.WAITING.value, now + timedelta(seconds=pause)


def _remember(delivery: HookDelivery, tried: Tried, now: datetime) -> None:
    """What the try means for its webhook."""
    rows = Webhook.objects.filter(pk=delivery.webhook_id)
    if tried.taken:
        old = Q(failing_since__isnull=False) | Q(last_ok_at=None) | Q(last_ok_at__lt=now - OK_EVERY)
        rows.filter(old).update(failing_since=None, last_ok_at=now)
        return
    rows.filter(failing_since=None).update(failing_since=now)
    if tried.status == GONE:
        turn_off(rows, "Its receiver answered 410 Gone: it wants no more events.")
    elif delivery.state == DeliveryState.FAILED:
        turn_off(
            rows.filter(failing_since__lt=now - PATIENCE),
            f"Nothing could be delivered for {PATIENCE.days} days. Last: "
            f"{tried.outcome or f'the answer {tried.status}'}",
        )
