"""The gateway meets faults that only the embedded cluster can produce on request."""

import logging
import time

import pytest

from scheduling.kube.seam import (
    Connected,
    DeletePod,
    NodeGone,
    NodeSeen,
    PodGone,
    PodSeen,
    Result,
)
from tests.kube.test_contract_effects import bind, create


@pytest.fixture
def server(embedded_server):
    yield embedded_server
    embedded_server.api.ok("DELETE", "/sim/faults")


def test_an_expired_watch_lists_again(place, server, open_door, caplog):
    caplog.set_level(logging.INFO, "scheduling.kube.door.watch")
    door = open_door()
    place.make_pod("before")
    door.until_seen(PodSeen, "before")
    server.fault("expire-watches")
    place.make_pod("after")
    assert door.until_seen(PodSeen, "after")
    assert "listing again" in caplog.text
    repeated = [e for e in door.seen if isinstance(e, PodSeen) and e.pod.name == "before"
                and e.pod.namespace == place.namespace]  # fmt: skip
    assert len(repeated) <= 2
    assert not [each for each in door.seen if isinstance(each, PodGone | NodeGone)
                and getattr(each, "pod", place).namespace == place.namespace]  # fmt: skip


def test_expired_again_and_again(place, server, open_door):
    door = open_door()
    for i in range(5):
        server.fault("expire-watches")
        place.make_pod(f"worker-{i}")
        assert door.until_seen(PodSeen, f"worker-{i}")


def test_dropped_watches_resume(place, server, open_door, caplog):
    caplog.set_level(logging.INFO, "scheduling.kube.door.watch")
    door = open_door()
    door.until(lambda each: isinstance(each, Connected))
    for i in range(5):
        server.fault("drop-watches")
        place.make_pod(f"worker-{i}")
    for i in range(5):
        assert door.until_seen(PodSeen, f"worker-{i}")
    assert "listing again" not in caplog.text


@pytest.mark.parametrize("verb", ["create", "bind"])
def test_a_lost_reply_is_resolved_by_looking(place, server, door, verb):
    server.fault("lose-reply", verb=verb, resource="pods", count=5)
    outcomes = door.carry_out(*(create(place, f"worker-{i}") for i in range(20)))
    assert {each.result for each in outcomes} == {Result.BOUND}
    pods = place.api.ok("GET", place.pods)["items"]
    assert len(pods) == 20
    assert {pod["metadata"]["uid"] for pod in pods} == {each.uid for each in outcomes}


def test_a_lost_reply_of_a_deletion(place, server, door):
    pod = place.make_pod("worker")
    server.fault("lose-reply", verb="delete", resource="pods")
    uid = pod["metadata"]["uid"]
    [outcome] = door.carry_out(DeletePod("d", place.namespace, "worker", uid, 0))
    assert outcome.result is Result.GONE


def test_too_many_requests_are_waited_for_as_long_as_asked(place, server, door):
    pod = place.make_pod("worker")
    server.fault("too-many-requests", verb="bind", resource="pods", count=1, retry_after_s=2)
    started = time.monotonic()
    [outcome] = door.carry_out(bind(place, pod))
    assert outcome.result is Result.BOUND
    assert time.monotonic() - started >= 2


def test_a_watch_that_must_wait_waits(place, server, open_door):
    server.fault("too-many-requests", verb="watch", resource="pods", count=2, retry_after_s=1)
    started = time.monotonic()
    open_door()
    assert time.monotonic() - started >= 1


def test_a_bad_gpu_and_a_node_that_is_down(place, server, open_door):
    door = open_door()
    place.make_node(annotations={})
    door.until_seen(NodeSeen, place.node)
    server.fault("gpu-bad", node=place.node, gpu=3)
    sick = door.until(
        lambda each: (
            isinstance(each, NodeSeen)
            and each.facts.node.name == place.node
            and not all(device.healthy for device in each.facts.node.devices)
        )
    )
    assert [device.index for device in sick.facts.node.devices if not device.healthy] == [3]
    assert sick.facts.node.problems == ()
    server.fault("node-down", node=place.node)
    down = door.until_seen(NodeSeen, place.node, schedulable=False).facts
    assert down.facts["health"].value == "not ready"
    server.fault("node-up", node=place.node)
    server.fault("gpu-good", node=place.node, gpu=3)
    healthy = door.until(
        lambda each: (
            isinstance(each, NodeSeen)
            and each.facts.node.name == place.node
            and each.facts.node.schedulable
            and all(device.healthy for device in each.facts.node.devices)
        )
    )
    assert healthy.facts.facts["health"].value == "healthy"
