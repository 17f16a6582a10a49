"""The same requests to the embedded cluster and to a real kube-apiserver: the same answers."""

from typing import Any

import pytest

from .harness import NODES, PODS
from .same import APPLY, JSON_PATCH, MERGE, STRATEGIC, check

pytestmark = pytest.mark.apiserver

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
SERVICES = "/api/v1/namespaces/default/services"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
CORE_EVENTS = "/api/v1/namespaces/default/events"


def pod(name: str, **spec: Any) -> dict[str, Any]:
    limits = spec.pop("limits", {"cpu": "1", "nvidia.com/gpu": 1})
    labels = spec.pop("labels", {"a": "b"})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"restartPolicy": "Never", "containers": container(limits=limits), **spec},
    }


def container(**resources: Any) -> list[dict[str, Any]]:
    return [{"name": "m", "image": "x:1", "resources": resources}]


def binding(name: str, node: str, **meta: Any) -> dict[str, Any]:
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, **meta}}
    return {**body, "target": target}


def test_creating_pods(servers):
    specs: list[dict[str, Any]] = [
        {}, {"containers": []}, {"containers": [{"name": "m"}]}, {"containers": [{"image": "x"}]},
        {"restartPolicy": "Foo"}, {"limits": {"cpu": "-1"}}, {"limits": {"cpu": "ten"}},
        {"limits": {"nvidia.com/gpu": "1.5"}}, {"limits": {"foo": 1}},
        {"limits": {"kant.io/gpu-milli": 300, "memory": "2048Mi"}},
        {"containers": container(requests={"nvidia.com/gpu": 1})},
        {"containers": container(requests={"cpu": 2}, limits={"cpu": 1})},
        {"containers": container(requests={"nvidia.com/gpu": 1}, limits={"nvidia.com/gpu": 2})},
        {"containers": container() * 2}, {"labels": {"a b": "c"}}, {"labels": {"a": "c d"}},
        {"tolerations": [{"key": "a", "operator": "Foo"}]},
        {"tolerations": [{"key": "a", "operator": "Exists", "value": "x"}]},
        {"nodeName": "Bad_"}, {"priorityClassName": "nope"}, {"priority": 5},
        {"nodeName": "n", "schedulingGates": [{"name": "g"}]},
        {"schedulingGates": [{"name": "example.com/g"}]}, {"terminationGracePeriodSeconds": -5},
    ]  # fmt: skip
    check(servers, *(("POST", PODS, pod(f"c{i}", **spec)) for i, spec in enumerate(specs)))
    check(
        servers,
        ("POST", PODS, pod("c0")),
        ("POST", PODS, pod("Bad_Name")),
        ("POST", f"{PODS}?dryRun=All", pod("dry")),
        ("POST", f"{PODS}?dryRun=Some", pod("dry")),
        ("POST", "/api/v1/namespaces/nowhere/pods", pod("p")),
        ("POST", "/api/v1/pods", pod("p")),
        ("DELETE", f"{PODS}?gracePeriodSeconds=0"),
    )


def test_bodies_that_are_no_pods(servers):
    named = {"name": "x"}
    check(
        servers,
        *(("POST", PODS, body) for body in (b"{", b"[]", b"", {"metadata": {"labels": 5}})),
        ("POST", PODS, {**pod("x"), "kind": "Node"}),
        ("POST", PODS, {**pod("x"), "apiVersion": "v2"}),
        ("POST", PODS, {**pod("x"), "metadata": {**named, "namespace": "other"}}),
        ("POST", PODS, {**pod("x"), "metadata": {**named, "resourceVersion": "5"}}),
        ("POST", PODS, b"x", "text/plain"),
        ("PUT", PODS, {}),
        ("GET", "/api/v1/widgets"),
        ("GET", "/apis/foo/v1/x"),
        ("POST", "/version", {}),
    )


def test_lists(servers):
    check(servers, ("POST", PODS, pod("l")))
    for query in (
        "labelSelector=a==", "labelSelector=(", "labelSelector=a,,b", "labelSelector=a+in+(b)",
        "labelSelector=!a", "fieldSelector=spec.foo=1", "fieldSelector=bare", "limit=-1",
        "limit=ten", "continue=zzz", "resourceVersion=x", "resourceVersion=99999999",
        "resourceVersion=0", "resourceVersionMatch=Exact", "timeoutSeconds=x",
        "fieldSelector=status.phase!=Running,spec.nodeName=", "watch=1&sendInitialEvents=true",
        "watch=1&resourceVersionMatch=NotOlderThan",
    ):  # fmt: skip
        check(servers, ("GET", f"{PODS}?{query}"))
    check(servers, ("DELETE", f"{PODS}/l"))


def test_bindings(servers):
    path = f"{PODS}/b/binding"
    wrong_kind = {**binding("b", "n"), "target": {"kind": "Foo", "name": "n"}}
    gated = pod("g", schedulingGates=[{"name": "example.com/g"}])
    check(
        servers,
        ("POST", PODS, pod("b")),
        ("POST", PODS, gated),
        ("POST", f"{PODS}/g/binding", binding("g", "n1")),
        ("POST", f"{PODS}/zz/binding", binding("zz", "n1")),
        *(("POST", path, b) for b in (binding("b", ""), wrong_kind, binding("c", "n"), {})),
        ("POST", path, binding("b", "n1", uid="nope")),
        ("POST", path, binding("b", "n1", resourceVersion="1")),
        ("POST", f"{path}?dryRun=All", binding("b", "n1")),
        ("GET", path),
        ("POST", path, binding("b", "n1", annotations={"k/d": "[0]"}, labels={"l": "m"})),
        ("GET", f"{PODS}/b"),
        ("POST", path, binding("b", "n2")),
        ("PATCH", f"{PODS}/g", [{"op": "remove", "path": "/spec/schedulingGates/0"}], JSON_PATCH),
        ("PATCH", f"{PODS}/g", {"spec": {"schedulingGates": [{"name": "x.y/z"}]}}, STRATEGIC),
        ("DELETE", f"{PODS}/b?gracePeriodSeconds=0"),
        ("DELETE", f"{PODS}/g"),
        ("DELETE", f"{PODS}/g"),
    )


def test_patches(servers):
    path, status = f"{PODS}/p", f"{PODS}/p/status"
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    merges: list[Any] = [
        {"metadata": {"labels": {"x": "y"}}}, {"metadata": {"labels": {"x": 1}}},
        {"metadata": {"labels": {"x y": "1"}}}, {"metadata": {"uid": "o"}},
        {"metadata": {"name": "o"}}, {"metadata": {"resourceVersion": "1"}}, [1], b"{",
        {"spec": {"nodeName": "n9"}}, {"spec": {"tolerations": []}}, {"status": {"phase": "x"}},
    ]  # fmt: skip
    operations: list[Any] = [
        [{"op": "test", "path": "/metadata/name", "value": "q"}],
        [{"op": "remove", "path": "/metadata/foo"}], [{"op": "jump", "path": "/a"}], {"a": 1},
        [{"op": "replace", "path": "/metadata/labels/x", "value": "z"}],
    ]  # fmt: skip
    check(
        servers,
        ("POST", PODS, pod("p")),
        *(("PATCH", path, body, MERGE) for body in merges),
        *(("PATCH", path, body, JSON_PATCH) for body in operations),
        ("PATCH", path, {}, "application/foo"),
        ("PATCH", f"{PODS}/zz", {}, MERGE),
        ("PATCH", path, {"spec": {"terminationGracePeriodSeconds": 9}}, STRATEGIC),
        ("PATCH", path, {"spec": {"containers": [{"name": "m", "image": "y:2"}]}}, STRATEGIC),
        ("PATCH", status, {"status": {"conditions": [condition]}}, STRATEGIC),
        ("PATCH", status, {"status": {"conditions": [{"status": "x"}]}}, STRATEGIC),
        ("PATCH", status, {"spec": {"nodeName": "q"}}, STRATEGIC),
        ("PATCH", status, {"status": {"nominatedNodeName": "n5"}}, MERGE),
        ("POST", f"{PODS}/p/binding", binding("p", "n1")),
        ("GET", path),
        ("PATCH", path, b"apiVersion: v1\nkind: Pod\n", APPLY),
        ("PATCH", f"{path}?fieldManager=f", b"a: [", APPLY),
        ("DELETE", f"{path}?gracePeriodSeconds=0"),
    )


def test_deleting_and_evicting(servers):
    path = f"{PODS}/d"
    held = pod("f")
    held["metadata"]["finalizers"] = ["a.b/c"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "d"}}
    stale = {**eviction, "deleteOptions": {"preconditions": {"uid": "x"}}}
    two = {"metadata": {"finalizers": ["a.b/c", "d.e/f"]}}
    check(
        servers,
        ("POST", PODS, pod("d")),
        ("POST", f"{path}/binding", binding("d", "no-such-node")),
        ("POST", f"{path}/eviction", {**eviction, "metadata": {"name": "other"}}),
        ("POST", f"{path}/eviction", stale),
        ("POST", f"{path}/eviction?dryRun=All", eviction),
        ("DELETE", path, {"preconditions": {"uid": "x"}}),
        ("DELETE", path, {"preconditions": {"resourceVersion": "1"}}),
        ("DELETE", path, b"{"),
        ("DELETE", path, {"gracePeriodSeconds": "x"}),
        ("DELETE", path, {"dryRun": ["Foo"]}),
        ("DELETE", f"{path}?dryRun=All&gracePeriodSeconds=0"),
        ("DELETE", path, {"gracePeriodSeconds": 5000}),
        ("POST", f"{path}/binding", binding("d", "n1")),
        ("DELETE", path, {"gracePeriodSeconds": 0}),
        ("POST", PODS, held),
        ("DELETE", f"{PODS}/f"),
        ("PATCH", f"{PODS}/f", two, MERGE),
        ("PATCH", f"{PODS}/f", {"metadata": {"finalizers": None}}, MERGE),
        ("GET", f"{PODS}/f"),
        ("DELETE", f"{PODS}?labelSelector=zz=yy"),
    )


def test_nodes(servers):
    path = f"{NODES}/n"
    capacity = {"cpu": "4000m", "memory": "2048Mi", "kant.io/gpu-milli": "8000"}
    taints: list[Any] = [
        [{"key": "a", "effect": "Foo"}], [{"key": "a", "effect": "NoSchedule"}] * 2,
        [{"key": "a", "effect": "NoSchedule"}],
    ]  # fmt: skip
    statuses: list[Any] = [
        {"allocatable": {"cpu": "x"}}, {"allocatable": {"cpu": "-1"}},
        {"conditions": [{"type": "Ready", "status": "True"}]},
    ]  # fmt: skip
    check(
        servers,
        ("POST", NODES, {"metadata": {"name": "n"}, "status": {"capacity": capacity}}),
        ("POST", NODES, {"metadata": {"name": "Bad_"}}),
        ("PATCH", path, {"spec": {"unschedulable": True}, "status": {"phase": "x"}}, MERGE),
        *(("PATCH", path, {"spec": {"taints": t}}, STRATEGIC) for t in taints),
        *(("PATCH", f"{path}/status", {"status": s}, STRATEGIC) for s in statuses),
        ("GET", f"{NODES}?fieldSelector=spec.unschedulable=true"),
        ("PUT", path, {"metadata": {}}),
        ("PUT", f"{NODES}/zz", {"metadata": {"name": "zz"}}),
        ("DELETE", path),
    )


def test_leases_classes_budgets_and_namespaces(servers):
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15}
    lease = {"metadata": {"name": "l"}, "spec": spec}
    stale = {**lease, "metadata": {"name": "l", "resourceVersion": "1"}}
    check(
        servers,
        ("POST", LEASES, lease),
        ("PUT", f"{LEASES}/l", lease),
        ("PUT", f"{LEASES}/l", stale),
        ("PUT", f"{LEASES}/l2", {**lease, "metadata": {"name": "l2"}}),
        ("POST", LEASES, {"metadata": {"name": "x"}, "spec": {"leaseDurationSeconds": 0}}),
        ("POST", LEASES, {"metadata": {"name": "x"}, "spec": {"renewTime": "x"}}),
        ("DELETE", f"{LEASES}/l"),
        ("GET", f"{LEASES}/l"),
        ("POST", CLASSES, {"metadata": {"name": "hi"}, "value": 5}),
        ("POST", CLASSES, {"metadata": {"name": "big"}, "value": 2_000_000_000}),
        ("POST", CLASSES, {"metadata": {"name": "system-x"}, "value": 5}),
        ("PATCH", f"{CLASSES}/hi", {"value": 6}, MERGE),
        ("POST", f"{PODS}?dryRun=All", pod("p", priorityClassName="hi")),
        ("DELETE", f"{CLASSES}/hi"),
        ("POST", BUDGETS, {"metadata": {"name": "b"}, "spec": {"minAvailable": 1}}),
        ("POST", BUDGETS, {"metadata": {"name": "c"}, "spec": {"minAvailable": "x"}}),
        ("POST", BUDGETS, {"metadata": {"name": "c"}, "spec": {"minAvailable": -1}}),
        ("DELETE", f"{BUDGETS}/b"),
        ("POST", "/api/v1/namespaces", {"metadata": {"name": "nsx"}}),
        ("POST", "/api/v1/namespaces", {"metadata": {"name": "a.b"}}),
        ("PATCH", "/api/v1/namespaces/nsx", {"metadata": {"labels": {"q": "r"}}}, MERGE),
    )


def test_headless_services(servers):
    def service(name: str, **spec: Any) -> dict[str, Any]:
        spec = {"clusterIP": "None", "selector": {"a": "b"}, **spec}
        return {"metadata": {"name": name, "labels": {"a": "b"}}, "spec": spec}

    check(
        servers,
        ("POST", SERVICES, service("job-1a", publishNotReadyAddresses=True)),
        ("POST", SERVICES, service("job-1a")),
        ("GET", f"{SERVICES}/job-1a"),
        ("GET", f"{SERVICES}?fieldSelector=spec.clusterIP%3DNone&labelSelector=a%3Db"),
        ("POST", SERVICES, service("port", ports=[{"port": 80}])),
        ("POST", SERVICES, service("a.b")),
        ("POST", SERVICES, service("UPPER")),
        ("POST", SERVICES, service("1st")),
        ("POST", SERVICES, service("x", selector={"not a key": "b"})),
        ("POST", SERVICES, service("x", selector="b")),
        ("PATCH", f"{SERVICES}/job-1a", {"spec": {"selector": {"a": "c"}}}, MERGE),
        ("DELETE", f"{SERVICES}/job-1a", {"preconditions": {"uid": "another"}}),
        ("DELETE", f"{SERVICES}/job-1a"),
        ("DELETE", f"{SERVICES}/job-1a"),
    )


def test_events(servers):
    at = "2026-01-01T00:00:00.000000Z"
    event = {
        "metadata": {"name": "e1"}, "eventTime": at, "reportingController": "kant",
        "reportingInstance": "k0", "action": "Binding", "reason": "Scheduled", "note": "n",
        "type": "Normal", "regarding": {"kind": "Pod", "namespace": "default", "name": "p"},
    }  # fmt: skip
    core = {
        "metadata": {"name": "e2"}, "message": "m", "reason": "r", "type": "Normal",
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"},
        "source": {"component": "c"},
    }  # fmt: skip
    changes: list[dict[str, Any]] = [{"eventTime": None}, {"type": "X"}, {"note": "n" * 2000}]
    check(
        servers,
        ("POST", EVENTS, event),
        ("GET", f"{CORE_EVENTS}/e1"),
        *(("POST", EVENTS, {**event, "metadata": {"name": "x"}, **c}) for c in changes),
        ("POST", CORE_EVENTS, core),
        ("GET", f"{EVENTS}/e2"),
        ("PATCH", f"{EVENTS}/e1", {"series": {"count": 2, "lastObservedTime": at}}, MERGE),
        ("PATCH", f"{EVENTS}/e1", {"note": "other"}, MERGE),
        ("GET", f"{CORE_EVENTS}?fieldSelector=involvedObject.name=p,reason=Scheduled"),
    )


def test_logs_that_no_kubelet_is_asked_for(servers):
    """The rest of a log comes from the kubelet, and this kube-apiserver has none."""
    queries = (
        "", "?container=m", "?container=z", "?tailLines=-1", "?tailLines=x", "?limitBytes=0",
        "?sinceSeconds=0", "?sinceSeconds=1&sinceTime=2030-01-01T00:00:00Z", "?sinceTime=x",
        "?sinceSeconds=0&tailLines=-1&limitBytes=-1", "?follow=maybe&timestamps=1", "?previous=1",
    )  # fmt: skip
    check(
        servers,
        ("POST", PODS, pod("log")),
        *(("GET", f"{PODS}/log/log{query}") for query in queries),
        ("POST", PODS, pod("two", containers=[{"name": n, "image": "x"} for n in "mn"])),
        ("GET", f"{PODS}/two/log"),
        ("GET", f"{PODS}/zz/log"),
        ("GET", f"{PODS}/zz/log?tailLines=-1"),
        ("POST", f"{PODS}/log/binding", binding("log", "nowhere")),
        ("GET", f"{PODS}/log/log"),
        *((method, f"{PODS}/log/log", {}) for method in ("POST", "PUT", "PATCH", "DELETE")),
        ("DELETE", f"{PODS}/log?gracePeriodSeconds=0"),
        ("DELETE", f"{PODS}/two?gracePeriodSeconds=0"),
    )
