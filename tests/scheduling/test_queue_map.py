"""A cluster's map from queues of other schedulers to Kant's queues, and the queue that a pod
names."""

import pytest
from msgspec.structs import replace

from scheduling.models import Cluster
from scheduling.services.clusters.queue_map import target_of
from scheduling.services.plain_pods.gangs import pod_sets_of
from scheduling.services.plain_pods.queue_names import QueueNames
from scheduling.services.plain_pods.spec import Refused, document_of
from tenants.models import AuditRecord, Queue
from tests.scheduling.test_plain_gangs import member

URL = "/api/v1/clusters/demo"
KUEUE, KAI, OWN = "kueue.x-k8s.io/queue-name", "kai.scheduler/queue", "kant.io/queue"
MAP = {
    "gpu": "team/nightly",
    "ns/gpu": "team/default",
    "other": "search/default",
    "alias": "again",
    "again": "gpu",
}


# --- the map --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("namespace", "name", "target"),
    [
        ("a", "gpu", ("team", "nightly")),
        ("ns", "gpu", ("team", "default")),
        ("a", "alias", ("team", "nightly")),
        ("ns", "alias", ("team", "nightly")),  # the target names have no namespace
        ("a", "nope", None),
    ],
)
def test_where_a_name_leads(namespace, name, target):
    assert target_of(MAP, namespace, name) == target


def test_a_map_that_was_never_checked_ends():
    assert target_of({"a": "b", "b": "a"}, "ns", "a") is None


@pytest.mark.parametrize(
    ("queue_map", "at", "words"),
    [
        (["a"], "", "Must be an object"),
        ({"a": 7}, "/a", "Must be TENANT/QUEUE"),
        ({"a" * 254: "vision/default"}, f"/{'a' * 254}", "longer than 253 characters"),
        ({"": "vision/default"}, "/", "Must be a name, or namespace/name"),
        ({"A_b/x": "vision/default"}, "/A_b~1x", "Must be a name, or namespace/name"),
        ({"ns/": "vision/default"}, "/ns~1", "Must be a name, or namespace/name"),
        ({"a": "vision/nope"}, "/a", "There is no queue “vision/nope”"),
        ({"a": "nobody/default"}, "/a", "There is no queue “nobody/default”"),
        ({"a": "b"}, "/a", "nor another name of the map"),
        ({"a": "a"}, "/a", "It points back to itself: a → a."),
        ({"a": "b", "b": "c", "c": "a"}, "/a", "a → b → c → a"),
        ({"a": "b", "b": "c", "c": "a"}, "/c", "c → a → b → c"),
        ({f"q{i}": "vision/default" for i in range(1001)}, "", "at most 1000"),
    ],
)
def test_a_wrong_map_is_refused_when_it_is_set(org, queue_map, at, words):
    answer = org.client("ops").patch(URL, {"queue_map": queue_map}, format="json")
    assert answer.status_code == 422, answer.json()
    errors = {e["pointer"]: e["detail"] for e in answer.json()["errors"]}
    assert words in errors[f"/queue_map{at}"]
    assert Cluster.objects.get().queue_map == {}


def test_a_map_is_set_shown_to_operators_and_recorded(org):
    ops, eve = org.client("ops"), org.client("eve")
    table = {"gpu": "vision/default", "vision/default": "vision/default", "alias": "gpu"}
    changed = ops.patch(URL, {"queue_map": table}, format="json")
    assert (changed.status_code, changed.json()["queue_map"]) == (200, table)
    assert eve.get(URL).json()["queue_map"] is None
    assert AuditRecord.objects.get(action="cluster.changed").after["queue_map"] == table
    assert eve.patch(URL, {"queue_map": {}}, format="json").status_code == 403


def test_a_loop_behind_a_name_is_told_of_the_names_in_it(org):
    answer = org.client("ops").patch(
        URL, {"queue_map": {"x": "a", "a": "b", "b": "a"}}, format="json"
    )
    pointers = {e["pointer"] for e in answer.json()["errors"]}
    assert pointers == {"/queue_map/a", "/queue_map/b"}


def test_a_queue_that_a_map_leads_to_stays(org):
    ada = org.client("ada")
    Queue.objects.create(tenant=org.tenants["vision"], name="nightly")
    Cluster.objects.update(queue_map={"gpu": "vision/nightly"})
    path = "/api/v1/queues/vision/nightly?reason=x"
    refused = ada.delete(path, headers={"If-Match": '"1"'})
    assert refused.status_code == 409
    assert "queue_map of demo sends pods to queue vision/nightly" in refused.json()["detail"]


# --- pods -----------------------------------------------------------------------------------------
def asked(*, tenant="team", queue_map=MAP, namespace="a", **labels):
    """Return tenant and queue of the job of a pod with these labels, or why it has no job."""
    one = member("p", gang=None, size=None, tenant=tenant)
    kept = {name: value for name, value in one.labels.items() if tenant or "tenant" not in name}
    one = replace(one, namespace=namespace, labels=kept | labels)
    try:
        sets = pod_sets_of([one], queues=QueueNames("demo", queue_map))
    except Refused as refused:
        return tuple(refused.cause)
    document = document_of(sets, "demo")
    return document["tenant"], document["queue"]


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ({}, ("team", "default")),
        ({OWN: "fast"}, ("team", "fast")),
        ({KUEUE: "gpu"}, ("team", "nightly")),
        ({KAI: "gpu"}, ("team", "nightly")),
        ({KAI: "gpu", KUEUE: "alias"}, ("team", "nightly")),
        ({OWN: "fast", KUEUE: "nope"}, ("team", "fast")),
        ({KUEUE: "gpu", "namespace": "ns"}, ("team", "default")),
        ({KUEUE: "other", "tenant": ""}, ("search", "default")),
        ({KUEUE: "other", OWN: "fast", "tenant": ""}, ("search", "fast")),
        # Without a map they may be meant for a queueing system beside Kant.
        ({KUEUE: "nope", "queue_map": {}}, ("team", "default")),
    ],
)
def test_the_queue_that_labels_name(labels, found):
    assert asked(**labels) == found


@pytest.mark.parametrize(
    ("labels", "reason", "words"),
    [
        (
            {KAI: "nope"},
            "UnknownQueue",
            "label kai.scheduler/queue: queue_map of cluster demo has neither a/nope nor nope.",
        ),
        ({KUEUE: "nope"}, "UnknownQueue", "set kant.io/queue to a queue of the tenant"),
        ({OWN: "No_Such"}, "InvalidPod", "label kant.io/queue: "),
        ({KUEUE: "gpu", KAI: "other"}, "InvalidPod", "means queue team/nightly and label kai"),
        ({KUEUE: "other"}, "InvalidPod", "means queue search/default according to queue_map"),
        ({OWN: "x", "tenant": "", "queue_map": {}}, "NoTenant", "Set the label kant.io/tenant"),
        ({KAI: "x", "tenant": "", "queue_map": {}}, "NoTenant", "needs a queue_map"),
    ],
)
def test_a_queue_that_is_not_known_is_told_with_the_map(labels, reason, words):
    got, text = asked(**labels)
    assert (got, words in text) == (reason, True), text


def test_the_pods_of_a_gang_name_one_queue():
    one, other = member("a"), member("b")
    other = replace(other, labels={**other.labels, OWN: "nightly"})
    with pytest.raises(Refused) as caught:
        pod_sets_of([one, other])
    assert caught.value.cause.reason == "GangDisagrees"
    assert "label kant.io/queue: The pods of gang train disagree" in caught.value.cause.text


def test_an_annotation_in_place_of_the_label_is_told():
    one = member("p", gang=None, size=None, notes={OWN: "fast"})
    with pytest.raises(Refused) as caught:
        pod_sets_of([one])
    assert "annotation kant.io/queue: Set it as a label" in caught.value.cause.text
