"""Jobs move to other nodes at a cost: they stop, and go on in the places kept for them."""

import pytest

from scheduling.engine.lifecycle import defragment, reorganise
from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.models import Job, JobEvent
from scheduling.models.jobs import MOVED
from scheduling.models.jobs import PlacementState as P
from scheduling.queries.history import Window, arrivals_of

pytestmark = pytest.mark.live


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch):
    monkeypatch.setattr(reorganise, "LOOK_S", 0.5)
    monkeypatch.setattr(defragment, "PAID", 1.0)


def a_hole(world):
    """A node with one free GPU, and a one-GPU job alone on another node."""
    world.set_policy(defrag_loss=1.0, min_runtime_s=0, preemption=[])
    for name, gpus in (("full", 8), ("hold", 7), ("end", 1)):
        world.drive_to(world.submit(name, gpus=gpus), S.RUNNING)
    one = world.submit("one", gpus=1, stop_s=1.0)
    world.drive_to(one, S.RUNNING)
    (there,) = world.placements(Job.objects.get(name="hold"))
    (alone,) = world.placements(one)
    assert alone.node != there.node
    world.cancel(Job.objects.get(name="end"))
    world.drive(lambda: JobEvent.objects.filter(job=one, reason=MOVED).exists())
    return one, alone, there.node


def test_a_job_stops_and_goes_on_in_the_place_that_was_kept_for_it(world):
    one, alone, node = a_hole(world)
    world.drive(lambda: len(world.placements(one, state=P.RUNNING, attempt=2)) == 1)
    world.drive_to(one, S.RUNNING)
    (there,) = world.placements(one, attempt=2)
    (left,) = world.placements(one, attempt=1)
    assert there.node == node
    assert there.intended_at >= left.ended_at  # never in two places at once
    assert K.REQUEUED in world.kinds(one)
    assert K.PREEMPTED not in world.kinds(one)
    assert Job.objects.get(pk=one.pk).failures == 0
    told = JobEvent.objects.get(job=one, reason=MOVED)
    assert (told.evidence["from"], told.evidence["to"]) == (alone.node, node)
    assert told.evidence["cost_gpu_s"] >= 0.0
    assert alone.node in told.message

    window = Window(world.cluster, one.submitted_at, there.intended_at)
    (arrival,) = (a for a in arrivals_of(window) if a.job.id == str(one.pk))
    (seconds,) = arrival.leaves_s[0, 0]
    assert seconds >= 1.0


def test_a_job_on_its_way_is_placed_again_by_the_next_scheduler(world):
    one, _, _ = a_hole(world)
    world.restart_scheduler()
    world.drive(lambda: len(world.placements(one, state=P.RUNNING, attempt=2)) == 1)
    world.drive_to(one, S.RUNNING)
    assert not world.placements(one, attempt=1, state=P.RUNNING)
