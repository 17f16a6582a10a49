"""Node groups of a cluster: the nodes that an autoscaler may add, and the jobs accepted because
of them."""

from dataclasses import replace

import pytest

from scheduling.engine.deltas import NodeChanged, NodeRemoved
from scheduling.kube.translate.node_groups import groups_of, nodes_to_come
from scheduling.models import Cluster, Job, NodeRecord
from scheduling.queries.known import Known
from scheduling.queries.whatif.rows import KeptRows
from tenants.models import GpuType, Quota

URL = "/api/v1/clusters/demo"
SIZE = {"cpu_milli": 64_000, "memory_mib": 512_000}
POOL = {"gpu_type": "T4", "gpus": 8, "max_nodes": 4, **SIZE}
GROUPS = {
    "t4": {**POOL, "labels": {"pool": "t4"}},
    "wide": {"gpu_type": "H100", "gpus": 16, "max_nodes": 2, **SIZE},
}


def grow(org, groups=GROUPS):
    return org.client("ops").patch(URL, {"node_groups": groups}, format="json")


def submit(org, **said):
    Quota.objects.get_or_create(
        tenant=org.tenants["vision"],
        gpu_type=GpuType.objects.get(name=said["gpu_type"]),
        defaults={"guaranteed_milli": 1_000_000},
    )
    job = {"name": "j", "tenant": "vision", **said}
    return org.client("eve").post("/api/v1/jobs", job, format="json")


# --- the document ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("groups", "at", "words"),
    [
        ([], "", "Must be an object"),
        ({"a": 1}, "", "Must be an object"),
        ({"A b": POOL}, "/A b", "lower-case letters"),
        ({"a": {**POOL, "size": 1}}, "/a/size", "Unknown field. Known here: gpu_type, gpus"),
        ({"a": {**POOL, "gpus": 300}}, "/a/gpus", "whole number from 0 to 256"),
        ({"a": {**POOL, "max_nodes": 0}}, "/a/max_nodes", "whole number from 1 to 10000"),
        ({"a": {**POOL, "max_nodes": True}}, "/a/max_nodes", "whole number"),
        ({"a": {"gpus": 1, "gpu_type": "T4", "max_nodes": 1}}, "/a/cpu_milli", "whole number"),
        ({"a": {**POOL, "gpu_type": "X9"}}, "/a/gpu_type", "no GPU type “X9”. There are: A100"),
        ({"a": {**POOL, "gpus": 0}}, "/a/gpus", "Give the number of GPUs"),
        ({"a": {**POOL, "gpu_type": 7}}, "/a/gpu_type", "Must be the name"),
        ({"a": {**POOL, "labels": {"b": 1}}}, "/a/labels", "Must be an object: {label: text}"),
        ({"a": {**POOL, "labels": {"-": "1"}}}, "/a/labels/-", "Not the name of a Kubernetes"),
        ({"a": {**POOL, "taints": {}}}, "/a/taints", "Must be a list"),
        (
            {"a": {**POOL, "taints": [{"key": "k", "effect": "No"}]}},
            "/a/taints/0/effect",
            "NoSchedule",
        ),
        ({"a": {**POOL, "extended": {"cpu": 1}}}, "/a/extended/cpu", "Use cpu_milli for this."),
        ({"a": {**POOL, "extended": {"x/y": "many"}}}, "/a/extended/x~1y", "Must be an amount"),
        ({"a": {**POOL, "max_nodes": 9999}, "b": GROUPS["wide"]}, "", "At most 10000 nodes"),
        ({"a": POOL, "b": {**POOL, "labels": {"x": "y"}}}, "/b/labels", "and to “a”"),
        ({f"g{n}": POOL for n in range(65)}, "", "At most 64 groups."),
    ],
)
def test_wrong_groups_are_refused_when_they_are_set(org, groups, at, words):
    answer = grow(org, groups)
    assert answer.status_code == 422, answer.json()
    errors = {e["pointer"]: e["detail"] for e in answer.json()["errors"]}
    assert words in errors[f"/node_groups{at}"]
    assert Cluster.objects.get().node_groups == {}


def test_groups_are_set_by_operators_and_shown_to_all(org):
    assert grow(org).json()["node_groups"] == GROUPS
    assert org.client("eve").get(URL).json()["node_groups"] == GROUPS
    assert org.client("eve").patch(URL, {"node_groups": {}}, format="json").status_code == 403
    assert b"An autoscaler may add to Demo: t4 up to 4 nodes of 8 T4; wide" in _page(org)


def test_a_class_of_provisioning_requests_goes_with_groups(org):
    change = {"provisioning_class": "check-capacity.autoscaling.x-k8s.io"}

    def refused(said):
        answer = org.client("ops").patch(URL, said, format="json")
        assert answer.status_code == 422
        [error] = answer.json()["errors"]
        return error["pointer"], error["detail"]

    alone = (
        "/provisioning_class",
        "Set in node_groups what the autoscaler may add, or leave this empty.",
    )
    assert refused(change) == alone
    answer = org.client("ops").patch(URL, {**change, "node_groups": GROUPS}, format="json")
    assert answer.json()["provisioning_class"] == change["provisioning_class"]
    assert b", gangs by ProvisioningRequests of class check-capacity." in _page(org)
    assert refused({"node_groups": {}}) == alone
    at, words = refused({"provisioning_class": "Best effort"})
    assert (at, words[:27]) == ("/provisioning_class", "Must be the name of a class")
    cleared = org.client("ops").patch(URL, {"provisioning_class": ""}, format="json")
    assert cleared.json()["provisioning_class"] == ""


def _page(org):
    client = org.client("ops")
    client.force_login(org.users["ops"])
    return client.get("/ops/nodes/").content


# --- what may come --------------------------------------------------------------------------------
def test_nodes_that_are_there_no_longer_may_come():
    groups = groups_of(GROUPS, {})
    there = [
        _node("a", "T4", 8, pool="t4"),
        _node("b", "T4", 8, pool="t5"),  # of no group
        _node("c", "T4", 4, pool="t4"),
        _node("d", "H100", 16),
        _node("e", "H100", 16),
        _node("f", "H100", 16),  # one more than the operator declares
        replace(_node("g", "T4", 8, pool="t4"), memory_mib=0),  # it registers
    ]
    found = nodes_to_come(groups, there)
    assert [*found] == ["t4/1", "t4/2", "t4/3"]
    node = found["t4/2"]
    assert (node.gpu_model, len(node.devices), node.cpu_milli) == ("T4", 8, 64_000)
    assert (node.to_come, node.schedulable, node.problems) == (True, False, ())
    assert node.labels["pool"] == "t4"
    assert node.labels["nvidia.com/gpu.product"] == "T4"
    assert node.labels["kubernetes.io/hostname"] == "t4/2"


def _node(name, model, gpus, **labels):
    [group] = groups_of({"x": {**POOL, "gpu_type": model, "gpus": gpus}}, {})
    return replace(group.example, name=name, labels=labels, to_come=False)


def test_labels_and_amounts_are_read_as_of_nodes():
    group = {
        **POOL,
        "labels": {"rack": "r1", "nvidia.com/gpu.memory": "16384"},
        "taints": [{"key": "gpu", "effect": "NoSchedule"}],
        "extended": {"rdma/ib": 8, "ephemeral-storage": "10Gi"},
    }
    [found] = groups_of({"a": group}, {"leaf": "rack"})
    node = found.example
    assert node.topology[0] == "r1"
    assert node.gpu_memory_mib == 16384
    assert (len(node.nics), node.extended["ephemeral-storage"]) == (8, 10_240)
    assert [taint.key for taint in node.taints] == ["gpu"]


# --- submissions ----------------------------------------------------------------------------------
def test_a_job_that_fits_only_nodes_that_may_come_is_taken(org):
    alone = {"gpu_type": "T4", "gpus": 8}
    refused = submit(org, **alone)
    assert (refused.status_code, refused.json()["code"]) == (422, "NoMatchingGpuType")
    assert submit(org, gpu_type="H100", gpus=16).json()["code"] == "ExceedsCapacity"
    grow(org)
    assert submit(org, **alone).status_code == 201
    assert submit(org, gpu_type="H100", gpus=16).status_code == 201
    assert submit(org, gpu_type="T4", gpus=8, replicas=4).status_code == 201
    more = submit(org, gpu_type="T4", gpus=8, replicas=5)
    assert (more.status_code, more.json()["code"]) == (422, "ExceedsCapacity")
    assert "has 32" in more.json()["errors"][0]["detail"]
    larger = submit(org, gpu_type="H100", gpus=17)
    assert "the largest such node of cluster “demo” has 16" in larger.json()["errors"][0]["detail"]
    assert Job.objects.count() == 3


@pytest.mark.parametrize("amounts", [SIZE, {}, {"cpu_milli": 64_000}])
def test_nodes_that_are_there_count_once(org, amounts):
    """This holds too while a node registers and has not reported its amounts."""
    grow(org)
    node = {"gpu_model": "T4", "gpus": 8, "labels": {"pool": "t4"}}
    NodeRecord.objects.create(cluster=org.cluster, name="t", **node, **amounts)
    beside = {"cpu_milli": 32_000, "memory_mib": 1000}
    assert submit(org, gpu_type="T4", gpus=8, replicas=4, **beside).status_code == 201
    assert submit(org, gpu_type="T4", gpus=8, replicas=5, **beside).status_code == 422
    # Pod sets that compete for the same nodes are tried on existing and possible nodes.
    sets = [{"name": name, "count": n, "gpu_type": "T4", "gpus": 8, **beside}
            for name, n in (("a", 3), ("b", 1))]  # fmt: skip
    job = {"name": "j", "tenant": "vision", "pod_sets": sets}
    answer = org.client("eve").post("/api/v1/jobs", job, format="json")
    assert answer.status_code == 201, answer.json()


def test_a_job_without_gpus_is_taken_for_nodes_without_gpus_that_may_come(org):
    job = {"name": "c", "tenant": "vision", "gpus": 0, "cpu_milli": 4000}
    assert org.client("eve").post("/api/v1/jobs", job, format="json").status_code == 422
    grow(org, {"cpu": {"max_nodes": 1, **SIZE}})
    answer = org.client("eve").post("/api/v1/jobs", job, format="json")
    assert answer.status_code == 201, answer.json()
    job["cpu_milli"] = 64_001
    assert org.client("eve").post("/api/v1/jobs", job, format="json").status_code == 422


# --- callers that build the engine from rows ------------------------------------------------------
def test_rows_tell_of_nodes_that_may_come(org):
    grow(org)
    Cluster.objects.update(connected=True)
    kept = KeptRows(org.cluster)
    kept.refresh(1.0)
    assert {"t4/1", "t4/4", "wide/2", "h000"} <= kept.nodes.keys()
    before = kept.nodes["t4/1"]
    grow(org, {"t4": {**GROUPS["t4"], "max_nodes": 1}})
    kept.refresh(2.0)
    assert kept.nodes["t4/1"] is before
    assert "t4/2" not in kept.nodes
    assert NodeRemoved("t4/2") not in kept.facts()


@pytest.fixture
def decided(monkeypatch):
    monkeypatch.setattr("scheduling.queries.known.standstill", lambda cluster: "")


def test_a_rehearsal_knows_them(org, decided):
    grow(org)
    org.cluster.refresh_from_db()
    told = [f.node.name for f in Known(org.cluster).facts("") if isinstance(f, NodeChanged)]
    assert [name for name in told if "/" in name] == [*(f"t4/{n}" for n in range(1, 5)),
                                                      "wide/1", "wide/2"]  # fmt: skip


def test_a_quota_may_promise_what_may_be_added(org):
    """And no more than that, for a GPU type without a node."""
    grow(org)
    ops, url = org.client("ops"), "/api/v1/quotas/ml/T4"

    def put(gpus):
        body = {"guaranteed": gpus, "reason": "T4 come"}
        return ops.put(url, body, format="json", headers={"If-None-Match": "*"})

    too_much = put(33)
    assert too_much.status_code == 422
    assert "32 GPUs are installed or can be added by node groups" in too_much.json()["detail"]
    assert put(32).status_code == 201
