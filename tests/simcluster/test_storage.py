"""Volumes of the embedded cluster: binding, provisioning, and which pods can mount them."""

import time
from typing import Any

import pytest

from .harness import PODS, Sim, pod

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
SELECTED = "volume.kubernetes.io/selected-node"
HOST = "kubernetes.io/hostname"


def claim(sim, name, namespace="default", size="1Gi", **spec):
    given = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    path = CLAIMS.replace("default", namespace)
    return sim.post(path, {"metadata": {"name": name}, "spec": {**given, **spec}})


def of_class(sim, name, mode="WaitForFirstConsumer", **parameters):
    body = {"metadata": {"name": name}, "provisioner": "sim.kant.io/disk"}
    sim.post(CLASSES, body | {"parameters": parameters, "volumeBindingMode": mode})


def volume(sim, name, size="1Gi", of="", **spec):
    given = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": size},
        "storageClassName": of,
        "csi": {"driver": "example.com", "volumeHandle": name},
    }
    sim.post(VOLUMES, {"metadata": {"name": name}, "spec": {**given, **spec}})


def select(sim, name, node):
    code, reply = sim.patch(f"{CLAIMS}/{name}", {"metadata": {"annotations": {SELECTED: node}}})
    assert code == 200, reply


def until(sim, path, done) -> Any:
    deadline = time.monotonic() + 60
    while True:
        code, body = sim.call("GET", path)
        if done(body if code == 200 else None):
            return body
        assert time.monotonic() < deadline, body
        time.sleep(0.02)


def bound(sim, name):
    """Return the volume of the claim as soon as it has one."""
    found = until(sim, f"{CLAIMS}/{name}", lambda c: c and c["status"]["phase"] == "Bound")
    assert found["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] == "yes"
    of = sim.get(f"{VOLUMES}/{found['spec']['volumeName']}")
    assert (of["status"]["phase"], of["spec"]["claimRef"]["name"]) == ("Bound", name)
    return of


def mounting(name, of, **spec):
    source = {"persistentVolumeClaim": {"claimName": of}}
    return pod(name, volumes=[{"name": "data", **source}], **spec)


def phase(sim, path):
    return sim.get(path)["status"]["phase"]


def test_a_new_cluster_has_a_default_class_and_one_of_local_volumes(sim):
    claim(sim, "any")
    found = until(sim, f"{CLAIMS}/any", lambda c: c["spec"].get("storageClassName"))
    assert found["spec"]["storageClassName"] == "standard"
    claim(sim, "none", storageClassName="")
    select(sim, "any", "gpu-0000")
    assert "nodeAffinity" not in bound(sim, "any")["spec"]
    assert phase(sim, f"{CLAIMS}/none") == "Pending"
    names = {item["metadata"]["name"] for item in sim.get(CLASSES)["items"]}
    assert names >= {"standard", "local"}


def test_a_volume_is_made_for_the_node_that_was_selected(sim):
    claim(sim, "here", storageClassName="local")
    time.sleep(0.3)
    assert phase(sim, f"{CLAIMS}/here") == "Pending"
    select(sim, "here", "gpu-0001")
    [term] = bound(sim, "here")["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": HOST, "operator": "In", "values": ["gpu-0001"]}]}


@pytest.mark.parametrize("node", ["nowhere", "gpu-0002"])
def test_the_node_is_taken_back_where_no_volume_can_be_made(sim, node):
    of_class(sim, f"picky-{node}", topologyKey=HOST, failOn="gpu-0002,gpu-0003")
    claim(sim, f"picky-{node}", storageClassName=f"picky-{node}")
    select(sim, f"picky-{node}", node)
    path = f"{CLAIMS}/picky-{node}"
    until(sim, path, lambda c: SELECTED not in c["metadata"].get("annotations", {}))
    select(sim, f"picky-{node}", "gpu-0000")
    bound(sim, f"picky-{node}")


def test_a_class_that_binds_at_once_waits_for_no_node(sim):
    of_class(sim, "now", "Immediate", topologyKey=HOST)
    claim(sim, "now", storageClassName="now")
    assert bound(sim, "now")["spec"]["nodeAffinity"]


def test_a_claim_is_bound_to_the_volume_that_it_names(sim):
    claim(sim, "named", storageClassName="x", volumeName="by-hand")
    time.sleep(0.3)
    assert phase(sim, f"{CLAIMS}/named") == "Pending"
    volume(sim, "by-hand", of="x")
    assert bound(sim, "named")["metadata"]["name"] == "by-hand"
    claim(sim, "late", storageClassName="x", volumeName="by-hand")
    time.sleep(0.3)
    assert phase(sim, f"{CLAIMS}/late") == "Pending"


def test_a_claim_without_a_class_gets_the_smallest_volume_that_is_large_enough(sim):
    for name, size in (("large", "9Gi"), ("middle", "5Gi"), ("small", "1Gi")):
        volume(sim, name, size)
    claim(sim, "fits", size="4Gi", storageClassName="")
    assert bound(sim, "fits")["metadata"]["name"] == "middle"


def test_what_becomes_of_a_volume_without_its_claim_and_of_a_claim_without_its_volume(sim):
    claim(sim, "made", storageClassName="local")
    select(sim, "made", "gpu-0000")
    made = bound(sim, "made")["metadata"]["name"]
    volume(sim, "kept", of="y")
    claim(sim, "kept", storageClassName="y", volumeName="kept")
    bound(sim, "kept")
    for name in ("made", "kept"):
        assert sim.call("DELETE", f"{CLAIMS}/{name}")[0] == 200
    until(sim, f"{VOLUMES}/{made}", lambda v: v is None)
    until(sim, f"{VOLUMES}/kept", lambda v: v["status"]["phase"] == "Released")
    volume(sim, "lost", of="y")
    claim(sim, "lost", storageClassName="y", volumeName="lost")
    bound(sim, "lost")
    sim.call("DELETE", f"{VOLUMES}/lost")
    until(sim, f"{CLAIMS}/lost", lambda c: c["status"]["phase"] == "Lost")


def test_a_pod_starts_when_its_volume_can_be_mounted_on_its_node(sim):
    for name, node in (("starts", "gpu-0000"), ("elsewhere", "gpu-0001")):
        sim.post(PODS, mounting(name, "disk"))
        sim.bind(name, node)
    time.sleep(0.3)
    assert phase(sim, f"{PODS}/starts") == "Pending"
    claim(sim, "disk", storageClassName="local")
    select(sim, "disk", "gpu-0000")
    sim.wait_phase("starts", "Running")
    time.sleep(0.3)
    assert phase(sim, f"{PODS}/elsewhere") == "Pending"
    sim.call("DELETE", f"{PODS}/elsewhere")
    sim.wait_gone("elsewhere")


def test_an_ephemeral_volume_lives_as_long_as_its_pod(sim):
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {**spec, "storageClassName": "local"}}
    scratch = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}
    made = sim.post(PODS, pod("eph", volumes=[scratch]))
    found = until(sim, f"{CLAIMS}/eph-scratch", lambda c: c)
    [owner] = found["metadata"]["ownerReferences"]
    assert (owner["uid"], found["metadata"]["labels"]) == (made["metadata"]["uid"], {"a": "b"})
    select(sim, "eph-scratch", "gpu-0000")
    sim.bind("eph", "gpu-0000")
    sim.wait_phase("eph", "Running")
    sim.call("DELETE", f"{PODS}/eph")
    until(sim, f"{CLAIMS}/eph-scratch", lambda c: c is None)


def test_a_namespace_goes_with_its_claims(sim):
    sim.post("/api/v1/namespaces", {"metadata": {"name": "brief"}})
    claim(sim, "c", "brief")
    sim.call("DELETE", "/api/v1/namespaces/brief")
    until(sim, "/api/v1/namespaces/brief", lambda n: n is None)
    assert sim.call("GET", f"{CLAIMS.replace('default', 'brief')}/c")[0] == 404


def test_a_second_start_binds_what_the_first_left_and_starts_what_waits_for_it(tmp_path):
    own = Sim(tmp_path)
    claim(own, "c", storageClassName="local")
    own.post(PODS, mounting("p", "c"))
    own.bind("p", "gpu-0000")
    select(own, "c", "gpu-0000")
    own.kill()
    own.start()
    bound(own, "c")
    own.wait_phase("p", "Running")
    assert own.stop() == ""
