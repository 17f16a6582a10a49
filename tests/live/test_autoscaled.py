"""A cluster that may grow: what its autoscaler sees, and what happens to jobs when nodes come."""

import pytest
from django.db.models import F

from scheduling.engine.states import JobState as S
from scheduling.models import Cluster, Job, NodeRecord
from scheduling.services.jobs.changes import hold_job, release_job
from tenants.models import Quota
from tests.live.devices import gpus, has_namespace, plain_devices, publish, request
from tests.live.growing import (
    B200,
    SELECTOR,
    add_node,
    all_unschedulable,
    b200_job,
    stand_ins,
)
from tests.live.plain_pods import condition, job_of, make, state_of
from tests.live.test_extended_resources import class_for
from tests.live.test_job_device_claims import template

pytestmark = pytest.mark.live


def test_a_pod_of_a_group_at_zero_is_unschedulable_until_its_node_comes(autoscaled):
    world = autoscaled
    uid = make(world, **SELECTOR)
    other = make(world, "small")  # the pods of other models go on
    world.drive(lambda: condition(world) and condition(world)[1] == "Unschedulable")
    assert condition(world)[2].startswith("WaitingForNodes: ")
    assert job_of(uid).state == S.QUOTA_RESERVED
    world.drive(lambda: state_of(other) is S.RUNNING)
    add_node(world)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert not NodeRecord.objects.filter(name__contains="/").exists()


def test_what_no_node_can_help_is_told_by_another_reason(autoscaled):
    world = autoscaled
    Quota.objects.filter(gpu_type__name=B200).update(guaranteed_milli=8_000)
    make(world, "one", **SELECTOR)
    make(world, "gated", schedulingGates=[{"name": "a/b"}], **SELECTOR)
    make(world, "wide", gpus=9, **SELECTOR)
    make(world, "never", gpus=4, nodeSelector={"nvidia.com/gpu.product": "L4"})
    add_node(world)
    world.drive(lambda: (condition(world, "one") or " ")[0] == "True")
    make(world, "two", **SELECTOR)
    reasons = {"two": "WaitingForQuota", "wide": "ExceedsCapacity", "never": "ExceedsCapacity"}
    for name, reason in reasons.items():
        world.drive(lambda n=name, r=reason: (condition(world, n) or ("", ""))[1] == r)
    assert condition(world, "gated")[1] != "Unschedulable"


def test_groups_can_be_taken_back_and_a_restart_finds_them(autoscaled):
    world = autoscaled
    job = world.submit("wide", gpus=8)
    job.pod_sets.update(gpu_models=[B200])
    world.drive(lambda: type(job).objects.get(pk=job.pk).reason == "WaitingForNodes")
    world.restart_scheduler()
    world.drive(lambda: world.scheduler.led)
    assert world.state(job) is S.QUOTA_RESERVED
    Cluster.objects.update(node_groups={})
    world.drive(lambda: type(job).objects.get(pk=job.pk).reason == "NoMatchingGpuType")


# --- pods that stand in for those of jobs ---------------------------------------------------------
def test_a_job_that_waits_for_nodes_has_pods_that_autoscalers_see(autoscaled):
    world = autoscaled
    job = b200_job(world, pods=2)
    world.drive(lambda: all_unschedulable(world, 2))
    [pod] = [p for p in world.pods().values() if p["metadata"]["labels"]["kant.io/ordinal"] == "1"]
    spec = pod["spec"]
    assert spec["schedulerName"] == "kant"
    assert "schedulingGates" not in spec
    assert spec["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] == "8"
    affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert affinity["nodeSelectorTerms"] == [
        {
            "matchExpressions": [
                {"key": "nvidia.com/gpu.product", "operator": "In", "values": [B200]}
            ]
        }
    ]
    before = {name for name, _ in stand_ins(world).values()}
    # A scheduler that starts later finds them and makes no others.
    uids = {p["metadata"]["uid"] for p in world.pods().values()}
    world.restart_scheduler()
    world.drive(lambda: world.scheduler.led)
    add_node(world)
    world.drive(lambda: len(NodeRecord.objects.filter(gpu_model=B200)) == 1)
    assert {p["metadata"]["uid"] for p in world.pods().values()} == uids
    add_node(world, "b200-b")
    world.drive_to(job, S.RUNNING)
    world.drive(lambda: not stand_ins(world))
    pods = world.pods()
    assert len(pods) == 2
    assert before.isdisjoint(pods)


def test_an_elastic_gang_that_runs_has_them_for_the_pods_that_quota_lets_it_miss(autoscaled):
    world = autoscaled
    add_node(world)
    gang = b200_job(world, "gang", pods=3, min_count=1)
    world.drive_to(gang, S.RUNNING)
    assert len(world.placements(gang)) == 1
    # The job lacks two pods, but quota allows only one.
    world.drive(lambda: all_unschedulable(world, 1))
    [missed] = stand_ins(world)
    [has] = world.placements(gang)
    assert missed != (has.pod_set, has.ordinal)
    world.restart_scheduler()
    world.drive(lambda: world.scheduler.led)
    world.drive(lambda: all_unschedulable(world, 1))
    add_node(world, "b200-b")
    world.drive(lambda: len(world.placements(gang)) == 2 and not stand_ins(world))
    quota = Quota.objects.get(gpu_type__name=B200)
    Quota.objects.update(guaranteed_milli=24_000, version=quota.version + 1)
    world.drive(lambda: all_unschedulable(world, 1))
    world.cancel(gang)
    world.drive(lambda: not stand_ins(world))


def test_single_pods_that_a_job_misses_while_others_run_have_them(autoscaled):
    world = autoscaled
    add_node(world)
    job = b200_job(world, "each", pods=2, gang=False)
    world.drive_to(job, S.RUNNING)
    world.drive(lambda: all_unschedulable(world, 1))
    add_node(world, "b200-b")
    world.drive(lambda: len(world.placements(job)) == 2 and not stand_ins(world))


def test_they_go_with_the_job_its_quota_and_its_hold(autoscaled):
    world = autoscaled
    job = b200_job(world)
    world.drive(lambda: all_unschedulable(world, 1))
    quota = Quota.objects.get(gpu_type__name=B200)
    Quota.objects.update(guaranteed_milli=0, version=quota.version + 1)
    world.drive(lambda: world.state(job) is S.PENDING and not stand_ins(world))
    Quota.objects.update(guaranteed_milli=16_000, version=quota.version + 2)
    world.drive(lambda: all_unschedulable(world, 1))
    hold_job(world.user, Job.objects.get(pk=job.pk))
    world.drive(lambda: not stand_ins(world))
    release_job(world.user, Job.objects.get(pk=job.pk))
    world.drive(lambda: all_unschedulable(world, 1))
    world.cancel(job)
    world.drive(lambda: not stand_ins(world))


def test_a_scheduler_that_died_leaves_none_behind(autoscaled):
    world = autoscaled
    gone, other = b200_job(world, "gone"), b200_job(world, "other")
    world.drive(lambda: len(stand_ins_of(world)) == 2)
    world.restart_scheduler()
    world.cancel(gone)
    other.pod_sets.update(cpu_milli=200)  # the new request is different
    Job.objects.filter(pk=other.pk).update(version=F("version") + 1)
    world.drive(lambda: stand_ins_of(world) == {(str(other.pk), "200m")})
    Cluster.objects.update(node_groups={})
    world.drive(lambda: not stand_ins_of(world))


def stand_ins_of(world):
    """Return {(job, requested CPU)}."""
    return {
        (
            pod["metadata"]["labels"]["kant.io/stands-in-for"],
            pod["spec"]["containers"][0]["resources"]["requests"]["cpu"],
        )
        for pod in world.pods().values()
    }


def test_jobs_that_no_group_can_hold_have_none_and_copies_are_refused(autoscaled):
    world = autoscaled
    full = world.submit("full", pods=4)
    world.drive_to(full, S.RUNNING)
    waits = world.submit("waits")  # of the model that no group has
    world.drive(lambda: Job.objects.get(pk=waits.pk).reason == "InsufficientGpus")
    labels = {
        "kant.io/stands-in-for": str(waits.pk),
        "kant.io/pod-set": "0",
        "kant.io/ordinal": "0",
    }
    make(world, "copy", labels={"kant.io/tenant": "team", **labels})
    world.drive(lambda: condition(world, "copy") and condition(world, "copy")[1] == "NotHonoured")
    assert set(stand_ins(world).values()) == {("copy", "NotHonoured")}


def driver_node(world, name):
    """Like `add_node`, for a group whose GPUs only a device driver provides."""
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    ready = [{"type": "Ready", "status": "True"}]
    labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": B200}
    labels["nvidia.com/gpu.count"] = "8"
    status = {"capacity": amounts, "allocatable": amounts, "conditions": ready}
    body = {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}
    world.call("POST", "/api/v1/nodes", body)
    publish(world, name, devices=gpus(8, model="NVIDIA B200"))


def asks_of_stand_in(world):
    """Return its claims, and what its container requests by GPU resource and by claim."""
    [pod] = world.pods().values()
    resources = pod["spec"]["containers"][0]["resources"]
    by_name = resources["requests"].get("nvidia.com/gpu")
    return pod["spec"].get("resourceClaims", []), by_name, resources.get("claims", [])


def test_a_stand_in_claims_gpus_that_only_a_driver_will_give(autoscaled):
    world = autoscaled
    class_for(world)
    world.drive(lambda: has_namespace(world))
    template(world, "eight", request(8))
    job = b200_job(world, device_claims={"gpus": {"template": "eight"}})
    world.drive(lambda: all_unschedulable(world, 1))
    named = {"name": "gpus", "resourceClaimTemplateName": "eight"}
    assert asks_of_stand_in(world) == ([named], None, [{"name": "gpus"}])
    before = {p["metadata"]["uid"] for p in world.pods().values()}
    world.restart_scheduler()
    world.drive(lambda: world.scheduler.led and all_unschedulable(world, 1))
    assert {p["metadata"]["uid"] for p in world.pods().values()} == before
    driver_node(world, "b200-a")
    world.drive_to(job, S.RUNNING)
    world.drive(lambda: not stand_ins(world))
    assert [place.node for place in world.placements(job)] == ["b200-a"]
    # Another pod waits for the next node of the group; Kant knows that it will get its GPUs by
    # claims.
    b200_job(world, "next", device_claims={"gpus": {"template": "eight"}})
    world.drive(lambda: all_unschedulable(world, 1))
    [stands_in] = stand_ins(world).values()
    spec = world.pods()[stands_in[0]]["spec"]
    assert spec["resourceClaims"] == [named]


def test_a_stand_in_claims_other_devices_beside_the_gpus_of_a_plugin(autoscaled):
    world = autoscaled
    class_for(world, resource="", name="nic.example.com")
    world.drive(lambda: has_namespace(world))
    template(world, "nic", request(1, "nic", "nic.example.com"))
    job = b200_job(world, device_claims={"nic": {"template": "nic"}})
    world.drive(lambda: all_unschedulable(world, 1))
    named = {"name": "nic", "resourceClaimTemplateName": "nic"}
    assert asks_of_stand_in(world) == ([named], "8", [{"name": "nic"}])
    add_node(world)
    publish(world, "b200-a", "nic.example.com", devices=plain_devices(1))
    world.drive_to(job, S.RUNNING)
