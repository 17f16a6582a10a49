"""`kant webhooks …` against a real Kant server and a real receiver."""

import json

import pytest

from tests.webhooks.receiver import Receiver
from webhooks.models import Webhook
from webhooks.sending import rounds
from webhooks.signing import secret_of


@pytest.fixture
def ada(kant, settings):
    settings.EMBEDDED = True
    return kant.sign_in("ada")


def rows(out):
    return [line.split() for line in out.splitlines()]


def test_a_webhook_is_made_changed_and_deleted(ada):
    made = ("webhooks", "create", "on-call", "https://example.com/x", "-t", "vision")
    code, out, told = ada(*made, "-e", "job.failed", "-e", "job.started")
    hook = Webhook.objects.get()
    assert (code, out, told) == (0, f"{secret_of(hook)}\n", "")
    assert hook.events == ["job.started", "job.failed"]
    assert rows(ada("webhooks", "list")[1])[1][1:4] == ["on-call", "on", "vision"]
    code, out, told = ada("webhooks", "set", "on-call", "--off", "--pending", "120")
    assert (code, told) == (0, "")
    assert ["state", "off"] in rows(out)
    code, out, told = ada("webhooks", "rotate", str(hook.pk)[:8])
    hook.refresh_from_db()
    assert (code, out) == (0, f"{secret_of(hook)}\n")
    assert "signs as well until" in told
    assert (hook.secret_number, hook.is_on, hook.pending_s) == (2, False, 120)
    assert json.loads(ada("webhooks", "show", "on-call", "-o", "json")[1])["version"] == 3
    assert ada("webhooks", "delete", "on-call")[0] == 0
    assert not Webhook.objects.exists()


def test_a_refusal_names_the_field(ada):
    made = ("webhooks", "create", "x", "https://10.0.0.1/", "-t", "vision", "-e", "job.failed")
    code, _, told = ada(*made)
    assert code == 2
    assert "url: 10.0.0.1 is not a public address" in told
    assert ada("webhooks", "show", "none")[0] == 2
    assert ada("webhooks", "create", "x", "https://example.com/")[0] == 2  # without an event


@pytest.mark.parametrize(("path", "code"), [("/200", 0), ("/500", 1)])
def test_a_test_is_waited_for(ada, path, code, monkeypatch):
    # The worker runs while the command waits.
    monkeypatch.setattr("kant.client.webhooks.time.sleep", lambda _: rounds.send_due())
    with Receiver() as receiver:
        made = ("webhooks", "create", "x", receiver.url(path), "-t", "vision", "-e", "job.failed")
        assert ada(*made)[0] == 0
        found, out, told = ada("webhooks", "test", "x")
    assert found == code, told
    assert ("accepted: 200" in out) if not code else ("Not accepted: 500. answer 500" in told)
    out = ada("webhooks", "deliveries", "x")[1]
    assert rows(out)[1][1:3] == ["webhook.test", "delivered" if not code else "failed"]
    one = rows(out)[1][0]
    assert ada("webhooks", "redeliver", "x", one)[:2] == (0, f"{one} is sent again.\n")
