"""Pods inform people and autoscalers by Events with kube-scheduler's names, and by conditions."""

import pytest

from scheduling.engine.states import JobState as S
from tenants.models import Quota
from tests.live.plain_pods import all_told, condition, job_of, make, node_of, state_of

pytestmark = pytest.mark.live


def full(world):
    job = world.submit("full", pods=4)
    world.drive_to(job, S.RUNNING)
    return job


def failed(world, name="plain"):
    return [note for _, reason, note in all_told(world, name) if reason == "FailedScheduling"]


def test_a_bound_pod_says_where_it_was_assigned(world):
    uid = make(world)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    text = f"Successfully assigned default/plain to {node_of(world)}"
    world.drive(lambda: ("Normal", "Scheduled", text) in all_told(world))
    job = world.submit("own")
    world.drive_to(job, S.RUNNING)
    [place] = world.placements(job)
    world.drive(lambda: [t[1] for t in all_told(world, place.pod_name)] == ["Scheduled"])


def test_a_pod_that_finds_no_node_counts_them_by_what_is_in_the_way(world):
    other = full(world)
    uid = make(world, gpus=2)
    world.drive(lambda: failed(world))
    [note] = failed(world)
    assert note.startswith("InsufficientGpus: Needs 2 ")
    assert note.endswith("0/4 nodes can take it: 4 too few free GPUs.")
    assert condition(world)[1] == "Unschedulable"
    world.cancel(other)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert len(failed(world)) == 1


def test_events_of_what_is_told_already_are_not_written_again(world):
    full(world)
    make(world, gpus=2)
    world.drive(lambda: failed(world))
    behind = world.submit("behind", gpus=1)
    world.drive_to(behind, S.QUOTA_RESERVED)
    world.restart_scheduler()
    world.drive(lambda: world.scheduler.led)
    world.drive(lambda: condition(world))
    assert len(failed(world)) == 1


def test_a_wait_for_quota_is_none_that_more_nodes_would_end(world):
    Quota.objects.update(guaranteed_milli=0)
    uid = make(world)
    world.drive(lambda: job_of(uid) and job_of(uid).reason not in ("", "PendingEvaluation"))
    world.drive(lambda: condition(world))
    reason = job_of(uid).reason
    assert "Quota" in reason
    world.drive(lambda: condition(world)[1] == reason)
    world.drive(lambda: failed(world))
    [note] = failed(world)
    assert note.startswith(f"{reason}: ")
    assert "nodes can take it" not in note


def test_nodes_are_counted_for_a_few_kinds_of_pods_in_a_pass(world, monkeypatch):
    counted = []
    full(world)
    world.drive(lambda: world.scheduler.led)
    [led] = world.scheduler.led.values()
    real = led.session.life.plain.by_filter
    monkeypatch.setattr(led.session.life.plain, "by_filter", lambda s: counted.append(s) or real(s))
    for n in range(8):
        make(world, f"p-{n}", gpus=1 + n % 4)
    world.drive(lambda: all(failed(world, f"p-{n}") for n in range(8)))
    assert len(counted) <= 8
