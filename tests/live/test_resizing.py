"""Jobs get more or fewer pods while they run."""

import pytest

from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import JobState as S
from scheduling.models import Job, JobEvent
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.queries.explain import growth_of
from scheduling.services.scheduler import cycle
from tenants.errors import Conflict

pytestmark = pytest.mark.live


def ordinals(world, job, *states):
    states = states or tuple(LIVE_PLACEMENTS)
    return sorted(p.ordinal for p in world.placements(job, state__in=states))


def runs(world, job, *wanted):
    """Return whether pods of exactly these ordinals run or have places."""
    return ordinals(world, job, "RUNNING") == list(wanted) == ordinals(world, job)


def book(world):
    return world.scheduler.led[world.cluster.pk, WHOLE].session.state.book


def test_a_service_grows_and_shrinks_while_it_runs(world):
    job = world.submit("web", pods=2, gang=False)
    world.drive(lambda: runs(world, job, 0, 1))
    bound_at = Job.objects.get().bound_at
    assert bound_at is not None
    world.resize(job, 4)
    world.drive(lambda: runs(world, job, 0, 1, 2, 3))
    uids = {p.ordinal: p.pod_uid for p in world.placements(job)}
    world.resize(job, 1)
    world.drive(lambda: runs(world, job, 0) and world.free_gpus() == 3 * 8000)
    assert book(world).account("team", job_model(job)).used == 8000
    left = world.placements(job, state="RELEASED")
    assert {(p.ordinal, p.reason) for p in left} == {(i, "Resized") for i in (1, 2, 3)}
    assert left[0].message == "Its job asks for 1 pod now"
    # A rank comes back as another attempt, and the first pod was never touched.
    world.resize(job, 3)
    world.drive(lambda: runs(world, job, 0, 1, 2))
    again = {p.ordinal: p for p in world.placements(job, state="RUNNING")}
    assert again[0].pod_uid == uids[0]
    assert again[1].pod_uid != uids[1]
    assert (again[0].attempt, again[1].attempt) == (1, 2)
    told = JobEvent.objects.filter(job=job, kind="CHANGED").values_list("message", "actor")
    counts = ("2 → 4", "4 → 1", "1 → 3")
    assert list(told) == [(f"worker: {n} pods", "op") for n in counts]
    row = Job.objects.get()
    assert (row.gpu_milli, row.bound_at, row.state) == (24_000, bound_at, "RUNNING")
    world.finish(job)
    world.drive_to(job, S.SUCCEEDED)
    world.drive(lambda: world.free_gpus() == 4 * 8000)


def job_model(job):
    return job.pod_sets.get().gpu_models[0]


def test_pods_that_find_no_place_say_why_and_stop_waiting_when_they_are_not_asked_for(world):
    job = world.submit("web", pods=1, gang=False)
    world.drive(lambda: runs(world, job, 0))
    world.resize(job, 6)
    world.drive(lambda: runs(world, job, 0, 1, 2, 3))
    world.drive(lambda: (found := growth_of(Job.objects.get())) and bool(found.reason))
    found = growth_of(Job.objects.get())
    assert (found.has, found.asked, found.reason) == (4, 6, "InsufficientGpus")
    world.resize(job, 4)
    later = world.submit("later", gpus=8)
    world.drive(lambda: Job.objects.get(pk=later.pk).reason == "InsufficientGpus")
    assert growth_of(Job.objects.get(pk=job.pk)) is None
    assert runs(world, job, 0, 1, 2, 3)
    world.resize(job, 3)
    world.drive(lambda: runs(world, later, 0) and runs(world, job, 0, 1, 2))


def test_a_job_is_bound_when_nothing_more_is_asked_for_than_what_is(world):
    full = world.submit("full", pods=3)
    world.drive_to(full, S.RUNNING)
    job = world.submit("web", pods=2, gang=False)
    world.drive(lambda: runs(world, job, 0))
    assert Job.objects.get(pk=job.pk).bound_at is None
    world.resize(job, 1)
    world.drive(lambda: Job.objects.get(pk=job.pk).bound_at is not None)


def test_a_job_whose_other_pods_have_succeeded_ends_when_the_rest_is_not_asked_for(world):
    job = world.submit("batch", pods=3, gang=False)
    world.drive(lambda: runs(world, job, 0, 1, 2))
    for pod in world.placements(job, ordinal=0):
        world.report(pod.pod_name, "Succeeded")
    world.drive(lambda: runs(world, job, 1, 2))
    world.resize(job, 1)
    world.drive_to(job, S.SUCCEEDED)
    world.drive(lambda: world.free_gpus() == 4 * 8000)


def test_an_elastic_gang_is_told_before_it_shrinks_and_grows_again(world):
    job = world.submit(
        "train", pods=4, min_count=2, saves_s=0.2, checkpoint_notice_s=60, stop_s=0.1
    )
    world.drive(lambda: runs(world, job, 0, 1, 2, 3))
    world.resize(job, 2)
    world.drive(lambda: runs(world, job, 0, 1))
    reasons = set(JobEvent.objects.filter(job=job).values_list("reason", flat=True))
    assert {"CheckpointNotice", "Checkpointed"} <= reasons
    world.resize(job, 3)
    world.drive(lambda: runs(world, job, 0, 1, 2))
    with pytest.raises(Conflict, match="can only be lowered"):
        world.resize(job, 4, min_count=3)
    world.resize(job, 1, min_count=1)
    world.drive(lambda: runs(world, job, 0))
    assert world.state(job) == S.RUNNING


def test_a_gang_that_needs_all_its_pods_is_resized_only_while_it_waits(world):
    full = world.submit("full", pods=4)
    world.drive_to(full, S.RUNNING)
    job = world.submit("train", pods=4)
    world.drive(lambda: Job.objects.get(pk=job.pk).reason == "InsufficientGpus")
    world.resize(job, 2)
    world.cancel(full)
    world.drive(lambda: runs(world, job, 0, 1))
    assert world.state(job) == S.RUNNING
    with pytest.raises(Conflict, match="needs all pods of worker"):
        world.resize(job, 1)


def test_a_resize_of_which_no_scheduler_hears_is_found_by_the_next_one(world):
    down, up = world.submit("down", pods=2, gang=False), world.submit("up", pods=1, gang=False)
    world.drive(lambda: runs(world, down, 0, 1) and runs(world, up, 0))
    world.resize(down, 1)
    world.resize(up, 3)
    world.restart_scheduler()
    world.drive(lambda: runs(world, down, 0) and runs(world, up, 0, 1, 2))


def test_pods_that_leave_go_on_leaving_under_the_next_scheduler(world):
    job = world.submit("web", pods=3, gang=False, checkpoint_notice_s=60)
    world.drive(lambda: runs(world, job, 0, 1, 2))
    world.resize(job, 1)
    told = JobEvent.objects.filter(job=job, reason="CheckpointNotice")
    world.drive(lambda: told.exists())
    world.resize(job, 2)  # the notified pods go, and one of them comes back
    world.restart_scheduler()
    world.drive(lambda: world.scheduler.led and ordinals(world, job) == [0, 1, 2])
    for pod in world.placements(job, ordinal__gt=0):
        notes = {"metadata": {"annotations": {"kant.io/checkpointed-at": "9999999999"}}}
        path = f"/api/v1/namespaces/kant-jobs/pods/{pod.pod_name}"
        world.call("PATCH", path, notes, kind="merge-patch+json")
    world.drive(lambda: runs(world, job, 0, 1))
    assert [p.attempt for p in world.placements(job, ordinal=1, state="RUNNING")] == [2]
    # Each answer counts, even if both have saved at the same time.
    assert JobEvent.objects.filter(job=job, reason="Checkpointed").count() == 2


def test_of_two_changes_between_two_cycles_the_last_one_counts(world):
    job = world.submit("web", pods=2, gang=False)
    world.drive(lambda: runs(world, job, 0, 1))
    world.resize(job, 1)
    world.resize(job, 4)
    world.drive(lambda: runs(world, job, 0, 1, 2, 3))
    assert {p.attempt for p in world.placements(job)} == {1}
    world.resize(job, 4)  # nothing to report about that
    assert JobEvent.objects.filter(job=job, kind="CHANGED").count() == 2


def test_a_job_that_loses_its_places_as_it_is_resized_waits_for_the_count_of_now(
    world, monkeypatch
):
    """The resize is written while the scheduler decides that the whole job must wait again."""
    job = world.submit("train", pods=4, min_count=2, exit_code=0, max_restarts=3)
    world.drive(lambda: runs(world, job, 0, 1, 2, 3))
    apply = cycle.apply_decisions

    def beside_a_person(lease, writes, now, *others):
        if any(step.reason == "PodFailed" for step in writes.transitions):
            monkeypatch.setattr(cycle, "apply_decisions", apply)
            world.resize(job, 3)
        return apply(lease, writes, now, *others)

    monkeypatch.setattr(cycle, "apply_decisions", beside_a_person)
    ended = {"name": "main", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    for pod in world.placements(job, ordinal__gte=1):
        world.report(pod.pod_name, "Failed", containerStatuses=[ended])
    world.drive(lambda: Job.objects.get().attempt > 1 and runs(world, job, 0, 1, 2))
    assert "REQUEUED" in JobEvent.objects.filter(job=job).values_list("kind", flat=True)


def test_pods_that_make_room_do_not_come_back_where_fewer_are_asked_for(world):
    world.set_policy(preemption=["priority"], min_runtime_s=0)
    job = world.submit("web", pods=4, gang=False, stop_s=1.0)
    world.drive(lambda: runs(world, job, 0, 1, 2, 3))
    high = world.submit("high", pods=2, priority=9)
    world.drive(lambda: JobEvent.objects.filter(job=job, reason="Preempted").exists())
    world.resize(job, 2)
    world.drive(lambda: runs(world, high, 0, 1))
    stay = ordinals(world, job)
    world.cancel(high)
    world.drive(lambda: world.free_gpus() == 2 * 8000)
    assert len(stay) == 2
    assert runs(world, job, *stay)
