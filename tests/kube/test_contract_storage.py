"""Volume claims, volumes and storage classes, as both servers have them."""

from scheduling.engine.types import NodeExpression
from scheduling.kube.seam import (
    CapacityFacts,
    ClaimFacts,
    CsiDriverFacts,
    CsiNodeFacts,
    Result,
    SelectNode,
    StorageClassFacts,
    StorageGone,
    StorageSeen,
    VolumeFacts,
)

CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
VOLUMES = "/api/v1/persistentvolumes"
MERGE = "application/merge-patch+json"
SIZE = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


def claims(place, name=""):
    return f"/api/v1/namespaces/{place.namespace}/persistentvolumeclaims/{name}".rstrip("/")


def claim(place, name="data", **spec):
    body = {"metadata": {"name": name}, "spec": {**SIZE, **spec}}
    return place.api.ok("POST", claims(place), body)["metadata"]["uid"]


def of_class(place, name, **fields):
    body = {"metadata": {"name": name}, "provisioner": "example.com/none", **fields}
    return place.api.ok("POST", CLASSES, body)["metadata"]["uid"]


def news(door, kind, of, **fields):
    def wanted(each):
        return (
            isinstance(each, kind)
            and isinstance(each.facts, of)
            and all(getattr(each.facts, name) == value for name, value in fields.items())
        )

    return door.until(wanted).facts


def test_a_claim_is_told_the_node_for_which_its_volume_is_to_be_made(place, door):
    of_class(place, f"{place.namespace}-late", volumeBindingMode="WaitForFirstConsumer")
    uid = claim(place, storageClassName=f"{place.namespace}-late")
    seen = news(door, StorageSeen, ClaimFacts, uid=uid)
    assert (seen.namespace, seen.name) == (place.namespace, "data")
    assert (seen.storage_class, seen.volume) == (f"{place.namespace}-late", "")
    assert not (seen.bound)
    assert not (seen.lost)
    assert not (seen.deleting)
    assert not (seen.selected_node)

    def select(key, uid, name="data"):
        return SelectNode(key, place.namespace, name, uid, "node-1")

    first, again, other, none = door.carry_out(
        select("first", uid), select("again", uid), select("other", "x"), select("none", uid, "no")
    )
    assert (first.result, again.result) == (Result.DONE, Result.DONE)
    assert (other.result, none.result) == (Result.GONE, Result.GONE)
    assert news(door, StorageSeen, ClaimFacts, uid=uid, selected_node="node-1")
    notes = place.api.ok("GET", claims(place, "data"))["metadata"]["annotations"]
    assert notes["volume.kubernetes.io/selected-node"] == "node-1"
    place.api.ok("DELETE", claims(place, "data"))
    place.api.call("PATCH", claims(place, "data"), {"metadata": {"finalizers": None}}, MERGE)
    assert news(door, StorageGone, ClaimFacts, uid=uid).name == "data"


def test_where_a_volume_can_be_mounted(place, door):
    name = f"{place.namespace}-pv"
    terms = [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
    ]
    body = {
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": "a__b"}},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "example.com", "volumeHandle": name},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        },
    }
    place.api.ok("POST", VOLUMES, body)
    seen = news(door, StorageSeen, VolumeFacts, name=name)
    by_nodes = (
        (NodeExpression("zone", "In", ("a", "b")),),
        (NodeExpression("metadata.name", "In", ("n1",), of_name=True),),
    )
    by_label = ((NodeExpression("topology.kubernetes.io/zone", "In", ("a", "b")),),)
    assert seen.affinity == (by_nodes, by_label)
    uid = claim(place, volumeName=name, storageClassName="")
    assert news(door, StorageSeen, ClaimFacts, uid=uid).volume == name


def test_what_a_storage_class_says_of_its_volumes(place, door):
    zones = [{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}]
    late, none = f"{place.namespace}-zones", f"{place.namespace}-static"
    of_class(place, late, volumeBindingMode="WaitForFirstConsumer", allowedTopologies=zones)
    seen = news(door, StorageSeen, StorageClassFacts, name=late)
    assert (seen.waits, seen.provisions) == (True, True)
    assert seen.topologies == ((NodeExpression("zone", "In", ("a", "b")),),)
    uid = of_class(place, none, provisioner="kubernetes.io/no-provisioner")
    seen = news(door, StorageSeen, StorageClassFacts, name=none)
    assert (seen.waits, seen.provisions, seen.topologies) == (False, False, ())
    place.api.ok("DELETE", f"{CLASSES}/{none}")
    assert news(door, StorageGone, StorageClassFacts, uid=uid)


def test_what_drivers_tell_of_nodes_and_of_room(place, door):
    storage, name = "/apis/storage.k8s.io/v1", f"{place.namespace}.example.com"
    drivers = [{"name": name, "nodeID": "i", "allocatable": {"count": 3}}]
    drivers.append({"name": f"free.{name}", "nodeID": "i"})
    node = {"metadata": {"name": name}, "spec": {"drivers": drivers}}
    place.api.ok("POST", f"{storage}/csinodes", node)
    assert news(door, StorageSeen, CsiNodeFacts, name=name).limits == {name: 3}
    driver = {"metadata": {"name": name}, "spec": {"storageCapacity": True}}
    place.api.ok("POST", f"{storage}/csidrivers", driver)
    assert news(door, StorageSeen, CsiDriverFacts, name=name).tells_capacity
    room = {
        "metadata": {"name": "room"},
        "storageClassName": name,
        "nodeTopology": {"matchLabels": {"zone": "a"}},
        "capacity": "1Gi",
    }
    path = f"{storage}/namespaces/{place.namespace}/csistoragecapacities"
    uid = place.api.ok("POST", path, room)["metadata"]["uid"]
    seen = news(door, StorageSeen, CapacityFacts, uid=uid)
    assert (seen.storage_class, seen.size) == (name, 2**30)
    assert seen.nodes == ((NodeExpression("zone", "In", ("a",)),),)
    uid = claim(place, "sole", accessModes=["ReadWriteOncePod"], storageClassName=name)
    seen = news(door, StorageSeen, ClaimFacts, uid=uid)
    assert (seen.sole, seen.size) == (True, 2**30)
    place.api.ok("DELETE", f"{storage}/csinodes/{name}")
    assert news(door, StorageGone, CsiNodeFacts, name=name)
    place.api.ok("DELETE", f"{storage}/csidrivers/{name}")
