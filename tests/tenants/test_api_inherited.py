"""Fields that only operators set and that tenants below inherit, over REST: a tenant's minimum
run time and namespace."""

from dataclasses import dataclass
from typing import Any

import pytest

from tenants.models import AuditRecord, Tenant

URL = "/api/v1/tenants"


@dataclass
class Field:
    """A field's name in REST, its possible values, and how others see where it was set."""

    name: str
    first: Any
    second: Any
    third: Any
    refusal: str

    def set_to(self, client, tenant, value, query="", **more):
        body = {self.name: value, **more}
        return client.patch(f"{URL}/{tenant}{query}", body, format="json")

    def in_force(self, client):
        return {t["name"]: t[f"effective_{self.name}"] for t in client.get(URL).json()["items"]}

    def of(self, document):
        return document[self.name], document[f"effective_{self.name}"]


@pytest.fixture(
    params=[
        Field("min_runtime_s", 3600.0, 0.0, 0.5, "Only operators can set the minimum run time"),
        Field("namespace", "ml-jobs", "vision", "new", "Only operators can set the namespace"),
    ],
    ids=lambda field: field.name,
)
def field(request):
    return request.param


@pytest.fixture
def ops(org):
    return org.client("ops")


def test_tenants_below_have_it_unless_they_have_one_of_their_own(org, ops, field):
    assert set(field.in_force(ops).values()) == {None}
    changed = field.set_to(ops, "ml", field.first)
    assert changed.status_code == 200
    assert field.of(changed.json()) == (field.first, field.first)
    everywhere = {**dict.fromkeys(("ml", "vision", "vision-lab"), field.first), "law": None}
    assert field.in_force(ops) == everywhere
    assert field.of(ops.get(f"{URL}/vision-lab").json()) == (None, field.first)
    # Also for people who cannot see the tenant that set it.
    below = {"vision": field.first, "vision-lab": field.first}
    assert field.in_force(org.client("vic")) == below
    field.set_to(ops, "vision", field.second)
    own = {**everywhere, **dict.fromkeys(("vision", "vision-lab"), field.second)}
    assert field.in_force(ops) == own
    assert field.of(ops.get(f"{URL}/vision").json()) == (field.second, field.second)


def test_it_goes_with_the_tenant_that_is_moved_and_with_the_place_where_it_is(ops, field):
    field.set_to(ops, "ml", field.first)

    def after_a_move(tenant):
        body = {"parent": "law"}
        answer = ops.patch(f"{URL}/{tenant}?dry_run=true", body, format="json").json()
        return answer["result"][f"effective_{field.name}"]

    field.set_to(ops, "vision", field.second)
    assert after_a_move("vision") == field.second
    assert after_a_move("vision-lab") is None
    field.set_to(ops, "vision", None)
    assert after_a_move("vision") is None
    assert field.in_force(ops)["vision"] == field.first
    new = {"name": "new", "parent": "law", field.name: field.third}
    made = ops.post(URL, new, format="json").json()
    assert field.of(made) == (field.third, field.third)


def test_it_is_audited_and_counts_as_a_change(ops, field):
    before = Tenant.objects.get(name="ml").version
    field.set_to(ops, "ml", field.first, reason="Not trusted")
    record = AuditRecord.objects.first()
    assert (record.action, record.reason) == ("tenant.changed", "Not trusted")
    assert (record.before[field.name], record.after[field.name]) == (None, field.first)
    assert Tenant.objects.get(name="ml").version > before
    tried = field.set_to(ops, "law", field.second, "?dry_run=true").json()
    assert field.of(tried["result"]) == (field.second, field.second)
    assert getattr(Tenant.objects.get(name="law"), field.name) is None


@pytest.mark.parametrize("who", ["root", "ada"])
def test_only_operators_set_it(org, who, field):
    """A tenant admin could otherwise keep or use what belongs to others."""
    admin = org.client(who)
    for value in (field.first, field.second, None):
        assert field.set_to(admin, "vision", value).status_code == 403
    body = {"name": "new", "parent": "vision", field.name: field.third}
    refused = admin.post(URL, body, format="json")
    assert (refused.status_code, Tenant.objects.filter(name="new").exists()) == (403, False)
    assert field.refusal in refused.json()["detail"]
    assert field.set_to(admin, "law", field.first).status_code == 404
    del body[field.name]
    made = admin.post(URL, body, format="json")
    assert (made.status_code, *field.of(made.json())) == (201, None, None)
