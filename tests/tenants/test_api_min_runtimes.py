"""The minimum run time of a tenant over REST: who sets it, to what, and who has it from above."""

import pytest

from tenants.models import MAX_MIN_RUNTIME_S, AuditRecord, Tenant

URL = "/api/v1/tenants"


@pytest.fixture
def ops(org):
    return org.client("ops")


def set_to(client, tenant, seconds, **more):
    return client.patch(f"{URL}/{tenant}", {"min_runtime_s": seconds, **more}, format="json")


def in_force(client):
    return {t["name"]: t["effective_min_runtime_s"] for t in client.get(URL).json()["items"]}


def test_tenants_below_have_it_unless_they_have_one_of_their_own(org, ops):
    assert set(in_force(ops).values()) == {None}
    changed = set_to(ops, "ml", 3600)
    assert changed.status_code == 200
    assert changed.json()["min_runtime_s"] == changed.json()["effective_min_runtime_s"] == 3600.0
    everywhere = {"ml": 3600.0, "vision": 3600.0, "vision-lab": 3600.0, "law": None}
    assert in_force(ops) == everywhere
    # Also for who cannot see the tenant that has it.
    assert in_force(org.client("vic")) == {"vision": 3600.0, "vision-lab": 3600.0}
    set_to(ops, "vision", 0)
    assert in_force(ops) == {**everywhere, "vision": 0.0, "vision-lab": 0.0}
    vision = ops.get(f"{URL}/vision").json()
    assert (vision["min_runtime_s"], vision["effective_min_runtime_s"]) == (0.0, 0.0)
    moved = ops.patch(f"{URL}/vision?dry_run=true", {"parent": "law"}, format="json").json()
    assert moved["result"]["effective_min_runtime_s"] == 0.0
    set_to(ops, "vision", None)
    assert in_force(ops) == everywhere
    moved = ops.patch(f"{URL}/vision?dry_run=true", {"parent": "law"}, format="json").json()
    assert moved["result"]["effective_min_runtime_s"] is None
    new = {"name": "new", "parent": "law", "min_runtime_s": 0.5}
    made = ops.post(URL, new, format="json").json()
    assert (made["min_runtime_s"], made["effective_min_runtime_s"]) == (0.5, 0.5)


def test_it_is_audited_and_counts_as_a_change(ops):
    before = Tenant.objects.get(name="ml").version
    set_to(ops, "ml", 60, reason="Long start")
    record = AuditRecord.objects.first()
    assert (record.action, record.reason) == ("tenant.changed", "Long start")
    assert (record.before["min_runtime_s"], record.after["min_runtime_s"]) == (None, 60.0)
    assert Tenant.objects.get(name="ml").version > before
    tried = ops.patch(f"{URL}/law?dry_run=true", {"min_runtime_s": 5}, format="json").json()
    assert tried["result"]["effective_min_runtime_s"] == 5.0
    assert Tenant.objects.get(name="law").min_runtime_s is None


@pytest.mark.parametrize("who", ["root", "ada"])
def test_only_operators_set_it(org, who):
    """A tenant admin could keep what others lent."""
    admin = org.client(who)
    for seconds in (0, 3600, None):
        assert set_to(admin, "vision", seconds).status_code == 403
    body = {"name": "new", "parent": "vision", "min_runtime_s": 3600}
    refused = admin.post(URL, body, format="json")
    assert (refused.status_code, Tenant.objects.filter(name="new").exists()) == (403, False)
    assert "Only operators set the minimum run time" in refused.json()["detail"]
    assert set_to(admin, "law", 1).status_code == 404
    del body["min_runtime_s"]
    assert admin.post(URL, body, format="json").status_code == 201


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-0.001, "at least 0"),
        (MAX_MIN_RUNTIME_S + 1, "at most 2592000"),
        (10**400, "too large"),
        ("60", "a number"),
        (True, "a number"),
        ([], "a number"),
    ],
)
def test_values_that_cannot_be(ops, seconds, text):
    new = {"name": "new", "min_runtime_s": seconds}
    for answer in (set_to(ops, "vision", seconds), ops.post(URL, new, format="json")):
        assert answer.status_code == 422, answer.json()
        [error] = answer.json()["errors"]
        assert error["pointer"] == "/min_runtime_s"
        assert text in error["detail"]
    assert Tenant.objects.get(name="vision").min_runtime_s is None
    assert set_to(ops, "vision", MAX_MIN_RUNTIME_S).status_code == 200


def test_no_number_is_no_value(ops):
    sent = ops.patch(f"{URL}/vision", '{"min_runtime_s": NaN}', content_type="application/json")
    assert sent.status_code == 400
    assert Tenant.objects.get(name="vision").min_runtime_s is None
