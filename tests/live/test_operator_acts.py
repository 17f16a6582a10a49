"""Operators act on a cluster and on Kant's pods in it while jobs run."""

from datetime import timedelta

import pytest
from django.utils import timezone

from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.models import Cluster, Job, JobEvent, NodeRecord, Placement, SchedulerLease
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.services.clusters.changes import change_cluster, delete_cluster
from scheduling.services.jobs.changes import release_job
from scheduling.services.scheduler import cycle
from tests.live.conftest import NODES

pytestmark = pytest.mark.live

PODS = "/api/v1/namespaces/kant-jobs/pods"


def led(world):
    return world.scheduler.led.get((world.cluster.pk, WHOLE))


def change(world, **values):
    return change_cluster(
        world.user, Cluster.objects.get(pk=world.cluster.pk), values, source="test"
    )


def requeued(job):
    return JobEvent.objects.filter(job=job, kind=K.REQUEUED).values_list("reason", flat=True)


@pytest.mark.parametrize("how", ["delete", "evict"])
def test_a_pod_that_somebody_ends_gracefully_sends_the_gang_back(world, how):
    job = world.submit(pods=2, stop_s=0.5)
    world.drive_to(job, S.RUNNING)
    name = world.placements(job)[0].pod_name
    if how == "delete":
        world.call("DELETE", f"{PODS}/{name}")
    else:
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        world.call("POST", f"{PODS}/{name}/eviction", eviction)
    world.drive(lambda: requeued(job) and world.state(job) == S.RUNNING)
    assert list(requeued(job)) == ["PodEvicted"]


def test_a_copy_of_a_pod_with_all_its_labels_is_not_taken_for_it(world):
    job = world.submit()
    world.drive_to(job, S.RUNNING)
    (original,) = world.pods().values()
    copy = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "copy", "labels": original["metadata"]["labels"]},
        "spec": {"schedulerName": "kant", "containers": [{"name": "c", "image": "busybox"}]},
    }
    world.call("POST", "/api/v1/namespaces/default/pods", copy)
    after = world.submit("after")  # the scheduler has seen the copy by the time it starts
    world.drive_to(after, S.RUNNING)
    assert "copy" in world.pods(), "it is somebody's"
    world.call("DELETE", "/api/v1/namespaces/default/pods/copy", {"gracePeriodSeconds": 0})
    more = world.submit("more")
    world.drive_to(more, S.RUNNING)
    assert (world.state(job), K.REQUEUED in world.kinds(job)) == (S.RUNNING, False)
    assert world.free_gpus() == (NODES - 3) * 8000


def test_a_pod_made_anew_under_the_same_name_is_not_the_one_that_was_placed(world):
    job = world.submit()
    world.drive_to(job, S.RUNNING)
    (original,) = world.pods().values()
    name, labels = original["metadata"]["name"], original["metadata"]["labels"]
    anew = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"schedulerName": "kant", "containers": [{"name": "c", "image": "busybox"}]},
    }
    world.call("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
    world.call("POST", PODS, anew)
    world.drive(lambda: requeued(job) and world.state(job) == S.RUNNING)
    assert list(requeued(job)) == ["PodLost"]
    world.drive(lambda: len(world.pods()) == 1)


def test_the_last_event_of_a_job_that_backs_off_says_what_failed(world):
    world.set_policy(backoff_base_s=60, backoff_cap_s=60)
    job = world.submit()
    world.drive_to(job, S.RUNNING)
    name = world.placements(job)[0].pod_name
    world.call("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
    world.drive(lambda: Job.objects.get(pk=job.pk).reason == "BackingOff")
    last = JobEvent.objects.filter(job=job).order_by("id").last()
    assert (last.kind, last.reason) == (K.REQUEUED, "PodLost")


def test_a_job_whose_only_pod_can_never_be_created_fails_and_nobody_else_notices(world):
    world.set_policy(max_attempts=1)
    job = world.submit()
    # More annotations than Kubernetes takes, so it refuses the creation.
    pod_set = job.pod_sets.get()
    pod_set.annotations |= {f"a{n}": "x" * 60_000 for n in range(5)}
    pod_set.save()
    world.drive_to(job, S.FAILED)
    session = led(world).session
    other = world.submit("other")
    world.drive_to(other, S.RUNNING)
    assert led(world).session is session
    row = Job.objects.get(pk=job.pk)
    assert (row.reason, "could not be created" in row.message) == ("BindingFailed", True)


def test_a_namespace_that_somebody_deleted_is_made_again(world):
    running = world.submit("running")
    world.drive_to(running, S.RUNNING)
    world.call("DELETE", "/api/v1/namespaces/kant-jobs")
    job = world.submit("job")
    world.drive_to(job, S.RUNNING)
    assert "BindingFailed" not in requeued(job)
    world.drive(lambda: requeued(running) and world.state(running) == S.RUNNING)


def test_a_namespace_may_change_while_jobs_run(world):
    job = world.submit(pods=2)
    world.drive_to(job, S.RUNNING)
    before = led(world).session
    change(world, namespace="elsewhere")
    world.drive(lambda: led(world) is not None and led(world).session is not before)
    later = world.submit("later")
    world.drive_to(later, S.RUNNING)
    found = {p["metadata"]["name"]: p["metadata"]["namespace"] for p in world.pods().values()}
    assert sorted(found.values()) == ["elsewhere", "kant-jobs", "kant-jobs"]
    assert {found[p.pod_name] for p in world.placements(later)} == {"elsewhere"}
    assert (world.state(job), list(requeued(job))) == (S.RUNNING, [])
    world.cancel(job)
    world.drive(lambda: not world.placements(job, state__in=LIVE_PLACEMENTS))
    assert len(world.pods()) == 1


def test_another_label_map_takes_effect_at_once(world):
    world.drive(lambda: NodeRecord.objects.count() == NODES)
    change(world, label_map={"leaf": "kubernetes.io/hostname"})
    world.drive(lambda: NodeRecord.objects.values("leaf").distinct().count() == NODES)


def test_an_inactive_cluster_is_left_alone_until_it_is_active_again(world):
    job = world.submit(held=True)
    world.drive(lambda: led(world) is not None)
    change(world, is_active=False)
    release_job(world.user, Job.objects.get(pk=job.pk))
    world.scheduler.run(world.cluster.pk)
    assert led(world) is None
    assert SchedulerLease.objects.get(cluster=world.cluster).expires_at is None
    assert not Cluster.objects.get(pk=world.cluster.pk).connected
    assert world.state(job) == S.PENDING
    change(world, is_active=True)
    world.drive_to(job, S.RUNNING)


def test_a_cluster_that_is_removed_is_led_no_more(world, caplog):
    world.drive(lambda: led(world) is not None)
    delete_cluster(world.user, Cluster.objects.get(pk=world.cluster.pk), source="test")
    world.scheduler.run(world.cluster.pk)
    assert led(world) is None
    assert "failed" not in caplog.text


def test_a_clock_that_is_set_back_does_not_keep_the_lease_from_being_renewed(world, monkeypatch):
    world.drive(lambda: led(world) is not None)
    set_back = timedelta(hours=1)
    now = timezone.now
    monkeypatch.setattr(cycle.timezone, "now", lambda: now() - set_back)
    kept = led(world)
    kept.renewed_at -= 10  # a while later
    before = kept.renewed_at
    world.scheduler.run(world.cluster.pk)
    assert led(world) is kept
    assert kept.renewed_at > before


def test_what_runs_in_another_cluster_counts_against_the_quota(world):
    """Of 1,000 GPUs, 990 are in use elsewhere from some moment on; nothing else changes then."""
    first = world.submit("first")
    world.drive_to(first, S.RUNNING)
    other = Cluster.objects.create(name="other", access={"kubeconfig": "/nowhere"})
    elsewhere = world.submit("elsewhere")
    Job.objects.filter(pk=elsewhere.pk).update(cluster=other, state=S.RUNNING)
    place = world.placements(first)[0]
    place.pk, place.job, place.pod_name = None, elsewhere, "elsewhere"
    place.held_milli = 990_000
    place.save(force_insert=True)
    world.drive(lambda: led(world).session.changes.tenancy.used_elsewhere)
    job = world.submit("second")
    world.drive(lambda: Job.objects.get(pk=job.pk).reason == "WaitingForQuota")
    Placement.objects.filter(job=elsewhere).update(state="RELEASED")
    world.drive_to(job, S.RUNNING)
