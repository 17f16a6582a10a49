"""Lists and watches against both servers, through every way in which they can break."""

import logging
import threading
import time

import msgspec
import pytest

from metrics.benches.apiserver import READY_WITHIN_S
from scheduling.kube.door.watch import Reflector
from scheduling.kube.seam import (
    Connected,
    Disconnected,
    NodeGone,
    NodeSeen,
    PodGone,
    PodSeen,
    Result,
    Sourced,
)
from tests.kube.api import JSON_PATCH, MERGE, STRATEGIC, eventually
from tests.kube.conftest import QUICK
from tests.kube.proxy import Proxy
from tests.kube.test_contract_effects import create


def gone(place, name):
    place.api.ok("DELETE", f"{place.pods}/{name}", {"gracePeriodSeconds": 0})


@pytest.fixture
def proxy(place):
    with Proxy(place.server.port) as proxy:
        yield proxy


@pytest.fixture(params=["streamed", "paged"])
def list_form(request, monkeypatch):
    """Use both forms of the first list: WatchList, and pages of two."""
    if request.param == "paged":
        monkeypatch.setattr(Reflector, "stream_lists", False)
        monkeypatch.setattr("scheduling.kube.door.watch.PAGE", 2)


# --- what is seen ---------------------------------------------------------------------------------
def test_everything_that_is_there_is_listed(place, open_door, list_form):
    for i in range(5):
        place.make_node(f"{place.node}-{i}", labels={"network.topology.nvidia.com/leaf": "l1"})
        place.make_pod(f"worker-{i}")
    door = open_door()
    for i in range(5):
        facts = door.until_seen(NodeSeen, f"{place.node}-{i}").facts
        assert facts.node.gpu_model == "NVIDIA-H100-80GB-HBM3"
        assert len(facts.node.devices) == 8
        assert facts.node.topology == ("l1", "", "")
        assert facts.facts["leaf"] == Sourced("l1", "network.topology.nvidia.com/leaf")
        pod = door.until_seen(PodSeen, f"worker-{i}").pod
        assert (pod.owned, pod.phase, pod.node) == (True, "Pending", "")
        assert pod.labels["kant.io/job"] == f"job-{place.number}"
    assert door.until(lambda each: isinstance(each, Connected))


def test_changes_of_nodes_are_seen(place, door):
    node = place.make_node()
    uid = node["metadata"]["uid"]
    assert door.until_seen(NodeSeen, place.node).facts.uid == uid
    path = f"/api/v1/nodes/{place.node}"
    place.api.ok("PATCH", path, {"spec": {"unschedulable": True}}, MERGE)
    cordoned = door.until_seen(NodeSeen, place.node, schedulable=False).facts
    assert cordoned.facts["health"] == Sourced("cordoned", "spec.unschedulable")
    place.api.ok("PATCH", path, {"metadata": {"labels": {"kant.io/zone": "inference"}}}, MERGE)
    assert door.until_seen(NodeSeen, place.node, zone="inference")
    less = [{"op": "replace", "path": "/status/allocatable/nvidia.com~1gpu", "value": "7"}]
    place.api.ok("PATCH", f"{path}/status", less, JSON_PATCH)
    sick = door.until(
        lambda each: (
            isinstance(each, NodeSeen)
            and each.facts.node.name == place.node
            and each.facts.node.healthy_gpus == 7
        )
    )
    assert any("not allocatable" in problem for problem in sick.facts.node.problems)
    place.api.ok("DELETE", path)
    assert door.until_seen(NodeGone, place.node)


def test_a_heartbeat_is_no_news(place, door):
    place.make_node()
    door.until_seen(NodeSeen, place.node)
    beat = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:10Z"}
    path = f"/api/v1/nodes/{place.node}/status"
    place.api.ok("PATCH", path, {"status": {"conditions": [beat]}}, STRATEGIC)
    place.make_pod("after")  # a heartbeat would have arrived before this
    door.forget()
    place.make_pod("later")
    door.until_seen(PodSeen, "later")
    names = [each.facts.node.name for each in door.seen if isinstance(each, NodeSeen)]
    assert place.node not in names


def test_own_pods_are_seen_to_their_end(place, door):
    place.make_pod("worker")
    assert not door.until_seen(PodSeen, "worker").pod.node
    place.bind("worker", f"{place.node}-absent", **{"kant.io/devices": "[5]"})
    bound = door.until_seen(PodSeen, "worker", node=f"{place.node}-absent").pod
    assert bound.annotations["kant.io/devices"] == "[5]"
    ended = {
        "phase": "Failed",
        "reason": "UnexpectedAdmissionError",
        "message": "Allocate failed",
    }
    place.api.ok("PATCH", f"{place.pods}/worker/status", {"status": ended}, STRATEGIC)
    failed = door.until_seen(PodSeen, "worker", phase="Failed").pod
    assert failed.finished
    assert (failed.reason, failed.message) == ("UnexpectedAdmissionError", "Allocate failed")
    gone(place, "worker")
    last = door.until_seen(PodGone, "worker").pod
    assert last.uid == bound.uid


def test_a_container_end_is_told(place, door):
    place.make_pod("worker")
    place.bind("worker", f"{place.node}-absent")
    terminated = {
        "exitCode": 3,
        "reason": "Error",
        "startedAt": "2026-01-01T00:00:00Z",
        "finishedAt": "2026-01-01T00:01:00Z",
    }
    status = {
        "phase": "Failed",
        "startTime": "2026-01-01T00:00:00Z",
        "containerStatuses": [
            {
                "name": "main",
                "image": "busybox",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": {"terminated": terminated},
            }
        ],
    }
    place.api.ok("PATCH", f"{place.pods}/worker/status", {"status": status}, STRATEGIC)
    pod = door.until_seen(PodSeen, "worker", phase="Failed").pod
    assert (pod.exit_code, pod.reason) == (3, "Error")
    assert pod.finished_at - pod.started_at == 60


def test_foreign_pods_count_while_they_hold_something(place, door):
    devices = {"nvidia.com/gpu": "2", "x.io/thing": "1"}
    asked = {"cpu": "1500m", "memory": "3Gi", **devices}
    resources = {"requests": asked, "limits": devices}
    sidecar = {"requests": {"cpu": "500m"}}
    place.make_pod(
        "foreign",
        schedulerName="default-scheduler",
        containers=[{"name": "main", "image": "b", "resources": resources}],
        initContainers=[
            {"name": "s", "image": "b", "restartPolicy": "Always", "resources": sidecar},
            {"name": "i", "image": "b", "resources": {"requests": {"memory": "5Gi"}}},
        ],
    )
    place.make_pod("ours")
    door.until_seen(PodSeen, "ours")
    assert not [each for each in door.seen if isinstance(each, PodSeen) and not each.pod.owned
                and each.pod.namespace == place.namespace]  # fmt: skip
    place.bind("foreign", f"{place.node}-absent")
    pod = door.until_seen(PodSeen, "foreign").pod
    assert (pod.owned, pod.node) == (False, f"{place.node}-absent")
    assert (pod.gpus, pod.cpu_milli, pod.memory_mib) == (2, 2000, 5 * 1024)
    assert pod.extended == {"x.io/thing": 1}
    assert pod.labels.keys() == {"kant.io/job"}  # rules of other pods may match it
    finished = {"status": {"phase": "Succeeded"}}
    place.api.ok("PATCH", f"{place.pods}/foreign/status", finished, STRATEGIC)
    assert door.until_seen(PodGone, "foreign").pod.uid == pod.uid


def test_a_new_incarnation_is_another_pod(place, door):
    first = place.make_pod("worker")["metadata"]["uid"]
    gone(place, "worker")
    second = place.make_pod("worker")["metadata"]["uid"]
    assert door.until_seen(PodSeen, "worker", uid=second)
    pods = [each.pod.uid for each in door.seen if isinstance(each, PodGone)]
    assert first in pods or not any(
        isinstance(each, PodSeen) and each.pod.uid == first for each in door.seen
    )


# --- the doorbell ---------------------------------------------------------------------------------
def test_the_doorbell_rings_once_until_drained(place, door):
    rings, heard = [], threading.Semaphore(0)

    def ring():
        rings.append("news")
        heard.release()

    def drained(*names):
        """Drain at each ring until those pods are seen; return the number of drains."""
        missing, drains = set(names), 0
        while missing:
            assert heard.acquire(timeout=60), f"no ring for {missing}"
            drains += 1
            seen = [each for each in door.gateway.drain() if isinstance(each, PodSeen)]
            missing -= {each.pod.name for each in seen if each.pod.namespace == place.namespace}
        return drains

    door.gateway.on_news(ring)
    door.forget()  # other news on this server may ring too
    for i in range(3):
        place.make_pod(f"worker-{i}")
    time.sleep(0.3)
    assert len(rings) <= 2
    drains = 1 + drained("worker-0", "worker-1", "worker-2")
    place.make_pod("another")
    drains += drained("another")
    assert len(rings) <= drains + 1


# --- how watches break ----------------------------------------------------------------------------
def test_broken_connections_resume_without_a_new_list(place, open_door, proxy, caplog):
    caplog.set_level(logging.INFO, "scheduling.kube.door.watch")
    door = open_door(port=proxy.port)
    place.make_pod("before")
    door.until_seen(PodSeen, "before")
    for i in range(3):
        proxy.cut()
        place.make_pod(f"worker-{i}")
        gone(place, f"worker-{i}")
        place.make_pod(f"kept-{i}")
        door.until_seen(PodSeen, f"kept-{i}")
    door.until_seen(PodGone, "worker-2")
    assert "listing again" not in caplog.text
    pods = [e.pod for e in door.seen if isinstance(e, PodSeen)]
    again = [pod for pod in pods if (pod.namespace, pod.name) == (place.namespace, "before")]
    assert len(again) == 1


def test_a_watch_survives_its_own_end(place, door, caplog):
    """The server ends each watch after two or three seconds; nothing is lost or reported."""
    caplog.set_level(logging.INFO, "scheduling.kube.door.watch")
    door.until(lambda each: isinstance(each, Connected))
    door.forget()
    until, i = time.monotonic() + 4.5, 0
    while time.monotonic() < until:
        place.make_pod(f"worker-{i}")
        i += 1
        time.sleep(0.2)
    for each in range(i):
        door.until_seen(PodSeen, f"worker-{each}")
    assert not [each for each in door.seen if isinstance(each, Disconnected)]
    assert "listing again" not in caplog.text


def test_a_half_open_connection_is_found_out(place, open_door, proxy):
    door = open_door(port=proxy.port, times=msgspec.structs.replace(QUICK, grace=0.5))
    door.forget()
    proxy.frozen = True
    place.make_pod("meanwhile")
    time.sleep(0.5)
    proxy.frozen = False  # for new connections; the old ones stay frozen
    assert door.until_seen(PodSeen, "meanwhile")


def test_what_vanished_while_away_is_reported_gone(place, open_door, proxy):
    """After a restart the server may not know the old resourceVersion any more (410)."""
    door = open_door(port=proxy.port)
    node = place.make_node()
    place.make_pod("worker")
    place.make_pod("kept")
    for name in ("worker", "kept"):
        door.until_seen(PodSeen, name)
    door.until_seen(NodeSeen, place.node)
    proxy.refusing = True
    proxy.cut()
    door.until(lambda each: isinstance(each, Disconnected))
    gone(place, "worker")
    place.api.ok("DELETE", f"/api/v1/nodes/{place.node}")
    place.make_pod("new")
    place.server.stop()
    place.server.start()
    proxy.refusing = False
    assert door.until_seen(PodGone, "worker")
    assert door.until_seen(NodeGone, node["metadata"]["name"])
    assert door.until_seen(PodSeen, "new")
    door.until(lambda each: isinstance(each, Connected))
    assert not [each for each in door.seen if isinstance(each, PodGone) and each.pod.name == "kept"]


@pytest.fixture
def _slow_start(monkeypatch):
    """A server may take its time to start and to read its roles."""
    monkeypatch.setattr("scheduling.kube.door.settle.BUDGET_S", READY_WITHIN_S)
    for module in ("settle", "gateway"):
        monkeypatch.setattr(f"scheduling.kube.door.{module}.RIGHTS_WITHIN_S", READY_WITHIN_S)


@pytest.mark.usefixtures("_slow_start")
def test_a_restart_of_the_server_is_survived(place, door):
    place.make_pod("before")
    door.until_seen(PodSeen, "before")
    door.forget()
    place.server.stop()
    try:
        assert door.until(lambda each: isinstance(each, Disconnected)).reason
    finally:
        place.server.start()
    door.until(lambda each: isinstance(each, Connected), READY_WITHIN_S)
    place.make_pod("after")
    assert door.until_seen(PodSeen, "after")
    [outcome] = door.carry_out(create(place, "worker"))
    assert outcome.result is Result.BOUND


@pytest.mark.usefixtures("_slow_start")
def test_effects_wait_for_a_server_that_is_away(place, door):
    place.server.stop()
    door.gateway.submit([create(place, f"worker-{i}") for i in range(50)])
    place.server.start()
    outcomes = [door.outcome(create(place, f"worker-{i}")) for i in range(50)]
    assert {each.result for each in outcomes} == {Result.BOUND}, outcomes


def test_lost_replies_are_resolved_by_looking(place, open_door, proxy):
    """The requests arrive and are carried out, but the replies do not come back."""
    door = open_door(port=proxy.port)
    door.carry_out(*(create(place, f"first-{i}") for i in range(40)))  # opens the connections
    proxy.mute = True
    door.gateway.submit([create(place, f"worker-{i}") for i in range(40)])
    eventually(lambda: len(place.api.ok("GET", place.pods)["items"]) > 60)
    proxy.cut()
    proxy.mute = False
    outcomes = [door.outcome(create(place, f"worker-{i}")) for i in range(40)]
    assert {each.result for each in outcomes} == {Result.BOUND}
    pods = {each["metadata"]["name"]: each for each in place.api.ok("GET", place.pods)["items"]}
    for i in range(40):
        assert pods[f"worker-{i}"]["metadata"]["uid"] == outcomes[i].uid
        assert pods[f"worker-{i}"]["spec"]["nodeName"] == place.node
