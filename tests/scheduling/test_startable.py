"""The largest job that could start now agrees with a dry run of such a job."""

import time
from itertools import product

import pytest
from django.core.cache import cache
from django.db.models import F

from scheduling.models import Cluster, ClusterPolicy, NodeRecord
from scheduling.queries import kept, startable
from tests.cases import NIGHTLY
from tests.scheduling.test_rehearsal import ask, fleet, runs, waits  # noqa: F401

POLICIES = (
    {},
    {"queueing": "strict-fifo", "preemption": []},
    {"queueing": "best-effort-fifo", "preemption": []},
    {"queueing": "backfill", "preemption": [], "backfill_after_s": 0},
    {"queueing": "backfill", "preemption": ["priority", "reclaim"], "backfill_after_s": 0},
    {"queueing": "strict-fifo", "fair_share": True, "preemption": []},
)


@pytest.fixture(autouse=True)
def _nothing_told_before():
    cache.clear()


def told(org, who="eve"):
    cache.clear()
    answer = org.client(who).get("/api/v1/startable")
    assert answer.status_code == 200, answer.content
    return {row["gpu_type"]: row for row in answer.json()["items"]}


def would_start(org, gpu_type, gpus, per_node, **fields):
    size = {"gpus": min(gpus, per_node), "replicas": max(1, gpus // per_node)}
    said = ask(org, gpu_type=gpu_type, preempts=False, **size, **fields)["rehearsal"]
    return said["outlook"] == "starts", said


CASES = list(product(("idle", "busy", "queue", "head of the line"), range(len(POLICIES))))


# By day each scene occurs, and most policies.
@pytest.mark.parametrize(("scene", "policy"), CASES if NIGHTLY else CASES[::5])
def test_what_is_told_is_what_a_dry_run_says(fleet, scene, policy):  # noqa: F811
    ClusterPolicy.objects.create(cluster=fleet.cluster, document=POLICIES[policy])
    if scene != "idle":
        runs(fleet, ["h000"], declared_s=3600)
        runs(fleet, ["h001"], gpus=5, tenant="vision", declared_s=7200)
    if scene == "queue":
        waits(fleet, 4, declared_s=60)
    if scene == "head of the line":
        runs(fleet, ["h002"], declared_s=900)
        waits(fleet, 2, priority=5)
    rows = told(fleet)
    assert rows.keys() == {"H100", "A100"}
    for gpu_type, per_node in (("H100", 8), ("A100", 4)):
        row = rows[gpu_type]
        assert row["tenant"] == "vision"
        if row["gpus"]:
            assert would_start(fleet, gpu_type, row["gpus"], per_node)[0], row
        if row["in_leaf"]:
            inside = {"required_level": "leaf"}
            assert would_start(fleet, gpu_type, row["in_leaf"], per_node, **inside)[0], row
        if row["refused"]:
            starts, said = would_start(fleet, gpu_type, row["refused"], per_node)
            assert not starts, row
            assert (row["reason"], row["summary"]) == (said["reason"], said["summary"])
        else:
            assert row["reason"] == row["summary"] == ""


def test_gpus_that_are_kept_for_a_head_start_nobody(fleet):  # noqa: F811
    policy = {"queueing": "backfill", "preemption": [], "backfill_after_s": 0}
    ClusterPolicy.objects.create(cluster=fleet.cluster, document=policy)
    NodeRecord.objects.filter(name="h003").update(free_gpus=8)
    runs(fleet, ["h000", "h001", "h002"], tenant="ml", declared_s=3600)
    assert (told(fleet)["H100"]["gpus"], told(fleet)["H100"]["free"]) == (8, 8)
    waits(fleet, 4, priority=5)
    row = told(fleet)["H100"]
    assert (row["gpus"], row["free"], row["refused"]) == (0, 8, 1)
    assert row["reason"] == "ReservedForHead"
    assert told(fleet)["A100"]["gpus"] == 8


def test_quota_cuts_what_is_free(fleet):  # noqa: F811
    fleet.tenants["vision"].quotas.filter(gpu_type__name="A100").update(guaranteed_milli=5000)
    NodeRecord.objects.update(free_gpus=F("gpus"))
    row = told(fleet)["A100"]
    assert (row["gpus"], row["free"], row["refused"]) == (4, 8, 8)
    assert row["reason"] == "ExceedsMaxQuota"


def test_who_may_submit_for_nobody_is_told_nothing_and_a_silent_cluster_says_so(fleet):  # noqa: F811
    assert told(fleet, "vic") == {}
    Cluster.objects.update(connected=False)
    cache.clear()
    body = fleet.client("eve").get("/api/v1/startable").json()
    assert (body["items"], len(body["troubles"])) == ([], 1)
    assert "has no connection to cluster demo" in body["troubles"][0]


def test_in_a_divided_cluster_each_size_is_asked_in_its_own_shard(fleet):  # noqa: F811
    shards = [{"name": "one", "groups": ["leaf-0"]}, {"name": "rest"}]
    ClusterPolicy.objects.create(cluster=fleet.cluster, document={"shards": shards})
    NodeRecord.objects.update(scope="rest")
    NodeRecord.objects.filter(leaf="leaf-0").update(scope="one")
    row = told(fleet)["H100"]
    assert (row["gpus"], row["refused"], row["reason"]) == (16, 32, "")
    assert row["summary"].startswith("It fits in no single shard")


def test_it_is_asked_again_when_it_is_old_and_by_one_at_a_time(fleet, monkeypatch):  # noqa: F811
    asked, clock = [], [time.time()]
    ask_engine = startable._asked

    def counted(*args):
        asked.append(args)
        return ask_engine(*args)

    monkeypatch.setattr(startable, "_asked", counted)
    monkeypatch.setattr(kept.time, "time", lambda: clock[0])
    eve = fleet.client("eve")
    for after_s, times in ((0, 1), (kept.KEEP_S / 2, 1), (3600 - 1, 2)):
        clock[0] += after_s
        assert eve.get("/api/v1/startable").status_code == 200
        assert len(asked) == times
    # Somebody is asking already: meanwhile the previous answer is shown.
    key = startable._key(asked[0][0], asked[0][1])
    clock[0] += 600
    cache.set(f"{key}:asking", True)
    assert eve.get("/api/v1/startable").json()["items"]
    assert len(asked) == 2


def test_it_costs_few_queries_however_many_types_sizes_and_jobs(
    fleet,  # noqa: F811
    django_assert_max_num_queries,
):
    for _ in range(4):
        waits(fleet, 2)
    eve = fleet.client("eve")
    eve.get("/api/v1/gpu-types")  # records the use of the token
    with django_assert_max_num_queries(30):
        assert eve.get("/api/v1/startable").status_code == 200
    with django_assert_max_num_queries(8):
        assert eve.get("/api/v1/startable").status_code == 200
