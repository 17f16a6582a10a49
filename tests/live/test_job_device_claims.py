"""Jobs request devices by claims; Kant makes the claims for their pods."""

import pytest

from scheduling.engine.states import JobState as S
from scheduling.engine.verdict import Reason
from scheduling.models import Job, JobEvent
from tenants.models import Quota
from tests.live.devices import (
    GPU,
    NIC,
    OF_GPU,
    claims,
    gpus,
    of_class,
    plain_devices,
    publish,
    request,
)
from tests.live.test_extended_resources import node_by_driver

pytestmark = pytest.mark.live
NAMESPACE = "kant-jobs"
MODEL = "NVIDIA-H100-80GB-HBM3"
TWO = {"gpus": {"device_class": GPU, "count": 2, "selectors": []}}


def template(world, name, *requests, metadata=None, **devices):
    spec = {"metadata": metadata or {}, "spec": {"devices": {"requests": requests, **devices}}}
    body = {"metadata": {"name": name}, "spec": spec}
    return world.call("POST", claims(kind="resourceclaimtemplates", namespace=NAMESPACE), body)


def claims_of(world, job):
    """Return the claims of the job's pods, by name."""
    found = world.call("GET", claims(namespace=NAMESPACE))["items"]
    names = {place.pod_name for place in world.placements(job)}
    return {
        each["metadata"]["name"]: each
        for each in found
        if names & {owner["name"] for owner in each["metadata"].get("ownerReferences", ())}
    }


def devices_of(claim):
    results = claim["status"]["allocation"]["devices"]["results"]
    return sorted(f"{each['pool']}/{each['device']}" for each in results)


def waits_for(job):
    """Return the reason why the job waits, and its text."""
    job = Job.objects.get(pk=job.pk)
    return job.reason, job.message


def test_a_job_gets_devices_of_a_class(world):
    node = node_by_driver(world)
    of_class(world)
    job = world.submit(gpus=2, device_claims=TWO)
    world.drive_to(job, S.RUNNING)
    [place] = world.placements(job)
    assert (place.node, place.gpu_model) == (node, MODEL)
    [(name, claim)] = claims_of(world, job).items()
    assert name == f"{place.pod_name}-gpus"
    pod = world.pods()[place.pod_name]
    assert pod["spec"]["resourceClaims"] == [{"name": "gpus", "resourceClaimName": name}]
    resources = pod["spec"]["containers"][0]["resources"]
    assert resources["claims"] == [{"name": "gpus"}]
    assert "nvidia.com/gpu" not in resources["requests"]
    uid = pod["metadata"]["uid"]
    assert claim["status"]["reservedFor"] == [
        {"resource": "pods", "name": place.pod_name, "uid": uid}
    ]
    assert len(devices_of(claim)) == 2
    # Other jobs may use the rest of the node, and no more than that.
    other, third = (world.submit(n, gpus=2, device_claims=TWO) for n in ("other", "third"))
    world.drive_to(other, S.RUNNING)
    world.drive(lambda: waits_for(third)[0])
    world.restart_scheduler()
    world.cancel(job)
    world.drive_to(third, S.RUNNING)
    assert not claims_of(world, job)
    [claim] = claims_of(world, other).values()
    [last] = claims_of(world, third).values()
    assert len({*devices_of(claim), *devices_of(last)}) == 4


def test_a_job_gets_what_a_template_asks_for(world):
    node_by_driver(world, count=0)
    publish(world, "driver-1", devices=[*gpus(2, numa=0), *gpus(2, first=2, numa=1)])
    of_class(world)
    job = world.submit(gpus=2, device_claims={"near": {"template": "near"}})
    world.drive(lambda: waits_for(job)[0])
    reason, text = waits_for(job)
    assert reason == Reason.WAITING_FOR_DEVICES
    assert text == f"There is no resource claim template near in namespace {NAMESPACE}. Create it."
    template(
        world,
        "near",
        request(2),
        constraints=[{"matchAttribute": f"{GPU}/numa"}],
        metadata={"labels": {"team": "vision"}},
    )
    world.drive_to(job, S.RUNNING)
    [claim] = claims_of(world, job).values()
    assert claim["metadata"]["labels"] == {"team": "vision"}
    assert devices_of(claim) in (
        ["driver-1/gpu-0", "driver-1/gpu-1"],
        ["driver-1/gpu-2", "driver-1/gpu-3"],
    )


def test_a_gang_gets_all_its_claims_or_none(world):
    nodes = {node_by_driver(world, f"driver-{n}", 2) for n in range(2)}
    of_class(world)
    one = {"gpu": {"device_class": GPU, "count": 1, "selectors": [f"{OF_GPU}.index < 2"]}}
    job = world.submit(pods=5, gpus=1, device_claims=one)
    world.drive(lambda: waits_for(job)[0])
    assert not world.call("GET", claims(namespace=NAMESPACE))["items"]
    nodes.add(node_by_driver(world, "driver-2", 1))
    world.drive_to(job, S.RUNNING)
    assert {place.node for place in world.placements(job)} == nodes
    found = claims_of(world, job).values()
    assert len({device for claim in found for device in devices_of(claim)}) == 5


def test_devices_that_are_no_gpus_come_beside_gpus_of_a_plugin(world):
    first = world.call("GET", "/api/v1/nodes")["items"][0]["metadata"]["name"]
    publish(world, first, NIC, plain_devices(2))
    of_class(world, NIC)
    nic = {"nic": {"device_class": NIC, "count": 1, "selectors": []}}
    job = world.submit(gpus=4, device_claims=nic)
    world.drive_to(job, S.RUNNING)
    [place] = world.placements(job)
    assert place.node == first
    resources = world.pods()[place.pod_name]["spec"]["containers"][0]["resources"]
    assert (resources["limits"]["nvidia.com/gpu"], resources["claims"]) == ("4", [{"name": "nic"}])


def test_a_job_whose_claims_do_not_agree_with_it_says_so(world):
    node_by_driver(world)
    of_class(world)
    jobs = {
        "gpus": world.submit("a", gpus=1, device_claims=TWO),
        "gpu_milli": world.submit("b", gpus=1, gpu_milli=500, device_claims=TWO),
        "gpu_types": world.submit("c", gpus=2, gpu_models=["H800"], device_claims=TWO),
        "class": world.submit(
            "d", gpus=1, device_claims={"x": {"device_class": "none", "count": 1, "selectors": []}}
        ),
    }
    world.drive(lambda: all(waits_for(job)[0] for job in jobs.values()))
    texts = {name: waits_for(job)[1] for name, job in jobs.items()}
    assert texts == {
        "gpus": "Its device claims are for 2 GPUs a pod, and gpus is 1. Submit it with gpus 2.",
        "gpu_milli": "Its device claims are for whole GPUs. Leave out gpu_milli and "
        "gpu_memory_mib.",
        "gpu_types": f"Its device claims are for GPUs of type {MODEL}, and gpu_types is H800. "
        f"Submit it with gpu_types {MODEL}.",
        "class": "Resource claim x: There is no device class none. Create the class.",
    }
    assert {waits_for(job)[0] for job in jobs.values()} == {Reason.WAITING_FOR_DEVICES}
    assert not JobEvent.objects.filter(kind="ADMITTED").exists()


def test_a_job_takes_up_again_what_a_scheduler_has_begun(world, monkeypatch):
    """The first scheduler dies after it has made the claims and before it has bound the pod."""
    node_by_driver(world, count=2)
    of_class(world)
    job = world.submit(gpus=2, device_claims=TWO)
    monkeypatch.setattr(
        "scheduling.session.pods.device_claims.DeviceClaims._bind_ready", lambda self, job: None
    )
    world.drive(lambda: any(map(given_to, claims_of(world, job).values())))
    monkeypatch.undo()
    [before] = claims_of(world, job).values()
    world.restart_scheduler()
    world.drive_to(job, S.RUNNING)
    [after] = claims_of(world, job).values()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


def given_to(claim):
    return (claim.get("status") or {}).get("reservedFor")


@pytest.mark.parametrize("restarts", [False, True])
def test_a_job_gets_devices_that_a_preemption_frees(world, restarts):
    """A new scheduler learns who holds the devices from rows and claims alone."""
    world.set_policy(preemption=["priority"], min_runtime_s=0.0)
    node_by_driver(world)
    of_class(world)
    low = [world.submit(f"low-{n}", gpus=2, device_claims=TWO) for n in range(2)]
    for job in low:
        world.drive_to(job, S.RUNNING)
    if restarts:
        world.restart_scheduler()
    high = world.submit("high", gpus=2, device_claims=TWO, priority=5)
    world.drive_to(high, S.RUNNING)
    assert sorted(world.state(job) is S.RUNNING for job in low) == [False, True]
    assert not JobEvent.objects.filter(reason="ClaimNotAllocated").exists()


def test_a_new_scheduler_counts_gpus_of_drivers_in_quotas(world):
    Quota.objects.update(guaranteed_milli=4_000)
    for name in ("driver-1", "driver-2"):
        node_by_driver(world, name)
    of_class(world)
    for job in [world.submit(f"first-{n}", gpus=2, device_claims=TWO) for n in range(2)]:
        world.drive_to(job, S.RUNNING)
    world.restart_scheduler()
    more = world.submit("more", gpus=2, device_claims=TWO)
    world.drive(lambda: waits_for(more)[0])
    assert waits_for(more)[0] == Reason.WAITING_FOR_QUOTA


def of_index(number):
    expression = f"{OF_GPU}.index == {number}"
    return {"gpu": {"device_class": GPU, "count": 1, "selectors": [expression]}}


@pytest.mark.parametrize(
    ("request_of", "gpus_of", "left"),
    [
        (request(2), 2, 2),
        (request(None), 4, 0),
        ({"name": "gpu", "firstAvailable": [
            {"name": n, "deviceClassName": GPU, "allocationMode": "ExactCount", "count": 2,
             "selectors": [{"cel": {"expression": f"{OF_GPU}.numa == {n}"}}]} for n in "01"
        ]}, 2, 2),
    ],
    ids=["constraint", "all", "alternatives"],
)  # fmt: skip
def test_victims_are_those_whose_devices_the_claims_need(world, request_of, gpus_of, left):
    """Two GPUs are free, but on different sockets: two jobs at one socket have to go, or all."""
    world.set_policy(preemption=["priority"], min_runtime_s=0.0)
    node_by_driver(world, count=0)
    publish(world, "driver-1", devices=[*gpus(2, numa=0), *gpus(2, first=2, numa=1)])
    of_class(world)
    low = [world.submit(f"low-{n}", gpus=1, device_claims=of_index(n)) for n in (0, 1, 2)]
    for job in low:
        world.drive_to(job, S.RUNNING)
    name = f"{GPU}/numa"
    constraints = [{"matchAttribute": name}] if gpus_of == 2 else []
    template(world, "near", request_of, constraints=constraints)
    claim = {"near": {"template": "near"}}
    high = world.submit("high", gpus=gpus_of, device_claims=claim, priority=5)
    world.drive_to(high, S.RUNNING)
    assert not JobEvent.objects.filter(reason="ClaimNotAllocated").exists()
    assert sum(world.state(job) is S.RUNNING for job in low) == left
    [given] = claims_of(world, high).values()
    assert devices_of(given) == [f"driver-1/gpu-{n}" for n in ((2, 3) if left else range(4))]


def test_a_gang_frees_the_devices_of_all_its_pods(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0.0)
    node_by_driver(world, count=0)
    publish(world, "driver-1", devices=[*gpus(2, numa=0), *gpus(2, first=2, numa=1)])
    of_class(world)
    low = [world.submit(f"low-{n}", gpus=1, device_claims=of_index(n)) for n in (0, 2)]
    for job in low:
        world.drive_to(job, S.RUNNING)
    template(world, "near", request(2), constraints=[{"matchAttribute": f"{GPU}/numa"}])
    claim = {"near": {"template": "near"}}
    high = world.submit("high", pods=2, gpus=2, device_claims=claim, priority=5)
    world.drive_to(high, S.RUNNING)
    assert not JobEvent.objects.filter(reason="ClaimNotAllocated").exists()
    assert not any(world.state(job) is S.RUNNING for job in low)


def test_devices_that_a_pod_holds_under_another_name_go_with_it(world):
    """A device that a job claims by its index is also one of those that others claim by class.

    Their jobs preempt it though they ran before, so that the scheduler counts both kinds.
    """
    world.set_policy(preemption=["priority"], min_runtime_s=0.0)
    node_by_driver(world, count=0)
    publish(world, "driver-1", devices=[*gpus(2, numa=0), *gpus(2, first=2, numa=1)])
    of_class(world)
    single = world.submit("single", gpus=1, device_claims=of_index(3))
    world.drive_to(single, S.RUNNING)
    world.cancel(single)
    world.drive_to(single, S.CANCELLED)
    template(world, "near", request(2), constraints=[{"matchAttribute": f"{GPU}/numa"}])
    claim = {"near": {"template": "near"}}
    first = world.submit("first", pods=2, gpus=2, device_claims=claim)
    world.drive_to(first, S.RUNNING)
    world.cancel(first)
    world.drive_to(first, S.CANCELLED)
    low = [world.submit(f"low-{n}", gpus=1, device_claims=of_index(n)) for n in (0, 2)]
    for job in low:
        world.drive_to(job, S.RUNNING)
    high = world.submit("high", pods=2, gpus=2, device_claims=claim, priority=5)
    world.drive_to(high, S.RUNNING)
    assert not JobEvent.objects.filter(reason="ClaimNotAllocated").exists()
    assert not any(world.state(job) is S.RUNNING for job in low)
