"""Nodes over REST: cordon, drain and return to service, each with a preview."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from scheduling.models import Job, NodeOrder, NodeRecord
from tenants.models import AuditRecord, Quota, User
from tests.scheduling.test_rehearsal import fleet, runs, waits  # noqa: F401 - a fixture

NODES = "/api/v1/clusters/demo/nodes"


@pytest.fixture
def act(fleet):  # noqa: F811
    def post(node, verb, who="ops", dry_run=False, **body):
        query = "?dry_run=true" if dry_run else ""
        url = f"{NODES}/{node}/{verb}{query}"
        return fleet.client(who).post(url, {"reason": "fans"} | body, format="json")

    return post


@pytest.fixture
def preview(fleet):  # noqa: F811
    def post(action, who="ops", **body):
        return fleet.client(who).post(f"{NODES}:preview", {"action": action} | body, format="json")

    return post


def names(jobs):
    return [one["job"]["name"] for one in jobs]


def test_a_drain_is_stored_told_and_taken_back(fleet, act):  # noqa: F811
    job = runs(fleet, ["h000", "h001"])
    at = timezone.now() + timedelta(hours=2)
    answer = act("h000", "drain", evict_at=at.isoformat())
    assert answer.status_code == 200, answer.json()
    order = answer.json()["order"]
    assert (order["state"], order["reason"], order["by"]) == ("draining", "fans", "ops")
    assert (order["pods"], order["pods_left"], order["leaving"], order["kept_back"]) == (1, 1, 0, 0)
    assert [one["job"]["name"] for one in order["jobs"]] == [job.name]
    hidden = fleet.client("eve").get(f"{NODES}/h000").json()["order"]["jobs"]
    assert [(one["job"]["name"], one["job"]["gpus"]) for one in hidden] == [(None, 16)]
    listed = {n["name"]: n["order"] for n in fleet.client("eve").get(NODES).json()["items"]}
    assert (listed["h000"]["state"], listed["h001"]) == ("draining", None)
    assert "already" in act("h000", "drain", evict_at=at.isoformat()).json()["detail"]
    assert act("h000", "cordon").json()["order"]["state"] == "cordoned"
    assert act("h000", "uncordon").json()["order"] is None
    assert act("h000", "uncordon").status_code == 409
    records = AuditRecord.objects.filter(action__startswith="node.").order_by("at")
    assert [(r.action, r.subject) for r in records] == [
        (f"node.{verb}", "demo / h000") for verb in ("drained", "cordoned", "uncordoned")
    ]
    assert (records[0].before, records[0].after["drains"]) == (None, True)
    assert (records[2].before["drains"], records[2].after) == (False, None)


def test_drains_are_listed_by_as_many_statements_for_many_jobs_as_for_one(
    fleet,  # noqa: F811
    act,
    django_assert_num_queries,
):
    ops = fleet.client("ops")
    for name in ("h000", "h001"):
        Job.objects.filter(pk=runs(fleet, [name]).pk).update(user=User.objects.get(username="eve"))
    act("h000", "drain")
    ops.get(NODES)
    with CaptureQueriesContext(connection) as one:
        ops.get(NODES)
    statements = len(one)
    act("h001", "drain")
    with django_assert_num_queries(statements):
        jobs = [n["order"]["jobs"] for n in ops.get(NODES).json()["items"] if n["order"]]
    assert [job["job"]["user"] for of_node in jobs for job in of_node] == ["eve", "eve"]


def test_who_may_not_and_what_cannot_be_is_refused_by_name(act):
    assert act("h000", "drain", who="eve").status_code == 403
    assert act("h999", "drain").status_code == 404
    for body, pointer in (
        ({"reason": " "}, "/reason"),
        ({"evict_at": "soon"}, "/evict_at"),
        ({"evict_at": (timezone.now() + timedelta(days=400)).isoformat()}, "/evict_at"),
        ({"within": 3}, "/within"),
    ):
        answer = act("h000", "drain", **body)
        assert answer.status_code == 422
        assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert not NodeOrder.objects.exists()


def test_a_dry_run_tells_who_stops_now_or_by_then_and_who_may_end(fleet, act):  # noqa: F811
    short = runs(fleet, ["h000"], gpus=4, declared_s=600)  # ends in five minutes
    long = runs(fleet, ["h001"], gpus=4, declared_s=7200)
    now = act("h000", "drain", dry_run=True, evict_at=timezone.now().isoformat()).json()
    assert now["result"]["order"]["state"] == "draining"
    assert names(now["effects"]["stops"]) == [short.name]
    assert now["effects"]["stops"][0]["by"] is None
    later = (timezone.now() + timedelta(hours=1)).isoformat()
    assert act("h000", "drain", dry_run=True, evict_at=later).json()["effects"]["stops"] == []
    (stop,) = act("h001", "drain", dry_run=True, evict_at=later).json()["effects"]["stops"]
    assert (stop["job"]["name"], stop["whole"]) == (long.name, True)
    assert stop["lost_gpu_s"] == pytest.approx(4 * (3600 + 300), rel=0.01)
    assert act("h001", "drain", dry_run=True).json()["effects"]["stops"] == []
    assert act("h001", "cordon", dry_run=True).json()["effects"]["stops"] == []
    assert not NodeOrder.objects.exists()


def test_a_cordon_delays_who_would_have_come_and_lifting_it_lets_them_start(fleet, act):  # noqa: F811
    runs(fleet, ["h000", "h001", "h002"], declared_s=3600)
    job = Job.objects.get(pk=waits(fleet, 1))
    effects = act("h003", "cordon", dry_run=True).json()["effects"]
    assert [one["name"] for one in effects["delayed"]] == [job.name]
    health = {"value": "cordoned", "source": "an order of ops"}
    NodeRecord.objects.filter(name="h003").update(schedulable=False, facts={"health": health})
    act("h003", "cordon")
    effects = act("h003", "uncordon", dry_run=True).json()["effects"]
    assert [one["name"] for one in effects["starts"]] == [job.name]


def test_an_act_and_its_previews_refuse_the_same_times(act, preview):
    in_a_year = [{"evict_at": at} for at in ("9999-12-31T23:59:59Z", far(367), far(365), far(-1))]
    for body in ({"evict_at": "soon"}, {"evict_at": None}, *in_a_year):
        told = [
            preview("drain", nodes=["h000"], **body),
            act("h000", "drain", dry_run=True, **body),
            act("h000", "drain", **body),
        ]
        assert len({answer.status_code for answer in told}) == 1, body
        assert len({str(answer.json().get("errors")) for answer in told}) == 1, body
        if told[0].status_code == 200:
            assert act("h000", "uncordon").status_code == 200
    for verb in ("cordon", "uncordon", "remove"):
        answer = preview(verb, nodes=["h000"], evict_at=far(1))
        assert [error["pointer"] for error in answer.json()["errors"]] == ["/evict_at"]


def far(days: int) -> str:
    return (timezone.now() + timedelta(days=days)).isoformat()


def test_nodes_that_are_given_back_are_those_that_cost_least(fleet, preview):  # noqa: F811
    runs(fleet, ["h000", "h001"], declared_s=7200)
    small = runs(fleet, ["h002"], gpus=1, declared_s=7200)
    found = preview("remove", gpu_type="H100", count=2).json()
    assert found["nodes"] == ["h003", "h002"]
    assert names(found["effects"]["stops"]) == [small.name]
    found = preview("remove", gpu_type="H100", count=4).json()
    assert found["nodes"] == ["h003", "h002", "h000", "h001"]
    assert found["effects"]["counts"]["stops"] == 2
    answer = preview("remove", gpu_type="H100", count=5)
    assert answer.status_code == 422
    assert "4 nodes of H100" in answer.json()["detail"]


def test_a_plan_names_its_price_and_is_carried_out_for_the_nodes_that_it_names(fleet):  # noqa: F811
    def post(verb, who="ops", query="", **body):
        return fleet.client(who).post(f"{NODES}:{verb}{query}", body, format="json")

    Quota.objects.filter(tenant__name="law").update(guaranteed_milli=64000)
    for node, gpus in (("h000", 4), ("h001", 2), ("h002", 8), ("h003", 8)):
        runs(fleet, [node], gpus=gpus, declared_s=7200)
    job = waits(fleet, 1)
    plan = post("plan", job=job).json()
    assert (plan["reached"], plan["nodes"], plan["gained"]) == (True, ["h001"], 1)
    assert names(plan["starts"] and [{"job": one} for one in plan["starts"]]) == ["hello"]
    (move,) = plan["moves"]
    assert (move["job"]["name"], move["whole"], move["targets"]) == ("runs-h001", True, ["h000"])
    assert move["lost_gpu_s"] == pytest.approx(2 * 300, rel=0.05) == plan["lost_gpu_s"]
    assert (plan["before"]["gfr"], plan["after"]["gfr"]) == (0.5, 0.25)
    whole = post("plan", gpu_type="H100", count=1).json()
    assert (whole["nodes"], whole["reached"]) == (["h001"], True)
    assert post("plan", gpu_type="H100", count=3).json()["reached"] is False
    assert post("empty", query="?dry_run=true", nodes=["h001"], reason="x").json()["dry_run"]
    assert not NodeOrder.objects.exists()
    assert post("empty", nodes=["h001"], reason="for hello").status_code == 200
    order = fleet.client("ops").get(f"{NODES}/h001").json()["order"]
    assert (order["state"], order["opens_at"] is not None) == ("draining", True)
    assert post("empty", nodes=["h001"], reason="again").status_code == 409
    for body, status, pointer in (
        ({}, 422, "/gpu_type"),
        ({"gpu_type": "H100"}, 422, "/count"),
        ({"gpu_type": "H10O", "count": 1}, 422, "/gpu_type"),
        ({"job": job, "count": 1}, 422, "/job"),
        ({"job": "00000000-0000-0000-0000-000000000000"}, 422, "/job"),
    ):
        answer = post("plan", **body)
        assert answer.status_code == status, body
        assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    for verb, body in (("plan", {"job": job}), ("empty", {"nodes": ["h000"], "reason": "x"})):
        assert post(verb, who="eve", **body).status_code == 403


def test_more_nodes_let_start_who_waits_and_names_must_be_of_nodes(fleet, preview):  # noqa: F811
    Quota.objects.filter(tenant__name="law").update(guaranteed_milli=48000)
    runs(fleet, ["h000", "h001", "h002", "h003"], declared_s=3600)
    job = Job.objects.get(pk=waits(fleet, 2))
    found = preview("add", gpu_type="H100", count=2).json()
    assert found["nodes"] == ["new-1", "new-2"]
    assert [one["name"] for one in found["effects"]["starts"]] == [job.name]
    for body, pointer in (
        ({"nodes": ["h000", "h9"]}, "/nodes/1"),
        ({}, "/gpu_type"),
        ({"gpu_type": "H100"}, "/count"),
        ({"gpu_type": "H100", "count": 0}, "/count"),
    ):
        answer = preview("drain", **body)
        assert answer.status_code == 422, body
        assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert preview("cordon", nodes=["h000"], who="eve").status_code == 403
