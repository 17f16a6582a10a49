"""Lists with selectors and pages; watches from any version, bookmarks, 410."""

import contextlib
import http.client
import json
import socket
import time

import pytest

from .harness import NODES, PODS, pod


def names(body):
    return [i["metadata"]["name"] for i in body["items"]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("labelSelector=app=a", ["p0", "p3"]),
        ("labelSelector=app!=a", ["p1", "p2", "p4", "p5"]),
        ("labelSelector=app+in+(a,b)", ["p0", "p1", "p3", "p4"]),
        ("labelSelector=app+notin+(a,b),odd", ["p5"]),
        ("labelSelector=!odd", ["p0", "p2", "p4"]),
        ("labelSelector=rank>3", ["p4", "p5"]),
        ("fieldSelector=metadata.name=p2", ["p2"]),
        ("fieldSelector=spec.schedulerName=kant,spec.nodeName=", ["p0", "p1", "p2", "p3", "p4"]),
        ("fieldSelector=status.phase!=Pending", ["p5"]),
        ("fieldSelector=spec.nodeName=gpu-0000", ["p5"]),
    ],
)
def test_selectors(sim, query, expected):
    for i in range(6):
        labels = {"app": "abc"[i % 3], "rank": str(i)} | ({"odd": "1"} if i % 2 else {})
        sim.post(PODS, pod(f"p{i}", labels=labels))
    sim.bind("p5", "gpu-0000")
    sim.wait_phase("p5", "Running")
    assert names(sim.get(f"{PODS}?{query}")) == expected


@pytest.mark.parametrize(
    "query",
    [
        "labelSelector=(", "labelSelector=a,,b", "fieldSelector=spec.foo=1",
        "fieldSelector=bare", "limit=ten", "continue=zzz", "resourceVersion=x",
    ],
)  # fmt: skip
def test_bad_parameters_are_400(sim, query):
    code, status = sim.call("GET", f"{PODS}?{query}")
    assert (code, status["reason"]) == (400, "BadRequest")


def test_pages_agree_with_each_other(sim):
    for i in range(7):
        sim.post(PODS, pod(f"p{i}"))
    first = sim.get(f"{PODS}?limit=3")
    assert names(first) == ["p0", "p1", "p2"]
    assert first["metadata"]["remainingItemCount"] == 4
    sim.call("DELETE", f"{PODS}/p4")
    sim.post(PODS, pod("p33"))
    second = sim.get(f"{PODS}?limit=3&continue={first['metadata']['continue']}")
    third = sim.get(f"{PODS}?limit=3&continue={second['metadata']['continue']}")
    assert names(second) + names(third) == ["p3", "p4", "p5", "p6"]
    assert "continue" not in third["metadata"]
    assert first["metadata"]["resourceVersion"] == third["metadata"]["resourceVersion"]


def test_a_future_version_is_refused(sim):
    code, status = sim.call("GET", f"{PODS}?resourceVersion=99999999")
    assert code == 504
    assert status["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


def test_items_of_lists_carry_no_kind(sim):
    body = sim.get(f"{NODES}?limit=1")
    assert (body["kind"], "kind" in body["items"][0]) == ("NodeList", False)


def test_a_watch_continues_from_a_version(sim):
    version = sim.get(PODS)["metadata"]["resourceVersion"]
    sim.post(PODS, pod("w1"))
    sim.patch(f"{PODS}/w1", {"metadata": {"labels": {"a": "b"}}})
    sim.call("DELETE", f"{PODS}/w1")
    with sim.watch(f"{PODS}?watch=1&resourceVersion={version}") as stream:
        seen = [stream.next() for _ in range(4)]
        sim.post(PODS, pod("w2"))
        live = stream.next()
    assert [e["type"] for e in seen] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]
    versions = [int(e["object"]["metadata"]["resourceVersion"]) for e in seen]
    assert versions == sorted(set(versions))
    assert (live["type"], live["object"]["kind"]) == ("ADDED", "Pod")


def test_a_watch_without_version_begins_with_what_is_there(sim):
    sim.post(PODS, pod("w1"))
    with sim.watch(f"{PODS}?watch=true") as stream:
        assert stream.next()["object"]["metadata"]["name"] == "w1"


def test_initial_events_end_with_a_bookmark(sim):
    query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
    with sim.watch(f"{NODES}?{query}&allowWatchBookmarks=true") as stream:
        seen = [stream.next() for _ in range(6)]
    assert [e["type"] for e in seen] == ["ADDED"] * 5 + ["BOOKMARK"]
    assert seen[-1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    code, _ = sim.call("GET", f"{NODES}?watch=1&sendInitialEvents=true")
    assert code == 422


def test_a_selection_is_entered_and_left(sim):
    sim.post(PODS, pod("moves", labels={"app": "in"}))
    version = sim.get(PODS)["metadata"]["resourceVersion"]
    with sim.watch(f"{PODS}?watch=1&labelSelector=app=in&resourceVersion={version}") as stream:
        sim.patch(f"{PODS}/moves", {"metadata": {"labels": {"app": "out"}}})
        left = stream.next()
        sim.patch(f"{PODS}/moves", {"metadata": {"labels": {"app": "in"}}})
        entered = stream.next()
    assert (left["type"], left["object"]["metadata"]["labels"]) == ("DELETED", {"app": "in"})
    assert int(left["object"]["metadata"]["resourceVersion"]) > int(version)
    assert (entered["type"], entered["object"]["metadata"]["labels"]) == ("ADDED", {"app": "in"})


def test_a_watch_ends_after_its_time_with_a_bookmark(sim):
    with sim.watch(f"{PODS}?watch=1&timeoutSeconds=1&allowWatchBookmarks=true") as stream:
        events = list(stream)
    assert events[-1]["type"] == "BOOKMARK"


def test_too_old_a_version_is_an_in_stream_410(sim):
    version = sim.get(PODS)["metadata"]["resourceVersion"]
    with sim.watch(f"{PODS}?watch=1&resourceVersion={version}") as stream:
        sim.post("/sim/faults", {"fault": "expire-watches", "resource": "pods"})
        (ended,) = list(stream)
    with sim.watch(f"{PODS}?watch=1&resourceVersion={version}") as stream:
        assert stream.response.status == 200
        (refused,) = list(stream)
    for event in (ended, refused):
        assert event["type"] == "ERROR"
        assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
    assert "too old resource version" in refused["object"]["message"]
    fresh = sim.get(PODS)["metadata"]["resourceVersion"]
    with sim.watch(f"{PODS}?watch=1&resourceVersion={fresh}") as stream:
        sim.post(PODS, pod("after"))
        assert stream.next()["type"] == "ADDED"


def test_a_dropped_watch_resumes_without_a_gap(sim):
    version = sim.get(PODS)["metadata"]["resourceVersion"]
    with sim.watch(f"{PODS}?watch=1&resourceVersion={version}") as stream:
        sim.post(PODS, pod("one"))
        first = stream.next()
        sim.post("/sim/faults", {"fault": "drop-watches"})
        with pytest.raises((ConnectionError, StopIteration, OSError)):
            stream.next()
    sim.post(PODS, pod("two"))
    resumed = first["object"]["metadata"]["resourceVersion"]
    with sim.watch(f"{PODS}?watch=1&resourceVersion={resumed}") as stream:
        assert stream.next()["object"]["metadata"]["name"] == "two"


def test_a_reader_that_does_not_read_is_dropped(sim):
    """Otherwise it would keep every change in memory; the reader can resume from where it was."""
    sim.post(PODS, pod("busy"))
    slow = socket.create_connection(("127.0.0.1", sim.port))
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    slow.sendall(f"GET {PODS}?watch=1 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    quick = http.client.HTTPConnection("127.0.0.1", sim.port, timeout=60)
    for i in range(640):
        noise = {"noise": "x" * 200_000 if i < 40 else None, "i": str(i)}
        body = json.dumps({"metadata": {"annotations": noise}})
        headers = {"Content-Type": "application/merge-patch+json"}
        quick.request("PATCH", f"{PODS}/busy", body, headers)
        assert quick.getresponse().read()
    quick.close()
    for _ in range(50):  # a reader has three seconds per chunk during which the server is awake
        assert sim.raw("GET", "/readyz")[0] == 200
        time.sleep(0.1)
    slow.settimeout(60)
    received = 0
    with contextlib.suppress(ConnectionError):
        while chunk := slow.recv(1 << 20):
            received += len(chunk)
    slow.close()
    assert received < 40 * 200_000
