"""Jobs whose pods mount volume claims: their nodes, their waits, and the volumes made for them."""

import time

import pytest

from scheduling.engine.states import JobEventKind as Kind
from scheduling.engine.states import JobState as S
from scheduling.models import Job, JobEvent
from tests.live.plain_pods import condition, job_of, make, node_of, path, state_of
from tests.live.volumes import MERGE, MOUNT, PLAIN, SIZE, claim, claims, of_class

pytestmark = pytest.mark.live


def mounting(world, name="train", volumes=(MOUNT,), **fields):
    return world.submit(name, volumes=list(volumes), **fields)


def label(world, node, **labels):
    world.call("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}}, kind=MERGE)


def nodes_of(world, job, **where):
    return {place.node for place in world.placements(job, **where)}


def waits_for_volume(world, job, text):
    def waits():
        row = Job.objects.get(pk=job.pk)
        return (row.reason, row.message) == ("WaitingForVolume", text)

    world.drive(waits)


def reasons(job, kind=None):
    rows = JobEvent.objects.filter(job=job).order_by("id")
    return [e.reason for e in rows if kind is None or e.kind == kind.value]


def made_by_hand(world, name="data"):
    """Make a volume for the claim by hand, as a slow provisioner would."""
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "csi": {"driver": "example.com", "volumeHandle": name},
        "storageClassName": "slow",
        "claimRef": {"namespace": "kant-jobs", "name": name},
    }
    world.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": spec})
    world.call("PATCH", claims(name), {"spec": {"volumeName": name}}, kind=MERGE)


def test_a_volume_is_made_for_the_node_of_its_first_consumer(world):
    claim(world)
    job = mounting(world)
    world.drive_to(job, S.RUNNING)
    [place] = world.placements(job)
    bound = world.call("GET", claims("data"))
    notes = bound["metadata"]["annotations"]
    assert notes["volume.kubernetes.io/selected-node"] == place.node
    assert bound["status"]["phase"] == "Bound"
    told = JobEvent.objects.get(job=job, reason="VolumeSelected")
    assert told.message == f"A volume for claim data is to be made on node {place.node}"
    second = mounting(world, "second", gpus=1)
    world.drive_to(second, S.RUNNING)
    assert "VolumeSelected" not in reasons(second)


def test_a_job_waits_for_a_claim_that_is_not_there(world):
    job, other = mounting(world), world.submit("other")
    waits_for_volume(world, job, "There is no volume claim data in namespace kant-jobs.")
    world.drive_to(other, S.RUNNING)  # nobody waits behind it
    claim(world, storageClassName="slow")
    text = "Volume claim data is not bound, and there is no storage class slow."
    waits_for_volume(world, job, text)
    assert reasons(job, Kind.REASON).count("WaitingForVolume") == 1
    of_class(world, "slow")
    world.drive_to(job, S.RUNNING)


def test_a_job_goes_where_its_volume_is(world):
    claim(world, storageClassName="local")
    first = mounting(world, "first")
    world.drive_to(first, S.RUNNING)
    [home] = nodes_of(world, first)
    second = mounting(world, "second", gpus=2)
    wide = mounting(world, "wide", pods=3)
    world.drive(lambda: all(Job.objects.get(pk=job.pk).reason for job in (second, wide)))
    assert Job.objects.get(pk=wide.pk).reason == "ExceedsCapacity"
    where = f". Volume claim data is only for nodes with kubernetes.io/hostname in {home}."
    for job in (second, wide):
        assert Job.objects.get(pk=job.pk).message.endswith(where)
    world.finish(first)
    world.drive_to(second, S.RUNNING)
    assert nodes_of(world, second) == {home}


def test_a_gang_whose_volume_is_elsewhere_is_placed_again_where_it_is(world):
    before = world.submit("before", pods=2)
    world.drive_to(before, S.RUNNING)
    here, there = sorted(nodes_of(world, before))
    world.finish(before)
    world.drive_to(before, S.SUCCEEDED)
    rest = [name for name in node_names(world) if name not in (here, there)]
    zones = {here: "a", there: "b", rest[0]: "a", rest[1]: "b"}
    for name, zone in zones.items():
        label(world, name, zone=zone)
    of_class(world, "zonal", topologyKey="zone")
    claim(world, storageClassName="zonal")
    job = mounting(world, pods=2)
    world.drive_to(job, S.RUNNING)
    assert len({zones[name] for name in nodes_of(world, job, state="RUNNING")}) == 1
    assert "VolumeElsewhere" in reasons(job, Kind.REQUEUED)
    assert Job.objects.get(pk=job.pk).attempt == 2


def node_names(world):
    return sorted(n["metadata"]["name"] for n in world.call("GET", "/api/v1/nodes")["items"])


def claimed_where_none_is_made(world):
    """Return the node that comes first for the next job; no volume can be made on it for the
    job's claim."""
    probe = world.submit("probe")
    world.drive_to(probe, S.RUNNING)
    [first] = nodes_of(world, probe)
    world.finish(probe)
    world.drive_to(probe, S.SUCCEEDED)
    of_class(world, "picky", failOn=first)
    claim(world, storageClassName="picky")
    return first


def test_another_node_is_taken_where_no_volume_can_be_made_on_the_first(world):
    first = claimed_where_none_is_made(world)
    job = mounting(world)
    world.drive_to(job, S.RUNNING)
    assert nodes_of(world, job, state="RUNNING") != {first}
    failed = JobEvent.objects.get(job=job, kind=Kind.REQUEUED.value)
    assert failed.reason == "VolumeNotBound"
    assert failed.message == f"No volume could be made for claim data on node {first}"


def test_a_node_that_is_taken_back_between_two_looks_is_not_waited_for(world):
    claimed_where_none_is_made(world)
    before = world.call("GET", claims("data"))["metadata"]["resourceVersion"]
    job = mounting(world)
    world.drive(lambda: "VolumeSelected" in reasons(job, Kind.REASON))
    while True:  # no pass looks meanwhile
        meta = world.call("GET", claims("data"))["metadata"]
        is_told = "volume.kubernetes.io/selected-node" in meta.get("annotations", {})
        if meta["resourceVersion"] != before and not is_told:
            break
        time.sleep(0.01)
    world.drive_to(job, S.RUNNING)
    assert reasons(job, Kind.REQUEUED) == ["VolumeNotBound"]


def test_a_scheduler_that_begins_anew_waits_for_the_volume_that_the_last_one_asked_for(world):
    of_class(world, "slow", provisioner="example.com/slow")
    claim(world, storageClassName="slow")
    job = mounting(world, pods=2)
    selected = "volume.kubernetes.io/selected-node"

    def told():
        return selected in world.call("GET", claims("data"))["metadata"].get("annotations", {})

    world.drive(told)
    assert world.state(job) == S.ADMITTED
    places = nodes_of(world, job)
    world.restart_scheduler()
    world.drive(lambda: world.scheduler.led)
    assert (world.state(job), world.pods()) == (S.ADMITTED, {})
    made_by_hand(world)
    world.drive_to(job, S.RUNNING)
    assert nodes_of(world, job) == places
    assert reasons(job, Kind.REASON).count("VolumeSelected") == 1


def test_the_places_are_given_back_when_no_volume_comes(world):
    world.set_policy(gang_timeout_s=1.0)
    of_class(world, "slow", provisioner="example.com/slow")
    claim(world, storageClassName="slow")
    gang, single = mounting(world, pods=2), mounting(world, "single", gang=False)
    waits_for_volume(world, gang, "A volume is being made for claim data.")
    waits_for_volume(world, single, "A volume is being made for claim data.")
    assert world.free_gpus() == 32_000
    assert reasons(gang, Kind.REQUEUED) == reasons(single, Kind.REQUEUED) == ["VolumeNotBound"]
    for failed in JobEvent.objects.filter(reason="VolumeNotBound"):
        assert failed.message.startswith("Volume claim data was not bound ")
    # Two came together, and one of them had a volume made.
    assert JobEvent.objects.filter(reason="VolumeSelected").count() == 1
    made_by_hand(world)
    world.drive_to(gang, S.RUNNING)
    world.drive_to(single, S.RUNNING)


def test_a_job_that_is_cancelled_while_its_volume_is_made_leaves_nothing(world):
    of_class(world, "slow", provisioner="example.com/slow")
    claim(world, storageClassName="slow")
    job = mounting(world, pods=2)
    world.drive_to(job, S.ADMITTED)
    world.cancel(job)
    world.drive(lambda: world.free_gpus() == 32_000)
    made_by_hand(world)
    other = world.submit("other")
    world.drive_to(other, S.RUNNING)
    assert [p for p in world.pods() if p.startswith("train")] == []


def test_a_plain_pod_is_bound_when_its_claim_is(world):
    uid = make(world, volumes=[PLAIN])
    text = "There is no volume claim data in namespace default."
    world.drive(
        lambda: condition(world) == ("False", "WaitingForVolume", f"WaitingForVolume: {text}")
    )
    claim(world, namespace="default", storageClassName="local")
    world.drive(lambda: state_of(uid) is S.RUNNING)
    home = node_of(world)
    scratch = {"spec": {**SIZE, "storageClassName": "local"}}
    own = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": scratch}}]
    apart = make(world, "apart", volumes=own)
    world.drive(lambda: state_of(apart) is S.RUNNING)
    made = world.call("GET", claims("apart-scratch", "default"))["metadata"]["annotations"]
    assert made["volume.kubernetes.io/selected-node"] == node_of(world, "apart") != home


def test_pods_of_a_gang_go_each_where_its_own_claim_is(world):
    at = node_names(world)[2:]
    for index, name in enumerate(at):
        claim(world, f"data-{index}", "default", storageClassName="local")
        use = [{"name": "d", "persistentVolumeClaim": {"claimName": f"data-{index}"}}]
        only = make(world, f"first-{index}", volumes=use, **on(name))
        world.drive(lambda only=only: state_of(only) is S.RUNNING)
        world.call("DELETE", f"/api/v1/namespaces/default/pods/first-{index}")
    labels = {"kant.io/tenant": "team", "kant.io/gang": "g"}
    uids = [
        make(
            world,
            f"g-{index}",
            labels=labels,
            notes={"kant.io/gang-size": "2"},
            volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": f"data-{index}"}}],
        )
        for index in range(2)
    ]
    world.drive(lambda: all(node_of(world, f"g-{index}") for index in range(2)))
    assert len(uids) == 2
    assert [node_of(world, f"g-{index}") for index in range(2)] == at


def on(node):
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def test_an_elastic_gang_keeps_the_pods_that_can_mount_its_volume_and_grows_nowhere_else(world):
    claim(world, storageClassName="local")
    job = mounting(world, pods=3, min_count=1)
    world.drive_to(job, S.RUNNING)
    [home] = nodes_of(world, job, state="RUNNING")
    world.drive(lambda: world.free_gpus() == 24_000)
    world.drive(lambda: Job.objects.get(pk=job.pk).growth is not None)
    rest = world.submit("rest", pods=3)
    world.drive_to(rest, S.RUNNING)
    assert nodes_of(world, job, state="RUNNING") == {home}
    assert reasons(job).count("VolumeElsewhere") <= 2
    assert Kind.REQUEUED not in world.kinds(job)


def test_a_claim_of_one_pod_is_mounted_by_one_at_a_time(world):
    claim(world, namespace="default", storageClassName="local", accessModes=["ReadWriteOncePod"])
    first = make(world, "first", gpus=1, volumes=[PLAIN])
    world.drive(lambda: state_of(first) is S.RUNNING)
    second = make(world, "second", gpus=1, volumes=[PLAIN])
    other = make(world, "other", gpus=1)
    world.drive(lambda: state_of(other) is S.RUNNING)
    world.drive(lambda: "another pod has volume claim data" in (job_of(second).message or ""))
    world.restart_scheduler()
    world.drive(lambda: world.scheduler.led)
    assert not node_of(world, "second")
    world.call("DELETE", path("first"))
    world.drive(lambda: state_of(second) is S.RUNNING)


def test_nodes_get_no_more_volumes_than_their_driver_attaches(world):
    nodes = node_names(world)
    for name in nodes:
        drivers = [{"name": "sim.kant.io/disk", "nodeID": name, "allocatable": {"count": 1}}]
        body = {"metadata": {"name": name}, "spec": {"drivers": drivers}}
        world.call("POST", "/apis/storage.k8s.io/v1/csinodes", body)
    scratch = {
        "ephemeral": {"volumeClaimTemplate": {"spec": {**SIZE, "storageClassName": "local"}}}
    }
    uids = [
        make(world, f"p-{n}", gpus=1, volumes=[{"name": "scratch", **scratch}])
        for n in range(len(nodes))
    ]
    world.drive(lambda: all(state_of(uid) is S.RUNNING for uid in uids))
    assert sorted(node_of(world, f"p-{n}") for n in range(len(nodes))) == nodes
    late = make(world, "late", gpus=1, volumes=[{"name": "scratch", **scratch}])
    why = "no more volumes of sim.kant.io/disk can be attached"
    world.drive(lambda: why in ((job_of(late) and job_of(late).message) or ""))
