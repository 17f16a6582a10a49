"""The wire protocol: create, get, list, update, delete and their refusals."""

import pytest

from scheduling.simcluster.objects.kinds import NETWORK, OWNERS

from .harness import NODES, PODS, pod

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


def test_a_new_pod_has_what_the_server_sets(sim):
    made = sim.post(PODS, pod("new", limits={"cpu": "1000m", "nvidia.com/gpu": 2}))
    meta, spec = made["metadata"], made["spec"]
    assert made["kind"] == "Pod"
    assert len(meta["uid"]) == 36
    assert meta["creationTimestamp"].endswith("Z")
    assert int(meta["resourceVersion"]) > 0
    assert meta["generation"] == 1
    assert made["status"] == {"phase": "Pending", "qosClass": "Burstable"}
    resources = spec["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"] == {"cpu": "1", "nvidia.com/gpu": "2"}
    assert (spec["priority"], spec["terminationGracePeriodSeconds"]) == (0, 30)
    assert {t["key"] for t in spec["tolerations"]} == {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }
    assert sim.get(f"{PODS}/new") == made


def test_generated_names_differ(sim):
    body = pod("")
    body["metadata"] = {"generateName": "job-"}
    names = {sim.post(PODS, body)["metadata"]["name"] for _ in range(20)}
    assert len(names) == 20
    assert all(n.startswith("job-") and len(n) == 9 for n in names)


def test_a_gated_pod_says_so(sim):
    made = sim.post(PODS, pod("gated", schedulingGates=[{"name": "example.com/wait"}]))
    (condition,) = made["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "False")
    assert condition["reason"] == "SchedulingGated"


def test_priority_comes_from_the_class(sim):
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    sim.post(classes, {"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"})
    made = sim.post(PODS, pod("urgent", priorityClassName="high"))
    assert (made["spec"]["priority"], made["spec"]["preemptionPolicy"]) == (1000, "Never")
    code, status = sim.call("POST", PODS, pod("odd", priorityClassName="nope"))
    assert (code, status["reason"]) == (403, "Forbidden")
    assert "no PriorityClass with name nope was found" in status["message"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"containers": []}, "spec.containers"),
        ({"containers": [{"name": "Bad_", "image": "x"}]}, "spec.containers[0].name"),
        ({"containers": [{"name": "a"}]}, "spec.containers[0].image"),
        ({"restartPolicy": "Sometimes"}, "spec.restartPolicy"),
        (
            {"containers": [{"name": "a", "image": "x", "resources": {"limits": {"cpu": "-1"}}}]},
            "spec.containers[0].resources.limits[cpu]",
        ),
        (
            {
                "containers": [
                    {"name": "a", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1.5"}}}
                ]
            },
            "spec.containers[0].resources.limits[nvidia.com/gpu]",
        ),
        (
            {
                "containers": [
                    {"name": "a", "image": "x", "resources": {"requests": {"nvidia.com/gpu": 1}}}
                ]
            },
            "spec.containers[0].resources.limits",
        ),
    ],
)
def test_an_invalid_pod_is_422_and_names_the_field(sim, change, field):
    body = pod("bad")
    body["spec"].update(change)
    code, status = sim.call("POST", PODS, body)
    assert (code, status["reason"]) == (422, "Invalid")
    assert field in [c["field"] for c in status["details"]["causes"]]
    assert status["message"].startswith('Pod "bad" is invalid: ')
    assert sim.call("GET", f"{PODS}/bad")[0] == 404


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"{", "json parse error"),
        (b"[]", "json parse error"),
        (b'{"metadata": {"labels": 5}}', "$.metadata.labels"),
        (b'{"kind": "Node", "apiVersion": "v1"}', "cannot be handled as a Pod"),
        (b'{"metadata": {"name": "x", "namespace": "other"}}', "namespace sent on the request"),
        (
            b'{"metadata":{"name":"q"},"spec":{"containers":[{"name":"a","image":"i",'
            b'"resources":{"limits":{"cpu":"ten"}}}]}}',
            "quantities must match",
        ),
    ],
)
def test_a_malformed_body_is_400(sim, body, part):
    code, _, reply = sim.raw("POST", PODS, body, Content_Type="application/json")
    assert code == 400
    assert part in reply.decode()


def test_refusals_have_exact_statuses(sim):
    assert sim.call("GET", f"{PODS}/none") == (
        404,
        {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": 'pods "none" not found', "reason": "NotFound",
            "details": {"name": "none", "kind": "pods"}, "code": 404,
        },
    )  # fmt: skip
    sim.post(PODS, pod("twin"))
    code, status = sim.call("POST", PODS, pod("twin"))
    assert (code, status["reason"]) == (409, "AlreadyExists")
    assert status["message"] == 'pods "twin" already exists'
    code, status = sim.call("GET", f"{LEASES}/none")
    assert status["message"] == 'leases.coordination.k8s.io "none" not found'
    assert status["details"] == {"name": "none", "group": "coordination.k8s.io", "kind": "leases"}
    assert sim.call("POST", "/api/v1/namespaces/nowhere/pods", pod("p"))[0] == 404
    assert sim.call("PUT", PODS, {})[1]["reason"] == "MethodNotAllowed"
    assert sim.raw("GET", "/api/v1/widgets")[0] == 404
    assert (
        sim.raw("POST", PODS, b"{}", Content_Type="application/vnd.kubernetes.protobuf")[0] == 415
    )
    assert sim.raw("POST", PODS, b" " * (4 << 20), Content_Type="application/json")[0] == 413


def test_a_stale_put_is_a_conflict(sim):
    path = f"{LEASES}/leader"
    lease = {"metadata": {"name": "leader"}, "spec": {"holderIdentity": "a"}}
    first = sim.post(LEASES, lease)
    code, second = sim.call("PUT", path, {**first, "spec": {"holderIdentity": "b"}})
    assert (code, second["spec"]["holderIdentity"]) == (200, "b")
    code, status = sim.call("PUT", path, first)
    assert (code, status["reason"]) == (409, "Conflict")
    assert status["message"] == (
        'Operation cannot be fulfilled on leases.coordination.k8s.io "leader": the object has '
        "been modified; please apply your changes to the latest version and try again"
    )
    del first["metadata"]["resourceVersion"]
    assert sim.call("PUT", path, first)[0] == 422


def test_an_update_that_changes_nothing_keeps_the_version(sim):
    made = sim.post(PODS, pod("same"))
    assert sim.call("PUT", f"{PODS}/same", made) == (200, made)


def test_what_is_immutable_in_a_pod_stays(sim):
    made = sim.post(PODS, pod("fixed", limits={"cpu": "1"}))
    made["spec"]["nodeSelector"] = {"a": "b"}
    code, status = sim.call("PUT", f"{PODS}/fixed", made)
    assert (code, status["reason"]) == (422, "Invalid")
    assert "pod updates may not change fields other than" in status["message"]
    code, changed = sim.patch(
        f"{PODS}/fixed", {"spec": {"containers": [{"name": "main", "image": "example/other:2"}]}},
        "strategic-merge-patch+json",
    )  # fmt: skip
    assert (code, changed["metadata"]["generation"]) == (200, 2)


def test_status_and_spec_are_written_apart(sim):
    path = f"{NODES}/gpu-0003"
    code, node = sim.patch(path, {"status": {"phase": "odd"}, "spec": {"unschedulable": True}})
    assert (code, node["spec"]) == (200, {"unschedulable": True})
    assert "phase" not in node["status"]
    body = {"status": {"conditions": [{"type": "Fan", "status": "True"}]}, "spec": {"taints": None}}
    code, node = sim.patch(f"{path}/status", body, "strategic-merge-patch+json")
    assert node["spec"] == {"unschedulable": True}
    assert [c["type"] for c in node["status"]["conditions"]] == ["Ready", "Fan"]
    sim.patch(path, {"spec": {"unschedulable": None}})


def test_dry_run_changes_nothing(sim):
    before = sim.get(PODS)["metadata"]["resourceVersion"]
    code, made = sim.call("POST", f"{PODS}?dryRun=All", pod("ghost"))
    assert (code, made["metadata"]["name"]) == (201, "ghost")
    assert "resourceVersion" not in made["metadata"]
    assert sim.call("GET", f"{PODS}/ghost")[0] == 404
    assert sim.get(PODS)["metadata"]["resourceVersion"] == before
    assert sim.call("POST", f"{PODS}?dryRun=Some", pod("ghost"))[0] == 422


def test_delete_checks_its_preconditions(sim):
    made = sim.post(PODS, pod("kept"))
    for preconditions, what in (
        ({"uid": "other"}, "UID"),
        ({"resourceVersion": "1"}, "ResourceVersion"),
    ):
        code, status = sim.call("DELETE", f"{PODS}/kept", {"preconditions": preconditions})
        assert (code, status["reason"]) == (409, "Conflict")
        assert f"the {what} in the precondition" in status["message"]
    uid = made["metadata"]["uid"]
    code, gone = sim.call("DELETE", f"{PODS}/kept", {"preconditions": {"uid": uid}})
    assert (code, gone["metadata"]["uid"]) == (200, uid)
    assert sim.call("DELETE", f"{PODS}/kept")[0] == 404


def test_a_finalizer_holds_an_object(sim):
    body = pod("held")
    body["metadata"]["finalizers"] = ["example.com/hold"]
    sim.post(PODS, body)
    code, marked = sim.call("DELETE", f"{PODS}/held")
    assert (code, "deletionTimestamp" in marked["metadata"]) == (200, True)
    assert sim.call("GET", f"{PODS}/held")[0] == 200
    code, _ = sim.patch(f"{PODS}/held", {"metadata": {"finalizers": None}})
    assert code == 200
    assert sim.call("GET", f"{PODS}/held")[0] == 404


def test_a_service_that_would_need_an_address_is_refused(sim):
    path = "/api/v1/namespaces/default/services"
    for spec in ({}, {"clusterIP": "10.0.0.1"}, {"clusterIP": "None", "type": "NodePort"}):
        code, answer = sim.call("POST", path, {"metadata": {"name": "web"}, "spec": spec})
        assert (code, answer["details"]["causes"][0]["field"]) == (422, "spec.clusterIP")
    assert sim.call("GET", f"{path}/web")[0] == 404


def test_a_namespace_takes_its_content_along(sim):
    sim.post("/api/v1/namespaces", {"metadata": {"name": "brief"}})
    sim.post("/api/v1/namespaces/brief/pods", pod("inside"))
    assert sim.call("DELETE", "/api/v1/namespaces/brief")[0] == 200
    assert sim.call("GET", "/api/v1/namespaces/brief")[0] == 404
    assert sim.call("GET", "/api/v1/namespaces/brief/pods/inside")[0] == 404


def test_both_event_apis_show_the_same_events(sim):
    new = "/apis/events.k8s.io/v1/namespaces/default/events"
    old = "/api/v1/namespaces/default/events"
    event = {
        "metadata": {"name": "e1"}, "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "kant", "reportingInstance": "kant-0", "action": "Binding",
        "reason": "Scheduled", "note": "placed", "type": "Normal",
        "regarding": {"kind": "Pod", "namespace": "default", "name": "p"},
    }  # fmt: skip
    assert sim.post(new, event)["note"] == "placed"
    core = sim.get(f"{old}/e1")
    assert (core["message"], core["involvedObject"]["name"]) == ("placed", "p")
    assert core["reportingComponent"] == "kant"
    assert sim.get(f"{old}?fieldSelector=involvedObject.name=p,reason=Scheduled")["items"]
    code, status = sim.call("POST", new, {**event, "metadata": {"name": "e2"}, "eventTime": None})
    assert (code, status["details"]["causes"][0]["field"]) == (422, "eventTime")


def test_discovery_names_every_resource(sim):
    assert sim.get("/version")["gitVersion"].startswith("v1.")
    assert sim.raw("GET", "/readyz")[2] == b"ok"
    assert sim.get("/api")["versions"] == ["v1"]
    groups = {g["name"] for g in sim.get("/apis")["groups"]}
    own = {"events.k8s.io", "coordination.k8s.io", "scheduling.k8s.io", "policy"}
    own.add("autoscaling.x-k8s.io")
    own |= {"storage.k8s.io", "resource.k8s.io"}
    assert groups == {*own, *(kind.group for kind in (*OWNERS, *NETWORK))}
    served = {g["name"]: [v["version"] for v in g["versions"]] for g in sim.get("/apis")["groups"]}
    assert served["scheduling.k8s.io"] == ["v1", "v1alpha2"]
    names = {r["name"] for r in sim.get("/api/v1")["resources"]}
    assert {"pods", "pods/binding", "pods/eviction", "pods/status", "nodes/status"} <= names
