"""Extended resources become the requests of a claim as in kube-scheduler 1.36; the cases are
those of extendeddynamicresources_test.go."""

import msgspec
import pytest

from scheduling.kube.dra.extended import claim_name, extended_asks, is_by_name
from scheduling.kube.dra.facts import ClassFacts
from scheduling.kube.translate.objects import PodSpec
from scheduling.session.devices.inventory import Inventory

NAME = "example.com/gpu"


def asks(*containers, inits=()):
    """Return containers with these amounts; init containers also have a restart policy."""

    def body(name, amount, policy=""):
        requests = {NAME: str(amount), "cpu": "1"} if amount else {"cpu": "1"}
        return {"name": name, "restartPolicy": policy, "resources": {"requests": requests}}

    spec = {
        "initContainers": [body(f"i{n}", *each) for n, each in enumerate(inits)],
        "containers": [body(f"c{n}", amount) for n, amount in enumerate(containers)],
    }
    found = extended_asks(msgspec.json.decode(msgspec.json.encode(spec), type=PodSpec))
    requests = {request.name[10:]: request.amount for request in found.requests}
    return requests, [(m.container, m.request[10:]) for m in found.mappings]


TABLE = [
    ("nothing", asks(0), {}, []),
    ("one", asks(2), {"0-request-1": 2}, [("c0", "0-request-1")]),
    (
        "each container its own",
        asks(1, 2),
        {"0-request-1": 1, "1-request-1": 2},
        [("c0", "0-request-1"), ("c1", "1-request-1")],
    ),
    (
        "an init container uses those after it",
        asks(2, inits=[(1,)]),
        {"1-request-1": 2},
        [("c0", "1-request-1"), ("i0", "1-request-1")],
    ),
    (
        "and asks for what is missing",
        asks(2, inits=[(3,)]),
        {"0-request-1": 1, "1-request-1": 2},
        [("c0", "1-request-1"), ("i0", "1-request-1"), ("i0", "0-request-1")],
    ),
    (
        "inits one after the other use the largest",
        asks(0, inits=[(1,), (3,)]),
        {"1-request-1": 3},
        [("i0", "1-request-1"), ("i1", "1-request-1")],
    ),
    (
        "a sidecar lasts, for inits before it",
        asks(1, inits=[(2,), (1, "Always")]),
        {"1-request-1": 1, "2-request-1": 1},
        [
            *(("i1", "1-request-1"), ("c0", "2-request-1")),
            *(("i0", "1-request-1"), ("i0", "2-request-1")),
        ],
    ),
]


@pytest.mark.parametrize(
    ("found", "requests", "mappings"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_requests_are_those_of_kube_scheduler(found, requests, mappings):
    assert found == (requests, mappings)


def test_classes_may_stand_for_some_names_only():
    of_class = "deviceclass.resource.kubernetes.io/gpu"
    names = (
        "cpu",
        "example.com/a",
        of_class,
        "kubernetes.io/a",
        "requests.a/b",
        "kant.io/gpu-milli",
    )
    assert [name for name in names if is_by_name(name)] == ["example.com/a", of_class]


def test_of_classes_for_one_resource_the_newest_counts():
    inventory = Inventory()
    for name, at in (("older", 1.0), ("b", 2.0), ("a", 2.0)):
        inventory.class_seen(ClassFacts(name, name, resource=NAME, created_at=at))
    assert inventory.class_of(NAME) == "a"
    inventory.class_gone(ClassFacts("a", "a"))
    assert inventory.class_of(NAME) == "b"
    assert inventory.class_of("deviceclass.resource.kubernetes.io/older") == "older"
    assert inventory.class_of("deviceclass.resource.kubernetes.io/none") == ""


def test_the_name_of_the_claim_is_the_name_of_an_object():
    long = claim_name("p" * 253, "073a31ab-fad8-4250-b2fe-533c83f064a8")
    assert (len(long), long[-12:]) == (253, "533c83f064a8")
