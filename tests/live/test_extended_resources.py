"""Pods request extended resources that a driver's devices stand for; Kant makes the claims."""

import pytest

from scheduling.engine.states import JobState as S
from scheduling.kube.seam import CallOutcome, Result
from scheduling.models import Placement
from tests.live.devices import GPU, GROUP, NIC, gpus, plain_devices, publish
from tests.live.plain_pods import Between, condition, job_of, make, node_of, pod_of, state_of

pytestmark = pytest.mark.live
BY_NAME = "nvidia.com/gpu"
OF_CLASS = "deviceclass.resource.kubernetes.io/"
ONLY_THERE = {"nodeSelector": {"disk": "by-driver"}}


def node_by_driver(world, name="driver-1", count=4, **slices):
    """Create a node whose GPUs do not come from a device plugin."""
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    ready = [{"type": "Ready", "status": "True"}]
    status = {"capacity": amounts, "allocatable": amounts, "conditions": ready}
    labels = {"kubernetes.io/hostname": name, "disk": "by-driver"}
    body = {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}
    world.call("POST", "/api/v1/nodes", body)
    if count:
        publish(world, name, devices=gpus(count), **slices)
    return name


def class_for(world, resource=BY_NAME, name=GPU):
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "{name}"'}}]}
    if resource:
        spec["extendedResourceName"] = resource
    body = {"metadata": {"name": name}, "spec": spec}
    return world.call("POST", f"{GROUP}/deviceclasses", body)


def made_for(world, pod):
    """Return the claims that were made for the pod of that name."""
    return [
        each
        for each in world.call("GET", f"{GROUP}/resourceclaims")["items"]
        if pod in [owner["name"] for owner in each["metadata"].get("ownerReferences", ())]
    ]


def devices_of(world, pod):
    return [
        f"{result['pool']}/{result['device']}"
        for claim in made_for(world, pod)
        for result in claim["status"]["allocation"]["devices"]["results"]
    ]


def test_a_pod_gets_devices_for_the_resource_that_it_asks_for(world):
    node = node_by_driver(world)
    class_for(world)
    uid = make(world, gpus=2, **ONLY_THERE)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert node_of(world) == node
    [claim] = made_for(world, "plain")
    assert claim["metadata"]["annotations"] == {
        "resource.kubernetes.io/extended-resource-claim": "true"
    }
    [request] = claim["spec"]["devices"]["requests"]
    exactly = {"deviceClassName": GPU, "allocationMode": "ExactCount", "count": 2}
    assert request == {"name": "container-0-request-1", "exactly": exactly}
    assert claim["status"]["reservedFor"] == [{"resource": "pods", "name": "plain", "uid": uid}]
    assert pod_of(world)["status"]["extendedResourceClaimStatus"] == {
        "resourceClaimName": claim["metadata"]["name"],
        "requestMappings": [
            {
                "containerName": "c",
                "resourceName": BY_NAME,
                "requestName": "container-0-request-1",
            }
        ],
    }
    # Counted once, by the model of the device.
    assert job_of(uid).gpu_milli == 2000
    [place] = Placement.objects.filter(job_id=uid)
    assert place.gpu_model == "NVIDIA-H100-80GB-HBM3"
    other = make(world, "o", gpus=2, **ONLY_THERE)
    world.drive(lambda: state_of(other) is S.RUNNING)
    more = make(world, "m", gpus=1, **ONLY_THERE)
    assert len({*devices_of(world, "plain"), *devices_of(world, "o")}) == 4
    world.drive(lambda: job_of(more) is not None and job_of(more).message)
    world.restart_scheduler()  # this one learns who has what
    world.call("DELETE", "/api/v1/namespaces/default/pods/o")
    world.drive(lambda: state_of(more) is S.RUNNING)


def test_a_pod_that_kant_makes_gets_them_too(world):
    for node in world.call("GET", "/api/v1/nodes")["items"]:
        name = node["metadata"]["name"]
        unschedulable = {"spec": {"unschedulable": True}}
        world.call("PATCH", f"/api/v1/nodes/{name}", unschedulable, "merge-patch+json")
    nodes = {node_by_driver(world, f"driver-{n}", 4) for n in range(2)}
    class_for(world)
    gang = world.submit("gang", pods=2, gpus=4)
    world.drive_to(gang, S.RUNNING)
    places = world.placements(gang)
    assert {place.node for place in places} == nodes
    found = [devices_of(world, place.pod_name) for place in places]
    assert sorted(map(len, found)) == [4, 4]
    world.restart_scheduler()
    waits = world.submit("waits", gpus=4)
    world.drive(lambda: "GPU" in (job_of(waits.pk).message or ""))
    world.cancel(gang)
    world.drive_to(waits, S.RUNNING)
    assert not any(made_for(world, place.pod_name) for place in places)


def test_what_a_device_plugin_gives_needs_no_claim(world):
    node_by_driver(world)
    class_for(world)
    uid = make(world, gpus=8)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert node_of(world) != "driver-1"
    assert not made_for(world, "plain")
    assert "extendedResourceClaimStatus" not in pod_of(world)["status"]


def test_no_pod_is_bound_where_no_class_stands_for_its_resource(world):
    node_by_driver(world)
    class_for(world, resource="")
    uid = make(world, gpus=1, **ONLY_THERE)
    job = world.submit("own", gpus=8, pods=5)  # one more than there are nodes with a plugin
    world.drive(lambda: all(j and j.message for j in (job_of(uid), job_of(job.pk))))
    assert node_of(world) is None
    assert not world.placements(job)
    world.call("DELETE", f"{GROUP}/deviceclasses/{GPU}")
    class_for(world)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert len(devices_of(world, "plain")) == 1


def test_a_class_stands_for_the_resource_of_its_name(world):
    world.set_policy(cpu_jobs_on_gpu_nodes="freely")
    node_by_driver(world)
    publish(world, "driver-1", NIC, devices=plain_devices(2), name="nics")
    class_for(world, resource="example.com/nic", name=NIC)
    class_for(world, resource="")
    amounts = {"cpu": "1", f"{OF_CLASS}{GPU}": "3", "example.com/nic": "2"}
    uid = make(world, requests=amounts)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert len(devices_of(world, "plain")) == 5
    assert job_of(uid).gpu_milli == 3000
    other = make(world, "other", requests={"cpu": "1", f"{OF_CLASS}{GPU}": "2"})
    world.drive(lambda: job_of(other) is not None and job_of(other).message)
    assert node_of(world, "other") is None


def test_the_claim_of_a_binding_that_failed_is_deleted(world, monkeypatch):
    for n in range(2):
        node_by_driver(world, f"driver-{n}", count=1)
    class_for(world)
    between, refused = Between(world, monkeypatch), []
    outcome = CallOutcome(Result.REFUSED, code=403, message="a webhook says no")
    between.meet = lambda bind: None if refused else refused.append(bind) or outcome
    uid = make(world, gpus=1, **ONLY_THERE)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    [first] = refused
    assert node_of(world) != first.node
    assert devices_of(world, "plain") == [f"{node_of(world)}/gpu-0"]


def test_a_gang_gets_all_claims_or_none(world):
    node_by_driver(world, count=3)
    class_for(world)
    labels = {"kant.io/tenant": "team", "kant.io/gang": "g"}
    names = [f"g-{n}" for n in range(4)]
    for name in names:
        make(world, name, 1, labels, {"kant.io/gang-size": "4"}, **ONLY_THERE)
    world.drive(lambda: (condition(world, "g-0") or ("",) * 3)[1] not in ("", "GangIncomplete"))
    assert not any(made_for(world, name) for name in names)
    publish(world, "driver-1", devices=gpus(1, first=3), name="more", pool=pool_of("more"))
    world.drive(lambda: all(node_of(world, name) for name in names))
    assert len({device for name in names for device in devices_of(world, name)}) == 4


def pool_of(name):
    return {"name": name, "generation": 1, "resourceSliceCount": 1}
