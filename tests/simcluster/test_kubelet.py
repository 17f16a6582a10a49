"""Binding, and what the kubelet checks again, runs and ends."""

import time

import pytest

from .harness import NODES, PODS, pod


# --- binding ----------------------------------------------------------------------------------
def bind(sim, name, body, query=""):
    body = {**body, "metadata": {"name": name, **body.get("metadata", {})}}
    return sim.call("POST", f"{PODS}/{name}/binding{query}", body)


def to(node, **meta):
    return {"metadata": meta, "target": {"kind": "Node", "name": node}}


def test_a_binding_sets_node_and_annotations_at_once(sim):
    made = sim.post(PODS, pod("b"))
    meta = {"uid": made["metadata"]["uid"], "annotations": {"kant.io/devices": "[0]"}}
    code, status = bind(sim, "b", to("gpu-0000", **meta))
    assert (code, status["status"], status["code"]) == (201, "Success", 201)
    bound = sim.get(f"{PODS}/b")
    assert bound["spec"]["nodeName"] == "gpu-0000"
    assert bound["metadata"]["annotations"]["kant.io/devices"] == "[0]"
    assert bound["status"]["conditions"][0]["type"] == "PodScheduled"
    code, status = bind(sim, "b", to("gpu-0001"))
    assert (code, status["reason"]) == (409, "Conflict")
    assert status["message"] == (
        'Operation cannot be fulfilled on pods/binding "b": pod b is already assigned to node '
        '"gpu-0000"'
    )


def test_a_binding_is_refused_for_what_cannot_be_bound(sim):
    sim.post(PODS, pod("gated", schedulingGates=[{"name": "example.com/wait"}]))
    sim.post(PODS, pod("fresh"))
    leaving = pod("leaving")
    leaving["metadata"]["finalizers"] = ["example.com/hold"]
    sim.post(PODS, leaving)
    sim.call("DELETE", f"{PODS}/leaving")
    for name, meta, part in (
        ("gated", {}, "has non-empty .spec.schedulingGates"),
        ("leaving", {}, "is being deleted, cannot be assigned to a host"),
        ("fresh", {"uid": "other"}, "Precondition failed: UID in precondition: other"),
    ):
        code, status = bind(sim, name, to("gpu-0000", **meta))
        assert (code, status["reason"]) == (409, "Conflict")
        assert part in status["message"]
    assert bind(sim, "absent", to("gpu-0000"))[0] == 404
    assert bind(sim, "fresh", {"target": {}})[0] == 500
    assert bind(sim, "fresh", to("gpu-0000", name="other"))[0] == 400
    assert bind(sim, "fresh", to("gpu-0000"), "?dryRun=All")[0] == 201
    assert "nodeName" not in sim.get(f"{PODS}/fresh")["spec"]
    sim.patch(f"{PODS}/leaving", {"metadata": {"finalizers": None}})


def test_removing_the_gate_lets_the_pod_be_bound(sim):
    sim.post(PODS, pod("gated", schedulingGates=[{"name": "example.com/wait"}]))
    operations = [{"op": "remove", "path": "/spec/schedulingGates/0"}]
    assert sim.patch(f"{PODS}/gated", operations, "json-patch+json")[0] == 200
    assert bind(sim, "gated", to("gpu-0000"))[0] == 201


# --- running ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (3, "Failed")])
def test_a_pod_runs_its_time_and_ends_by_its_exit_code(sim, code, phase):
    sim.run_pod("job", "gpu-0000", run=0.1, exit_code=code)
    ended = sim.wait_phase("job", phase)
    state = ended["status"]["containerStatuses"][0]["state"]["terminated"]
    assert state["exitCode"] == code


def test_a_pod_without_a_time_runs_until_it_is_deleted(sim):
    sim.run_pod("server", "gpu-0000")
    running = sim.wait_phase("server", "Running")
    assert {c["type"]: c["status"] for c in running["status"]["conditions"]}["Ready"] == "True"
    version = running["metadata"]["resourceVersion"]
    with sim.watch(f"{PODS}?watch=1&resourceVersion={version}") as stream:
        code, marked = sim.call("DELETE", f"{PODS}/server", {"gracePeriodSeconds": 10})
        assert (code, marked["metadata"]["deletionGracePeriodSeconds"]) == (200, 10)
        events = [stream.next() for _ in range(4)]
    assert [e["type"] for e in events] == ["MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]
    assert events[1]["object"]["status"]["phase"] == "Failed"
    assert sim.call("GET", f"{PODS}/server")[0] == 404


@pytest.mark.parametrize(("grace", "runs_on"), [(30, True), (0, False)])
def test_a_pod_takes_its_time_to_stop_within_its_grace_period(sim, grace, runs_on):
    body = pod("slow")
    body["metadata"]["annotations"]["sim.kant.io/stop-seconds"] = "20"
    sim.post(PODS, body)
    sim.bind("slow", "gpu-0000")
    sim.wait_phase("slow", "Running")
    sim.call("DELETE", f"{PODS}/slow", {"gracePeriodSeconds": grace})
    time.sleep(0.5)
    code, found = sim.call("GET", f"{PODS}/slow")
    assert (code == 200 and found["status"]["phase"] == "Running") is runs_on


@pytest.mark.parametrize("what", ["run", "stop", "checkpoint"])
def test_a_nonsense_time_fails_the_pod(sim, what):
    body = pod("odd")
    body["metadata"]["annotations"][f"sim.kant.io/{what}-seconds"] = "soon"
    sim.post(PODS, body)
    sim.bind("odd", "gpu-0000")
    failed = sim.wait_phase("odd", "Failed")
    assert failed["status"]["reason"] == "UnexpectedAdmissionError"
    assert "soon" in failed["status"]["message"]


def test_a_pod_that_is_told_to_save_its_work_says_when_it_did(sim):
    body = pod("saver")
    body["metadata"]["annotations"]["sim.kant.io/checkpoint-seconds"] = "0.1"
    sim.post(PODS, body)
    sim.bind("saver", "gpu-0000")
    sim.wait_phase("saver", "Running")
    before = time.time()
    note = {"metadata": {"annotations": {"kant.io/checkpoint-by": "2099-01-01T00:00:00Z"}}}
    assert sim.patch(f"{PODS}/saver", note, "merge-patch+json")[0] == 200
    deadline = time.monotonic() + 60
    while "kant.io/checkpointed-at" not in (
        notes := sim.get(f"{PODS}/saver")["metadata"]["annotations"]
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    # Reported in milliseconds.
    assert before - 1e-3 < float(notes["kant.io/checkpointed-at"]) < time.time() + 1e-3


def test_a_pod_waits_for_a_node_that_is_not_there_yet(sim):
    sim.run_pod("early", "late-node")
    assert sim.get(f"{PODS}/early")["status"]["phase"] == "Pending"
    capacity = {"cpu": "1", "pods": "5"}
    sim.post(NODES, {"metadata": {"name": "late-node"}, "status": {"capacity": capacity}})
    sim.wait_phase("early", "Running")
    assert sim.call("DELETE", f"{NODES}/late-node")[0] == 200


# --- admission --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("node", "spec", "reason"),
    [
        ("gpu-0000", {"limits": {"cpu": "9"}}, "OutOfcpu"),
        ("gpu-0000", {"limits": {"memory": "65Gi"}}, "OutOfmemory"),
        ("gpu-0000", {"limits": {"nvidia.com/gpu": 5}}, "OutOfnvidia.com/gpu"),
        ("gpu-0000", {"nodeSelector": {"disk": "ssd"}}, "NodeAffinity"),
        (
            "cpu-0000",
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {
                                    "matchExpressions": [
                                        {"key": "disk", "operator": "NotIn", "values": ["ssd"]}
                                    ]
                                }
                            ]
                        }
                    }
                }
            },
            "NodeAffinity",
        ),
    ],
)
def test_what_does_not_fit_fails_with_its_reason(sim, node, spec, reason):
    sim.run_pod("p", node, **spec)
    failed = sim.wait_phase("p", "Failed")
    assert failed["status"]["reason"] == reason
    assert failed["status"]["message"].startswith("Pod was rejected: ")


def test_running_pods_use_up_what_others_ask_for(sim):
    sim.run_pod("first", "gpu-0001", limits={"cpu": "6"})
    sim.wait_phase("first", "Running")
    sim.run_pod("second", "gpu-0001", limits={"cpu": "3"})
    message = sim.wait_phase("second", "Failed")["status"]["message"]
    assert "cpu, requested: 3000, used: 6000, capacity: 8000" in message
    sim.end_pod(f"{PODS}/first")
    sim.run_pod("third", "gpu-0001", limits={"cpu": "3"})
    sim.wait_phase("third", "Running")


def test_pod_count_and_host_ports_are_limited(sim):
    for i in range(6):
        sim.run_pod(f"p{i}", "gpu-0002")
    sim.run_pod("p6", "gpu-0002")
    assert sim.wait_phase("p6", "Failed")["status"]["reason"] == "OutOfpods"
    ports = [{"name": "c", "image": "x:1", "ports": [{"containerPort": 80, "hostPort": 80}]}]
    sim.run_pod("web", "gpu-0000", containers=ports)
    sim.run_pod("web2", "gpu-0000", containers=ports)
    assert sim.wait_phase("web2", "Failed")["status"]["reason"] == "NodePorts"


def test_only_no_execute_taints_are_checked_again(sim):
    sim.run_pod("stays", "cpu-0000")
    sim.wait_phase("stays", "Running")
    taints = [{"key": "broken", "effect": "NoExecute"}]
    sim.patch(f"{NODES}/gpu-0003", {"spec": {"taints": taints}})
    try:
        version = sim.get(PODS)["metadata"]["resourceVersion"]
        with sim.watch(f"{PODS}?watch=1&resourceVersion={version}") as stream:
            sim.run_pod("p", "gpu-0003")
            failed = next(e for e in stream if e["object"]["status"]["phase"] == "Failed")
            assert failed["object"]["status"]["reason"] == "TaintToleration"
            assert any(e["type"] == "DELETED" for e in stream)
        bearing = [{"key": "broken", "operator": "Exists", "tolerationSeconds": 1}]
        version = sim.get(PODS)["metadata"]["resourceVersion"]
        with sim.watch(f"{PODS}?watch=1&resourceVersion={version}") as stream:
            sim.run_pod("q", "gpu-0003", tolerations=bearing)
            assert any(e["object"]["status"]["phase"] == "Running" for e in stream)
            assert any(e["type"] == "DELETED" for e in stream)
    finally:
        sim.patch(f"{NODES}/gpu-0003", {"spec": {"taints": None}})


def test_an_unknown_extended_resource_is_dropped_as_by_a_real_kubelet(sim):
    sim.run_pod("trap", "cpu-0000", limits={"nvidia.com/gpu": 1})
    ran = sim.wait("trap", lambda p: p["status"]["phase"] != "Pending")
    assert ran["status"]["phase"] == "Running"


# --- devices ----------------------------------------------------------------------------------
GPU, MILLI = {"nvidia.com/gpu": 1}, {"kant.io/gpu-milli": 600}


def test_two_pods_on_one_device_are_refused(sim):
    sim.run_pod("one", "gpu-0000", "[2]", limits=GPU)
    sim.wait_phase("one", "Running")
    sim.run_pod("two", "gpu-0000", "[2]", limits=GPU)
    failed = sim.wait_phase("two", "Failed")["status"]
    assert failed["reason"] == "UnexpectedAdmissionError"
    assert "device 2 being in use: 1000 of 1000 milli are held" in failed["message"]


def test_parts_of_a_device_share_it_up_to_the_whole(sim):
    sim.run_pod("a", "gpu-0000", "[1]", "600", limits=MILLI)
    sim.run_pod("b", "gpu-0000", "[1]", "400", limits={"kant.io/gpu-milli": 400})
    sim.wait_phase("a", "Running")
    sim.wait_phase("b", "Running")
    sim.run_pod("c", "gpu-0000", "[1]", "100", limits={"kant.io/gpu-milli": 100})
    assert sim.wait_phase("c", "Failed")["status"]["reason"] == "UnexpectedAdmissionError"
    sim.run_pod("d", "gpu-0000", "[1]", limits=GPU)
    assert sim.wait_phase("d", "Failed")["status"]["reason"] == "UnexpectedAdmissionError"


@pytest.mark.parametrize(
    ("devices", "limits", "part"),
    [
        ("[4]", GPU, "device 4 not existing"),
        ("[0, 1]", GPU, "each not being the 1000 GPU-milli"),
        ("[0, 0]", {"nvidia.com/gpu": 2}, "names a device twice"),
        ("zero", GPU, "kant.io/devices"),
    ],
)
def test_a_wrong_choice_of_devices_is_refused(sim, devices, limits, part):
    sim.run_pod("p", "gpu-0000", devices, limits=limits)
    failed = sim.wait_phase("p", "Failed")["status"]
    assert failed["reason"] == "UnexpectedAdmissionError"
    assert part in failed["message"]


def test_without_a_choice_the_kubelet_picks(sim):
    sim.run_pod("named", "gpu-0000", "[0]", limits=GPU)
    sim.wait_phase("named", "Running")
    sim.run_pod("rest", "gpu-0000", limits={"nvidia.com/gpu": 3})
    sim.wait_phase("rest", "Running")


# --- eviction ---------------------------------------------------------------------------------
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def evict(sim, name):
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return sim.call("POST", f"{PODS}/{name}/eviction", body)


def test_eviction_respects_a_disruption_budget(sim):
    selector = {"matchLabels": {"app": "web"}}
    budget = {"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "selector": selector}}
    sim.post(BUDGETS, budget)
    for name in ("w1", "w2"):
        sim.run_pod(name, "gpu-0000", labels={"app": "web"})
        sim.wait_phase(name, "Running")
    assert sim.get(f"{BUDGETS}/web")["status"]["disruptionsAllowed"] == 1
    assert evict(sim, "w1")[0] == 201
    code, status = evict(sim, "w2")
    assert (code, status["reason"]) == (429, "TooManyRequests")
    assert status["details"]["causes"][0]["reason"] == "DisruptionBudget"
    assert sim.call("DELETE", f"{BUDGETS}/web")[0] == 200
    version = sim.get(PODS)["metadata"]["resourceVersion"]
    with sim.watch(f"{PODS}?watch=1&resourceVersion={version}") as stream:
        assert evict(sim, "w2")[0] == 201
        seen = stream.next()["object"]["status"]["conditions"]
    assert any(c["reason"] == "EvictionByEvictionAPI" for c in seen if "reason" in c)
    sim.wait_gone("w2")


def test_two_budgets_for_one_pod_are_an_error(sim):
    for name in ("x", "y"):
        spec = {"maxUnavailable": "50%", "selector": {}}
        sim.post(BUDGETS, {"metadata": {"name": name}, "spec": spec})
    sim.run_pod("p", "gpu-0000")
    sim.wait_phase("p", "Running")
    assert evict(sim, "p")[0] == 500
    for name in ("x", "y"):
        sim.call("DELETE", f"{BUDGETS}/{name}")
    assert evict(sim, "absent")[0] == 404
