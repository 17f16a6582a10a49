"""Preview over REST what a policy change would do from now on."""

import time

import pytest

from scheduling.models import ClusterPolicy, Job
from scheduling.queries import effects
from tests.scheduling.test_rehearsal import fleet, runs, waits  # noqa: F401 - a fixture

URL = "/api/v1/clusters/demo/policy?dry_run=true"


@pytest.fixture
def would(fleet):  # noqa: F811
    """A young job on all nodes, and one of a higher priority that waits for two of them."""
    ClusterPolicy.objects.create(cluster=fleet.cluster, document={"preemption": []})
    runs(fleet, ["h000", "h001", "h002", "h003"], declared_s=7200)
    waits(fleet, 2, name="high", priority=10)

    def ask(**policy):
        body = {"policy": {"preemption": [], **policy}}
        answer = fleet.client("ops").put(URL, body, format="json", headers={"If-Match": '"1"'})
        assert answer.status_code == 200, answer.json()
        return answer.json()["effects"]

    return ask


def test_who_would_preempt_starts_and_whom_it_costs_is_named(would):
    found = would(preemption=["priority"], min_runtime_s=0)
    assert [job["name"] for job in found["starts"]] == ["high"]
    (stop,) = found["stops"]
    assert (stop["job"]["name"], stop["by"]["name"], stop["whole"]) == ("runs-h000", "high", True)
    assert ClusterPolicy.objects.get().version == 1
    assert Job.objects.get(name="high").state == "PENDING"


def test_what_changes_nothing_for_jobs_says_so_and_new_shards_cannot_be_told(would, monkeypatch):
    found = would(blame_s=60, fair_share=True)
    assert (found["starts"], found["stops"], found["troubles"]) == ([], [], [])
    found = would(shards=[{"name": "one", "gpu_models": ["H100"]}, {"name": "rest"}])
    assert found["until"] is None
    assert "divides it into different shards" in found["troubles"][0]
    # Immediate effects are reported however little time there is.
    monkeypatch.setattr(effects, "WITHIN_S", 0.0)
    began = time.process_time()
    found = would(preemption=["priority"], min_runtime_s=0)
    assert found["counts"]["stops"] == 1
    assert time.process_time() - began < 10.0


def test_a_revert_tells_what_an_edit_back_would_and_keeps_it_for_when_it_is_done(would, fleet):  # noqa: F811
    ops, policy = fleet.client("ops"), "/api/v1/clusters/demo/policy"
    ClusterPolicy.objects.all().delete()
    terms = {"preemption": ["priority"], "min_runtime_s": 0.0}
    for version, document in enumerate((terms, {**terms, "preemption": []})):
        body, tag = {"policy": document, "reason": "r"}, {"If-Match": f'"{version}"'}
        assert ops.put(policy, body, format="json", headers=tag).status_code == 200
    off = ops.get("/api/v1/audit?action=policy").json()["items"][0]

    def revert(query=""):
        path = f"{policy}/changes/{off['id']}/revert{query}"
        answer = ops.post(path, {"reason": "Back"}, format="json", headers={"If-Match": '"2"'})
        assert answer.status_code == 200, answer.json()
        return answer.json()

    found = revert("?dry_run=true")["effects"]
    assert [job["name"] for job in found["starts"]] == ["high"]
    (stop,) = found["stops"]
    assert (stop["job"]["name"], stop["by"]["name"]) == ("runs-h000", "high")
    assert ClusterPolicy.objects.get().version == 2
    revert()
    done = ops.get("/api/v1/audit?action=policy").json()["items"][0]
    assert done["reverts"] == off["id"]
    assert done["preview"]["told"]["counts"]["stops"] == 1
