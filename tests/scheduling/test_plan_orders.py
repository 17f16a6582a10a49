"""Orders that free whole nodes at a given time: they can be placed and called off. A new plan is
made at that time and carried out only within the approved limits."""

from datetime import timedelta

import pytest
from django.utils import timezone

from kant.celery import app
from scheduling.models import Job, NodeOrder, Placement, PlanOrder
from scheduling.services.clusters.plan_orders import KEPT, TRIED_EVERY, TRIED_FOR
from tenants.models import AuditRecord, Quota, User
from tests.scheduling.test_rehearsal import fleet, runs, waits  # noqa: F401 - a fixture

LIST = "/api/v1/clusters/demo/plan-orders"
HOUR = timedelta(hours=1)


@pytest.fixture
def ops(fleet):  # noqa: F811
    """Partly used nodes h000 and h001; the jobs of h001 fit on h000."""
    Quota.objects.filter(tenant__name="law").update(guaranteed_milli=64000)
    for node, gpus in (("h000", 4), ("h001", 2), ("h002", 8), ("h003", 8)):
        runs(fleet, [node], gpus=gpus, declared_s=7200)
    return fleet.client("ops")


def order(client, status=201, query="", **body):
    wish = {} if "job" in body else {"gpu_type": "H100", "count": 1}
    given = {
        "starts_at": (timezone.now() + HOUR).isoformat(),
        "most_lost_gpu_s": 3600,
        "most_moves": 1,
        "reason": "tonight",
    }
    answer = client.post(f"{LIST}{query}", wish | given | body, format="json")
    assert answer.status_code == status, answer.json()
    return answer.json()


def beat():
    app.loader.import_default_modules()
    app.tasks[app.conf.beat_schedule["plans"]["task"]]()


def comes(by=HOUR):
    """Let the time of all orders come, `by` earlier."""
    for row in PlanOrder.objects.all():
        row.starts_at, row.ends_at = row.starts_at - by, row.ends_at - by
        row.tried_at = row.tried_at and row.tried_at - by
        row.save()
    beat()
    return PlanOrder.objects.get()


def audited():
    rows = AuditRecord.objects.filter(action__startswith="plan-order.").order_by("at", "id")
    return [(r.action.removeprefix("plan-order."), r.source, r.actor_name) for r in rows]


def test_a_plan_is_made_anew_at_its_time_and_carried_out_within_what_is_approved(ops):
    made = order(ops)
    assert (made["state"], made["author"], made["nodes"]) == ("scheduled", "ops", [])
    beat()
    assert not NodeOrder.objects.exists()
    found = comes()
    assert (found.state, found.nodes, found.moves) == ("moving", ["h001"], 1)
    assert found.lost_gpu_s == pytest.approx(600, rel=0.1)
    assert list(NodeOrder.objects.values_list("node", "plan")) == [("h001", found.pk)]
    beat()
    assert PlanOrder.objects.get().state == "moving"
    NodeOrder.objects.all().delete()  # the scheduler opens the nodes when they are empty
    beat()
    shown = ops.get(f"{LIST}/{made['id']}").json()
    assert (shown["state"], shown["outcome"], shown["over_at"] is not None) == ("done", "", True)
    assert audited() == [("placed", "api", "ops"), ("applied", "schedule", "ops")]
    PlanOrder.objects.update(over_at=timezone.now() - KEPT - HOUR)
    beat()
    assert not PlanOrder.objects.exists()


@pytest.mark.parametrize(
    ("approved", "why"),
    [
        ({"most_lost_gpu_s": 60}, "GPU-hours of work would be lost; at most 0.02 were approved."),
        ({"most_moves": 0}, "1 jobs would move; at most 0 were approved."),
        ({"count": 3, "gpu_type": "H100"}, "of 3 whole nodes can be freed."),
    ],
)
def test_what_is_beyond_what_was_approved_is_tried_until_its_time_is_over(ops, approved, why):
    order(ops, **approved)
    found = comes()
    assert (found.state, why in found.outcome) == ("scheduled", True), found.outcome
    tried = found.tried_at
    beat()  # not each time that beat asks
    assert PlanOrder.objects.get().tried_at == tried
    assert comes(TRIED_EVERY).tried_at > tried
    found = comes(TRIED_FOR)
    assert (found.state, found.outcome.startswith("Nothing was moved.")) == ("failed", True)
    assert why in found.outcome
    assert not NodeOrder.objects.exists()
    assert [what for what, *_ in audited()] == ["placed", "failed"]


def test_it_is_carried_out_as_soon_as_it_is_cheap_enough(ops):
    order(ops, most_lost_gpu_s=60, ends_at=(timezone.now() + 3 * HOUR).isoformat())
    assert comes().state == "scheduled"
    began = timezone.now() - timedelta(seconds=20)  # it was preempted, and runs again
    Job.objects.filter(name="runs-h001").update(admitted_at=began)
    Placement.objects.filter(node="h001").update(intended_at=began, held_from=began)
    found = comes(TRIED_EVERY)
    assert (found.state, found.outcome) == ("moving", ""), found.outcome


def test_for_a_job_that_waits(ops, fleet):  # noqa: F811
    job = waits(fleet, 1)
    order(ops, job=str(job))
    assert comes().nodes == ["h001"]


def test_a_plan_is_called_off_until_it_is_carried_out(ops, fleet):  # noqa: F811
    made = order(ops)
    cancel = f"{LIST}/{made['id']}/cancel"
    assert ops.post(f"{cancel}?dry_run=true", {"reason": "no"}, format="json").json()["dry_run"]
    assert ops.get(f"{LIST}?state=scheduled").json()["items"][0]["id"] == made["id"]
    done = ops.post(cancel, {"reason": "too late"}, format="json").json()
    assert (done["state"], done["outcome"]) == ("cancelled", "ops called it off: too late")
    assert ops.post(cancel, {"reason": "again"}, format="json").status_code == 409
    assert comes().state == "cancelled"
    assert ops.get(f"{LIST}?state=scheduled").json()["items"] == []
    assert fleet.client("eve").get(LIST).status_code == 403
    order(fleet.client("eve"), status=403)


def test_nobody_else_s_rights_carry_it_out(ops):
    order(ops)
    User.objects.filter(username="ops").update(is_operator=False)
    assert "Only operators" in comes().outcome
    User.objects.filter(username="ops").delete()
    found = comes(TRIED_EVERY)
    assert (found.state, "The author, ops, was deleted" in found.outcome) == ("failed", True)
    assert not NodeOrder.objects.exists()


def test_a_time_that_passed_while_nobody_was_there_is_not_used(ops):
    order(ops)
    found = comes(2 * HOUR)
    assert (found.state, "Kant was not running" in found.outcome) == ("failed", True)


def test_faults_name_their_fields(ops):
    past = (timezone.now() - HOUR).isoformat()
    for body, pointer in (
        ({"starts_at": past}, "/starts_at"),
        ({"ends_at": past}, "/ends_at"),
        ({"most_moves": -1}, "/most_moves"),
        ({"reason": " "}, "/reason"),
        ({"gpu_type": "H10O"}, "/gpu_type"),
        ({"job": "00000000-0000-0000-0000-000000000000"}, "/job"),
    ):
        found = order(ops, status=422, **body)
        assert [error["pointer"] for error in found["errors"]] == [pointer], body
    assert order(ops, status=200, query="?dry_run=true")["dry_run"]
    assert not PlanOrder.objects.exists()
