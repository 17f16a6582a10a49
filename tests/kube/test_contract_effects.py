"""Every effect against both servers: what the API does, and what the gateway makes of it."""

import time
import uuid

import msgspec
import pytest

from scheduling.kube.seam import (
    Annotate,
    Bind,
    CreateAndBind,
    CreatePod,
    DeletePod,
    EmitEvent,
    EvictPod,
    PatchCondition,
    PodSeen,
    Result,
)
from scheduling.kube.translate.manifests import PodTemplate, pod_manifest
from tests.kube.api import MERGE, eventually
from tests.kube.proxy import Proxy

DEVICES = {"kant.io/devices": "[0, 3]", "kant.io/milli": "1000"}


def create(place, name="worker", *, node="", annotations=DEVICES, key="", **spec):
    manifest = place.manifest(name, **spec)
    return CreateAndBind(
        key or name, place.namespace, name, manifest, node or place.node, annotations
    )


def bind(place, pod, *, uid="", node="", annotations=DEVICES, key="bind"):
    meta = pod["metadata"]
    uid = uid or meta["uid"]
    return Bind(key, place.namespace, meta["name"], uid, node or place.node, annotations)


# --- create and bind ----------------------------------------------------------------------------
def test_a_pod_is_created_and_bound_with_its_devices(place, door):
    [outcome] = door.carry_out(create(place))
    pod = place.get("worker")
    assert outcome.result is Result.BOUND
    assert outcome.uid == pod["metadata"]["uid"]
    assert pod["spec"]["nodeName"] == place.node
    assert pod["spec"]["schedulerName"] == place.scheduler
    assert pod["metadata"]["annotations"].items() >= DEVICES.items()
    conditions = {each["type"]: each["status"] for each in pod["status"]["conditions"]}
    assert conditions["PodScheduled"] == "True"
    seen = door.until_seen(PodSeen, "worker", node=place.node)
    assert seen.pod.annotations.items() >= DEVICES.items()


def test_a_pod_is_created_without_a_place_and_says_why(place, door):
    made = CreatePod("waits", place.namespace, "waits", place.manifest("waits"))
    [outcome] = door.carry_out(made)
    pod = place.get("waits")
    assert (outcome.result, outcome.uid) == (Result.DONE, pod["metadata"]["uid"])
    assert "nodeName" not in pod["spec"]
    [again] = door.carry_out(msgspec.structs.replace(made, key="again"))
    assert (again.result, again.uid) == (Result.DONE, outcome.uid)
    of = place.namespace, "waits", outcome.uid
    [told] = door.carry_out(PatchCondition((), *of, "Unschedulable", "WaitingForNodes: none."))
    assert told.result is Result.DONE
    [condition] = [
        c for c in place.get("waits")["status"]["conditions"] if c["type"] == "PodScheduled"
    ]
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    [gone] = door.carry_out(DeletePod(("job", -1, 0, 0), *of, grace=0))
    assert gone.result in (Result.DONE, Result.GONE)
    eventually(lambda: place.api.call("GET", f"{place.pods}/waits").code == 404)


def test_node_and_devices_arrive_together(place, door):
    door.carry_out(create(place))
    for each in door.seen + door.gateway.drain():
        if isinstance(each, PodSeen) and each.pod.owned and each.pod.node:
            assert each.pod.annotations.items() >= DEVICES.items()


def test_many_pods_in_one_go(place, door):
    outcomes = door.carry_out(*(create(place, f"worker-{i}") for i in range(100)))
    assert {each.result for each in outcomes} == {Result.BOUND}
    pods = place.api.ok("GET", place.pods)["items"]
    assert len({each["metadata"]["uid"] for each in pods}) == 100
    assert {each["spec"]["nodeName"] for each in pods} == {place.node}


def test_our_own_earlier_pod_is_taken_up_again(place, door):
    """The creation is repeated after its reply was lost: the scheduler and labels match, so the pod
    is ours."""
    pod = place.make_pod("worker")
    [outcome] = door.carry_out(create(place))
    assert (outcome.result, outcome.uid) == (Result.BOUND, pod["metadata"]["uid"])


def test_a_foreign_pod_of_that_name_is_left_alone(place, door):
    manifest = place.manifest("worker")
    manifest["metadata"]["labels"] = {"kant.io/job": "another"}
    pod = place.api.ok("POST", place.pods, manifest)
    [outcome] = door.carry_out(create(place))
    assert (outcome.result, outcome.code) == (Result.REFUSED, 409)
    assert outcome.uid == "", "what Kant did not create it must not delete"
    assert "did not create" in outcome.message
    found = place.get("worker")
    assert found["metadata"]["uid"] == pod["metadata"]["uid"]
    assert "nodeName" not in found["spec"]


def test_a_malformed_pod_is_refused_with_the_field(place, door):
    bad = [{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "-1"}}}]
    [outcome] = door.carry_out(create(place, containers=bad))
    assert (outcome.result, outcome.code) == (Result.REFUSED, 422)
    assert "spec.containers[0].resources.requests" in outcome.message


def test_a_missing_namespace_is_made(place, door):
    effect, name = create(place), f"made-{uuid.uuid4().hex[:8]}"
    effect.manifest["metadata"]["namespace"] = name
    [outcome] = door.carry_out(CreateAndBind("k", name, *_rest(effect)))
    assert (outcome.result, outcome.node) == (Result.BOUND, effect.node)
    place.api.ok("DELETE", f"/api/v1/namespaces/{name}")


def _rest(effect):
    return effect.name, effect.manifest, effect.node, effect.annotations


# --- bind conflicts -----------------------------------------------------------------------------
def test_bind_of_a_pod_that_is_gone(place, door):
    pod = place.make_pod("worker")
    place.api.ok("DELETE", f"{place.pods}/worker")
    [outcome] = door.carry_out(bind(place, pod))
    assert outcome.result is Result.GONE


def test_bind_of_a_pod_that_somebody_else_bound(place, door):
    pod = place.make_pod("worker")
    place.bind("worker", f"{place.node}-other")
    [outcome] = door.carry_out(bind(place, pod))
    assert (outcome.result, outcome.node) == (Result.TAKEN, f"{place.node}-other")
    assert outcome.uid == pod["metadata"]["uid"]


def test_bind_to_our_node_but_with_other_devices_is_taken(place, door):
    pod = place.make_pod("worker")
    place.bind("worker", place.node, **{"kant.io/devices": "[1]"})
    [outcome] = door.carry_out(bind(place, pod))
    assert (outcome.result, outcome.node) == (Result.TAKEN, place.node)


def test_our_own_earlier_bind_is_a_success(place, door):
    pod = place.make_pod("worker")
    place.bind("worker", place.node, **DEVICES)
    [outcome] = door.carry_out(bind(place, pod))
    assert (outcome.result, outcome.node) == (Result.BOUND, place.node)


def test_bind_of_a_pod_being_deleted(place, door):
    manifest = place.manifest("worker")
    manifest["metadata"]["finalizers"] = ["kant.io/test"]
    pod = place.api.ok("POST", place.pods, manifest)
    place.api.ok("DELETE", f"{place.pods}/worker")
    [outcome] = door.carry_out(bind(place, pod))
    assert outcome.result is Result.DELETING
    place.api.ok("PATCH", f"{place.pods}/worker", {"metadata": {"finalizers": None}}, MERGE)


def test_bind_of_a_gated_pod(place, door):
    pod = place.make_pod("worker", schedulingGates=[{"name": "kant.io/hold"}])
    [outcome] = door.carry_out(bind(place, pod))
    assert outcome.result is Result.GATED
    assert "kant.io/hold" in outcome.message
    place.api.ok("PATCH", f"{place.pods}/worker", {"spec": {"schedulingGates": None}}, MERGE)
    [again] = door.carry_out(bind(place, pod, key="again"))
    assert again.result is Result.BOUND


def test_bind_of_a_new_pod_under_the_same_name(place, door):
    old = place.make_pod("worker")
    place.api.ok("DELETE", f"{place.pods}/worker")
    new = place.make_pod("worker")
    [outcome] = door.carry_out(bind(place, old))
    assert (outcome.result, outcome.uid) == (Result.NEW_INCARNATION, new["metadata"]["uid"])
    assert "nodeName" not in place.get("worker")["spec"]


# --- telling the world --------------------------------------------------------------------------
def test_a_condition_tells_why_a_pod_waits(place, door):
    pod = place.make_pod("worker")
    uid = pod["metadata"]["uid"]

    def told(message, key, uid=uid):
        return PatchCondition(key, place.namespace, "worker", uid, "Unschedulable", message)

    [first] = door.carry_out(told("no H100 is free", 1))
    assert first.result is Result.DONE
    [second] = door.carry_out(told("the quota is used up", 2))
    assert second.result is Result.DONE
    mine = scheduled(place, "worker")
    assert mine["status"] == "False"
    assert mine["reason"] == "Unschedulable"
    assert mine["message"] == "the quota is used up"
    [wrong] = door.carry_out(told("x", 3, uid="another"))
    assert (wrong.result, wrong.uid) == (Result.NEW_INCARNATION, uid)
    place.api.ok("DELETE", f"{place.pods}/worker")
    [gone] = door.carry_out(told("x", 4))
    assert gone.result is Result.GONE


def test_of_several_conditions_the_last_word_is_said(place, door):
    uid = place.make_pod("worker")["metadata"]["uid"]
    of = (place.namespace, "worker", uid, "Unschedulable")
    outcomes = door.carry_out(*(PatchCondition(n, *of, f"reason {n}") for n in range(5)))
    sent = [n for n, outcome in enumerate(outcomes) if outcome.result is Result.DONE]
    assert sent == [0, 4]
    assert scheduled(place, "worker")["message"] == "reason 4"


def test_why_a_pod_waited_is_not_said_of_one_that_is_bound(place, door):
    place.make_node()
    uid = place.make_pod("worker")["metadata"]["uid"]
    waits = PatchCondition("why", place.namespace, "worker", uid, "Unschedulable", "full")
    binding = Bind("bind", place.namespace, "worker", uid, place.node, {})
    together = door.carry_out(binding, waits)
    later = door.carry_out(msgspec.structs.replace(waits, key="later"))
    assert [o.result for o in (*together, *later)] == [
        Result.BOUND,
        Result.NOT_SENT,
        Result.NOT_SENT,
    ]
    assert scheduled(place, "worker")["status"] == "True"


def scheduled(place, name):
    """Return the pod's condition PodScheduled."""
    conditions = place.get(name)["status"]["conditions"]
    [found] = [each for each in conditions if each["type"] == "PodScheduled"]
    return found


def test_annotations_are_set_beside_those_there_are(place, door):
    door.carry_out(create(place))
    uid = place.get("worker")["metadata"]["uid"]

    def told(until, key, uid=uid):
        notes = {"kant.io/checkpoint-by": until}
        return Annotate(key, place.namespace, "worker", uid, notes)

    for key, until in enumerate(("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z")):
        [outcome] = door.carry_out(told(until, key))
        assert (outcome.result, outcome.uid) == (Result.DONE, uid)
        notes = place.get("worker")["metadata"]["annotations"]
        assert notes.items() >= {**DEVICES, "kant.io/checkpoint-by": until}.items()
    [wrong] = door.carry_out(told("never", 3, uid="another"))
    assert (wrong.result, wrong.uid) == (Result.NEW_INCARNATION, uid)
    place.api.ok("DELETE", f"{place.pods}/worker")
    eventually(lambda: place.api.call("GET", f"{place.pods}/worker")[0] == 404)
    [gone] = door.carry_out(told("never", 4))
    assert gone.result is Result.GONE


def test_a_pod_that_is_to_be_told_finds_its_annotations_in_a_file(place, door):
    template = PodTemplate(
        namespace=place.namespace,
        job_id="3f2b8c1e-0000-4000-8000-000000000001",
        tenant="team",
        attempt=1,
        pod_set=0,
        image="busybox",
        cpu_milli=10,
        scheduler_name=place.scheduler,
        is_told=True,
    )
    name = "told"
    manifest = pod_manifest(template, name, 0)
    effect = CreateAndBind("told", place.namespace, name, manifest, place.node, DEVICES)
    [outcome] = door.carry_out(effect)
    assert outcome.result is Result.BOUND
    spec = place.get(name)["spec"]
    [volume] = spec["volumes"]
    assert volume["downwardAPI"]["items"][0]["fieldRef"]["fieldPath"] == "metadata.annotations"
    [mount] = spec["containers"][0]["volumeMounts"]
    assert (mount["name"], mount["mountPath"]) == (volume["name"], "/etc/kant")


def test_events_are_written_once_and_counted(place, door):
    pod = place.make_pod("worker")
    uid = pod["metadata"]["uid"]

    def event(key, note="placed on GPUs 0 and 3"):
        return EmitEvent(key, place.namespace, "worker", uid, "Scheduled", note)

    outcomes = door.carry_out(*(event(i) for i in range(5)), event("long", "é" * 2000))
    assert {each.result for each in outcomes} == {Result.DONE}
    path = f"/apis/events.k8s.io/v1/namespaces/{place.namespace}/events"
    short, long = sorted(place.api.ok("GET", path)["items"], key=lambda each: len(each["note"]))
    assert short["note"] == "placed on GPUs 0 and 3"
    assert short["regarding"]["uid"] == uid
    assert short["reportingController"] == "kant"
    assert len(long["note"].encode()) <= 1024


def test_an_event_series_is_counted_on_the_server(place, door, monkeypatch):
    monkeypatch.setattr("scheduling.kube.door.events.SERIES_WRITE_S", 0.0)
    pod = place.make_pod("worker")
    uid = pod["metadata"]["uid"]
    effects = [EmitEvent(i, place.namespace, "worker", uid, "Waiting", "full") for i in range(3)]
    assert {each.result for each in door.carry_out(*effects)} == {Result.DONE}
    path = f"/apis/events.k8s.io/v1/namespaces/{place.namespace}/events"
    [event] = place.api.ok("GET", path)["items"]
    assert event["series"]["count"] == 3


# --- order, fence, stop -------------------------------------------------------------------------
def test_effects_on_one_pod_keep_their_order(place, door):
    """Twenty pods are created, bound and deleted at once, and nothing is left over."""
    for i in range(20):
        door.gateway.submit([create(place, f"worker-{i}")])
    bound = [door.outcome(create(place, f"worker-{i}")) for i in range(20)]
    deletes = [
        DeletePod(f"d{i}", place.namespace, f"worker-{i}", bound[i].uid, 0) for i in range(20)
    ]
    evicts = [EvictPod(f"e{i}", place.namespace, f"worker-{i}", bound[i].uid) for i in range(20)]
    outcomes = door.carry_out(*deletes, *evicts)
    assert {each.result for each in outcomes[:20]} == {Result.DONE}
    assert {each.result for each in outcomes[20:]} == {Result.GONE}


def test_nothing_is_sent_after_the_fence(place, door):
    door.gateway.fence(time.monotonic())
    [outcome] = door.carry_out(create(place))
    assert outcome.result is Result.NOT_SENT
    assert place.api.call("GET", f"{place.pods}/worker").code == 404
    door.gateway.fence(time.monotonic() + 60)
    [again] = door.carry_out(create(place, key="again"))
    assert again.result is Result.BOUND


def test_every_effect_has_an_outcome_when_the_gateway_stops(place, open_door):
    effects = [create(place, f"worker-{i}") for i in range(300)]
    with Proxy(place.server.port) as proxy:
        door = open_door(port=proxy.port)
        door.carry_out(create(place, "before"))
        proxy.mute = True  # running requests do not end; queued ones do not begin
        door.gateway.submit(effects)
        eventually(lambda: len(place.api.ok("GET", place.pods)["items"]) > 1)
        door.gateway.stop()
    results = [door.outcome(each).result for each in effects]
    assert Result.NOT_SENT in results
    assert set(results) <= {Result.BOUND, Result.FAILED, Result.NOT_SENT}
    made = {each["metadata"]["name"] for each in place.api.ok("GET", place.pods)["items"]}
    unsent = {e.name for e, r in zip(effects, results, strict=True) if r is Result.NOT_SENT}
    assert not made & unsent


@pytest.mark.parametrize("key", [("job", 0, 1), "text", 7])
def test_keys_come_back_untouched(place, door, key):
    effect = DeletePod(key, place.namespace, "nothing", "no-uid", 0)
    assert door.carry_out(effect)[0].result is Result.GONE
