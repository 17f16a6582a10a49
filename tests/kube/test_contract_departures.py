"""Deleting and evicting pods, against both servers."""

import msgspec
import pytest

from scheduling.kube.seam import (
    PREEMPTION,
    DeletePod,
    EvictPod,
    PodSeen,
    Result,
)
from scheduling.kube.translate.pods import JOB_TRACKING
from tests.kube.api import MERGE, STRATEGIC, eventually


# --- delete -------------------------------------------------------------------------------------
def delete(place, pod, *, uid="", grace=0, key="delete"):
    meta = pod["metadata"]
    return DeletePod(key, place.namespace, meta["name"], uid or meta["uid"], grace)


def test_delete_asks_for_that_incarnation(place, door):
    pod = place.make_pod("worker")
    [wrong] = door.carry_out(delete(place, pod, uid="another", key="wrong"))
    assert (wrong.result, wrong.uid) == (Result.NEW_INCARNATION, pod["metadata"]["uid"])
    place.get("worker")
    [right] = door.carry_out(delete(place, pod))
    assert right.result is Result.DONE
    assert place.api.call("GET", f"{place.pods}/worker").code == 404
    [late] = door.carry_out(delete(place, pod, key="late"))
    assert late.result is Result.GONE


def test_delete_of_a_bound_pod_waits_for_its_grace_period(place, door):
    """Until the kubelet has ended the pod, it holds its devices and stays visible."""
    pod = place.make_pod("worker", terminationGracePeriodSeconds=60)
    place.bind("worker", place.node)
    place.api.ok("DELETE", f"{place.pods}/worker", {"gracePeriodSeconds": 60})
    found = place.get("worker")
    assert found["metadata"]["deletionGracePeriodSeconds"] == 60
    assert door.until_seen(PodSeen, "worker", deleting=True).pod.node == place.node
    [outcome] = door.carry_out(delete(place, pod, grace=0))
    assert outcome.result is Result.DONE
    assert place.api.call("GET", f"{place.pods}/worker").code == 404


def disruption(place, name="worker"):
    """Return (status, reason, message) of the pod's condition DisruptionTarget, and whether it is
    being deleted."""
    found = place.get(name)
    [mark] = [c for c in found["status"]["conditions"] if c["type"] == "DisruptionTarget"]
    return mark["status"], mark["reason"], mark["message"], "deletionTimestamp" in found["metadata"]


def test_a_preempted_pod_goes_marked_so_that_its_owner_can_tell(place, door):
    pod = place.make_pod("worker", terminationGracePeriodSeconds=60)
    place.bind("worker", place.node)
    run_pod(place, "worker")
    text = "Kant preempted the pod to make room for another job"
    effect = msgspec.structs.replace(delete(place, pod, grace=None), disrupted=PREEMPTION)
    [outcome] = door.carry_out(effect)
    assert outcome.result is Result.DONE
    assert disruption(place) == ("True", "PreemptionByScheduler", text, True)
    kinds = [each["type"] for each in place.get("worker")["status"]["conditions"]]
    assert {"PodScheduled", "Ready"} <= set(kinds)
    [again] = door.carry_out(msgspec.structs.replace(effect, key="again"))
    assert again.result is Result.DONE
    assert len(place.get("worker")["status"]["conditions"]) == len(kinds)


def test_a_preempted_pod_that_is_gone_or_another_is_left_alone(place, door):
    pod = place.make_pod("worker")
    marked = msgspec.structs.replace(delete(place, pod, uid="another"), disrupted=PREEMPTION)
    gone = DeletePod("gone", place.namespace, "nothing", "no-uid", 0, disrupted=PREEMPTION)
    [wrong, late] = door.carry_out(marked, gone)
    assert {wrong.result, late.result} == {Result.NEW_INCARNATION, Result.GONE}
    conditions = place.get("worker")["status"].get("conditions", [])
    assert all(each["type"] != "DisruptionTarget" for each in conditions)


# --- what a Job counts -------------------------------------------------------------------------
def make_tracked(place, name="worker"):
    """A running pod of a Job: a finalizer keeps it until the Job has counted its end."""
    place.make_pod(name, terminationGracePeriodSeconds=60)
    place.bind(name, place.node)
    run_pod(place, name)
    metadata = {"finalizers": ["kept.example/by-others", JOB_TRACKING]}
    return place.api.ok("PATCH", f"{place.pods}/{name}", {"metadata": metadata}, MERGE)


def finalizers(place, name="worker"):
    return place.get(name)["metadata"].get("finalizers", [])


def test_who_counts_the_end_of_a_pod_is_seen(place, door):
    make_tracked(place)
    place.make_pod("other")
    assert door.until_seen(PodSeen, "worker", tracked=True)
    assert not door.until_seen(PodSeen, "other").pod.tracked


@pytest.mark.parametrize("how", [DeletePod, EvictPod])
def test_a_pod_that_did_not_fail_goes_uncounted_by_its_job(place, door, how):
    uid = make_tracked(place)["metadata"]["uid"]
    [outcome] = door.carry_out(how("go", place.namespace, "worker", uid, tracked=True))
    assert outcome.result is Result.DONE
    assert "deletionTimestamp" in place.get("worker")["metadata"]
    assert finalizers(place) == ["kept.example/by-others"]


def test_another_pod_of_that_name_stays_counted(place, door):
    make_tracked(place)
    [outcome] = door.carry_out(DeletePod("go", place.namespace, "worker", "another", tracked=True))
    assert outcome.result is Result.NEW_INCARNATION
    assert JOB_TRACKING in finalizers(place)


def test_a_pod_that_a_budget_keeps_stays_counted(place, door):
    uid = make_tracked(place)["metadata"]["uid"]
    make_budget(place)
    [outcome] = door.carry_out(EvictPod("go", place.namespace, "worker", uid, tracked=True))
    assert outcome.result is Result.BLOCKED
    assert JOB_TRACKING in finalizers(place)


# --- evict --------------------------------------------------------------------------------------
def evict(place, pod, *, uid="", key="evict"):
    meta = pod["metadata"]
    return EvictPod(key, place.namespace, meta["name"], uid or meta["uid"], 0)


def test_evict_without_a_budget(place, door):
    pod = place.make_pod("worker")
    place.bind("worker", place.node)
    [outcome] = door.carry_out(evict(place, pod))
    assert outcome.result is Result.DONE
    eventually(lambda: place.api.call("GET", f"{place.pods}/worker").code == 404)
    [late] = door.carry_out(evict(place, pod, key="late"))
    assert late.result is Result.GONE


def test_evict_asks_for_that_incarnation(place, door):
    pod = place.make_pod("worker")
    [outcome] = door.carry_out(evict(place, pod, uid="another"))
    assert (outcome.result, outcome.uid) == (Result.NEW_INCARNATION, pod["metadata"]["uid"])
    place.get("worker")


def run_pod(place, name):
    """Act as the kubelet: the pod runs and is ready, so that a budget protects it."""
    ready = {"type": "Ready", "status": "True"}
    status = {"phase": "Running", "conditions": [ready]}
    place.api.ok("PATCH", f"{place.pods}/{name}/status", {"status": status}, STRATEGIC)


def test_the_eviction_api_marks_the_pod_by_itself(place, door):
    pod = place.make_pod("worker", terminationGracePeriodSeconds=60)
    place.bind("worker", place.node)
    run_pod(place, "worker")
    [outcome] = door.carry_out(msgspec.structs.replace(evict(place, pod), grace=None))
    assert outcome.result is Result.DONE
    assert disruption(place) == (
        *("True", "EvictionByEvictionAPI", "Eviction API: evicting"),
        True,
    )


def make_budget(place, name="budget"):
    collection = f"/apis/policy/v1/namespaces/{place.namespace}/poddisruptionbudgets"
    selector = {"matchLabels": {"kant.io/job": f"job-{place.number}"}}
    budget = place.api.ok(
        "POST",
        collection,
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": name},
            "spec": {"minAvailable": 1, "selector": selector},
        },
    )
    # Act as the disruption controller: no pod may be disrupted now.
    status = {
        "observedGeneration": budget["metadata"]["generation"],
        "disruptionsAllowed": 0,
        "currentHealthy": 1,
        "desiredHealthy": 1,
        "expectedPods": 1,
    }
    place.api.ok("PATCH", f"{collection}/{name}/status", {"status": status}, MERGE)


def test_a_budget_forbids_the_eviction(place, door):
    pod = place.make_pod("worker")
    place.bind("worker", place.node)
    run_pod(place, "worker")
    make_budget(place)
    [outcome] = door.carry_out(evict(place, pod))
    assert (outcome.result, outcome.code) == (Result.BLOCKED, 429)
    assert "disruption budget" in outcome.message
    assert "deletionTimestamp" not in place.get("worker")["metadata"]


def test_two_budgets_forbid_the_eviction_too(place, door):
    pod = place.make_pod("worker")
    place.bind("worker", place.node)
    run_pod(place, "worker")
    make_budget(place, "one")
    make_budget(place, "two")
    [outcome] = door.carry_out(evict(place, pod))
    assert (outcome.result, outcome.code) == (Result.BLOCKED, 500)
