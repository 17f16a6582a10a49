"""Large quota changes need the approval of a second person, never of their author."""

from datetime import timedelta

import pytest
from django.utils import timezone

from tenants import tasks
from tenants.models import AuditRecord, QuotaOrder
from tests.tenants.test_api_quota_drafts import (  # noqa: F401
    apply,
    cell,
    change,
    guaranteed,
    quotas,
    root,
    write,
)
from tests.tenants.test_api_quota_orders import act, later, order, pass_by

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _limit(settings):
    settings.KANT_QUOTA_APPROVAL_GPUS = 4


@pytest.fixture
def waiting(root):  # noqa: F811
    return order(root, "root", cell("vision", 12), cell("vision-lab", 3))


def test_a_small_change_waits_for_nobody(root):  # noqa: F811
    # 3 up, 1 down: 4 GPUs.
    version = write(root, "root", cell("vision", 11), cell("vision-lab", 1)).json()["version"]
    assert apply(root, "root", version).json()["order"] is None
    assert (guaranteed("vision"), guaranteed("vision-lab")) == (11, 1)


def test_a_large_change_is_applied_once_it_is_approved(waiting, org):
    assert (waiting["state"], waiting["approver"], guaranteed("vision")) == ("waiting", "", 8)
    done = act(org.client("ops"), waiting, "approve", reason="Fine").json()
    assert (done["state"], done["approver"], guaranteed("vision")) == ("done", "ops", 12)
    records = AuditRecord.objects.all()
    changed = records.filter(action="quota.changed").first()
    assert (changed.actor_name, changed.reason) == ("root", "Season")
    assert records.filter(action="quota-order.approved").first().actor_name == "ops"


@pytest.mark.parametrize("verb", ["approve", "refuse"])
@pytest.mark.parametrize(
    ("who", "code"), [("root", 403), ("ada", 403), ("eve", 403), ("lex", 404), ("ops", 200)]
)
def test_rights_of_each_role(waiting, org, who, code, verb):
    assert act(org.client(who), waiting, verb).status_code == code
    moved = who == "ops" and verb == "approve"
    assert guaranteed("vision") == (12 if moved else 8)


def test_it_is_refused_or_called_off(waiting, root, org):  # noqa: F811
    refused = act(org.client("ops"), waiting, "refuse", reason="No").json()
    assert (refused["state"], refused["outcome"]) == ("cancelled", "ops refused it: No")
    assert act(org.client("ops"), waiting, "approve").status_code == 409
    again = order(root, "root", cell("vision", 14))
    assert act(root, again, "cancel").json()["state"] == "cancelled"
    assert guaranteed("vision") == 8


def test_what_was_changed_meanwhile_is_told_to_who_approves(waiting, org):
    change(org, "vision", 9_000)
    answer = act(org.client("ops"), waiting, "approve")
    assert answer.status_code == 409
    assert "vision / H100" in answer.json()["detail"]
    assert (guaranteed("vision"), QuotaOrder.objects.get().state) == (9, "waiting")
    assert not AuditRecord.objects.filter(action="quota-order.approved").exists()


def test_what_is_approved_has_its_times(root, org):  # noqa: F811
    made = order(root, "root", cell("vision", 14), starts_at=later(1), ends_at=later(2))
    assert act(org.client("ops"), made, "approve").json()["state"] == "scheduled"
    pass_by(starts_at=True)
    assert (guaranteed("vision"), QuotaOrder.objects.get().state) == (14, "temporary")
    pass_by(ends_at=True)
    assert guaranteed("vision") == 8


def test_what_nobody_approves_in_time_fails(root):  # noqa: F811
    order(root, "root", cell("vision", 14), ends_at=later())
    pass_by()
    tasks.carry_out_orders()
    made = QuotaOrder.objects.get()
    assert (made.state, guaranteed("vision")) == ("failed", 8)
    assert made.outcome == "Nothing was changed. Nobody approved it in time."
    order(root, "root", cell("vision", 14))
    QuotaOrder.objects.filter(state="waiting").update(
        created_at=timezone.now() - timedelta(days=31)
    )
    tasks.carry_out_orders()
    assert not QuotaOrder.objects.filter(state="waiting").exists()


def test_nobody_gets_round_it_beside_a_draft(root, org):  # noqa: F811
    body = {"guaranteed": 20, "reason": "x"}
    url = "/api/v1/quotas/vision/H100"
    for method, sent in (("put", body), ("delete", None)):
        answer = getattr(root, method)(
            f"{url}?reason=x" if method == "delete" else url,
            sent,
            format="json",
            headers={"If-Match": '"1"'},
        )
        assert answer.status_code == 409, method
        assert "need a second person's approval" in answer.json()["detail"]
    assert guaranteed("vision") == 8
    # A preview is no change.
    row = {"tenant": "vision", "gpu_type": "H100", "guaranteed": 20}
    assert root.post("/api/v1/quotas:preview", {"quotas": [row]}, format="json").status_code == 200
