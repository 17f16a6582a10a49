"""The pods of a job find each other by ranks, host names and one Service."""

import pytest
from django.db.models import F

from scheduling.engine.states import JobState as S
from scheduling.models import Job, PodSet
from scheduling.session import changes

pytestmark = pytest.mark.live

PATH = "/api/v1/namespaces/kant-jobs/services"


def services(world):
    """Return {name: uid} of all Services."""
    items = world.call("GET", PATH)["items"]
    return {s["metadata"]["name"]: s["metadata"]["uid"] for s in items}


def name_of(job):
    return f"job-{job.pk}"


def fail_a_pod(world, job):
    pod = world.placements(job, attempt=Job.objects.get(pk=job.pk).attempt)[0].pod_name
    world.report(pod, "Failed", reason="OutOfmemory", message="no room")


def told(pod):
    return {each["name"]: each["value"] for each in pod["spec"]["containers"][0]["env"]}


def test_pods_know_their_ranks_and_reach_the_first_of_them(world):
    job = world.submit("train", pods=2, gpus=4)
    PodSet.objects.create(job=job, index=1, name="reader", count=2, gpus=0, cpu_milli=100)
    world.drive_to(job, S.RUNNING)
    pods = {told(pod)["KANT_RANK"]: pod for pod in world.pods().values()}
    assert sorted(pods) == ["0", "1", "2", "3"]
    assert [told(pods[str(rank)])["KANT_POD_SET"] for rank in range(4)] == [
        *("worker", "worker", "reader", "reader")
    ]
    first = pods["0"]["spec"]
    for pod in pods.values():
        assert told(pod)["KANT_WORLD_SIZE"] == "4"
        assert told(pod)["MASTER_ADDR"] == f"{first['hostname']}.{first['subdomain']}"
        assert pod["spec"]["subdomain"] == name_of(job)
    assert len({pod["spec"]["hostname"] for pod in pods.values()}) == 4
    world.drive(lambda: name_of(job) in services(world))
    spec = world.call("GET", f"{PATH}/{name_of(job)}")["spec"]
    selects = spec["selector"].items()
    assert all(pod["metadata"]["labels"].items() >= selects for pod in pods.values())


def test_a_gang_that_somebody_changed_as_it_started_has_one_too(world, monkeypatch):
    full, gang = world.submit("full", pods=4), world.submit("gang", pods=2)
    world.drive_to(full, S.RUNNING)
    world.drive(lambda: Job.objects.get(pk=gang.pk).reason == "InsufficientGpus")
    monkeypatch.setattr(changes, "COUNT_S", 3600.0)  # nothing is examined again
    Job.objects.filter(pk=gang.pk).update(version=F("version") + 1)
    world.cancel(full)
    world.drive_to(gang, S.RUNNING)
    world.drive(lambda: name_of(gang) in services(world))


def test_a_service_stays_while_its_job_waits_again_and_goes_with_it(world, monkeypatch):
    job, alone = world.submit("gang", pods=2), world.submit("alone")
    world.drive_to(job, S.RUNNING)
    world.drive_to(alone, S.RUNNING)
    world.drive(lambda: services(world))
    before = services(world)
    assert before.keys() == {name_of(job)}
    hosts = {pod["spec"].get("hostname") for pod in world.pods().values()}
    fail_a_pod(world, job)
    world.drive(lambda: Job.objects.get(pk=job.pk).attempt == 2)
    world.drive_to(job, S.RUNNING)
    assert services(world) == before
    assert {pod["spec"].get("hostname") for pod in world.pods().values()} == hosts
    monkeypatch.setattr(changes, "COUNT_S", 3600.0)  # at once, not only when all jobs are examined
    world.cancel(job)
    world.drive(lambda: not services(world))


def test_a_service_that_somebody_deletes_is_made_again(world, monkeypatch):
    monkeypatch.setattr(changes, "COUNT_S", 3600.0)
    job = world.submit("gang", pods=2)
    world.drive_to(job, S.RUNNING)
    world.drive(lambda: services(world))
    before = services(world)
    world.call("DELETE", f"{PATH}/{name_of(job)}")
    world.drive(lambda: services(world) and services(world) != before)
    assert services(world).keys() == {name_of(job)}


def test_what_happened_to_services_and_jobs_meanwhile_is_made_good_at_the_start(world):
    jobs = [world.submit(name, pods=2, gpus=4) for name in ("goes", "stays", "lacks")]
    goes, stays, lacks = jobs
    for job in jobs:
        world.drive_to(job, S.RUNNING)
    world.drive(lambda: len(services(world)) == 3)
    before = services(world)
    world.restart_scheduler()
    world.cancel(goes)
    for pod in world.pods().values():
        meta = pod["metadata"]
        if meta["labels"]["kant.io/job"] == str(goes.pk):
            path = f"/api/v1/namespaces/kant-jobs/pods/{meta['name']}"
            world.call("DELETE", path, {"gracePeriodSeconds": 0})
    Job.objects.filter(pk=goes.pk).delete()
    world.call("DELETE", f"{PATH}/{name_of(lacks)}")
    strange = {"metadata": {"name": "web"}, "spec": {"clusterIP": "None"}}
    world.call("POST", PATH, strange)
    kept = {name_of(stays), name_of(lacks), "web"}
    world.drive(lambda: services(world).keys() == kept)
    assert services(world)[name_of(stays)] == before[name_of(stays)]


def test_pods_use_what_the_job_names(world):
    job = world.submit("gang")
    PodSet.objects.filter(job=job).update(
        service_account="trainer",
        shm_mib=64,
        volumes=[{"name": "k", "secret": "keys", "mount_path": "/keys", "read_only": True}],
        env_from_secrets={"TOKEN": {"secret": "keys", "key": "token"}},
    )
    world.drive_to(job, S.RUNNING)
    [pod] = world.pods().values()
    [container] = pod["spec"]["containers"]
    assert pod["spec"]["serviceAccountName"] == "trainer"
    assert [m["mountPath"] for m in container["volumeMounts"]] == ["/dev/shm", "/keys"]
    reference = {"secretKeyRef": {"name": "keys", "key": "token"}}
    assert container["env"] == [{"name": "TOKEN", "valueFrom": reference}]
