"""Webhooks over REST: rights, versions, secrets, tests, deliveries, the audit record."""

import json
from datetime import timedelta

import pytest

from tenants.models import AuditRecord, IdempotencyKey
from webhooks.models import HookDelivery, Webhook
from webhooks.services import hooks
from webhooks.signing import secret_of

LIST = "/api/v1/webhooks"
BODY = {"name": "on-call", "url": "https://example.com/hook", "events": ["job.failed"]}


def create(client, tenant="vision", query="", **more):
    return client.post(LIST + query, {**BODY, "tenant": tenant, **more}, format="json")


def patch(client, hook, version=1, query="", **body):
    headers = {"If-Match": f'"{version}"'}
    return client.patch(f"{LIST}/{hook}{query}", body, format="json", headers=headers)


@pytest.fixture
def ada(org):
    """Tenant admin of vision."""
    return org.client("ada")


def test_the_secret_is_shown_once_and_stored_nowhere(ada):
    headers = {"Idempotency-Key": "k"}
    body = {**BODY, "tenant": "vision"}
    made = ada.post(LIST, body, format="json", headers=headers)
    assert made.status_code == 201
    secret = made.json()["secret"]
    hook = Webhook.objects.get()
    assert secret == secret_of(hook)
    assert secret.startswith("whsec_")
    assert made["ETag"] == '"1"'
    assert ada.get(made["Location"]).json() == {
        name: value for name, value in made.json().items() if name != "secret"
    }
    everything = [
        vars(row) for m in (Webhook, AuditRecord, IdempotencyKey) for row in m.objects.all()
    ]
    assert secret not in str(everything)
    assert secret not in ada.get(LIST).content.decode()
    again = ada.post(LIST, body, format="json", headers=headers)
    assert again.json() == {**made.json(), "secret": None}
    assert Webhook.objects.count() == 1


def test_secrets_differ_by_webhook_and_by_the_key_of_the_site(ada, settings):
    secrets = {create(ada).json()["secret"] for _ in range(3)}
    assert len(secrets) == 3
    settings.SECRET_KEY = "another"
    assert secret_of(Webhook.objects.first()) not in secrets


@pytest.mark.parametrize(
    ("who", "tenant", "status"),
    [
        ("ops", None, 201), ("ops", "law", 201), ("root", "vision", 201), ("root", None, 403),
        ("ada", "vision", 201), ("ada", "vision-lab", 201), ("ada", "ml", 422),
        ("ada", "law", 422), ("ada", None, 403), ("eve", "vision", 403), ("vic", "vision", 403),
    ],
)  # fmt: skip
def test_who_may_make_one(org, who, tenant, status):
    answer = create(org.client(who), tenant)
    assert answer.status_code == status, answer.json()
    assert Webhook.objects.count() == (status == 201)


def test_who_may_see_and_change_one(org):
    of = {t: create(org.client("ops"), t).json()["id"] for t in (None, "vision", "law")}
    sees = {"ops": of.keys(), "root": {"vision"}, "ada": {"vision"}, "eve": set(), "lex": {"law"}}
    for who, tenants in sees.items():
        client = org.client(who)
        assert {each["tenant"] for each in client.get(LIST).json()["items"]} == set(tenants)
        for tenant, hook in of.items():
            expected = 200 if tenant in tenants else 404
            assert client.get(f"{LIST}/{hook}").status_code == expected
            assert client.get(f"{LIST}/{hook}/deliveries").status_code == expected
            assert patch(client, hook, query="?dry_run=true", name="x").status_code == expected
            for verb in ("test", "rotate"):
                answer = client.post(f"{LIST}/{hook}:{verb}?dry_run=true", {}, format="json")
                assert answer.status_code == expected, verb
    assert not HookDelivery.objects.exists()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("url", "https://10.0.0.1/", "not a public address"),
        ("url", "http://example.com/", "https://"),
        ("url", "nothing", "https://"),
        ("events", [], "Choose from"),
        ("events", ["job.startled"], "job.started"),
        ("events", ["gfr.high"], "deployment"),
        ("events", "job.failed", ""),
        ("name", "  ", "what it is for"),
        ("format", "xml", "standard"),
        ("pending_s", 5, "60"),
        ("gfr_percent", 0, ""),
        ("gfr_percent", 101, ""),
        ("tenant", "none-such", "none-such"),
        ("colour", "red", "Unknown field"),
    ],
)
def test_a_wrong_value_is_named(ada, field, value, said):
    answer = create(ada, **{field: value})
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["pointer"].startswith(f"/{field}")
    assert said in error["detail"]


def test_it_is_changed_at_its_version_only(ada):
    hook = create(ada).json()["id"]
    changed = patch(ada, hook, name="pager", events=["job.started", "job.failed"], reason="Move")
    assert changed.status_code == 200
    assert changed["ETag"] == '"2"'
    assert (changed.json()["name"], changed.json()["version"]) == ("pager", 2)
    stale = patch(ada, hook, name="late")
    assert (stale.status_code, stale.json()["current_version"]) == (412, 2)
    assert ada.patch(f"{LIST}/{hook}", {"name": "x"}, format="json").status_code == 428
    assert patch(ada, hook, 2).status_code == 422  # nothing to change
    gone = ada.delete(f"{LIST}/{hook}", headers={"If-Match": '"2"'})
    assert gone.status_code == 204
    assert ada.get(f"{LIST}/{hook}").status_code == 404
    records = AuditRecord.objects.order_by("at")
    assert [r.action for r in records] == ["webhook.created", "webhook.changed", "webhook.deleted"]
    assert records[1].subject == "vision / pager"
    assert (records[1].before["name"], records[1].after["name"]) == ("on-call", "pager")
    assert (records[1].reason, records[1].tenant.name) == ("Move", "vision")


def test_the_audit_trail_has_no_address_that_is_a_secret(ada):
    secret = "https://hooks.slack.com/services/T0/B0/abcdef"
    hook = create(ada, url=secret, format="slack").json()
    assert hook["secret"] is None
    patch(ada, hook["id"], url=f"{secret}2")
    stored = [json.dumps([r.before, r.after]) for r in AuditRecord.objects.all()]
    assert not any("services" in text for text in stored)
    changed = AuditRecord.objects.get(action="webhook.changed")
    assert changed.before["url"] != changed.after["url"]
    assert changed.after["url"].startswith("hooks.slack.com/…")


def test_a_secret_is_rotated_and_both_hold_for_a_day(ada, now):
    made = create(ada).json()
    answer = ada.post(f"{LIST}/{made['id']}:rotate", {"reason": "Leaked"}, format="json")
    assert answer.status_code == 200
    hook = Webhook.objects.get()
    assert answer.json()["secret"] == secret_of(hook) != made["secret"] == secret_of(hook, 1)
    assert hook.previous_until == now + timedelta(days=1)
    assert AuditRecord.objects.get(action="webhook.rotated").reason == "Leaked"
    slack = create(ada, format="slack").json()["id"]
    refused = ada.post(f"{LIST}/{slack}:rotate", {}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")


def test_turned_off_it_gives_up_what_waits(ada, now):
    hook = create(ada).json()["id"]
    row = HookDelivery.objects.create(
        webhook_id=hook, key="a", event="job.failed", body="{}", created_at=now, next_at=now
    )
    assert patch(ada, hook, is_on=False).json()["is_on"] is False
    row.refresh_from_db()
    assert (row.state, row.next_at) == ("failed", None)
    assert "turned off" in row.outcome
    Webhook.objects.update(off_reason="It failed.", failing_since=now)
    on = patch(ada, hook, 2, is_on=True).json()
    assert (on["off_reason"], on["failing_since"]) == ("", None)


def test_a_test_makes_a_delivery(ada):
    hook = create(ada).json()["id"]
    made = ada.post(f"{LIST}/{hook}:test", {}, format="json")
    assert made.status_code == 201
    assert (made.json()["event"], made.json()["state"]) == ("webhook.test", "waiting")
    one = ada.get(made["Location"]).json()
    assert json.loads(one["body"])["data"]["name"] == "on-call"
    for _ in range(4):
        assert ada.post(f"{LIST}/{hook}:test", {}, format="json").status_code == 201
    assert ada.post(f"{LIST}/{hook}:test", {}, format="json").status_code == 409


def test_deliveries_are_paged_filtered_and_sent_again(ada, now):
    hook = create(ada).json()["id"]
    for i in range(5):
        HookDelivery.objects.create(
            webhook_id=hook, key=f"k{i}", event="job.failed", body="{}",
            created_at=now - timedelta(minutes=i), state="failed" if i else "delivered", tries=3,
        )  # fmt: skip
    url = f"{LIST}/{hook}/deliveries"
    page = ada.get(f"{url}?limit=3").json()
    rest = ada.get(page["next"]).json()
    ages = [each["created_at"] for each in (*page["items"], *rest["items"])]
    assert len(ages) == 5
    assert ages == sorted(ages, reverse=True)
    assert "body" not in page["items"][0]
    assert len(ada.get(f"{url}?state=failed").json()["items"]) == 4
    assert ada.get(f"{url}?event=webhook.test").json()["items"] == []
    for query in ("state=lost", "event=x", "color=red", "cursor=x"):
        assert ada.get(f"{url}?{query}").status_code == 400, query
    last = page["items"][2]["id"]
    again = ada.post(f"{url}/{last}:redeliver", {}, format="json")
    assert (again.status_code, again.json()["state"], again.json()["tries"]) == (200, "waiting", 0)
    HookDelivery.objects.filter(pk=last).update(body="", state="failed")
    refused = ada.post(f"{url}/{last}:redeliver", {}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert ada.get(f"{url}/{last}").json()["body"] is None


def test_of_a_webhook_that_is_off_nothing_is_sent_again(ada, now):
    hook = create(ada, is_on=False).json()["id"]
    row = HookDelivery.objects.create(
        webhook_id=hook, key="k", event="job.failed", body="{}", created_at=now, state="failed"
    )
    refused = ada.post(f"{LIST}/{hook}/deliveries/{row.pk}:redeliver", {}, format="json")
    assert refused.status_code == 409
    assert "Turn it on" in refused.json()["detail"]


def test_there_are_no_more_than_so_many(ada, monkeypatch):
    monkeypatch.setattr(hooks, "MOST_HOOKS", 2)
    assert [create(ada).status_code for _ in range(3)] == [201, 201, 409]
    assert create(ada, "vision-lab").status_code == 201


def test_a_rehearsal_changes_nothing(ada):
    answer = create(ada, query="?dry_run=true")
    assert (answer.status_code, answer.json()["would"]) == (200, "create")
    hook = create(ada).json()["id"]
    assert patch(ada, hook, query="?dry_run=true", name="x").json()["would"] == "update"
    for verb in ("test", "rotate"):
        assert ada.post(f"{LIST}/{hook}:{verb}?dry_run=true", {}, format="json").status_code == 200
    row = Webhook.objects.get()
    assert (row.name, row.secret_number, row.version) == ("on-call", 1, 1)
    assert not HookDelivery.objects.exists()
    assert AuditRecord.objects.count() == 1


def test_lists_cost_the_same_for_many_as_for_one(ada, django_assert_max_num_queries):
    for _ in range(8):
        create(ada)
    with django_assert_max_num_queries(8):
        assert len(ada.get(LIST).json()["items"]) == 8
