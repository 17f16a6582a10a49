"""A state that follows the rows gives the same answers as one that is rebuilt from them,
whatever happened."""

import math
import random
import time
from copy import copy
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from django.db.models import F
from django.utils import timezone

from scheduling.engine.deltas import JobSubmitted, PastUse
from scheduling.engine.rehearse import copied, review, rise, standing, submitted
from scheduling.engine.states import JobEventKind as Kind
from scheduling.engine.types import JobRequest, PodSetSpec, QuotaSpec
from scheduling.models import (
    ClusterPolicy,
    Job,
    JobConstraints,
    JobEvent,
    NodeRecord,
    Placement,
    PodSet,
)
from scheduling.models.jobs import PREEMPTED, PlacementState
from scheduling.policy.document import to_policy
from scheduling.queries.effects import PolicyChange, QuotasChange
from scheduling.queries.history import node_of
from scheduling.queries.known import Known, scene_at
from scheduling.queries.nodes.effects import NodeAct, NodesAdded, NodesChange
from scheduling.queries.whatif import questions
from scheduling.queries.whatif import rows as kept_rows
from scheduling.queries.whatif.climbs import Climb
from scheduling.queries.whatif.questions import PlanWanted, Preview, Review, StartableNow
from scheduling.queries.whatif.state import KeptState
from scheduling.simulator.forecast.effects import base_of
from scheduling.simulator.forecast.ground import ground_of
from scheduling.simulator.forecast.run_times import RunTimes
from tenants.models import Queue, Quota, Tenant
from tests.scheduling.test_rehearsal import fleet  # noqa: F401 - a fixture

pytestmark = pytest.mark.django_db
POLICIES = (
    {},
    {"preemption": []},
    {"queueing": "strict-fifo", "preemption": ["priority"]},
    {"queueing": "best-effort-fifo", "preemption": ["reclaim", "priority"]},
    {"fair_share": True, "usage_half_life_s": 3600.0},
)


class World:
    """The rows of a cluster, and everything that may happen to them."""

    def __init__(self, org, seed):
        self.org, self.rng, self.count = org, random.Random(seed), 0
        self.cluster = org.cluster
        self.cluster.refresh_from_db()
        self.happens = [
            self.submits, self.submits, self.submits, self.starts, self.starts, self.runs,
            self.ends, self.cancels, self.leaves, self.cordons, self.breaks, self.others_come,
            self.edits_quota, self.edits_policy, self.edits_job, self.resizes, self.holds,
            self.is_preempted, self.is_constrained, self.limits, self.is_blocked, self.is_placed,
            self.adds_queue,
        ]  # fmt: skip

    def turn(self):
        happens = self.rng.choice(self.happens)
        happens()
        return happens.__name__

    def one(self, **of):
        found = list(Job.objects.filter(**of).order_by("name"))
        return self.rng.choice(found) if found else None

    def noted(self, job, kind):
        JobEvent.objects.create(
            job=job, at=timezone.now(), kind=kind, from_state=job.state, to_state=job.state
        )

    def changed(self, job, kind=None, **columns):
        Job.objects.filter(pk=job.pk).update(version=F("version") + 1, **columns)
        if kind:
            self.noted(job, kind)

    # --- what people do -----------------------------------------------------------------------
    def submits(self):
        self.count += 1
        rng = self.rng
        before = self.one(state__in=("PENDING", "RUNNING"))
        waits_for = [str(before.pk)] if before and rng.random() < 0.2 else []
        job = Job.objects.create(
            name=f"j{self.count:03}", tenant=self.org.tenants[rng.choice(("law", "vision"))],
            cluster=self.cluster, submitted_at=timezone.now(), priority=rng.choice((0, 0, 5)),
            declared_s=rng.choice((None, 600, 3600)), user=self.org.users["eve"],
            **{rng.choice(("after", "after_ok")): waits_for},
        )  # fmt: skip
        PodSet.objects.create(
            job=job, index=0, name="w", count=rng.choice((1, 1, 2, 3)), gpus=rng.choice((4, 8)),
            gpu_models=["H100"],
        )  # fmt: skip
        self.noted(job, Kind.SUBMITTED)

    def cancels(self):
        if job := self.one(state="PENDING"):
            self.changed(job, Kind.CANCELLED, state="CANCELLED", ended_at=timezone.now())

    def edits_job(self):
        if job := self.one(state="PENDING"):
            self.changed(job, Kind.CHANGED, priority=self.rng.choice((0, 5, 9)))

    def holds(self):
        if job := self.one(state="PENDING"):
            self.changed(job, Kind.HELD, held=not job.held)

    def limits(self):
        if job := self.one(state="RUNNING"):
            Job.objects.filter(pk=job.pk).update(declared_s=self.rng.choice((60, 7200)))
            self.noted(job, Kind.CHANGED)

    def resizes(self):
        if job := self.one(state="RUNNING", gang=False):
            PodSet.objects.filter(job=job).update(count=F("count") + 1)
            self.noted(job, Kind.CHANGED)

    def edits_quota(self):
        quota = self.rng.choice(list(Quota.objects.order_by("pk")))
        Quota.objects.filter(pk=quota.pk).update(
            guaranteed_milli=1000 * self.rng.choice((0, 8, 16, 24)), version=F("version") + 1
        )

    def edits_policy(self):
        row, _ = ClusterPolicy.objects.get_or_create(cluster=self.cluster)
        row.document, row.version = self.rng.choice(POLICIES), row.version + 1
        row.save()

    def adds_queue(self):
        self.count += 1
        Queue.objects.create(tenant=self.org.tenants["law"], name=f"q{self.count}")
        Tenant.objects.filter(name="law").update(
            max_running=self.rng.choice((None, 2)), version=F("version") + 1
        )

    # --- what schedulers do -------------------------------------------------------------------
    def starts(self):
        job = self.one(state="PENDING", held=False)
        if job is None:
            return
        (asked,) = job.pod_sets.all()
        used = {}
        for place in Placement.objects.filter(state__in=("INTENDED", "BOUND", "RUNNING")):
            used.setdefault(place.node, set()).update(place.devices)
        free = {
            node: [d for d in range(8) if d not in used.get(node, ())]
            for node in NodeRecord.objects.filter(gpu_model="H100", schedulable=True)
            .order_by("name").values_list("name", flat=True)
        }  # fmt: skip
        now, found = timezone.now(), []
        for ordinal in range(asked.count):
            node = next((n for n, left in free.items() if len(left) >= asked.gpus), None)
            if node is None:
                return
            devices, free[node] = free[node][: asked.gpus], free[node][asked.gpus :]
            found.append(
                Placement(
                    job=job, attempt=job.attempt + 1, pod_set=0, ordinal=ordinal, node=node,
                    pod_name=f"{job.name}-{ordinal}", gpu_model="H100", devices=devices,
                    intended_at=now, held_milli=1000 * asked.gpus,
                )
            )  # fmt: skip
        Placement.objects.bulk_create(found)
        self.changed(job, Kind.ADMITTED, state="ADMITTED", admitted_at=now, attempt=job.attempt + 1)

    def runs(self):
        if job := self.one(state="ADMITTED"):
            now = timezone.now()
            Placement.objects.filter(job=job, state="INTENDED").update(
                state=PlacementState.RUNNING, running_at=now
            )
            if self.rng.random() < 0.8:
                self.changed(job, Kind.RUNNING, state="RUNNING")

    def ends(self):
        if job := self.one(state="RUNNING"):
            self._is_over(job)
            state = self.rng.choice(("SUCCEEDED", "FAILED"))
            self.changed(job, Kind(state), state=state, ended_at=timezone.now())

    def leaves(self):
        """A cancelled job whose pods remain for a while."""
        if job := self.one(state="CANCELLED", placements__state="RUNNING"):
            self._is_over(job)
        elif job := self.one(state="RUNNING"):
            self.changed(job, Kind.CANCELLED, state="CANCELLED", ended_at=timezone.now())

    def is_preempted(self):
        if job := self.one(state="RUNNING"):
            self._is_over(job)
            by = str(Job.objects.exclude(pk=job.pk).values_list("pk", flat=True).first())
            self.changed(job, state="PENDING", admitted_at=None)
            JobEvent.objects.create(
                job=job, at=timezone.now(), kind=Kind.PREEMPTED, from_state="RUNNING",
                to_state="PENDING", reason=PREEMPTED, evidence={"by": by},
            )  # fmt: skip

    def _is_over(self, job):
        Placement.objects.filter(job=job).update(state="RELEASED", ended_at=timezone.now())

    def is_blocked(self):
        if job := self.one(state="PENDING"):
            since = timezone.now() - timedelta(minutes=self.rng.choice((1, 30)))
            Job.objects.filter(pk=job.pk).update(blocked_since=since)

    def is_placed(self):
        if job := self.one(state="PENDING"):
            at = job.submitted_at + timedelta(seconds=self.rng.choice((9, 900)))
            Job.objects.filter(pk=job.pk).update(stands_at=at)

    def is_constrained(self):
        if job := self.one(state="PENDING"):
            term = [[["host", "In", [self.rng.choice(("h000", "h001"))], False]]]
            JobConstraints.objects.update_or_create(
                job=job, defaults={"document": [{"node_affinity": term}]}
            )
            self.changed(job)

    # --- what nodes do ------------------------------------------------------------------------
    def _node(self):
        return self.rng.choice(list(NodeRecord.objects.filter(gpu_model="H100").order_by("name")))

    def cordons(self):
        node = self._node()
        node.schedulable = not node.schedulable
        node.save()

    def breaks(self):
        self.count += 1
        if NodeRecord.objects.filter(gpu_model="H100").count() > 3 and self.rng.random() < 0.5:
            self._node().delete()
        else:
            node = self._node()
            node.pk, node.name = None, f"n{self.count:03}"
            node.save()

    def others_come(self):
        node = self._node()
        pods = self.rng.choice((0, 1, 2))
        told = {"other_pods": pods, "other_gpus": pods, "other_cpu_milli": 0, "other_memory_mib": 0}
        node.facts = {name: {"value": value} for name, value in told.items()} if pods else {}
        node.save()


def asks(org):
    now = time.time()
    for tenant, pods, gpus in (("law", 1, 4), ("vision", 2, 8), ("vision", 4, 8)):
        pod_set = PodSetSpec("w", pods, gpus, ("H100",))
        request = JobRequest("asked", tenant, now, (pod_set,), user=str(org.users["eve"].pk))
        yield JobSubmitted(request)
    yield JobSubmitted(replace(request, priority=7))


def told(facts):
    """Return the state without values that fade with time."""
    return [fact for fact in facts if not isinstance(fact, PastUse)]


@pytest.mark.parametrize("seed", range(2))
def test_a_kept_state_answers_as_one_made_of_the_rows(fleet, seed, monkeypatch):  # noqa: F811
    monkeypatch.setattr(kept_rows, "COMPARE_S", 3600.0)  # each change is noticed by itself
    world = World(fleet, seed)
    kept, done, now = KeptState(world.cluster), [], time.time()
    kept.refresh(now)
    for _ in range(16):
        for _ in range(world.rng.choice((1, 1, 2, 4))):
            done.append(world.turn())
        now += 1.0
        kept.refresh(now)
        assert told(kept.rows.facts()) == told(Known(world.cluster).facts("")), done
        anew = KeptState(world.cluster)
        anew.refresh(now)
        for asked in asks(fleet):
            ours = submitted(copied(kept.state), asked, now)
            assert ours == submitted(copied(anew.state), asked, now), done


# --- previews and plans ---------------------------------------------------------------------------
class DecidedWorld(World):
    """Decisions of the kept state are carried out at once, as by a scheduler."""

    def decide(self, kept, now):
        for _ in range(8):
            kept.refresh(now)
            if kept.decided is None:
                return
            for victim in kept.decided.preempted:
                job = Job.objects.get(pk=victim.job_id)
                self._is_over(job)
                self.changed(job, state="PENDING", admitted_at=None)
            for part in kept.decided.started:
                self._starts(part)

    def _starts(self, part):
        job, at = Job.objects.get(pk=part.job_id), timezone.now()
        attempt = job.attempt + (job.state == "PENDING")
        Placement.objects.bulk_create(
            Placement(
                job=job, attempt=attempt, pod_set=p.pod_set, ordinal=p.ordinal, node=p.node,
                pod_name=f"{job.name}-{p.ordinal}-{attempt}", gpu_model="H100",
                devices=list(p.devices), state=PlacementState.RUNNING, intended_at=at,
                running_at=at, held_milli=p.milli * len(p.devices),
            )
            for p in part.placements
        )  # fmt: skip
        self.changed(job, state="RUNNING", attempt=attempt, admitted_at=at)


def previews(world):
    """Yield a change of each kind."""
    rng, names = world.rng, [n.name for n in NodeRecord.objects.order_by("name")]
    law = QuotaSpec("law", "H100", 1000 * rng.choice((0, 8, 40)), borrow_limit=16000)
    some = frozenset(rng.sample(names, 2))
    soon = timezone.now() + timedelta(minutes=rng.choice((-1, 5)))
    yield QuotasChange({("law", "H100"): law, ("vision", "H100"): None})
    yield PolicyChange(to_policy(rng.choice(POLICIES)), None)
    yield NodesChange(some, rng.choice((NodeAct.DRAIN, NodeAct.REMOVE)), soon)
    yield NodesChange(some, rng.choice((NodeAct.CORDON, NodeAct.UNCORDON)), None)
    yield NodesAdded((replace(node_of(NodeRecord.objects.first()), name="new-1"),))


def answered(kept, question):
    """Return the answer of a process of its own."""
    twin = copy(kept)
    twin.state = copied(kept.state)
    return question.answer(twin)


@pytest.mark.parametrize("seed", range(2))
def test_previews_and_plans_of_a_kept_state_are_those_of_the_rows(fleet, seed, monkeypatch):  # noqa: F811
    monkeypatch.setattr(kept_rows, "COMPARE_S", 3600.0)
    world, now, rested = DecidedWorld(fleet, seed), time.time(), 0
    monkeypatch.setattr(questions.time, "time", lambda: now)
    kept, done = KeptState(world.cluster), []
    for turn in range(4):
        done += [world.turn() for _ in range(8)]
        kept.refresh(now) if turn == 2 else world.decide(kept, now)
        rested += kept.decided is None
        facts = Known(world.cluster).facts("")
        ground = ground_of(scene_at(facts, now))
        base = base_of(ground, RunTimes())
        for change in previews(world):
            asked = Preview(change, 600.0, now)
            by_rows = asked.on(ground, facts, base, math.inf)
            assert answered(kept, asked) == [by_rows], (done, change)
        waiting = [job.id for job in ground.scene.waiting]
        for plan in (("H100", 1, ""), ("", 0, waiting[0] if waiting else "")):
            asked = PlanWanted(*plan, 600.0)
            assert answered(kept, asked) == asked.on(ground, math.inf), done
        for job in waiting:
            by_rows = review(standing(facts, now), job, now)
            assert answered(kept, Review(job)) == by_rows, done
        climb = Climb("H100", "law", "", 8, 32, True)
        (told,) = answered(kept, StartableNow((climb,), now))
        rises = partial(rise, standing(facts, now), now=now)
        assert told == climb.climbed(lambda jobs, rises=rises: (rises(jobs), ""), now), done
    assert rested


def test_the_time_of_a_preview_counts_from_when_it_was_asked(monkeypatch):
    monkeypatch.setattr(questions.time, "time", lambda: 1000.0)
    monkeypatch.setattr(questions.time, "monotonic", lambda: 50.0)
    for waited, left in ((0.0, 2.5), (1.5, 1.0), (60.0, questions.LEAST_S), (-5.0, 2.5)):
        assert Preview(QuotasChange({}), 2.5, 1000.0 - waited).until == 50.0 + left


def test_a_third_of_the_time_of_a_preview_is_for_what_it_is_held_against(monkeypatch):
    clock, seen = [30.0], []
    monkeypatch.setattr(questions.time, "monotonic", lambda: clock[0])

    def base_of(*given):
        for clock[0] in (30.9, 31.1):
            seen.append(given[2]())

    monkeypatch.setattr(questions, "base_of", base_of)
    questions.base_within(None, None, until=33.0)
    assert seen == [False, True]
