"""Claims, volumes and storage classes get the same answers as from a real kube-apiserver."""

from typing import Any

import pytest

from .same import MERGE, check

pytestmark = pytest.mark.apiserver

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
SIZE = {"requests": {"storage": "1Gi"}}


def claim(name: str = "c", **spec: Any) -> dict[str, Any]:
    # No provisioner serves this class, so no controller of either server touches it.
    given = {"accessModes": ["ReadWriteOnce"], "resources": SIZE, "storageClassName": "none"}
    return {"metadata": {"name": name}, "spec": {**given, **spec}}


def volume(name: str = "v", **spec: Any) -> dict[str, Any]:
    given = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "storageClassName": "none",
        "csi": {"driver": "example.com", "volumeHandle": "h"},
        "claimRef": {"namespace": "default", "name": "nobody"},
    }
    return {"metadata": {"name": name}, "spec": {**given, **spec}}


def of_class(name: str = "k", **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "provisioner": "example.com/none", **fields}


def test_claims(servers):
    wrong: list[dict[str, Any]] = [
        {"accessModes": []}, {"accessModes": ["Foo"]}, {"resources": {}},
        {"resources": {"requests": {"storage": "0"}}}, {"accessModes": "x"},
        {"resources": {"requests": {"storage": "much"}}}, {"storageClassName": 5},
    ]  # fmt: skip
    check(servers, *(("POST", CLAIMS, claim("bad", **spec)) for spec in wrong))
    node = {"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n"}}}
    check(
        servers,
        ("POST", CLAIMS, claim()),
        ("POST", CLAIMS, claim()),
        ("POST", CLAIMS, claim("Bad_")),
        ("POST", CLAIMS, {"metadata": {"name": "empty"}}),
        ("GET", f"{CLAIMS}/c"),
        ("PATCH", f"{CLAIMS}/c", node, MERGE),
        ("PATCH", f"{CLAIMS}/c", {"metadata": {"uid": "another"}}, MERGE),
        ("PATCH", f"{CLAIMS}/none", node, MERGE),
        ("PATCH", f"{CLAIMS}/c", {"spec": {"accessModes": ["ReadWriteMany"]}}, MERGE),
        ("PATCH", f"{CLAIMS}/c", {"spec": {"storageClassName": "other"}}, MERGE),
        ("PATCH", f"{CLAIMS}/c", {"spec": {"volumeName": "v"}}, MERGE),
        ("PATCH", f"{CLAIMS}/c", {"spec": {"volumeName": "w"}}, MERGE),
        ("PATCH", f"{CLAIMS}/c/status", {"status": {"phase": "Lost"}}, MERGE),
        ("GET", "/api/v1/persistentvolumeclaims?labelSelector=a%3Db"),
    )


def test_volumes(servers):
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    nodes = {"required": {"nodeSelectorTerms": [term]}}
    wrong: list[dict[str, Any]] = [
        {"accessModes": []}, {"accessModes": ["Foo"]}, {"capacity": {}}, {"csi": None},
        {"nodeAffinity": {"required": 5}},
    ]  # fmt: skip
    check(servers, *(("POST", VOLUMES, volume("bad", **spec)) for spec in wrong))
    nfs = {"server": "s", "path": "/p"}
    check(
        servers,
        ("POST", VOLUMES, volume("two", nfs=nfs)),
        ("POST", VOLUMES, volume(nodeAffinity=nodes)),
        ("POST", VOLUMES, volume()),
        ("GET", f"{VOLUMES}/v"),
        ("PATCH", f"{VOLUMES}/v", {"spec": {"csi": {"volumeHandle": "other"}}}, MERGE),
        ("PATCH", f"{VOLUMES}/v", {"spec": {"capacity": {"storage": "2Gi"}}}, MERGE),
        ("GET", f"{VOLUMES}/none"),
    )


def test_storage_classes(servers):
    check(
        servers,
        ("POST", CLASSES, of_class()),
        ("POST", CLASSES, of_class()),
        ("POST", CLASSES, {"metadata": {"name": "bad"}}),
        ("POST", CLASSES, of_class("bad", volumeBindingMode="Foo")),
        ("POST", CLASSES, of_class("bad", parameters={"a": 5})),
        ("POST", CLASSES, of_class("late", volumeBindingMode="WaitForFirstConsumer")),
        ("PATCH", f"{CLASSES}/k", {"parameters": {"a": "b"}}, MERGE),
        ("PATCH", f"{CLASSES}/k", {"provisioner": "other"}, MERGE),
        ("PATCH", f"{CLASSES}/k", {"volumeBindingMode": "WaitForFirstConsumer"}, MERGE),
        ("PATCH", f"{CLASSES}/k", {"metadata": {"labels": {"a": "b"}}}, MERGE),
        ("DELETE", f"{CLASSES}/late"),
        ("GET", f"{CLASSES}/late"),
    )
