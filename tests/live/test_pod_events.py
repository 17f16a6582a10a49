"""`kubectl describe` shows among a pod's Events why Kant deletes it."""

import pytest

from scheduling.engine.states import JobState as S

pytestmark = pytest.mark.live


def told(world, job, attempt=1):
    """Return {pod name: (reason, type, note)} of the Events on the pods of an attempt, without
    those about bindings."""
    uids = {r.pod_uid for r in world.placements(job, attempt=attempt)}
    items = world.call("GET", "/apis/events.k8s.io/v1/events")["items"]
    assert all(e["reportingController"] == "kant" for e in items)
    found = {}
    for event in items:
        if event["regarding"]["uid"] in uids and event["reason"] != "Scheduled":
            assert event["regarding"]["name"] not in found, "told twice"
            note = (event["reason"], event["type"], event["note"])
            found[event["regarding"]["name"]] = note
    return found


def test_the_pods_of_a_victim_say_for_whom_they_went(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    low = world.submit("low", pods=4)
    world.drive_to(low, S.RUNNING)
    high = world.submit("high", pods=2, priority=10)
    world.drive_to(high, S.RUNNING)
    world.drive(lambda: len(told(world, low)) == 4)
    why = ("Preempted", "Normal", f"Preempted (priority) to make room for job {high.pk}")
    assert set(told(world, low).values()) == {why}
    assert told(world, high) == {}


def test_the_pods_of_a_cancelled_job_say_so_and_those_of_a_finished_one_say_nothing(world):
    done, given_up = world.submit("done", run_s=0.2), world.submit("given-up", pods=2)
    world.drive_to(done, S.SUCCEEDED)
    world.drive_to(given_up, S.RUNNING)
    world.cancel(given_up)
    world.drive(lambda: len(told(world, given_up)) == 2)
    assert set(told(world, given_up).values()) == {
        ("Cancelled", "Normal", "Its job was cancelled"),
    }
    assert told(world, done) == {}


def test_pods_that_go_because_another_failed_are_told_which(world):
    job = world.submit("gang", pods=2, run_s=600)
    world.drive_to(job, S.RUNNING)
    first, second = world.placements(job)
    world.report(first.pod_name, "Failed", reason="OutOfmemory", message="no room")
    world.drive(lambda: second.pod_name in told(world, job))
    reason, kind, note = told(world, job)[second.pod_name]
    assert (reason, kind) == ("OutOfmemory", "Warning")
    assert first.pod_name in note
    assert "no room" in note


def test_a_copy_of_a_pod_of_kant_is_told_once_that_it_will_not_be_bound(world):
    path = "/api/v1/namespaces/default/pods"
    running = world.submit("first")
    world.drive_to(running, S.RUNNING)
    [row] = world.placements(running)
    spec = {"schedulerName": "kant", "containers": [{"name": "c", "image": "busybox"}]}
    meta = {"name": row.pod_name, "labels": world.pods()[row.pod_name]["metadata"]["labels"]}
    alone = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    world.call("POST", path, alone)

    def events():
        found = world.call("GET", "/apis/events.k8s.io/v1/events")["items"]
        return [e for e in found if e["regarding"]["namespace"] == "default"]

    world.drive(events)
    labels = {"metadata": {"labels": {"seen": "again"}}}
    world.call("PATCH", f"{path}/{row.pod_name}", labels, kind="merge-patch+json")
    job = world.submit()
    world.drive_to(job, S.RUNNING)
    [event] = events()
    assert (event["reason"], event["type"], event.get("series")) == ("NotOfAJob", "Warning", None)
    assert "remove them" in event["note"]
    assert not world.call("GET", f"{path}/{row.pod_name}")["spec"].get("nodeName")
