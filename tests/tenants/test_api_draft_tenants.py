"""Drafts with moves in the tenant tree and weights: kept, previewed together with quotas,
applied as a whole, later, for a while or by a second person, and reverted."""

import pytest

from tenants.models import AuditRecord, DraftTenant, Quota, QuotaOrder, Tenant
from tenants.services.drafts.edits import MOST_CELLS
from tenants.services.orders.seen import tenants_of, visible_order
from tests.tenants.test_api_quota_drafts import (  # noqa: F401
    apply,
    cell,
    guaranteed,
    quotas,
    root,
    url,
    write,
)
from tests.tenants.test_api_quota_orders import act, later, pass_by, state

pytestmark = pytest.mark.django_db


def put(client, who, *tenants, cells=(), **more):
    body = {"tenants": tenants, "cells": cells, **more}
    return client.patch(url(who), body, format="json")


def tenant(name, **fields):
    return {"tenant": name, **fields}


def stands(name):
    row = Tenant.objects.select_related("parent").get(name=name)
    return (row.parent.name if row.parent else None, row.weight)


def applied(client, who, *tenants, cells=(), query="", **more):
    made = put(client, who, *tenants, cells=cells)
    assert made.status_code == 200, made.json()
    return apply(client, who, made.json()["version"], query, **more)


@pytest.fixture
def ops(org, quotas):  # noqa: F811
    return org.client("ops")


def test_a_draft_keeps_tenants_and_changes_nothing(ops):
    told = put(ops, "ops", tenant("vision-lab", parent="ml", weight=2)).json()
    (one,) = told["tenants"]
    assert one["tenant"] == "vision-lab"
    assert one["sets"] == {"parent": "ml", "weight": 2.0}
    assert one["now"] == {"parent": "vision", "weight": 1.0}
    assert (one["fault"], one["overtaken"]) == ("", None)
    assert stands("vision-lab") == ("vision", 1.0)
    assert not AuditRecord.objects.exists()
    # A value that is already true leaves the draft, field by field; a repeated one is no new
    # version.
    again = put(ops, "ops", tenant("vision-lab", parent="vision")).json()
    assert again["tenants"][0]["sets"] == {"weight": 2.0}
    assert put(ops, "ops", tenant("vision-lab", weight=2)).json()["version"] == again["version"]
    assert put(ops, "ops", tenant("vision-lab", weight=1)).json()["tenants"] == []
    assert not DraftTenant.objects.exists()


def test_moves_weights_and_quotas_are_applied_as_one(ops):
    found = applied(
        ops,
        "ops",
        tenant("vision-lab", parent="ml", weight=2),
        cells=[cell("vision", 4), cell("vision-lab", 6)],
    )
    assert found.status_code == 200, found.json()
    assert found.json()["tenants"] == [{"tenant": "vision-lab", "parent": "ml", "weight": 2.0}]
    assert stands("vision-lab") == ("ml", 2.0)
    assert (guaranteed("vision"), guaranteed("vision-lab")) == (4, 6)
    assert ops.get(url("ops")).status_code == 404
    record = AuditRecord.objects.get(action="tenant.changed")
    assert (record.actor_name, record.reason, record.source) == ("ops", "Season", "api")
    assert (record.before["parent"], record.after["parent"]) == ("vision", "ml")


def test_two_tenants_take_each_others_place(ops):
    found = applied(
        ops, "ops", tenant("vision-lab", parent="ml"), tenant("vision", parent="vision-lab"),
        cells=[cell("vision", 2), cell("vision-lab", 8)],
    )  # fmt: skip
    assert found.status_code == 200, found.json()
    assert (stands("vision-lab")[0], stands("vision")[0]) == ("ml", "vision-lab")


def errors_of(answer, code=422):
    assert answer.status_code == code, answer.json()
    return {one["pointer"]: one["detail"] for one in answer.json()["errors"]}


def test_nobody_moves_below_oneself(ops):
    (found,) = errors_of(applied(ops, "ops", tenant("ml", parent="vision-lab"))).items()
    assert found[0] == "/tenants/0/parent"
    assert "which is below it. Choose another tenant." in found[1]
    ops.delete(url("ops"))
    found = errors_of(applied(ops, "ops", tenant("ml", parent="ml"), cells=[cell("vision", 4)]))
    assert "the same tenant" in found["/tenants/0/parent"]
    # Two moves that form a cycle only together.
    ops.delete(url("ops"))
    circle = tenant("vision", parent="law"), tenant("law", parent="vision-lab")
    assert list(errors_of(applied(ops, "ops", *circle))) == [
        "/tenants/0/parent",
        "/tenants/1/parent",
    ]
    assert (guaranteed("vision"), stands("ml"), stands("vision")[0]) == (8, (None, 1.0), "ml")


def test_quotas_must_fit_where_they_come_to(ops, org):
    h100 = org.gpu_types["H100"]
    Quota.objects.create(tenant=org.tenants["law"], gpu_type=h100, guaranteed_milli=4000)
    found = errors_of(applied(ops, "ops", tenant("vision", parent="law")))
    assert list(found) == ["/tenants/0/parent"]
    assert (
        "H100: 8 GPUs would be promised, 4 GPUs are guaranteed to “law”"
        in found["/tenants/0/parent"]
    )
    assert (
        "Lower the quotas that move along, or guarantee more to “law”."
        in found["/tenants/0/parent"]
    )
    assert stands("vision")[0] == "ml"
    # With a raise in the same draft they fit; so does a tenant that moves down within the same
    # tree.
    assert (
        apply(ops, "ops", put(ops, "ops", cells=[cell("law", 8)]).json()["version"]).status_code
        == 200
    )
    assert (stands("vision")[0], guaranteed("law")) == ("law", 8)


def test_a_quota_that_breaks_the_sum_is_blamed_itself(ops):
    found = errors_of(
        applied(ops, "ops", tenant("vision-lab", weight=3), cells=[cell("vision", 60)])
    )
    assert list(found) == ["/cells/0/guaranteed"]
    assert stands("vision-lab") == ("vision", 1.0)


def test_a_parent_that_is_not_there_is_named_at_once_and_later(ops, org):
    found = errors_of(put(ops, "ops", tenant("vision", parent="nobody")))
    assert list(found) == ["/tenants/0/parent"]
    assert list(errors_of(put(ops, "ops", tenant("nobody", weight=2)))) == ["/tenants/0/tenant"]
    assert list(errors_of(put(ops, "ops", tenant("vision")))) == ["/tenants/0/parent"]
    gone = Tenant.objects.create(name="gone")
    version = put(ops, "ops", tenant("vision-lab", parent="gone")).json()["version"]
    gone.queues.all().delete()
    gone.delete()
    found = errors_of(apply(ops, "ops", version))
    assert "There is no tenant “gone”" in found["/tenants/0/parent"]


def test_who_was_faster_is_told_by_field(ops, org):
    put(ops, "ops", tenant("vision-lab", parent="ml", weight=2))
    body = {"weight": 3, "title": "Lab", "reason": "Theirs"}
    assert (
        org.client("root").patch("/api/v1/tenants/vision-lab", body, format="json").status_code
        == 200
    )
    (one,) = ops.get(url("ops")).json()["tenants"]
    field = {"field": "weight", "mine": "2", "theirs": "3", "base": "1"}
    assert one["overtaken"] == {"by": "root", "reason": "Theirs", "conflicts": [field]}
    (told,) = errors_of(apply(ops, "ops", 2), 409).items()
    assert told[0] == "/tenants/0"
    assert (
        "root changed this tenant meanwhile (“Theirs”). "
        "Weight: theirs 3, yours 2, 1 when you began." in told[1]
    )
    assert stands("vision-lab") == ("vision", 3.0)
    # Writing it again does not overwrite by accident; with `over` it does.
    put(ops, "ops", tenant("vision-lab", weight=4))
    assert apply(ops, "ops", 3).status_code == 409
    put(ops, "ops", tenant("vision-lab", weight=4, over=True))
    assert apply(ops, "ops", 4).status_code == 200
    assert stands("vision-lab") == ("ml", 4.0)


@pytest.mark.parametrize(
    ("who", "body", "code"),
    [
        ("ops", tenant("ml", parent=None, weight=2), 200),
        ("root", tenant("vision-lab", parent="ml"), 200),
        ("root", tenant("vision-lab", parent=None), 403),
        ("ada", tenant("vision-lab", weight=2), 200),
        ("ada", tenant("vision-lab", parent="law"), 422),
        ("ada", tenant("vision", weight=2), 403),
        ("eve", tenant("vision-lab", weight=2), 403),
        ("lex", tenant("vision-lab", weight=2), 422),
    ],
)
def test_rights_of_each_role(org, quotas, who, body, code):  # noqa: F811
    client = org.client(who)
    made = put(client, who, body)
    if made.status_code == 200:
        made = apply(client, who, made.json()["version"])
    assert made.status_code == code, made.json()


def test_others_see_what_they_may_change_but_no_hidden_name(ops, org):
    put(ops, "ops", tenant("vision-lab", parent="law"), tenant("law", weight=2))
    (one,) = org.client("root").get(url("ops")).json()["tenants"]
    assert (one["tenant"], one["sets"]) == ("vision-lab", {"parent": "a hidden tenant"})
    assert org.client("lex").get(url("ops")).status_code == 404


def test_where_a_tenant_went_is_not_named_to_whoever_may_not_see_it(ops, org):
    put(org.client("root"), "root", tenant("vision-lab", parent="ml", weight=2))
    org.client("ops").patch(
        "/api/v1/tenants/vision-lab", {"parent": "law", "reason": "r"}, format="json"
    )
    (one,) = org.client("root").get(url("root")).json()["tenants"]
    assert one["now"]["parent"] == "a hidden tenant"
    (conflict,) = one["overtaken"]["conflicts"]
    assert (conflict["theirs"], conflict["base"]) == ("a hidden tenant", "vision")
    assert "law" not in str(one)


def test_an_order_does_not_name_where_a_tenant_was_to_whoever_may_not_see_it(ops, org):
    ordered(ops, "ops", tenant("vision-lab", parent="ml"), starts_at=later())
    ops.patch("/api/v1/tenants/vision-lab", {"parent": "law", "reason": "r"}, format="json")
    lex = org.users["lex"]
    order = visible_order(lex, QuotaOrder.objects.get().pk)
    (seen,) = tenants_of([order], lex)[order.pk]
    hidden = "a hidden tenant"
    told = f"Tenant above: theirs law, yours {hidden}, {hidden} when you began."
    assert seen.overtaken.told.endswith(told)


def test_a_draft_has_a_most(ops, org):
    rows = Tenant.objects.bulk_create(Tenant(name=f"t{i}") for i in range(MOST_CELLS))
    body = [tenant(row.name, weight=2) for row in rows]
    assert put(ops, "ops", *body).status_code == 200
    found = errors_of(put(ops, "ops", cells=[cell("vision", 4)]))
    assert f"at most {MOST_CELLS} quotas and tenants" in found["/cells"]


def test_a_dry_run_tells_effects_and_changes_nothing(ops):
    answer = applied(ops, "ops", tenant("vision-lab", parent="ml"), query="?dry_run=true")
    found = answer.json()
    assert found["result"]["tenants"][0]["parent"] == "ml"
    assert "counts" in found["effects"]
    assert stands("vision-lab")[0] == "vision"
    assert DraftTenant.objects.count() == 1


# --- later, for a while, by a second person -------------------------------------------------------
def ordered(client, who, *tenants, cells=(), **times):
    answer = applied(client, who, *tenants, cells=cells, **times)
    assert answer.status_code == 200, answer.json()
    return answer.json()["order"]


def test_an_order_moves_at_its_time_and_goes_back(ops):
    made = ordered(
        ops, "ops", tenant("vision-lab", parent="ml", weight=2), cells=[cell("vision", 4)],
        starts_at=later(), ends_at=later(2),
    )  # fmt: skip
    (one,) = made["tenants"]
    assert one["sets"] == {"parent": "ml", "weight": 2.0}
    assert (one["before"], one["overtaken"]) == ({"parent": "vision", "weight": 1.0}, False)
    assert stands("vision-lab") == ("vision", 1.0)
    pass_by(starts_at=True)
    assert (stands("vision-lab"), guaranteed("vision"), state()) == (("ml", 2.0), 4, "temporary")
    pass_by()
    assert (stands("vision-lab"), guaranteed("vision"), state()) == (("vision", 1.0), 8, "done")
    actions = set(AuditRecord.objects.filter(subject="vision-lab").values_list("action", flat=True))
    assert actions == {"quota-order.placed", "tenant.changed"}
    back = AuditRecord.objects.filter(action="tenant.changed").order_by("at").last()
    assert back.reverts is not None


def test_what_somebody_moved_since_stays_and_the_rest_goes_back(ops):
    ordered(
        ops, "ops", tenant("vision-lab", parent="ml"), tenant("vision", weight=5), ends_at=later()
    )
    assert stands("vision") == ("ml", 5.0)
    ops.patch("/api/v1/tenants/vision", {"weight": 7}, format="json")
    pass_by()
    assert (stands("vision-lab")[0], stands("vision")[1]) == ("vision", 7.0)
    order = QuotaOrder.objects.get()
    assert (order.state, order.outcome) == ("done", "1 tenant did not go back.")
    assert "is 7 now" in order.tenants.get(tenant__name="vision").outcome


def test_what_does_not_fit_any_more_stays(ops):
    ordered(
        ops, "ops", tenant("vision-lab", parent="ml"), cells=[cell("vision", 6)], ends_at=later()
    )
    Quota.objects.filter(tenant__name="vision-lab").update(guaranteed_milli=16000)
    pass_by()
    assert stands("vision-lab")[0] == "ml"
    assert "would be promised" in QuotaOrder.objects.get().tenants.get().outcome
    assert guaranteed("vision") == 8


def test_an_order_that_was_overtaken_fails_as_a_whole(ops, org):
    ordered(
        ops, "ops", tenant("vision-lab", weight=2), cells=[cell("vision", 4)], starts_at=later()
    )
    org.client("root").patch("/api/v1/tenants/vision-lab", {"weight": 3}, format="json")
    assert ops.get("/api/v1/quota-orders").json()["items"][0]["tenants"][0]["overtaken"]
    pass_by()
    order = QuotaOrder.objects.get()
    assert (order.state, guaranteed("vision")) == ("failed", 8)
    assert "vision-lab: root changed this tenant meanwhile" in order.outcome


def test_what_moves_along_counts_for_a_second_person(ops, org, settings):
    settings.KANT_QUOTA_APPROVAL_GPUS = 4
    # vision-lab brings 2 GPUs along, vision 8 with those below it.
    assert ordered(ops, "ops", tenant("vision-lab", parent="ml")) is None
    made = ordered(org.client("root"), "root", tenant("vision-lab", parent="vision"),
                   cells=[cell("vision", 12)])  # fmt: skip
    assert made["state"] == "waiting"
    assert act(org.client("ada"), made, "approve").status_code == 403
    assert act(ops, made, "approve").json()["state"] == "done"
    assert (stands("vision-lab")[0], guaranteed("vision")) == ("vision", 12)
    Quota.objects.filter(tenant__name="ml").update(guaranteed_milli=14000)
    refused = ops.patch("/api/v1/tenants/vision", {"parent": None}, format="json")
    assert refused.status_code == 409
    assert "need a second person's approval" in refused.json()["detail"]
    assert ops.patch("/api/v1/tenants/vision", {"weight": 2}, format="json").status_code == 200


# --- reverts --------------------------------------------------------------------------------------
def reverted(client, name, query="", reason="Back"):
    record = (
        AuditRecord.objects.filter(action="tenant.changed", subject=name).order_by("-at").first()
    )
    path = f"/api/v1/tenants/{name}/changes/{record.pk}/revert{query}"
    return client.post(path, {"reason": reason}, format="json")


def test_a_change_is_taken_back_except_what_was_set_since(ops):
    applied(ops, "ops", tenant("vision-lab", parent="ml", weight=2))
    told = reverted(ops, "vision-lab", "?dry_run=true").json()
    assert (told["result"]["parent"], "counts" in told["effects"]) == ("vision", True)
    assert stands("vision-lab") == ("ml", 2.0)
    assert reverted(ops, "vision-lab").json()["parent"] == "vision"
    assert stands("vision-lab") == ("vision", 1.0)
    record = AuditRecord.objects.filter(action="tenant.changed").order_by("-at").first()
    assert (record.reason, record.reverts.reason) == ("Back", "Season")
    applied(ops, "ops", tenant("vision-lab", weight=2))
    Tenant.objects.filter(name="vision-lab").update(weight=5)
    refused = reverted(ops, "vision-lab")
    assert refused.status_code == 409
    assert "Weight was set to 2 by this change and is 5 now." in refused.json()["detail"]


@pytest.mark.parametrize(
    ("who", "code"), [("root", 200), ("ada", 200), ("eve", 404), ("vic", 404), ("lex", 404)]
)
def test_rights_to_take_back(ops, org, who, code):
    applied(ops, "ops", tenant("vision-lab", weight=2))
    assert reverted(org.client(who), "vision-lab").status_code == code


def test_what_cannot_be_taken_back_says_why(ops):
    ops.patch("/api/v1/tenants/vision-lab", {"title": "X"}, format="json")
    assert (
        "neither the tenant's place nor its weight" in reverted(ops, "vision-lab").json()["detail"]
    )
    assert reverted(ops, "vision-lab", reason=" ").status_code == 422
