"""Due deliveries reach their receivers, signed; a bad receiver does not delay others."""

import asyncio
import base64
import json
import socket
import subprocess
from collections import Counter
from datetime import timedelta

import pytest
from django.utils import timezone

from tenants.models import AuditRecord
from webhooks import signing
from webhooks.models import TEST, DeliveryState, HookDelivery, HookOutbox, Webhook
from webhooks.sending import post as posting
from webhooks.sending import rounds
from webhooks.sending.addresses import check_url
from webhooks.services.deliveries import ask_for_test, deliver_again, forget_old_deliveries

# The sending thread does not read the database, so the test's transaction is enough.
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """However busy the machine is, do not give up on a receiver that answers."""
    for name in ("TIMEOUT_S", "CONNECT_S", "READ_S"):
        monkeypatch.setattr(posting, name, 60.0)
    monkeypatch.setattr(rounds, "LOOKS_S", 0.05)


def due(hook, now, count=1, **more):
    """Return the deliveries that are due, or the first of them."""
    more = {"event": "job.started", "body": '{"grüße":"€"}', "created_at": now, **more}
    rows = [
        HookDelivery(webhook=hook, key=f"k{i}-{more['event']}", next_at=now, **more)
        for i in range(count)
    ]
    HookDelivery.objects.bulk_create(rows)
    return rows[0]


def again(delivery):
    delivery.refresh_from_db()
    return delivery


def verified(secret, request):
    """Return whether one of the signatures was made with that secret, as OpenSSL computes it."""
    key = base64.b64decode(secret.removeprefix("whsec_")).hex()
    names = ("webhook-id", "webhook-timestamp")
    content = ".".join((*(request.headers[n] for n in names), request.body)).encode()
    mac = ["openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt", f"hexkey:{key}", "-binary"]
    made = subprocess.run(mac, input=content, capture_output=True, check=True).stdout
    expected = f"v1,{base64.b64encode(made).decode()}"
    return expected in request.headers["webhook-signature"].split(" ")


def test_a_delivery_is_signed_as_standard_webhooks_says(hook_at, receiver, now):
    hook = hook_at(receiver.url())
    delivery = due(hook, now)
    assert rounds.send_due() == 1
    request = receiver.requests[0]
    assert request.body == delivery.body
    assert request.headers["content-type"] == "application/json"
    assert request.headers["webhook-id"] == f"msg_{delivery.pk.hex}"
    assert request.headers["webhook-timestamp"] == str(int(now.timestamp()))
    assert verified(signing.secret_of(hook), request)
    other = Webhook(pk=delivery.pk)
    assert not verified(signing.secret_of(other), request)
    found = again(delivery)
    assert (found.state, found.tries, found.status) == ("delivered", 1, 200)
    assert found.outcome == "answer 200"
    assert found.next_at is None
    hook.refresh_from_db()
    assert (hook.last_ok_at, hook.failing_since) == (now, None)
    assert rounds.send_due() == 0


def test_the_example_of_the_specification(monkeypatch):
    """The specification's secret, id, time and body give the signature that it prints."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    monkeypatch.setattr(signing, "_key", lambda *_: key)
    at = timezone.now().fromtimestamp(1614265330, tz=timezone.now().tzinfo)
    delivery = HookDelivery(body='{"test": 2432232314}')
    monkeypatch.setattr(
        HookDelivery, "pk", type("Pk", (), {"hex": "p5jXN8AQM9LWM0D4loKWxJek"}), raising=False
    )
    found = signing.signed(Webhook(), delivery, at)
    assert found["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_for_a_while_after_a_rotation_both_secrets_sign(hook_at, receiver, now):
    hook = hook_at(receiver.url(), secret_number=2, previous_until=now + timedelta(hours=1))
    old, new = signing.secret_of(hook, 1), signing.secret_of(hook)
    assert old != new
    due(hook, now)
    rounds.send_due()
    assert verified(old, receiver.requests[0])
    assert verified(new, receiver.requests[0])
    Webhook.objects.update(previous_until=now - timedelta(seconds=1))
    due(hook, now, event="job.failed")
    rounds.send_due()
    assert verified(new, receiver.requests[1])
    assert not verified(old, receiver.requests[1])


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/500", 500, "answer 500"),
        ("/404", 404, "answer 404"),
        ("/redirect", 302, "redirects"),
        ("/silent", None, ""),
        ("/garbage", None, ""),
        ("/slow", None, "No answer within"),
    ],
)
def test_what_is_not_taken_is_tried_again_later(
    hook_at, receiver, now, monkeypatch, path, status, said
):
    if path == "/slow":
        monkeypatch.setattr(posting, "TIMEOUT_S", 0.6)
    hook = hook_at(receiver.url(path))
    delivery = due(hook, now)
    rounds.send_due()
    found = again(delivery)
    assert (found.state, found.tries, found.status) == ("waiting", 1, status)
    assert said in found.outcome
    assert found.outcome
    assert timedelta(seconds=5) <= found.next_at - now <= timedelta(seconds=5.5)
    hook.refresh_from_db()
    assert hook.failing_since == now
    assert hook.is_on
    # Redirects are not followed. An abandoned request may not have been sent completely.
    assert set(receiver.paths) <= {path}


@pytest.mark.parametrize("path", ["/endless", "/lies"])
def test_an_answer_that_lies_about_its_length_is_taken_by_its_code(hook_at, receiver, now, path):
    delivery = due(hook_at(receiver.url(path)), now)
    rounds.send_due()
    assert again(delivery).state == "delivered"
    assert len(delivery.outcome) <= 300


def test_tries_go_on_for_about_a_day(hook_at, receiver, now, monkeypatch):
    hook = hook_at(receiver.url("/500"))
    delivery, at, times = due(hook, now), now, []
    while again(delivery).next_at is not None:
        at = delivery.next_at
        monkeypatch.setattr(timezone, "now", lambda at=at: at)
        rounds.send_due()
        times.append((at - now).total_seconds())
    assert delivery.state == DeliveryState.FAILED
    assert delivery.tries == len(times) == 8
    assert times[0] == 0
    assert 5 <= times[1] < 6
    assert 27 * 3600 < times[-1] < 31 * 3600
    assert len({r.headers["webhook-id"] for r in receiver.requests}) == 1
    assert len({r.headers["webhook-timestamp"] for r in receiver.requests}) == 8


def test_a_receiver_may_ask_for_some_time(hook_at, receiver, now):
    delivery = due(hook_at(receiver.url("/busy")), now)
    rounds.send_due()
    assert again(delivery).next_at == now + timedelta(hours=1)


def test_one_that_wants_no_more_is_turned_off(hook_at, receiver, now):
    hook = hook_at(receiver.url("/410"))
    delivery = due(hook, now)
    later = due(hook, now + timedelta(hours=1), event="job.failed")
    rounds.send_due()
    hook.refresh_from_db()
    assert not hook.is_on
    assert "410" in hook.off_reason
    assert again(delivery).state == again(later).state == "failed"
    record = AuditRecord.objects.get()
    assert (record.action, record.actor_name) == ("webhook.changed", "Kant")
    assert (record.before["is_on"], record.after["is_on"]) == (True, False)


def test_after_days_without_success_it_is_turned_off(hook_at, receiver, now):
    hook = hook_at(receiver.url("/500"), failing_since=now - timedelta(days=4, hours=23))
    due(hook, now, tries=7)
    rounds.send_due()
    hook.refresh_from_db()
    assert hook.is_on  # not long enough
    Webhook.objects.update(failing_since=now - timedelta(days=5, seconds=1))
    due(hook, now, event="job.failed", tries=7)
    rounds.send_due()
    hook.refresh_from_db()
    assert not hook.is_on
    assert "5 days" in hook.off_reason
    assert "answer 500" in hook.off_reason


def test_a_success_ends_the_failure(hook_at, receiver, now):
    hook = hook_at(receiver.url(), failing_since=now - timedelta(days=9))
    due(hook, now)
    rounds.send_due()
    hook.refresh_from_db()
    assert hook.failing_since is None


def test_a_slow_receiver_keeps_nobody_waiting(hook_at, receiver, now, monkeypatch):
    """The slow receiver gets no more than its share of connections; the other one gets all its
    deliveries before the first of the slow ones is over."""
    slow, quick = hook_at(receiver.url("/slow")), hook_at(receiver.url("/200"))
    due(slow, now, 8)
    due(quick, now, 20)
    under_way, most = Counter(), Counter()

    async def counted(client, url, *given):
        under_way[url] += 1
        most[url] = max(most[url], under_way[url])
        try:
            return await posting.post(client, url, *given)
        finally:
            under_way[url] -= 1

    monkeypatch.setattr(rounds, "post", counted)
    receiver.slow_until = {"/200": 20, "/slow": rounds.OF_A_HOOK}
    assert rounds.send_due(budget_s=60) == 28
    assert receiver.ended.is_set(), "the quick one waits for the slow one"
    assert most[slow.url] == rounds.OF_A_HOOK
    assert most[quick.url] <= rounds.OF_A_HOOK
    assert quick.deliveries.filter(state="delivered").count() == 20


def test_one_process_sends_at_a_time_and_one_that_died_is_replaced(hook_at, receiver, now):
    delivery = due(hook_at(receiver.url()), now)
    rounds.outbox_now(now)
    HookOutbox.objects.update(sender="other/1/2", sender_until=now + timedelta(seconds=10))
    assert rounds.send_due() == 0
    HookOutbox.objects.update(sender_until=now - timedelta(seconds=1))
    assert rounds.send_due() == 1
    assert again(delivery).state == "delivered"
    assert HookOutbox.objects.get().sender == ""


def test_what_was_on_its_way_when_its_sender_died_is_sent_again(
    hook_at, receiver, now, monkeypatch
):
    delivery = due(hook_at(receiver.url()), now)

    def die(*_):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(rounds, "_record", die)
        with pytest.raises(RuntimeError):
            rounds.send_due()
    assert (again(delivery).state, delivery.tries) == ("waiting", 1)
    assert now < delivery.next_at <= now + timedelta(minutes=1)
    monkeypatch.setattr(timezone, "now", lambda: delivery.next_at)
    assert rounds.send_due() == 1
    assert (again(delivery).state, delivery.tries) == ("delivered", 2)


def test_slack_gets_its_message_without_a_signature(hook_at, receiver, now):
    hook = hook_at(receiver.url(), format="slack")
    delivery = ask_for_test(hook)
    rounds.send_due()
    request = receiver.requests[0]
    assert set(json.loads(request.body)) == {"text"}
    assert "webhook-signature" not in request.headers
    assert again(delivery).state == "delivered"


def test_a_test_is_sent_once_also_of_a_webhook_that_is_off(hook_at, receiver, now):
    hook = hook_at(receiver.url("/500"), is_on=False)
    delivery, other = ask_for_test(hook), due(hook, now)
    rounds.send_due()
    assert receiver.paths == ["/500"]
    assert again(delivery).state == "failed"
    assert again(other).tries == 0
    hook.refresh_from_db()
    assert hook.failing_since is None
    assert delivery.event == TEST


def test_again_means_with_the_same_id(hook_at, receiver, now):
    delivery = due(hook_at(receiver.url("/500")), now, tries=7)
    rounds.send_due()
    assert again(delivery).state == "failed"
    receiver.answered_as["/500"] = 200
    deliver_again(delivery)
    rounds.send_due()
    assert (again(delivery).state, delivery.tries) == ("delivered", 1)
    assert len({r.headers["webhook-id"] for r in receiver.requests}) == 1


# --- addresses at the time of the connection ------------------------------------------------------
def tried(url):
    async def once():
        async with posting.session() as client:
            return await posting.post(client, url, "{}", {})

    return asyncio.run(once())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]"])
def test_no_name_for_this_machine_is_connected_to(settings, receiver, host):
    settings.EMBEDDED = settings.DEBUG = False
    found = tried(receiver.url().replace("127.0.0.1", host))
    assert found.status is None
    assert "is not a " in found.outcome, found  # public, or canonical
    assert receiver.requests == []


def test_a_name_that_leads_elsewhere_by_the_time_of_the_connection(
    settings, receiver, hook_at, now, monkeypatch
):
    """The address was allowed when the webhook was created and is private now (DNS rebinding)."""
    settings.EMBEDDED = settings.DEBUG = False
    check_url("https://rebinding.example/hook")

    async def resolve(_self, host, port=0, family=0):
        return [
            {"hostname": host, "host": "127.0.0.1", "port": port, "family": 2, "proto": 6,
             "flags": 0}
        ]  # fmt: skip

    monkeypatch.setattr("aiohttp.resolver.ThreadedResolver.resolve", resolve)
    monkeypatch.setattr("aiohttp.resolver.AsyncResolver.resolve", resolve, raising=False)
    delivery = due(hook_at(receiver.url().replace("127.0.0.1", "rebinding.example")), now)
    rounds.send_due()
    assert "127.0.0.1 is not a public address" in again(delivery).outcome
    assert "KANT_WEBHOOK_NETWORKS" in delivery.outcome
    assert receiver.requests == []


def test_a_receiver_that_is_not_there_is_told_in_words(receiver):
    with socket.socket() as taken:  # nobody listens on it
        taken.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        assert tried(closed).outcome == "No connection: Connection refused."
    told = tried("http://no-such-host.invalid/").outcome
    assert told.startswith(("Its host name cannot be resolved: ", "No answer within "))


def test_an_operator_may_allow_a_network(settings, receiver):
    settings.EMBEDDED = settings.DEBUG = False
    settings.KANT_WEBHOOK_NETWORKS = ["127.0.0.0/8"]
    assert tried(receiver.url()).taken


def test_proxies_of_the_environment_are_not_used(receiver, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    assert tried(receiver.url()).taken


# --- retention ------------------------------------------------------------------------------------
def test_old_deliveries_go_and_their_bodies_before(hook_at, now):
    hook = hook_at("http://127.0.0.1:1/")
    ages = {"new": 1, "thinned": 4, "gone": 15}
    for name, days in ages.items():
        at = now - timedelta(days=days)
        for state in ("delivered", "waiting"):
            due(hook, at, event=f"{name}-{state}", state=state)
    assert forget_old_deliveries(now) == 2
    left = {d.event: bool(d.body) for d in HookDelivery.objects.all()}
    assert left == {
        "new-delivered": True, "new-waiting": True, "thinned-delivered": False,
        "thinned-waiting": True, "gone-waiting": True,
    }  # fmt: skip
    assert forget_old_deliveries(now) == 0
