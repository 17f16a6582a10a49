"""A scheduler that starts knows the remaining move budget and what jobs lost by moves."""

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduling.engine.deltas import JobHistory, MovesBefore
from scheduling.engine.running.last_look import KEPT_S
from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import JobEventKind
from scheduling.engine.types import PodPlacement
from scheduling.models import Cluster, ClusterPolicy, Job, JobEvent, NodeRecord
from scheduling.models.jobs import MOVED
from scheduling.queries import known
from scheduling.session.memory.past_moves import moves_before
from tests.plans import plan, query
from tests.scheduling.test_past_use import Fleet, Scheduler, at

pytestmark = pytest.mark.django_db
NOW = 10 * int(KEPT_S)


class Moving(Fleet):
    """A session whose policy has allowed moves for a long time."""

    def __init__(self):
        super().__init__(fair_share=False, fair_users=False, defrag_loss=0.01)
        self.policy_changed(-KEPT_S)

    def policy_changed(self, seconds):
        ClusterPolicy.objects.update(updated_at=at(seconds))

    def runs(self, since, gpus=1, until=None, device=0, **row):
        job_id = self.submit(since, "a", None, "H100", gpus)
        place = PodPlacement(0, 0, "H100", tuple(range(device, device + gpus)), 1000)
        self.started(job_id, (place,), since)
        if until is not None:
            self.ended(job_id, until)
        Job.objects.filter(pk=job_id).update(**row)
        return job_id

    def moved(self, job_id, seconds, **evidence):
        JobEvent.objects.create(
            job_id=job_id, at=at(seconds), kind=JobEventKind.REQUEUED, to_state="PENDING",
            reason=MOVED, evidence={"from": "n0", "to": "H100", **evidence},
        )  # fmt: skip


def before(fleet, seconds=NOW):
    return moves_before(fleet.cluster.pk, WHOLE, at(seconds))


def told(fleet, monkeypatch):
    """Return what a dry run is given."""
    NodeRecord.objects.get_or_create(
        cluster=fleet.cluster, name="H100", defaults={"gpu_model": "H100", "gpus": 8}
    )
    monkeypatch.setattr(known, "standstill", lambda _: "")
    monkeypatch.setattr(known.timezone, "now", lambda: at(NOW))
    return known.Known(fleet.cluster).facts(WHOLE)


def test_it_is_what_was_used_and_lost_while_the_budget_fills():
    fleet, begun = Moving(), NOW - KEPT_S
    fleet.runs(0, 2)
    fleet.runs(0, 3, until=begun)
    fleet.runs(begun - 50, 1, until=begun + 100, device=2)
    fleet.runs(NOW - 10, 4, device=4)
    fleet.runs(NOW, 1, device=3)
    assert before(fleet).used_gpu_s == pytest.approx(2 * KEPT_S + 100 + 40)

    moves = fleet.runs(0, 0)
    for when, gpu_s in ((begun - 1, 5.0), (begun, 7.5), (NOW - 1, 100.25), (NOW, 1000.0)):
        fleet.moved(moves, when, cost_gpu_s=gpu_s)
    fleet.moved(moves, NOW - 5, which="a replica")
    assert before(fleet).lost_gpu_s == 107.75


def test_it_is_of_this_scope_alone():
    fleet = Moving()
    other = Cluster.objects.create(name="d", access={})
    fleet.moved(fleet.runs(0, 2, scope="a"), NOW - 1, cost_gpu_s=1.0)
    fleet.moved(fleet.runs(0, 2, cluster=other), NOW - 1, cost_gpu_s=1.0)
    assert before(fleet) == MovesBefore(0.0, 0.0)
    assert moves_before(other.pk, WHOLE, at(NOW)).lost_gpu_s == 1.0


def test_what_was_before_the_policy_was_changed_counts_no_more():
    fleet = Moving()
    fleet.moved(fleet.runs(0, 2), NOW - 200, cost_gpu_s=1.0)
    fleet.policy_changed(NOW - 100)
    assert before(fleet) == MovesBefore(pytest.approx(200), 0.0)
    fleet.policy_changed(NOW + 100)
    assert before(fleet) == MovesBefore(0.0, 0.0)


def test_a_scheduler_that_starts_goes_on_with_the_budget_and_with_what_jobs_lost(monkeypatch):
    fleet = Moving()
    stays, moves = fleet.runs(0, 4), fleet.runs(0, 4, device=4)
    for cost in (30.0, 70.5):
        fleet.moved(moves, NOW - 1000, cost_gpu_s=cost)
    fleet.moved(moves, NOW - 900, which="a replica")
    for _ in range(2):  # and the one after that
        scheduler = Scheduler(fleet)
        scheduler.cycle(NOW)
        left = scheduler.state.look.budget.left_gpu_s
        assert left == pytest.approx(0.01 * 8 * KEPT_S - 100.5)
        lost = {name: record.lost_gpu_s for name, record in scheduler.state.jobs.items()}
        assert lost == {stays: 0.0, moves: 100.5}
    scheduler.cycle(NOW + 100)  # nothing is reported twice
    assert scheduler.state.look.budget.left_gpu_s == left

    facts = told(fleet, monkeypatch)
    assert before(fleet) in facts
    assert [fact for fact in facts if isinstance(fact, JobHistory)] == [
        JobHistory(moves, lost_gpu_s=100.5)
    ]


def test_a_policy_by_which_nothing_moves_asks_for_nothing(monkeypatch):
    fleet = Moving()
    fleet.runs(0)
    assert any(isinstance(fact, MovesBefore) for fact in told(fleet, monkeypatch))
    fleet.set_policy(defrag_loss=0.0)
    assert not any(isinstance(fact, MovesBefore) for fact in told(fleet, monkeypatch))
    scheduler = Scheduler(fleet)
    with CaptureQueriesContext(connection) as asked:
        scheduler.cycle(NOW)
    assert not [q for q in asked if MOVED in q["sql"] or "SUM" in q["sql"]]


def test_what_was_used_is_found_by_when_it_ended():
    sql = query(lambda: moves_before(1, WHOLE, at(NOW)), "SUM")
    assert "ended_at" in re.sub(r"(?i)filter:.*", "", plan(sql))
