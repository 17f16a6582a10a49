"""Replays over REST: operators request, list, read and cancel them."""

import uuid

import pytest

from kant.celery import app
from metrics.models import Replay, ReplayState
from metrics.replays import process, services
from tenants.models import Quota
from tests import organisation
from tests.metrics.replays import job_that_ran

URL = "/api/v1/replays"
QUOTA = {"tenant": "vision", "gpu_type": "H100", "guaranteed": 8}


@pytest.fixture
def org(db):
    found = organisation.build()
    Quota.objects.create(
        tenant=found.tenants["vision"], gpu_type=found.gpu_types["H100"], guaranteed_milli=32_000
    )
    job_that_ran(found.tenants["vision"], found.cluster)
    return found


@pytest.fixture
def ops(org):
    return org.client("ops")


def ask(client, query="", **body):
    return client.post(URL + query, {"cluster": "demo", **body}, format="json")


def test_a_replay_is_asked_for_carried_out_and_read(ops):
    change = {"gpu_type": "H100", "gpus": 8, "change": 2}
    policy = {"queueing": "backfill", "strategies": {"training": "e-binpack"}}
    quota = {"tenant": "vision", "gpu_type": "H100", "guaranteed": 16.5, "mode": "isolated"}
    answer = ask(ops, policy=policy, nodes=[change], quotas=[quota])
    assert answer.status_code == 201
    body = answer.json()
    assert answer["Location"].endswith(f"{URL}/{body['id']}")
    assert (body["state"], body["progress"], body["user"]) == ("QUEUED", 0.0, "ops")
    assert body["policy_before"]["queueing"] == "best-effort-fifo"
    assert body["policy"]["strategies"] == {
        "training": "e-binpack", "inference": "binpack", "development": "binpack",
    }  # fmt: skip
    assert body["nodes"] == [change]
    no_limits = {"borrow_limit": None, "lend_limit": None}
    assert body["quotas"] == [{**quota, **no_limits}]
    assert body["quotas_before"] == [{**quota, "guaranteed": 32, "mode": "shared", **no_limits}]
    assert "result" not in body
    assert ops.get(f"{URL}/{body['id']}").json()["result"] is None

    process.carry_out(services.take_next(), lambda _: None)
    done = ops.get(f"{URL}/{body['id']}").json()
    assert (done["state"], done["progress"]) == ("DONE", 1.0)
    result = done["result"]
    assert (result["baseline"]["gpus"], result["changed"]["gpus"]) == (40, 56)
    assert result["baseline"]["gpu_hours"] == pytest.approx(8, rel=1e-3)
    assert result["starts"]["same"] == 1


def test_the_list_is_filtered_and_paged_and_has_no_results(ops, django_assert_max_num_queries):
    ids = [ask(ops).json()["id"] for _ in range(3)]
    Replay.objects.filter(pk=ids[0]).update(state=ReplayState.DONE)
    with django_assert_max_num_queries(6):
        page = ops.get(f"{URL}?limit=2").json()
    assert [one["id"] for one in page["items"]] == ids[:0:-1]
    assert "result" not in page["items"][0]
    rest = ops.get(page["next"]).json()
    assert [one["id"] for one in rest["items"]] == ids[:1]
    found = ops.get(f"{URL}?state=DONE&state=FAILED&cluster=demo").json()["items"]
    assert [one["id"] for one in found] == ids[:1]
    wrong = ops.get(f"{URL}?state=OVER")
    assert (wrong.status_code, wrong.json()["errors"][0]["parameter"]) == (400, "state")


def test_a_dry_run_asks_for_nothing_and_a_key_asks_once(ops):
    answer = ask(ops, "?dry_run=true", policy={"queueing": "backfill"})
    assert answer.status_code == 200
    assert answer.json()["would"] == "create"
    assert answer.json()["result"]["policy"]["queueing"] == "backfill"
    assert not Replay.objects.exists()
    twice = [
        ops.post(URL, {"cluster": "demo"}, format="json", HTTP_IDEMPOTENCY_KEY="k")
        for _ in range(2)
    ]
    assert twice[0].json()["id"] == twice[1].json()["id"]
    assert Replay.objects.count() == 1


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"cluster": "nowhere"}, "/cluster"),
        ({"since": "yesterday"}, "/since"),
        ({"until": "2999-01-01T00:00:00Z"}, "/until"),
        ({"policy": {"queueing": "lifo"}}, "/policy/queueing"),
        ({"policy": {"strategies": {"training": "best"}}}, "/policy/strategies/training"),
        ({"policy": [1]}, "/policy"),
        ({"nodes": [{"gpu_type": "H100", "gpus": 8}]}, "/nodes/0/change"),
        ({"nodes": [{"gpu_type": "T4", "gpus": 8, "change": 1}]}, "/nodes/0/gpu_type"),
        ({"nodes": [{"gpu_type": "H100", "gpus": 8, "change": -5}]}, "/nodes/0/change"),
        ({"days": 7}, "/days"),
        ({"quotas": [{"tenant": "vision", "gpu_type": "H100"}]}, "/quotas/0/guaranteed"),
        ({"quotas": [{**QUOTA, "mode": "mixed"}]}, "/quotas/0/mode"),
        ({"quotas": [{**QUOTA, "lend_limit": 9}]}, "/quotas/0/lend_limit"),
        ({"quotas": [{**QUOTA, "guaranteed": 900}]}, "/quotas/0/guaranteed"),
        ({"quotas": [{**QUOTA, "reason": "x"}]}, "/quotas/0/reason"),
        ({"quotas": [QUOTA, {**QUOTA, "tenant": "nobody"}]}, "/quotas/1/tenant"),
    ],
)
def test_a_wrong_field_is_named(ops, body, pointer):
    answer = ask(ops, **body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert answer.json()["errors"][0]["pointer"] == pointer
    assert not Replay.objects.exists()


def test_one_that_is_open_is_cancelled_once(ops):
    url = f"{URL}/{ask(ops).json()['id']}/cancel"
    rehearsed = ops.post(f"{url}?dry_run=true").json()
    assert (rehearsed["would"], rehearsed["result"]["state"]) == ("update", "CANCELLED")
    assert Replay.objects.get().state == ReplayState.QUEUED
    answer = ops.post(url)
    assert (answer.status_code, answer.json()["state"]) == (200, "CANCELLED")
    assert answer.json()["message"] == "Cancelled by ops."
    again = ops.post(url)
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    assert ops.get(f"{URL}/{uuid.uuid4()}").status_code == 404


def test_they_show_all_tenants_and_are_for_operators(org, client):
    replay = ask(org.client("ops")).json()["id"]
    for who in ("root", "eve"):
        for method, url in (
            ("get", URL),
            ("post", URL),
            ("get", f"{URL}/{replay}"),
            ("post", f"{URL}/{replay}/cancel"),
        ):
            answer = getattr(org.client(who), method)(url)
            assert (answer.status_code, answer.json()["code"]) == (403, "not-allowed")
    assert client.get(URL).status_code == 401


def test_the_tick_that_finds_them_does_not_pile_up():
    entry = app.conf.beat_schedule["replays"]
    assert entry["task"] == services.TASK
    assert entry["options"]["expires"] == entry["schedule"]
