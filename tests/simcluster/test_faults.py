"""Faults on request: validation, effect, end."""

import http.client
import json
import socket
import time

import pytest

from .harness import NODES, PODS, pod

FAULTS = "/sim/faults"


@pytest.mark.parametrize(
    ("body", "code", "part"),
    [
        ({"fault": "earthquake"}, 400, "fault: must be one of node-down"),
        ({}, 400, "fault: must be one of"),
        ({"fault": "node-down"}, 400, "node"),
        ({"fault": "node-down", "node": "absent"}, 404, 'nodes "absent" not found'),
        ({"fault": "gpu-bad", "node": "gpu-0000", "gpu": 4}, 400, "gpu: node gpu-0000 has 4"),
        ({"fault": "gpu-bad", "node": "gpu-0000", "gpu": "0"}, 400, "$.gpu"),
        ({"fault": "nic-bad", "node": "gpu-0000", "nic": 2}, 400, "nic: node gpu-0000 has 2"),
        ({"fault": "lose-reply", "verb": "fetch"}, 400, "$.verb"),
        ({"fault": "lose-reply", "resource": "pod"}, 400, "resource: must be one of"),
        ({"fault": "lose-reply", "count": -1}, 400, "count: must be from 0"),
        ({"fault": "slow-replies"}, 400, "delay_ms"),
        ({"fault": "slow-replies", "delay_ms": 10**9}, 400, "delay_ms: must be from 0"),
        ({"fault": "drop-watches", "speed": 1}, 400, "speed"),
        ({"fault": "drop-watches", "id": 1}, 400, "id: is given by the server"),
    ],
)
def test_a_wrong_fault_is_refused_and_named(sim, body, code, part):
    got, status = sim.call("POST", FAULTS, body)
    assert got == code
    assert part in status["message"]
    assert sim.get(FAULTS) == {"faults": []}


def test_a_node_goes_down_and_comes_back(sim):
    sim.run_pod("victim", "gpu-0000")
    sim.wait_phase("victim", "Running")
    made = sim.post(FAULTS, {"fault": "node-down", "node": "gpu-0000"})
    node = sim.get(f"{NODES}/gpu-0000")
    assert node["status"]["conditions"][0]["status"] == "Unknown"
    assert {t["effect"] for t in node["spec"]["taints"]} == {"NoSchedule", "NoExecute"}
    sim.post(PODS, pod("bound"))
    sim.bind("bound", "gpu-0000")
    assert sim.get(f"{PODS}/victim")["status"]["phase"] == "Running"
    assert sim.get(f"{PODS}/bound")["status"]["phase"] == "Pending"
    assert [f["id"] for f in sim.get(FAULTS)["faults"]] == [made["id"]]
    assert sim.call("DELETE", f"{FAULTS}/{made['id']}") == (200, {"faults": []})
    failed = sim.wait_phase("victim", "Failed")
    terminated = failed["status"]["containerStatuses"][0]["state"]["terminated"]
    assert terminated["reason"] == "ContainerStatusUnknown"
    sim.wait_phase("bound", "Running")
    node = sim.get(f"{NODES}/gpu-0000")
    assert "taints" not in node["spec"]
    assert node["status"]["conditions"][0]["status"] == "True"


def test_a_pod_deleted_on_a_dead_node_lingers_unless_forced(sim):
    sim.run_pod("stuck", "gpu-0001")
    sim.wait_phase("stuck", "Running")
    sim.post(FAULTS, {"fault": "node-down", "node": "gpu-0001"})
    sim.call("DELETE", f"{PODS}/stuck", {"gracePeriodSeconds": 1})
    time.sleep(0.2)
    assert "deletionTimestamp" in sim.get(f"{PODS}/stuck")["metadata"]
    assert sim.call("DELETE", f"{PODS}/stuck", {"gracePeriodSeconds": 0})[0] == 200
    assert sim.call("GET", f"{PODS}/stuck")[0] == 404
    sim.post(FAULTS, {"fault": "node-up", "node": "gpu-0001"})
    assert sim.get(FAULTS) == {"faults": []}


def test_a_bad_gpu_leaves_allocatable_and_is_named(sim):
    sim.post(FAULTS, {"fault": "gpu-bad", "node": "gpu-0002", "gpu": 3})
    node = sim.get(f"{NODES}/gpu-0002")
    assert node["metadata"]["annotations"]["kant.io/unhealthy-gpus"] == "[3]"
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "3"
    assert node["status"]["allocatable"]["kant.io/gpu-milli"] == "3k"
    assert node["status"]["capacity"]["nvidia.com/gpu"] == "4"
    sim.run_pod("p", "gpu-0002", "[3]", limits={"nvidia.com/gpu": 1})
    assert "device 3 being unhealthy" in sim.wait_phase("p", "Failed")["status"]["message"]
    sim.post(FAULTS, {"fault": "gpu-good", "node": "gpu-0002", "gpu": 3})
    node = sim.get(f"{NODES}/gpu-0002")
    assert "kant.io/unhealthy-gpus" not in node["metadata"]["annotations"]
    assert node["status"]["allocatable"] == node["status"]["capacity"]


def test_a_bad_nic_is_named(sim):
    sim.post(FAULTS, {"fault": "nic-bad", "node": "gpu-0002", "nic": 1})
    node = sim.get(f"{NODES}/gpu-0002")
    assert node["metadata"]["annotations"]["kant.io/unhealthy-nics"] == "[1]"


def test_too_many_requests_names_when_to_retry(sim):
    fault = {"fault": "too-many-requests", "verb": "create", "count": 2, "retry_after_s": 3}
    sim.post(FAULTS, {**fault, "resource": "pods"})
    body = json.dumps(pod("late")).encode()
    for _ in range(2):
        code, headers, reply = sim.raw("POST", PODS, body, Content_Type="application/json")
        assert (code, headers["Retry-After"]) == (429, "3")
        assert json.loads(reply)["reason"] == "TooManyRequests"
        assert sim.call("GET", PODS)[0] == 200
    assert sim.call("POST", PODS, pod("late"))[0] == 201


def test_a_lost_reply_has_been_carried_out(sim):
    sim.post(FAULTS, {"fault": "lose-reply", "verb": "bind"})
    sim.post(PODS, pod("p"))
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        sim.bind("p", "gpu-0000")
    assert sim.get(f"{PODS}/p")["spec"]["nodeName"] == "gpu-0000"


def test_slow_replies_are_slow_until_cleared(sim):
    sim.post(FAULTS, {"fault": "slow-replies", "delay_ms": 300, "count": 0, "verb": "list"})
    begin = time.monotonic()
    sim.get(PODS)
    sim.get(PODS)
    assert time.monotonic() - begin >= 0.6
    assert sim.call("DELETE", FAULTS) == (200, {"faults": []})
    assert sim.call("DELETE", f"{FAULTS}/77")[0] == 404


def wait_until_there(sim):
    deadline = time.monotonic() + 60
    while True:
        try:
            return sim.get(PODS)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_restart_in_place_keeps_what_was_committed(sim):
    sim.run_pod("through", "gpu-0000", "[0]", limits={"nvidia.com/gpu": 1})
    running = sim.wait_phase("through", "Running")
    version = int(sim.get(PODS)["metadata"]["resourceVersion"])
    with sim.watch(f"{PODS}?watch=1&resourceVersion={version}") as stream:
        code, _ = sim.call("POST", FAULTS, {"fault": "restart", "down_s": 0.2})
        assert code == 202
        with pytest.raises((ConnectionError, StopIteration, OSError)):
            stream.next()
    wait_until_there(sim)
    assert sim.get(f"{PODS}/through") == running
    assert int(sim.get(PODS)["metadata"]["resourceVersion"]) >= version
    sim.run_pod("second", "gpu-0000", "[0]", limits={"nvidia.com/gpu": 1})
    assert sim.wait_phase("second", "Failed")["status"]["reason"] == "UnexpectedAdmissionError"


def test_a_restart_that_is_asked_for_before_another_has_begun_follows_it(sim):
    body = json.dumps({"fault": "restart", "down_s": 0.2}).encode()
    head = f"POST {FAULTS} HTTP/1.1\r\nHost: sim\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", sim.port), 60) as both:
        both.sendall(2 * (head.encode() + body))
        replies = both.makefile("rb").read()
    assert replies.count(b"HTTP/1.1 202") == 2
    time.sleep(0.5)  # both are over
    wait_until_there(sim)
