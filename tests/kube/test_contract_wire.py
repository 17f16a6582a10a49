"""The raw protocol against both servers: what a client may rely on.

Every test runs against the embedded cluster and a real kube-apiserver; the real one is right.
"""

from itertools import islice, takewhile

import pytest

from tests.kube.api import JSON_PATCH, MERGE, STRATEGIC, eventually


def names(answer):
    return [each["metadata"]["name"] for each in answer["items"]]


def status_of(answer):
    """Return the parts of an error that clients act on."""
    return answer.code, answer.body.get("kind"), answer.body.get("status"), answer.reason


# --- lists --------------------------------------------------------------------------------------
def test_a_list_comes_in_pages(place):
    for i in range(5):
        place.make_pod(f"worker-{i}")
    first = place.api.ok("GET", f"{place.pods}?limit=2")
    assert first["kind"] == "PodList"
    assert names(first) == ["worker-0", "worker-1"]
    assert first["metadata"]["remainingItemCount"] == 3
    token = first["metadata"]["continue"]
    place.make_pod("worker-1a")  # not in the snapshot that the pages show
    second = place.api.ok("GET", f"{place.pods}?limit=2&continue={token}")
    assert names(second) == ["worker-2", "worker-3"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    token = second["metadata"]["continue"]
    last = place.api.ok("GET", f"{place.pods}?limit=2&continue={token}")
    assert names(last) == ["worker-4"]
    assert not last["metadata"].get("continue")


def test_a_token_that_is_none_is_a_bad_request(place):
    answer = place.api.call("GET", f"{place.pods}?limit=2&continue=nonsense")
    assert status_of(answer) == (400, "Status", "Failure", "BadRequest")


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("tier=a", ["one"]),
        ("tier==a", ["one"]),
        ("tier!=a", ["three", "two"]),
        ("tier in (a,b)", ["one", "two"]),
        ("tier notin (a)", ["three", "two"]),
        ("tier", ["one", "two"]),
        ("!tier", ["three"]),
        ("tier=b,kant.io/job", ["two"]),
        ("tier=none", []),
    ],
)
def test_label_selectors(place, selector, expected):
    for name, labels in {"one": {"tier": "a"}, "two": {"tier": "b"}, "three": {}}.items():
        manifest = place.manifest(name)
        manifest["metadata"]["labels"] |= labels
        place.api.ok("POST", place.pods, manifest)
    query = selector.replace(" ", "%20").replace("!", "%21")
    assert names(place.api.ok("GET", f"{place.pods}?labelSelector={query}")) == expected


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("spec.nodeName=NODE", ["bound"]),
        ("spec.nodeName=", ["foreign", "free"]),
        ("spec.nodeName!=", ["bound"]),
        ("spec.schedulerName=SCHEDULER", ["bound", "free"]),
        ("spec.schedulerName!=SCHEDULER", ["foreign"]),
        ("status.phase=Pending,spec.nodeName=", ["foreign", "free"]),
        ("status.phase!=Pending", []),
        ("metadata.name=free", ["free"]),
        ("metadata.namespace=NAMESPACE", ["bound", "foreign", "free"]),
    ],
)
def test_field_selectors(place, selector, expected):
    place.make_pod("bound")
    place.make_pod("free")
    place.make_pod("foreign", schedulerName="default-scheduler")
    place.bind("bound", f"{place.node}-absent")
    # Where a kubelet runs, it must not change the phase: the node does not exist.
    for word, value in (
        ("NODE", f"{place.node}-absent"),
        ("SCHEDULER", place.scheduler),
        ("NAMESPACE", place.namespace),
    ):
        selector = selector.replace(word, value)
    assert names(place.api.ok("GET", f"{place.pods}?fieldSelector={selector}")) == expected


@pytest.mark.parametrize("query", ["fieldSelector=spec.nothing=1", "labelSelector=a%20b%20c"])
def test_a_selector_that_cannot_be_used(place, query):
    answer = place.api.call("GET", f"{place.pods}?{query}")
    assert status_of(answer) == (400, "Status", "Failure", "BadRequest")


# --- watches ------------------------------------------------------------------------------------
def before_the_end(watch):
    """Return the events of a watch up to the first one of the pod `end`."""
    return list(takewhile(lambda each: each["object"]["metadata"]["name"] != "end", watch))


def test_a_watch_tells_what_happened_since(place):
    version = place.api.ok("GET", place.pods)["metadata"]["resourceVersion"]
    pod = place.make_pod("worker")
    place.bind("worker", f"{place.node}-absent")
    place.api.ok("DELETE", f"{place.pods}/worker", {"gracePeriodSeconds": 0})
    place.make_pod("end")
    events = before_the_end(place.api.watch(f"{place.pods}?watch=1&resourceVersion={version}"))
    # Bound, marked for deletion, deleted: a pod that goes at once is marked first, too.
    assert [each["type"] for each in events] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]
    assert [each["object"]["metadata"]["generation"] for each in events] == [1, 1, 2, 2]
    assert events[2]["object"]["metadata"]["deletionGracePeriodSeconds"] == 0
    assert {each["object"]["metadata"]["uid"] for each in events} == {pod["metadata"]["uid"]}
    versions = [int(each["object"]["metadata"]["resourceVersion"]) for each in events]
    assert versions == sorted(versions)
    assert all(each["object"]["kind"] == "Pod" for each in events)


def test_a_watch_with_a_selector_sees_things_come_and_go(place):
    place.make_pod("worker")
    version = place.api.ok("GET", place.pods)["metadata"]["resourceVersion"]
    place.bind("worker", f"{place.node}-absent")
    done = {"status": {"phase": "Succeeded"}}
    place.api.ok("PATCH", f"{place.pods}/worker/status", done, STRATEGIC)
    selector = "spec.nodeName!=,status.phase!=Succeeded"
    path = f"{place.pods}?watch=1&resourceVersion={version}&fieldSelector={selector}"
    place.make_pod("end")
    place.bind("end", f"{place.node}-absent")
    events = before_the_end(place.api.watch(path))
    assert [each["type"] for each in events] == ["ADDED", "DELETED"]


def test_a_list_as_a_stream_ends_with_a_bookmark(place):
    for i in range(3):
        place.make_pod(f"worker-{i}")
    query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
    path = f"{place.pods}?{query}&allowWatchBookmarks=true"
    events = list(islice(place.api.watch(path), 4))
    assert [each["type"] for each in events] == ["ADDED", "ADDED", "ADDED", "BOOKMARK"]
    bookmark = events[3]["object"]
    assert bookmark["kind"] == "Pod"
    assert bookmark["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true"
    assert bookmark["metadata"]["resourceVersion"]


def test_a_stream_of_the_list_needs_its_match(place):
    path = f"{place.pods}?watch=1&sendInitialEvents=true"
    answer = place.api.call("GET", path)
    assert status_of(answer) == (422, "Status", "Failure", "Invalid")


# --- single objects -----------------------------------------------------------------------------
def test_what_a_new_object_gets(place):
    pod = place.make_pod("worker")
    meta = pod["metadata"]
    assert pod["kind"] == "Pod"
    assert pod["apiVersion"] == "v1"
    assert len(meta["uid"]) == 36
    assert meta["creationTimestamp"].endswith("Z")
    assert meta["resourceVersion"].isdecimal()
    assert pod["status"]["phase"] == "Pending"
    assert pod["spec"]["schedulerName"] == place.scheduler


def test_names_are_made_from_a_prefix(place):
    manifest = place.manifest("x")
    del manifest["metadata"]["name"]
    manifest["metadata"]["generateName"] = "worker-"
    made = {place.api.ok("POST", place.pods, manifest)["metadata"]["name"] for _ in range(3)}
    assert len(made) == 3
    assert all(each.startswith("worker-") and len(each) > 7 for each in made)


def test_reading_and_writing_what_is_not_there(place):
    for method, path, body in (
        ("GET", f"{place.pods}/none", None),
        ("DELETE", f"{place.pods}/none", None),
        ("PATCH", f"{place.pods}/none", {}),
        ("GET", f"/api/v1/nodes/{place.node}-none", None),
    ):
        answer = place.api.call(method, path, body, MERGE)
        assert status_of(answer) == (404, "Status", "Failure", "NotFound"), (method, path)
    assert place.api.call("GET", "/api/v1/nothing").code == 404
    manifest = place.manifest("worker")
    manifest["metadata"]["namespace"] = "nowhere"
    answer = place.api.call("POST", "/api/v1/namespaces/nowhere/pods", manifest)
    assert status_of(answer) == (404, "Status", "Failure", "NotFound")
    assert answer.message == 'namespaces "nowhere" not found'


def test_a_name_can_be_used_once(place):
    place.make_pod("worker")
    answer = place.api.call("POST", place.pods, place.manifest("worker"))
    assert status_of(answer) == (409, "Status", "Failure", "AlreadyExists")
    assert answer.message == 'pods "worker" already exists'


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"metadata": {"name": "Not_Legal"}}, "metadata.name"),
        ({"spec": {"containers": []}}, "spec.containers"),
        ({"metadata": {"name": "x", "labels": {"a b": "c"}}}, "metadata.labels"),
    ],
)
def test_an_invalid_pod_names_its_field(place, change, field):
    manifest = place.manifest("worker")
    manifest["metadata"] |= change.get("metadata", {})
    manifest["spec"] |= change.get("spec", {})
    answer = place.api.call("POST", place.pods, manifest)
    assert status_of(answer) == (422, "Status", "Failure", "Invalid")
    assert field in [each["field"] for each in answer.body["details"]["causes"]]


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"kind":"Pod","apiVersion":"v1","spec":7}'])
def test_a_body_that_is_no_pod(place, body):
    answer = place.api.call("POST", place.pods, body)
    assert status_of(answer) == (400, "Status", "Failure", "BadRequest")


def test_another_namespace_in_the_body(place):
    manifest = place.manifest("worker")
    manifest["metadata"]["namespace"] = "default"
    answer = place.api.call("POST", place.pods, manifest)
    assert status_of(answer) == (400, "Status", "Failure", "BadRequest")


def test_put_guards_by_resource_version(place):
    place.make_node()
    path = f"/api/v1/nodes/{place.node}"
    node = place.api.ok("GET", path)
    node["metadata"]["labels"]["a"] = "1"
    updated = place.api.ok("PUT", path, node)
    assert updated["metadata"]["resourceVersion"] != node["metadata"]["resourceVersion"]
    node["metadata"]["labels"]["a"] = "2"
    stale = place.api.call("PUT", path, node)
    assert status_of(stale) == (409, "Status", "Failure", "Conflict")
    assert "the object has been modified" in stale.message
    assert place.api.ok("GET", path)["metadata"]["labels"]["a"] == "1"


def test_merge_and_json_patches(place):
    place.make_node(labels={"gone": "soon"})
    path = f"/api/v1/nodes/{place.node}"
    merge = {"metadata": {"labels": {"a": "1", "gone": None}}}
    labels = place.api.ok("PATCH", path, merge, MERGE)["metadata"]["labels"]
    assert labels["a"] == "1"
    assert "gone" not in labels
    patch = [
        {"op": "test", "path": "/metadata/labels/a", "value": "1"},
        {"op": "replace", "path": "/metadata/labels/a", "value": "2"},
    ]
    assert place.api.ok("PATCH", path, patch, JSON_PATCH)["metadata"]["labels"]["a"] == "2"
    answer = place.api.call("PATCH", path, patch, JSON_PATCH)
    assert answer.code == 422
    assert place.api.call("PATCH", path, b"{}", "text/plain").code == 415


def test_a_strategic_patch_merges_conditions_by_type(place):
    place.make_pod("worker")
    path = f"{place.pods}/worker/status"
    for kind, status in (("PodScheduled", "False"), ("Ready", "True"), ("PodScheduled", "True")):
        condition = {"type": kind, "status": status}
        place.api.ok("PATCH", path, {"status": {"conditions": [condition]}}, STRATEGIC)
    found = {each["type"]: each["status"] for each in place.get("worker")["status"]["conditions"]}
    assert found["PodScheduled"] == "True"
    assert found["Ready"] == "True"


def test_status_and_spec_have_their_own_doors(place):
    place.make_pod("worker")
    path = f"{place.pods}/worker"
    both = {"metadata": {"labels": {"a": "1"}}, "status": {"message": "hello"}}
    assert "message" not in place.api.ok("PATCH", path, both, MERGE)["status"]
    patched = place.api.ok("PATCH", f"{path}/status", {"status": {"message": "hello"}}, MERGE)
    assert patched["status"]["message"] == "hello"
    assert patched["metadata"]["labels"]["a"] == "1"


def test_most_of_a_pod_cannot_be_changed(place):
    place.make_pod("worker")
    patch = {"spec": {"schedulerName": "another"}}
    answer = place.api.call("PATCH", f"{place.pods}/worker", patch, MERGE)
    assert status_of(answer) == (422, "Status", "Failure", "Invalid")
    uid = {"metadata": {"uid": "another"}}
    answer = place.api.call("PATCH", f"{place.pods}/worker", uid, STRATEGIC)
    assert status_of(answer) == (422, "Status", "Failure", "Invalid")
    assert answer.body["details"]["causes"][0]["field"] == "metadata.uid"


# --- binding, word for word -----------------------------------------------------------------------
def bind_call(place, name, *, node="n1", uid="", target=True):
    meta = {"name": name, **({"uid": uid} if uid else {})}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta}
    if target:
        body["target"] = {"apiVersion": "v1", "kind": "Node", "name": node}
    return place.api.call("POST", f"{place.pods}/{name}/binding", body)


def test_a_binding_answers_with_a_status(place):
    place.make_pod("worker")
    answer = bind_call(place, "worker", node=f"{place.node}-absent")
    assert (answer.code, answer.body["kind"], answer.body["status"]) == (201, "Status", "Success")
    again = bind_call(place, "worker", node="n2")
    assert status_of(again) == (409, "Status", "Failure", "Conflict")
    assert f'is already assigned to node "{place.node}-absent"' in again.message


def test_a_binding_of_nothing(place):
    answer = bind_call(place, "none")
    assert status_of(answer) == (404, "Status", "Failure", "NotFound")


def test_a_binding_with_a_stale_uid(place):
    place.make_pod("worker")
    answer = bind_call(place, "worker", uid="11111111-2222-3333-4444-555555555555")
    assert status_of(answer) == (409, "Status", "Failure", "Conflict")
    assert "UID in precondition" in answer.message


def test_a_binding_of_a_gated_or_leaving_pod(place):
    place.make_pod("gated", schedulingGates=[{"name": "kant.io/hold"}])
    answer = bind_call(place, "gated")
    assert status_of(answer) == (409, "Status", "Failure", "Conflict")
    assert "has non-empty .spec.schedulingGates" in answer.message
    manifest = place.manifest("leaving")
    manifest["metadata"]["finalizers"] = ["kant.io/test"]
    place.api.ok("POST", place.pods, manifest)
    place.api.ok("DELETE", f"{place.pods}/leaving")
    answer = bind_call(place, "leaving")
    assert status_of(answer) == (409, "Status", "Failure", "Conflict")
    assert "is being deleted, cannot be assigned to a host" in answer.message
    place.api.ok("PATCH", f"{place.pods}/leaving", {"metadata": {"finalizers": None}}, MERGE)


def test_a_binding_without_a_target(place):
    place.make_pod("worker")
    answer = bind_call(place, "worker", target=False)
    # kube-apiserver answers 500 without a reason here, though it means 422.
    assert answer.code in (422, 500)
    assert "target.name: Required value" in answer.message
    assert "nodeName" not in place.get("worker")["spec"]


# --- delete ---------------------------------------------------------------------------------------
def test_delete_with_another_uid(place):
    place.make_pod("worker")
    options = {"preconditions": {"uid": "11111111-2222-3333-4444-555555555555"}}
    answer = place.api.call("DELETE", f"{place.pods}/worker", options)
    assert status_of(answer) == (409, "Status", "Failure", "Conflict")
    assert "the UID in the precondition" in answer.message


def test_an_unbound_pod_goes_at_once(place):
    place.make_pod("worker", terminationGracePeriodSeconds=300)
    place.api.ok("DELETE", f"{place.pods}/worker")
    assert place.api.call("GET", f"{place.pods}/worker").code == 404


def test_a_finalizer_holds_an_object(place):
    manifest = place.manifest("worker")
    manifest["metadata"]["finalizers"] = ["kant.io/test"]
    place.api.ok("POST", place.pods, manifest)
    place.api.ok("DELETE", f"{place.pods}/worker", {"gracePeriodSeconds": 0})
    assert place.get("worker")["metadata"]["deletionTimestamp"]
    place.api.ok("PATCH", f"{place.pods}/worker", {"metadata": {"finalizers": None}}, MERGE)
    eventually(lambda: place.api.call("GET", f"{place.pods}/worker").code == 404)


# --- other kinds ----------------------------------------------------------------------------------
def test_leases_guard_by_resource_version(place):
    path = f"/apis/coordination.k8s.io/v1/namespaces/{place.namespace}/leases"
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "kant"},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15},
    }
    made = place.api.ok("POST", path, lease)
    made["spec"]["holderIdentity"] = "b"
    place.api.ok("PUT", f"{path}/kant", made)
    made["spec"]["holderIdentity"] = "c"
    assert place.api.call("PUT", f"{path}/kant", made).code == 409


def test_priority_is_resolved_from_its_class(place):
    name = f"urgent-{place.number}"
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    place.api.ok("POST", path, {**body, "metadata": {"name": name}})
    try:
        assert place.make_pod("urgent", priorityClassName=name)["spec"]["priority"] == 1000
        assert place.make_pod("plain")["spec"]["priority"] == 0
        unknown = place.manifest("x", priorityClassName="none")
        answer = place.api.call("POST", place.pods, unknown)
        assert answer.code == 403
    finally:
        place.api.ok("DELETE", f"{path}/{name}")


def test_a_dry_run_leaves_nothing(place):
    answer = place.api.call("POST", f"{place.pods}?dryRun=All", place.manifest("worker"))
    assert answer.code == 201
    assert place.api.call("GET", f"{place.pods}/worker").code == 404
    place.make_pod("worker")
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "worker"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n"},
    }
    answer = place.api.call("POST", f"{place.pods}/worker/binding?dryRun=All", body)
    assert answer.code == 201
    assert "nodeName" not in place.get("worker")["spec"]
