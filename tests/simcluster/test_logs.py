"""`pods/log` returns a container's output for as long as the pod exists."""

import http.client
import json

import pytest

from scheduling.simcluster.controllers.podlog import PodLog

from .harness import PODS, Sim, pod

MAIN = 'container "main" in pod "p"'


def log(sim, query="", name="p"):
    """Return (status, text) of a log, or (status, the Status object)."""
    code, headers, body = sim.raw("GET", f"{PODS}/{name}/log{query}")
    if headers.get("Content-Type", "").startswith("application/json"):
        return code, json.loads(body)
    assert code == 204 or headers["Content-Type"].startswith("text/plain")
    return code, body.decode()


def ended(sim, **spec):
    """Return a pod that ran for a moment, and its lines."""
    sim.run_pod("p", "gpu-0000", devices="[0, 3]", run=0.1, limits={"nvidia.com/gpu": "2"}, **spec)
    sim.wait("p", lambda p: p["status"]["phase"] in ("Succeeded", "Failed"))
    return log(sim)[1].splitlines()


def test_a_log_says_what_started_where_with_which_gpus_and_how_it_ended(sim):
    assert ended(sim, exit_code=3) == [
        "started main of p on gpu-0000, image example/train:1",
        "GPUs 0, 3",
        "ended with exit code 3",
    ]
    assert log(sim) == log(sim)


def test_the_lines_between_are_computed_from_the_times_of_the_pod():
    started = {"startedAt": "2030-01-01T00:00:00Z"}
    body = {**pod("p"), "status": {}}
    body["spec"]["nodeName"] = "n"
    runs = PodLog(body, "main", {"running": started}, 1893456000.0 + 25)
    assert [line.text for line in runs][1:] == [
        "no GPUs",
        "step 1, 10 s since the start",
        "step 2, 20 s since the start",
    ]
    assert (len(runs), runs.ended, runs.next_beat - 1893456000) == (4, False, 30)
    end = {**started, "finishedAt": "2030-02-01T00:00:00Z", "exitCode": 0, "reason": "Completed"}
    over = PodLog(body, "main", {"terminated": end}, 2e9)
    assert over[-1:] == [(1893456000.0 + 31 * 86400, "ended with exit code 0")]
    assert len(over) == 2 + 31 * 8640 + 1
    lost = PodLog(body, "main", {"terminated": {**end, "reason": "ContainerStatusUnknown"}}, 2e9)
    assert len(lost) == len(over) - 1


def test_a_part_of_a_log_is_asked_for(sim):
    lines = ended(sim)
    whole = "".join(f"{line}\n" for line in lines)
    assert log(sim, "?tailLines=1")[1] == f"{lines[-1]}\n"
    assert log(sim, "?tailLines=0")[1] == ""
    assert log(sim, "?tailLines=99")[1] == whole
    assert log(sim, "?limitBytes=10")[1] == whole[:10]
    assert log(sim, "?container=main&sinceSeconds=600")[1] == whole
    assert log(sim, "?sinceTime=2100-01-01T00:00:00Z")[1] == ""
    stamps = [line.split(" ", 1)[0] for line in log(sim, "?timestamps=true")[1].splitlines()]
    assert all(len(each) == len("2030-01-01T00:00:00.000000000Z") for each in stamps)
    assert stamps == sorted(stamps)


@pytest.mark.parametrize(
    ("query", "code", "part"),
    [
        ("?tailLines=-1", 422, "tailLines: Invalid value: -1: must be greater than or equal to 0"),
        ("?limitBytes=0", 422, "limitBytes: Invalid value: 0: must be greater than 0"),
        ("?sinceSeconds=0", 422, "sinceSeconds: Invalid value: 0: must be greater than 0"),
        ("?sinceSeconds=1&sinceTime=2030-01-01T00:00:00Z", 422, "at most one of `sinceTime`"),
        ("?tailLines=x", 400, 'strconv.ParseInt: parsing "x": invalid syntax'),
        ("?sinceTime=2030-01-01", 400, 'parsing time "2030-01-01"'),
        ("?container=side", 400, "container side is not valid for pod p"),
        ("?previous=true", 400, f"previous terminated {MAIN} not found"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(sim, query, code, part):
    ended(sim)
    got, status = log(sim, query)
    assert (got, part in status["message"]) == (code, True), status


def test_a_pod_of_several_containers_needs_its_name(sim):
    two = pod("p")
    two["spec"]["containers"] += [{"name": "side", "image": "x"}]
    sim.post(PODS, two)
    code, status = log(sim)
    assert (code, status["reason"]) == (400, "BadRequest")
    assert status["message"].endswith("for pod p, choose one of: [main side]")
    assert log(sim, "?container=side") == (204, "")


def test_init_containers_are_done_at_the_start_and_sidecars_at_the_end(sim):
    inits = [
        {"name": "early", "image": "x"},
        {"name": "proxy", "image": "x", "restartPolicy": "Always"},
    ]
    sim.run_pod("p", "gpu-0000", initContainers=inits)
    sim.wait_phase("p", "Running")
    assert log(sim, "?container=early")[1].splitlines() == [
        "started early of p on gpu-0000, image x",
        "no GPUs",
        "ended with exit code 0",
    ]
    assert log(sim, "?container=proxy")[1].splitlines()[1:] == ["no GPUs"]
    assert log(sim)[1].startswith("started main of p")


def test_what_has_not_started_has_no_log_yet(sim):
    assert log(sim)[0] == 404
    sim.post(PODS, pod("p"))
    assert log(sim) == (204, "")  # as kube-apiserver answers for a pod without a node
    sim.post("/sim/faults", {"fault": "node-down", "node": "gpu-0001"})
    sim.bind("p", "gpu-0001")
    code, status = log(sim)
    assert (code, "reason" in status) == (500, False)
    assert "10250: connect: no route to host" in status["message"]
    sim.post(PODS, pod("q"))
    sim.bind("q", "nowhere")
    assert log(sim, name="q")[1]["message"] == 'pods "nowhere" not found'


def test_a_container_that_is_being_made_or_was_rejected_says_so(tmp_path):
    sim = Sim(tmp_path, "--start-delay", "600")
    sim.run_pod("p", "gpu-0000")
    code, status = log(sim)
    assert (code, status["reason"]) == (400, "BadRequest")
    assert status["message"] == f"{MAIN} is waiting to start: ContainerCreating"
    assert sim.stop() == ""


def test_a_rejected_pod_has_no_log(sim):
    sim.run_pod("p", "gpu-0000", devices="[9]", limits={"nvidia.com/gpu": "1"})
    sim.wait_phase("p", "Failed")
    assert log(sim)[1]["message"] == f"{MAIN} is not available"


def test_a_log_is_read_and_nothing_else(sim):
    ended(sim)
    for method in ("POST", "PUT", "DELETE"):
        assert sim.raw(method, f"{PODS}/p/log")[0] == 405
    verbs = {r["name"]: r["verbs"] for r in sim.get("/api/v1")["resources"]}
    assert verbs["pods/log"] == ["get"]


def test_following_ends_with_the_container(sim):
    sim.run_pod("p", "gpu-0000")
    sim.wait_phase("p", "Running")
    connection = http.client.HTTPConnection("127.0.0.1", sim.port, timeout=60)
    connection.request("GET", f"{PODS}/p/log?follow=true")
    answer = connection.getresponse()
    assert answer.readline().startswith(b"started main of p")
    assert answer.readline() == b"no GPUs\n"
    sim.end_pod(f"{PODS}/p", exit_code=2)
    assert answer.read().endswith(b"ended with exit code 2\n")
    connection.close()


def test_following_ends_when_the_pod_is_gone(sim):
    sim.run_pod("p", "gpu-0000")
    sim.wait_phase("p", "Running")
    connection = http.client.HTTPConnection("127.0.0.1", sim.port, timeout=60)
    connection.request("GET", f"{PODS}/p/log?follow=true")
    answer = connection.getresponse()
    assert answer.readline().startswith(b"started main of p")
    sim.call("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0})
    answer.read()
    connection.close()
    assert log(sim)[0] == 404


def test_logs_fail_on_request(sim):
    ended(sim)
    sim.post("/sim/faults", {"fault": "too-many-requests", "verb": "log", "count": 1})
    assert log(sim)[0] == 429
    sim.post("/sim/faults", {"fault": "lose-reply", "verb": "log", "count": 1})
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        log(sim)
    assert log(sim)[0] == 200
