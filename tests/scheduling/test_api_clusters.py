"""Clusters, nodes and policies over REST."""

from datetime import timedelta

import pytest
from django.utils import timezone

from scheduling.engine.types import Policy, PreemptionKind, Shard
from scheduling.models import Cluster, ClusterPolicy, NodeRecord
from scheduling.policy.document import DEFAULT, effective, to_policy
from scheduling.session.memory.load import policy
from tenants.models import AuditRecord

URL = "/api/v1/clusters"
POLICY = f"{URL}/demo/policy"


@pytest.fixture
def ops(org):
    return org.client("ops")


def test_everybody_sees_clusters_operators_how_to_reach_them(ops, eve):
    assert ops.get(f"{URL}/demo").json()["access"] == {"server": "http://127.0.0.1:1"}
    assert eve.get(f"{URL}/demo").json()["access"] is None
    assert eve.get(URL).json()["items"][0]["access"] is None
    assert "Clusters: demo" in eve.get(f"{URL}/nowhere").json()["detail"]


def test_operators_see_who_leads_and_whose_a_node_is(ops, eve, org):
    until = timezone.now() + timedelta(minutes=1)
    org.cluster.leases.create(scope="north", holder="host:1:x", expires_at=until)
    org.cluster.leases.create(scope="wide", holder="host:1:x", expires_at=timezone.now())
    org.cluster.leases.create(scope="over", holder="host:1:x")
    name = NodeRecord.objects.first().name
    NodeRecord.objects.update(scope="north")
    NodeRecord.objects.filter(name=name).update(scope="wide")
    leaders = ops.get(f"{URL}/demo").json()["leaders"]
    assert [(x["scope"], x["holder"], x["nodes"]) for x in leaders] == [
        ("north", "host:1:x", NodeRecord.objects.count() - 1),
        ("wide", "", 1),
    ]
    assert eve.get(f"{URL}/demo").json()["leaders"] is None
    lent = eve.get(f"{URL}/demo/nodes?scope=wide").json()["items"]
    assert [(node["name"], node["scope"]) for node in lent] == [(name, "wide")]


def test_operators_say_which_namespaces_may_use_which_tenants(ops, eve):
    table = {"team-a": ["vision"], "*": ["*"]}
    changed = ops.patch(f"{URL}/demo", {"namespace_tenants": table}, format="json")
    assert changed.json()["namespace_tenants"] == table
    assert eve.get(f"{URL}/demo").json()["namespace_tenants"] is None
    record = AuditRecord.objects.get(action="cluster.changed")
    assert (record.before["namespace_tenants"], record.after["namespace_tenants"]) == ({}, table)


def test_create_change_delete(ops, eve):
    document = {"name": "east", "access": {"kubeconfig": "/etc/kant/east", "context": "a"}}
    assert eve.post(URL, document, format="json").status_code == 403
    made = ops.post(URL, document, format="json")
    assert made.status_code == 201, made.json()
    assert ops.post(URL, document, format="json").status_code == 409
    changed = ops.patch(f"{URL}/east", {"title": "East", "is_active": False}, format="json")
    assert (changed.json()["title"], changed.json()["is_active"]) == ("East", False)
    assert eve.patch(f"{URL}/east", {"title": "x"}, format="json").status_code == 403
    job = {"name": "x", "tenant": "vision", "gpu_type": "H100", "gpus": 1}
    assert eve.post("/api/v1/jobs", job, format="json").json()["cluster"] == "demo"
    assert "1 jobs that are not over" in ops.delete(f"{URL}/demo").json()["detail"]
    assert ops.delete(f"{URL}/east").status_code == 204
    assert [r.action for r in AuditRecord.objects.order_by("at")] == [
        "cluster.created",
        "cluster.changed",
        "cluster.deleted",
    ]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"access": {}}, "/access"),
        ({"access": {"server": "https://x", "in_cluster": True}}, "/access"),
        ({"access": {"server": "https://x", "token": "secret"}}, "/access/token"),
        ({"access": {"server": 7}}, "/access/server"),
        ({"access": {"in_cluster": False}}, "/access/in_cluster"),
        ({"access": "here"}, "/access"),
        ({"access": {"server": "not a url"}}, "/access/server"),
        ({"access": {"server": "ftp://x"}}, "/access/server"),
        ({"access": {"server": "https://"}}, "/access/server"),
        ({"access": {"server": "https://x:99999"}}, "/access/server"),
        ({"access": {"server": "https://[x"}}, "/access/server"),
        ({"namespace": "Bad_NS"}, "/namespace"),
        ({"namespace": "a.b"}, "/namespace"),
        ({"name": "No"}, "/name"),
        ({"namespace": "x" * 64}, "/namespace"),
        ({"label_map": {"colour": "x"}}, "/label_map/colour"),
        ({"label_map": {"leaf": []}}, "/label_map/leaf"),
        ({"namespace_tenants": ["a"]}, "/namespace_tenants"),
        ({"namespace_tenants": {"A_b": ["vision"]}}, "/namespace_tenants/A_b"),
        ({"namespace_tenants": {"a": "vision"}}, "/namespace_tenants/a"),
        ({"namespace_tenants": {"a": ["vision", 7]}}, "/namespace_tenants/a"),
        ({"namespace_tenants": {"*": ["nobody"]}}, "/namespace_tenants/*"),
    ],
)
def test_wrong_clusters(ops, body, pointer):
    answer = ops.post(URL, {"name": "east", "access": {"in_cluster": True}, **body}, format="json")
    assert answer.status_code == 422, answer.json()
    assert pointer in [e["pointer"] for e in answer.json()["errors"]]
    assert "label_map" not in "".join(e["detail"] for e in answer.json()["errors"])
    assert Cluster.objects.count() == 1


def test_addresses_of_clusters(ops):
    for index, server in enumerate(("https://10.0.0.1:6443", "http://[::1]:8001", "https://k8s")):
        document = {"name": f"c{index}", "access": {"server": server}, "namespace": "a-1"}
        assert ops.post(URL, document, format="json").status_code == 201, server
    wrong = {"access": {"server": "k8s:6443"}}
    answer = ops.patch(f"{URL}/c0", wrong, format="json")
    assert [e["pointer"] for e in answer.json()["errors"]] == ["/access/server"]


def test_nodes(eve):
    def found(query):
        return [n["name"] for n in eve.get(f"{URL}/demo/nodes?{query}").json()["items"]]

    NodeRecord.objects.filter(name="h003").update(schedulable=False, allocated_milli=2500)
    assert found("gpu_type=A100") == ["a000", "a001"]
    assert found("leaf=leaf-1") == ["h002", "h003"]
    assert found("schedulable=false") == ["h003"]
    assert found("q=00&limit=2") == ["a000", "a001"]
    assert eve.get(f"{URL}/demo/nodes/h003").json()["allocated"] == 2.5
    amounts = {
        "cpu_milli": 64_000,
        "memory_mib": 262_144,
        "allocated_cpu_milli": 32_000,
        "allocated_memory_mib": 65_536,
    }
    NodeRecord.objects.filter(name="h003").update(**amounts)
    assert eve.get(f"{URL}/demo/nodes/h003").json().items() >= amounts.items()
    assert eve.get(f"{URL}/demo/nodes/zzz").status_code == 404
    assert eve.get(f"{URL}/demo/nodes?schedulable=maybe").status_code == 400


def test_policies(ops, eve, org):
    first = eve.get(POLICY)
    assert first["ETag"] == '"0"'
    assert first.json()["policy"] == effective({})
    body = {"policy": {"queueing": "strict-fifo", "max_attempts": 3}, "reason": "trial"}
    assert eve.put(POLICY, body, format="json", headers={"If-Match": '"0"'}).status_code == 403
    assert ops.put(POLICY, body, format="json").status_code == 428
    made = ops.put(POLICY, body, format="json", headers={"If-Match": '"0"'})
    assert (made.status_code, made["ETag"]) == (200, '"1"')
    assert made.json()["policy"]["max_attempts"] == 3
    assert made.json()["policy"]["backoff_cap_s"] == Policy().backoff_cap_s
    assert policy(org.cluster.pk).queueing == "strict-fifo"
    stale = ops.put(POLICY, body, format="json", headers={"If-None-Match": "*"})
    assert (stale.status_code, stale.json()["current_version"]) == (412, 1)
    again = ops.put(
        POLICY,
        {"policy": {"strategies": {"inference": "binpack"}}},
        format="json",
        headers={"If-Match": '"1"'},
    )
    assert again.json()["policy"]["queueing"] == Policy().queueing
    assert ClusterPolicy.objects.get().version == 2
    record = AuditRecord.objects.order_by("at").first()
    assert (record.action, record.reason) == ("policy.changed", "trial")
    assert record.before["queueing"] == "best-effort-fifo"


def test_a_document_means_the_policy_it_came_from():
    changed = {
        "queueing": "backfill",
        "strategies": {"inference": "binpack"},
        "preemption": ["priority", "reclaim"],
        "spare_nodes": {"H100": 2},
        "fair_share": True,
        "fair_users": True,
        "blame_s": 1.5,
        "shards": [{"name": "a", "gpu_models": ["H100"], "groups": ["s0"]}, {"name": "b"}],
        "from_the_future": 1,
    }
    assert to_policy({}) == DEFAULT
    assert effective(effective(changed)) == effective(changed)
    assert hash(to_policy(changed))
    assert to_policy(changed).preemption == (PreemptionKind.PRIORITY, PreemptionKind.RECLAIM)
    assert to_policy(changed).shards == (Shard("a", ("H100",), ("s0",)), Shard("b"))


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ({"queueing": "lottery"}, "/queueing"),
        ({"queueing": ["strict-fifo"]}, "/queueing"),
        ({"max_attempts": 1.5}, "/max_attempts"),
        ({"max_attempts": True}, "/max_attempts"),
        ({"backoff_base_s": -1}, "/backoff_base_s"),
        ({"backoff_base_s": 10**400}, "/backoff_base_s"),
        ({"backoff_base_s": "5"}, "/backoff_base_s"),
        ({"strategies": "binpack"}, "/strategies"),
        ({"strategies": {"training": ["binpack"]}}, "/strategies/training"),
        ({"strategies": {"party": "binpack"}}, "/strategies/party"),
        ({"speed": 1}, "/speed"),
        ({"preemption": "priority"}, "/preemption"),
        ({"preemption": ["priority", {}]}, "/preemption/1"),
        ({"spare_nodes": {"H100": -1}}, "/spare_nodes/H100"),
        ({"spare_nodes": {"H100": 1, "H10O": 1}}, "/spare_nodes/H10O"),
        ({"fair_share": 1}, "/fair_share"),
        ({"fair_users": True}, "/fair_users"),
        ({"fair_users": True, "fair_share": False}, "/fair_users"),
        ({"shards": {"name": "a"}}, "/shards"),
        ({"shards": ["a"]}, "/shards/0"),
        ({"shards": [{}]}, "/shards/0/name"),
        ({"shards": [{"name": 1}]}, "/shards/0/name"),
        ({"shards": [{"name": "A b"}]}, "/shards/0/name"),
        ({"shards": [{"name": "wide"}]}, "/shards/0/name"),
        ({"shards": [{"name": "a", "leaf": "l0"}]}, "/shards/0/leaf"),
        ({"shards": [{"name": "a", "groups": "s0"}, {"name": "b"}]}, "/shards/0/groups"),
        ({"shards": [{"name": "a", "gpu_models": [1]}, {"name": "b"}]}, "/shards/0/gpu_models/0"),
        ({"shards": [{"name": "a", "groups": ["s0"]}]}, "/shards/0/groups"),
        ({"shards": [{"name": "a", "groups": ["s0"]}, {"name": "a"}]}, "/shards/1/name"),
    ],
)
def test_wrong_policies(ops, document, pointer):
    answer = ops.put(POLICY, {"policy": document}, format="json", headers={"If-Match": '"0"'})
    assert answer.status_code == 422
    assert [e["pointer"] for e in answer.json()["errors"]] == [f"/policy{pointer}"]
    assert answer.json()["detail"].startswith("policy.")
    assert not ClusterPolicy.objects.exists()


# --- changes of a policy --------------------------------------------------------------------------
def put(client, version, **policy):
    answer = client.put(
        POLICY, {"policy": policy}, format="json", headers={"If-Match": f'"{version}"'}
    )
    assert answer.status_code == 200, answer.json()


def changes(client):
    return client.get("/api/v1/audit?action=policy").json()["items"]


def revert(client, record, version, query="", **body):
    return client.post(
        f"{POLICY}/changes/{record['id']}/revert{query}",
        body,
        format="json",
        headers={"If-Match": f'"{version}"'},
    )


def test_what_a_change_of_a_policy_set_is_taken_back_and_nothing_else(ops):
    put(ops, 0, preemption=[])
    put(ops, 1, queueing="backfill", spare_nodes={"H100": 2}, preemption=["priority"])
    put(ops, 2, queueing="backfill", blame_s=60, preemption=["priority", "reclaim"])
    second, first, _ = changes(ops)
    would = revert(ops, second, 3, "?dry_run=true").json()
    assert (would["would"], would["result"]["policy"]["spare_nodes"]) == ("update", {"H100": 2})
    assert ClusterPolicy.objects.get().version == 3
    done = revert(ops, first, 3, reason="Too early")
    assert (done.status_code, done["ETag"]) == (200, '"4"')
    policy = done.json()["policy"]
    assert (policy["queueing"], policy["preemption"]) == ("best-effort-fifo", ["reclaim"])
    assert (policy["blame_s"], policy["spare_nodes"]) == (60, {})
    newest = changes(ops)[0]
    assert (newest["reverts"], newest["reason"]) == (first["id"], "Too early")
    again = revert(ops, first, 4)
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    assert (
        "The policy already has its values from before this change. ops changed it"
    ) in again.json()["detail"]
    assert revert(ops, newest, 4).json()["policy"]["queueing"] == "backfill"


def test_a_setting_that_was_set_again_since_is_named_not_overwritten(ops):
    put(ops, 0, blame_s=60.5)
    put(ops, 1, blame_s=30, queueing="backfill")
    later, record = changes(ops)
    answer = revert(ops, record, 2)
    assert answer.status_code == 409
    told = "Blame was set to 60.5 s by this change and is 30 s now. ops changed it at "
    assert answer.json()["detail"].startswith(told)
    assert revert(ops, later, 2).json()["policy"]["blame_s"] == 60.5
    assert revert(ops, record, 3).json()["policy"]["blame_s"] == Policy().blame_s


def test_what_a_revert_would_break_is_refused(ops):
    put(ops, 0, fair_share=True)
    put(ops, 1, fair_share=True, fair_users=True)
    answer = revert(ops, changes(ops)[1], 2)
    assert [e["pointer"] for e in answer.json()["errors"]] == ["/fair_users"]
    assert ClusterPolicy.objects.get().version == 2


def test_who_may_revert_a_change_of_a_policy_and_which(ops, org):
    put(ops, 0, blame_s=60)
    record = changes(ops)[0]
    assert revert(org.client("root"), record, 1).status_code == 403
    assert revert(ops, record, 7).status_code == 412
    assert ops.post(f"{POLICY}/changes/{record['id']}/revert").status_code == 428
    ops.patch(f"{URL}/demo", {"title": "D"}, format="json")
    other = ops.get("/api/v1/audit?action=cluster").json()["items"][0]
    assert revert(ops, other, 1).status_code == 404
    # Changes of an earlier cluster of the same name do not belong to this one.
    Cluster.objects.update(created_at=timezone.now())
    assert revert(ops, record, 1).status_code == 404
    assert changes(org.client("root")) == []
