"""Replicas move to other nodes while their job goes on."""

import pytest

from scheduling.engine.lifecycle import reorganise
from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.models import JobEvent
from scheduling.models.jobs import MOVED
from scheduling.models.jobs import PlacementState as P
from scheduling.queries.history import Window, arrivals_of

pytestmark = pytest.mark.live


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch):
    monkeypatch.setattr(reorganise, "LOOK_S", 0.5)


def a_hole(world):
    """A node with one free GPU, and a service with its only replica on another node."""
    world.set_policy(consolidation=True, min_runtime_s=0)
    hold = world.submit("hold", gpus=7)
    world.drive_to(hold, S.RUNNING)
    end = world.submit("end", gpus=1)
    world.drive_to(end, S.RUNNING)
    service = world.submit("service", gpus=1, gang=False, kind="inference", stop_s=1.0)
    world.drive_to(service, S.RUNNING)
    (full,), (alone,) = world.placements(hold), world.placements(service)
    assert alone.node != full.node
    world.cancel(end)
    return service, alone, full.node


def test_the_last_replica_of_a_node_fills_another_and_its_history_says_so(world):
    service, alone, node = a_hole(world)
    world.drive(lambda: JobEvent.objects.filter(job=service, reason=MOVED).exists())
    world.drive(lambda: len(world.placements(service, state=P.RUNNING, attempt=2)) == 1)
    assert world.state(service) == S.RUNNING
    assert K.PREEMPTED not in world.kinds(service)
    assert K.REQUEUED not in world.kinds(service)
    (there,) = world.placements(service, attempt=2)
    (left,) = world.placements(service, attempt=1)
    assert there.node == node
    assert there.intended_at >= left.ended_at  # never in two places at once
    told = JobEvent.objects.get(job=service, reason=MOVED)
    wanted = {"pod_set": 0, "ordinal": 0, "from": alone.node, "to": node}
    assert told.evidence == {**wanted, "which": alone.pod_name}
    assert alone.node in told.message

    window = Window(world.cluster, service.submitted_at, there.intended_at)
    (arrival,) = (a for a in arrivals_of(window) if a.job.id == str(service.pk))
    (seconds,) = arrival.leaves_s[0, 0]
    assert seconds >= 1.0


def test_a_replica_on_its_way_is_placed_again_by_the_next_scheduler(world):
    service, _, _ = a_hole(world)
    world.drive(lambda: JobEvent.objects.filter(job=service, reason=MOVED).exists())
    world.restart_scheduler()
    world.drive(lambda: len(world.placements(service, state=P.RUNNING)) == 1)
    world.drive(lambda: not world.placements(service, attempt=1, state=P.RUNNING))
    world.drive(lambda: len(world.placements(service, attempt=2, state=P.RUNNING)) == 1)
    assert world.state(service) == S.RUNNING
