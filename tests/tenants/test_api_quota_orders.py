"""Quota changes that start and end at set times, over REST: rights, and what happens if somebody
changes the quota in between."""

from datetime import timedelta

import pytest
from django.utils import timezone

from tenants import tasks
from tenants.models import AuditRecord, OrderState, QuotaOrder, User
from tenants.services.orders.carrying_out import KEPT
from tests.tenants.test_api_quota_drafts import (  # noqa: F401
    apply,
    cell,
    change,
    guaranteed,
    quotas,
    root,
    write,
)

LIST = "/api/v1/quota-orders"
HOUR = timedelta(hours=1)


def later(hours=1):
    return (timezone.now() + hours * HOUR).isoformat()


def order(client, who, *cells, **times):
    """Order a draft; return the order."""
    version = write(client, who, *cells).json()["version"]
    answer = apply(client, who, version, **times)
    assert answer.status_code == 200, answer.json()
    return answer.json()["order"]


def pass_by(**columns):
    """Let time pass: these columns of all orders are now in the past."""
    for name in columns or ("starts_at", "ends_at"):
        past = timezone.now() - timedelta(seconds=1)
        QuotaOrder.objects.filter(**{f"{name}__isnull": False}).update(**{name: past})
    tasks.carry_out_orders()


def act(client, made, verb, reason="Over"):
    return client.post(f"{LIST}/{made['id']}/{verb}", {"reason": reason}, format="json")


def state():
    return QuotaOrder.objects.get().state


def actions():
    return [r.action for r in AuditRecord.objects.order_by("at", "id")]


def test_a_draft_is_applied_at_its_time(root):  # noqa: F811
    made = order(root, "root", cell("vision", 12), cell("vision-lab", 3), starts_at=later())
    assert (made["state"], made["author"], made["ends_at"]) == ("scheduled", "root", None)
    assert [(c["tenant"], c["guaranteed"], c["before"]) for c in made["cells"]] == [
        ("vision", 12, None),
        ("vision-lab", 3, None),
    ]
    assert root.get("/api/v1/quota-drafts/root").status_code == 404  # it is free for other edits
    tasks.carry_out_orders()
    assert (guaranteed("vision"), state()) == (8, "scheduled")
    pass_by()
    assert (guaranteed("vision"), guaranteed("vision-lab"), state()) == (12, 3, "done")
    record = AuditRecord.objects.filter(action="quota.changed").first()
    assert (record.actor_name, record.reason, record.source) == ("root", "Season", "schedule")
    pass_by()
    assert AuditRecord.objects.filter(action="quota.changed").count() == 2


def test_a_temporary_change_goes_back(root):  # noqa: F811
    made = order(root, "root", cell("vision", 12), cell("vision", 1, "A100"), ends_at=later())
    assert (made["state"], guaranteed("vision"), guaranteed("vision", "A100")) == (
        "temporary",
        12,
        1,
    )
    assert {(c["gpu_type"], c["before"]) for c in made["cells"]} == {("H100", 8), ("A100", None)}
    pass_by()
    assert (guaranteed("vision"), guaranteed("vision", "A100"), state()) == (8, None, "done")
    back = AuditRecord.objects.filter(reverts__isnull=False).first()
    assert (back.actor_name, back.source) == ("root", "schedule")
    assert back.reason.endswith("UTC: Season")
    assert root.get(f"{LIST}/{made['id']}").json()["outcome"] == ""


def test_from_a_time_until_a_time(root):  # noqa: F811
    order(root, "root", cell("vision", 12), starts_at=later(1), ends_at=later(2))
    pass_by(starts_at=True)
    assert (guaranteed("vision"), state()) == (12, "temporary")
    pass_by(ends_at=True)
    assert (guaranteed("vision"), state()) == (8, "done")


def test_what_somebody_has_changed_meanwhile_stays_and_is_told(root, org):  # noqa: F811
    made = order(root, "root", cell("vision", 12), cell("vision-lab", 3), ends_at=later())
    change(org, "vision", 10_000)
    pass_by()
    assert (guaranteed("vision"), guaranteed("vision-lab"), state()) == (10, 2, "done")
    told = root.get(f"{LIST}/{made['id']}").json()
    assert told["outcome"] == "1 quota did not go back."
    text = told["cells"][0]["outcome"]
    assert "was set to 12 by this change and is 10 now. ops changed it" in text
    assert told["cells"][1]["outcome"] == ""
    stayed = AuditRecord.objects.get(action="quota-order.stayed")
    assert (stayed.subject, stayed.reason) == ("vision / H100", text)


def test_what_sums_do_not_allow_to_go_back_stays_and_the_rest_goes(root, org):  # noqa: F811
    order(root, "root", cell("vision-lab", 0), cell("vision", 4), ends_at=later())
    change(org, "vision", 1_000)
    pass_by()
    assert (guaranteed("vision"), guaranteed("vision-lab")) == (1, 0)
    told = QuotaOrder.objects.get()
    assert told.outcome == "2 quotas did not go back."
    assert "are guaranteed to" in told.cells.get(tenant__name="vision-lab").outcome


def test_a_scheduled_change_does_not_overwrite_anybody(root, org):  # noqa: F811
    made = order(root, "root", cell("vision", 12), cell("vision-lab", 3), starts_at=later())
    change(org, "vision", 10_000)
    pass_by()
    assert (guaranteed("vision"), guaranteed("vision-lab"), state()) == (10, 2, "failed")
    told = root.get(f"{LIST}/{made['id']}").json()["outcome"]
    assert told.startswith("Nothing was changed. vision / H100: The quota of “vision”")
    assert actions().count("quota-order.failed") == 2


def test_the_author_needs_the_right_when_it_starts_and_not_when_it_goes_back(root, org):  # noqa: F811
    order(root, "root", cell("vision", 12), ends_at=later(2))
    order(root, "root", cell("vision-lab", 3), starts_at=later())
    org.users["root"].memberships.all().delete()
    pass_by()
    assert (guaranteed("vision"), guaranteed("vision-lab")) == (8, 2)
    assert {o.state for o in QuotaOrder.objects.all()} == {"done", "failed"}


def test_a_temporary_change_of_somebody_who_was_deleted_goes_back(root, org):  # noqa: F811
    order(root, "root", cell("vision", 12), ends_at=later())
    User.objects.get(username="root").delete()
    pass_by()
    assert (guaranteed("vision"), state()) == (8, "done")
    back = AuditRecord.objects.get(reverts__isnull=False)
    assert (back.actor, back.actor_name) == (None, "root")


def test_an_order_is_called_off_ended_or_kept(root):  # noqa: F811
    scheduled = order(root, "root", cell("vision", 12), starts_at=later())
    assert act(root, scheduled, "end").status_code == 409
    assert act(root, scheduled, "cancel", reason="").status_code == 422
    assert act(root, scheduled, "cancel").json()["state"] == "cancelled"
    assert act(root, scheduled, "cancel").status_code == 409
    QuotaOrder.objects.all().delete()
    short = order(root, "root", cell("vision", 12), ends_at=later())
    assert act(root, short, "cancel").status_code == 409
    dry = root.post(f"{LIST}/{short['id']}/end?dry_run=true", {"reason": "x"}, format="json")
    assert (dry.status_code, guaranteed("vision")) == (200, 12)
    assert act(root, short, "end").json()["state"] == "done"
    assert guaranteed("vision") == 8
    QuotaOrder.objects.all().delete()
    kept = order(root, "root", cell("vision", 12), ends_at=later())
    assert act(root, kept, "keep").json()["outcome"] == "root made it permanent: Over"
    pass_by()
    assert (guaranteed("vision"), state()) == (12, "done")
    assert {"quota-order.cancelled", "quota-order.kept", "quota-order.placed"} <= set(actions())


# Who sees an order for vision and vision-lab, and who may cancel it.
@pytest.mark.parametrize(
    ("who", "sees", "may"),
    [
        ("ops", {"vision", "vision-lab"}, True),
        ("ada", {"vision", "vision-lab"}, False),  # she may change only that of vision-lab
        ("eve", {"vision", "vision-lab"}, False),
        ("vic", {"vision", "vision-lab"}, False),
        ("lex", set(), False),
    ],
)
def test_rights_of_each_role(root, org, who, sees, may):  # noqa: F811
    made = order(root, "root", cell("vision", 12), cell("vision-lab", 3), starts_at=later())
    client = org.client(who)
    listed = client.get(LIST).json()["items"]
    assert {c["tenant"] for one in listed for c in one["cells"]} == sees
    assert client.get(f"{LIST}/{made['id']}").status_code == (200 if sees else 404)
    assert act(client, made, "cancel").status_code == (200 if may else 403 if sees else 404)


@pytest.mark.parametrize(
    ("times", "pointer", "text"),
    [
        ({"starts_at": -1}, "/starts_at", "has passed"),
        ({"ends_at": -1}, "/ends_at", "has passed"),
        ({"starts_at": 2, "ends_at": 1}, "/ends_at", "end must be after the start"),
        ({"ends_at": 24 * 400}, "/ends_at", "within a year"),
        ({"starts_at": "soon"}, "/starts_at", ""),
    ],
)
def test_times_that_cannot_be_are_told(root, times, pointer, text):  # noqa: F811
    version = write(root, "root", cell("vision", 12)).json()["version"]
    sent = {n: later(t) if isinstance(t, int) else t for n, t in times.items()}
    answer = apply(root, "root", version, **sent)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
    assert text in answer.json()["errors"][0]["detail"]
    assert not QuotaOrder.objects.exists()


def test_a_dry_run_places_no_order(root):  # noqa: F811
    version = write(root, "root", cell("vision", 12)).json()["version"]
    answer = apply(root, "root", version, "?dry_run=true", ends_at=later())
    assert (answer.status_code, answer.json()["result"]["order"]) == (200, None)
    assert (QuotaOrder.objects.count(), guaranteed("vision")) == (0, 8)
    assert apply(root, "root", version, ends_at=later()).status_code == 200


def test_orders_are_found_by_state_and_old_ones_are_deleted(root):  # noqa: F811
    made = order(root, "root", cell("vision", 12), starts_at=later())
    assert root.get(f"{LIST}?state=scheduled").json()["items"][0]["id"] == made["id"]
    assert root.get(f"{LIST}?state=done").json()["items"] == []
    assert root.get(f"{LIST}?state=gone").status_code == 400
    act(root, made, "cancel")
    tasks.forget_old_drafts()
    assert QuotaOrder.objects.get().state == OrderState.CANCELLED
    QuotaOrder.objects.update(over_at=timezone.now() - KEPT - HOUR)
    tasks.forget_old_drafts()
    assert not QuotaOrder.objects.exists()
