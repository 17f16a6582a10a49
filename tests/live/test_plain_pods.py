"""A plain pod that names Kant as its scheduler is a job of one pod."""

import pytest
from django.test import Client

from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.models import Job
from scheduling.services.jobs.changes import change_job, hold_job, release_job
from scheduling.session import changes
from tests.live.plain_pods import (
    MERGE,
    NAMESPACE,
    REQUIRED,
    TERM,
    condition,
    hold_and_ungate,
    job_of,
    make,
    node_of,
    path,
    pod_of,
    state_of,
    told,
    ungate,
)

pytestmark = pytest.mark.live


def test_a_plain_pod_is_bound_as_a_job_and_ends_as_it_does(world):
    uid = make(world, gpus=4, notes={"kant.io/kind": "development"})
    world.drive(lambda: state_of(uid) is S.RUNNING)
    job = job_of(uid)
    assert (job.name, job.tenant.name, job.user) == ("plain", "team", None)
    assert (job.pod_namespace, job.pod_name, job.kind) == (NAMESPACE, "plain", "development")
    [pod_set] = job.pod_sets.all()
    assert (pod_set.gpus, pod_set.count, pod_set.cpu_milli) == (4, 1, 100)
    assert (pod_set.image, pod_set.command) == ("team/train:1", ["train"])
    [place] = world.placements(job)
    assert (place.pod_name, place.pod_uid, place.node) == ("plain", uid, node_of(world))
    notes = pod_of(world)["metadata"]["annotations"]
    assert notes["kant.io/devices"] == str(place.devices)
    assert condition(world)[0] == "True"
    world.report("plain", "Succeeded", NAMESPACE)
    world.drive(lambda: state_of(uid) is S.SUCCEEDED)
    assert world.kinds(job)[:1] == [K.SUBMITTED]
    assert world.free_gpus() == 32_000
    assert told(world) == []
    assert pod_of(world)["status"]["phase"] == "Succeeded"  # Kant must not delete it
    client = Client()
    client.force_login(world.user)
    shown = client.get(f"/api/v1/jobs/{uid}").json()
    assert shown["pod"] == {"namespace": NAMESPACE, "name": "plain", "gang": "", "hold": ""}
    assert shown["user"] is None
    assert f"{NAMESPACE}/plain" in client.get(f"/jobs/{uid}/").content.decode()


# --- while it waits -------------------------------------------------------------------------------
def full(world):
    """A job that holds all GPUs."""
    job = world.submit("full", pods=4)
    world.drive_to(job, S.RUNNING)
    return job


def test_a_waiting_pod_says_why_and_starts_when_there_is_room(world):
    other = full(world)
    uid = make(world, gpus=2)
    world.drive(lambda: condition(world))
    status, reason, text = condition(world)
    assert (status, reason) == ("False", "Unschedulable")
    job = job_of(uid)
    assert text == f"{job.reason}: {job.message}"
    assert job.reason == "InsufficientGpus"
    version = pod_of(world)["metadata"]["resourceVersion"]
    behind = world.submit("behind", gpus=1)
    world.drive(lambda: Job.objects.get(pk=behind.pk).reason == "InsufficientGpus")
    assert pod_of(world)["metadata"]["resourceVersion"] == version  # reported once
    world.cancel(other)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert condition(world)[0] == "True"


def test_a_waiting_job_may_be_held_released_and_changed(world):
    uid = make(world, gpus=2, schedulingGates=[{"name": "example.com/later"}])
    world.drive(lambda: job_of(uid))
    hold_job(world.user, job_of(uid))
    change_job(world.user, job_of(uid), {"priority": 5})
    ungate(world)
    world.drive(lambda: job_of(uid).pod_hold == "")
    world.drive(lambda: job_of(uid).reason == "OnHold")
    assert job_of(uid).message == "The job is on hold."
    release_job(world.user, job_of(uid))
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert job_of(uid).priority == 5


def test_a_gated_pod_of_a_held_job_says_what_holds_it_when_that_changes(world):
    uid = make(world, schedulingGates=[{"name": "example.com/quota"}])
    gated = "Its pod has the scheduling gate example.com/quota."
    world.drive(lambda: job_of(uid))
    world.drive_to(world.submit("other", run_s=0.2), S.SUCCEEDED)
    hold_and_ungate(world, uid, gated)
    assert (job_of(uid).reason, job_of(uid).message) == ("OnHold", "The job is on hold.")


def test_a_gated_pod_waits_and_what_is_changed_meanwhile_counts(world):
    uid = make(world, gpus=2, schedulingGates=[{"name": "example.com/quota"}])
    world.drive(lambda: job_of(uid))
    before = job_of(uid)
    world.drive_to(world.submit("other", run_s=0.2), S.SUCCEEDED)
    said = (before.state, before.reason, before.message)
    assert said == (S.PENDING, "OnHold", "Its pod has the scheduling gate example.com/quota.")
    assert condition(world)[1] == "SchedulingGated"
    last = sorted(n["metadata"]["name"] for n in world.call("GET", "/api/v1/nodes")["items"])[-1]
    ungate(world, nodeSelector={"kubernetes.io/hostname": last})
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert node_of(world) == last
    kinds = world.kinds(before)
    assert kinds[:3] == [K.SUBMITTED, K.CHANGED, K.RELEASED]


def test_a_pod_goes_where_its_node_affinity_lets_it(world):
    names = sorted(n["metadata"]["name"] for n in world.call("GET", "/api/v1/nodes")["items"])
    there = {"key": "metadata.name", "operator": "In", "values": names[-1:]}
    rule = {REQUIRED: {"nodeSelectorTerms": [TERM, {"matchFields": [there]}]}}
    uid = make(world, affinity={"nodeAffinity": rule})
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert node_of(world) == names[-1]
    other = make(world, "other", affinity={"nodeAffinity": rule})
    world.drive(lambda: job_of(other) and job_of(other).reason == "InsufficientGpus")


def test_the_affinity_of_a_gated_pod_is_followed(world):
    uid = make(world, schedulingGates=[{"name": "example.com/quota"}])
    world.drive(lambda: job_of(uid))
    ungate(world, affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [TERM]}}})
    world.drive(lambda: job_of(uid).reason == "ExceedsCapacity")
    job = job_of(uid)
    assert "relax the node affinity" in job.evidence["remedies"]
    world.drive(lambda: condition(world)[1] == "ExceedsCapacity")
    [row] = job.pod_sets.all()
    assert row.node_affinity[0]["match_expressions"][0]["key"] == "disk"


OWN = {"kant.io/job": "of-another", "kant.io/attempt": "1", "kant.io/pod-set": "0"}


@pytest.mark.parametrize("own", [{"kant.io/job": "x"}, OWN | {"kant.io/ordinal": "0"}])
def test_a_waiting_pod_that_gets_labels_of_kants_own_is_held_until_they_are_removed(
    world, monkeypatch, own
):
    def relabel(labels):
        world.call("PATCH", path("plain"), {"metadata": {"labels": labels}}, kind=MERGE)

    monkeypatch.setattr(changes, "COUNT_S", 0.3)
    other = full(world)
    uid = make(world)
    world.drive(lambda: condition(world))
    relabel(own)
    world.drive(lambda: [t for t in told(world) if t[1] == "NotHonoured"])
    world.drive(lambda: "Only Kant sets it" in condition(world)[2])
    world.restart_scheduler()
    world.cancel(other)
    world.drive_to(world.submit("behind", pods=4, run_s=0.2), S.SUCCEEDED)
    job = job_of(uid)
    assert (job.state, job.reason) == (S.PENDING, "OnHold")
    assert job.message.startswith("metadata.labels[")
    assert "Only Kant sets it" in job.message
    relabel(dict.fromkeys(own))
    world.drive(lambda: state_of(uid) is S.RUNNING)
    of_pod = [K.SUBMITTED, K.HELD, K.RELEASED]
    assert [kind for kind in world.kinds(job) if kind in of_pod] == of_pod


def test_a_pod_that_is_deleted_while_it_waits_ends_its_job(world):
    full(world)
    uid = make(world)
    world.drive(lambda: job_of(uid))
    world.call("DELETE", path("plain"))
    world.drive(lambda: state_of(uid) is S.CANCELLED)
    assert (job_of(uid).reason, job_of(uid).message) == ("PodDeleted", "Pod plain was deleted")


def test_a_pod_that_another_scheduler_binds_is_left_to_it(world):
    uid = make(world, gpus=2, schedulingGates=[{"name": "example.com/later"}])
    world.drive(lambda: job_of(uid))
    hold_job(world.user, job_of(uid))
    ungate(world)
    world.drive(lambda: job_of(uid).pod_hold == "")
    node = world.call("GET", "/api/v1/nodes")["items"][0]["metadata"]["name"]
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    meta = {"name": "plain", "namespace": NAMESPACE}
    world.call("POST", f"{path('plain')}/binding", {"metadata": meta, "target": target})
    world.drive(lambda: state_of(uid) is S.FAILED)
    job = job_of(uid)
    assert job.reason == "BoundElsewhere"
    assert node_of(world) == node
    world.drive(lambda: world.free_gpus() == 30_000)
    assert world.placements(job) == []
    world.drive(lambda: pod_of(world)["status"]["phase"] == "Running")


def test_a_job_that_is_cancelled_takes_its_waiting_pod_along(world):
    full(world)
    uid = make(world)
    world.drive(lambda: condition(world))
    world.cancel(job_of(uid))
    world.drive(lambda: pod_of(world) is None)
    world.drive(lambda: told(world))
    assert told(world) == [("Normal", "Cancelled", "Its job was cancelled")]
    assert state_of(uid) is S.CANCELLED


def test_so_does_one_that_is_cancelled_while_no_scheduler_runs(world):
    full(world)
    uid = make(world)
    world.drive(lambda: condition(world))
    world.restart_scheduler()
    world.cancel(job_of(uid))
    world.drive(lambda: pod_of(world) is None)
    assert Job.objects.filter(pod_name="plain").count() == 1


def test_a_pod_that_is_deleted_while_no_scheduler_runs_ends_its_job(world, monkeypatch):
    monkeypatch.setattr(changes, "COUNT_S", 0.3)
    full(world)
    uid = make(world)
    world.drive(lambda: condition(world))
    world.restart_scheduler()
    world.call("DELETE", path("plain"))
    world.drive(lambda: state_of(uid) is S.CANCELLED)
