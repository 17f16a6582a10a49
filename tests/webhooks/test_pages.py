"""The webhook pages for each role, without a browser."""

import pytest

from tenants import texts
from webhooks.models import HookDelivery, Webhook
from webhooks.signing import secret_of

FORM = {
    "name": "pager-7", "url": "https://example.com/x", "format": "standard", "tenant": "vision",
    "events": ["job.failed"], "pending_min": "60", "reason": "",
}  # fmt: skip


@pytest.fixture
def as_user(org, client):
    def sign_in(who):
        client.force_login(org.users[who])
        return client

    return sign_in


def text(answer):
    return answer.content.decode()


def test_a_webhook_is_made_and_its_secret_shown_once(as_user):
    ada = as_user("ada")
    assert "No webhooks yet" in text(ada.get("/webhooks/"))
    form = text(ada.get("/webhooks/new/?tenant=vision"))
    assert "The whole deployment" not in form
    assert "GFR" not in form
    answer = ada.post("/webhooks/new/", FORM)
    hook = Webhook.objects.get()
    assert answer.status_code == 302
    assert answer["Location"] == f"/webhooks/{hook.pk}/"
    shown = ada.get(answer["Location"])
    assert secret_of(hook) in text(shown)
    assert shown["Cache-Control"] == "no-store"
    assert secret_of(hook) not in text(ada.get(answer["Location"]))
    assert "pager-7" in text(ada.get("/webhooks/?tenant=vision"))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("url", "https://10.0.0.1/", "not a public address"),
        ("name", "", texts.FILL_IN),
        ("events", [], texts.FILL_IN),
        ("pending_min", "0", "Must be"),
        ("pending_min", "soon", "number"),
        ("tenant", "law", "Choose one of"),
    ],
)
def test_what_is_wrong_stands_at_its_field_and_nothing_typed_is_lost(as_user, field, value, said):
    answer = as_user("ada").post("/webhooks/new/", {**FORM, field: value})
    assert answer.status_code == 422
    assert said in text(answer)
    assert ("pager-7" in text(answer)) is (field != "name")
    assert not Webhook.objects.exists()


def test_an_operator_makes_one_of_the_whole_deployment(as_user):
    ops = as_user("ops")
    form = {**FORM, "tenant": "", "events": ["gfr.high"], "gfr_percent": "12.5"}
    assert ops.post("/webhooks/new/", form).status_code == 302
    hook = Webhook.objects.get()
    assert (hook.tenant, hook.gfr_percent) == (None, 12.5)


def test_who_administers_nothing_is_told_so(as_user):
    eve = as_user("eve")
    assert "Webhooks are for tenant admins" in text(eve.get("/webhooks/"))
    assert eve.get("/webhooks/new/").status_code == 404


def test_nobody_else_opens_it(as_user, org, hook_at):
    hook = hook_at("https://example.com/x", org.tenants["vision"])
    paths = [f"/webhooks/{hook.pk}/", f"/webhooks/{hook.pk}/settings/"]
    for who in ("eve", "lex"):
        client = as_user(who)
        assert [client.get(path).status_code for path in paths] == [404, 404]
        assert client.post(f"/webhooks/{hook.pk}/delete/").status_code == 404
    assert [as_user("root").get(path).status_code for path in paths] == [200, 200]


def test_settings_are_set_at_the_version_that_was_read(as_user, org, hook_at):
    hook = hook_at("https://example.com/x", org.tenants["vision"])
    ada, url = as_user("ada"), f"/webhooks/{hook.pk}/settings/"
    assert 'name="version" value="1"' in text(ada.get(url))
    form = {**FORM, "name": "pager", "version": "1"}
    assert ada.post(url, form).status_code == 302
    late = ada.post(url, {**form, "name": "late"})
    assert late.status_code == 422
    assert "version 2" in text(late)
    hook.refresh_from_db()
    assert hook.name == "pager"
    for version in ("", "x", "9" * 30):
        assert ada.post(url, {**form, "version": version}).status_code == 422


def test_its_buttons(as_user, org, hook_at):
    hook = hook_at("https://example.com/x", org.tenants["vision"])
    ada, page = as_user("ada"), f"/webhooks/{hook.pk}/"

    def press(verb):
        answer = ada.post(f"{page}{verb}/")
        assert answer.status_code == 302
        hook.refresh_from_db()
        return text(ada.get(answer["Location"]))

    assert "webhook.test" in press("test")
    press("off")
    assert not hook.is_on
    press("on")
    assert hook.is_on
    assert secret_of(hook, 2) in press("rotate")
    assert ada.get(f"{page}delete/").status_code == 405
    assert ada.post(f"{page}explode/").status_code == 404
    assert ada.post(f"{page}delete/").status_code == 302
    assert not Webhook.objects.exists()


def test_kant_says_why_it_turned_one_off(as_user, hook_at):
    hook = hook_at("https://example.com/x", is_on=False, off_reason="Nothing for 5 days.")
    page = text(as_user("ops").get(f"/webhooks/{hook.pk}/"))
    assert "Kant turned it off" in page
    assert "Nothing for 5 days." in page
    assert "turned off by Kant" in text(as_user("ops").get("/webhooks/"))


def test_a_delivery_shows_what_is_sent_and_is_sent_again(as_user, hook_at, now):
    hook = hook_at("https://example.com/x", format="slack")
    row = HookDelivery.objects.create(
        webhook=hook, key="k", event="job.failed", body='{"text":"<b>&"}', created_at=now,
        state="failed", tries=8, outcome="<script>alert(1)</script>",
    )  # fmt: skip
    url = f"/webhooks/{hook.pk}/deliveries/{row.pk}/"
    ops = as_user("ops")
    page = text(ops.get(url))
    assert "&lt;b&gt;&amp;" in page
    assert "<script>alert" not in page
    assert ops.post(f"{url}again/").status_code == 302
    row.refresh_from_db()
    assert (row.state, row.tries) == ("waiting", 0)
    HookDelivery.objects.update(body="", state="failed")
    assert "No longer kept" in text(ops.get(url))


def test_deliveries_are_paged(as_user, hook_at, now):
    hook = hook_at("https://example.com/x")
    HookDelivery.objects.bulk_create(
        HookDelivery(
            webhook=hook, key=f"k{i}", event="job.failed", created_at=now, state="failed",
            subject=f"job-{i}-",
        )
        for i in range(60)
    )  # fmt: skip
    ops, page = as_user("ops"), f"/webhooks/{hook.pk}/"
    first = text(ops.get(page))
    older = first.split("?before=")[1].split('"')[0]
    second = text(ops.get(f"{page}?before={older}"))
    seen = [sum(f"job-{i}-" in each for i in range(60)) for each in (first, second)]
    assert seen == [50, 10]
    for query in ("before=x", "before=00000000-0000-0000-0000-000000000000"):
        assert ops.get(f"{page}?{query}").status_code == 404
    assert "None of this state" in text(ops.get(f"{page}?state=waiting"))
