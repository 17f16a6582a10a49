"""Past use counts in fair share even after a restart of the scheduler."""

import random
import re
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.shards.division import WHOLE
from scheduling.engine.types import PodPlacement, Policy, Shard
from scheduling.models import Cluster, ClusterPolicy, Job, NodeRecord, Placement, PodSet
from scheduling.models.jobs import LIVE_PLACEMENTS, PlacementState
from scheduling.session import restore
from scheduling.session.changes import Changes
from scheduling.session.memory import load
from scheduling.session.memory.past import FADED, past_use
from scheduling.session.pods.follow import Lifecycle
from tenants.models import GpuType, Quota, Tenant, User
from tests.cases import seeds
from tests.engine.reference_order import Queue, Stay
from tests.engine.scenario import node
from tests.plans import plan, query

pytestmark = pytest.mark.django_db
START = datetime(2026, 1, 1, tzinfo=UTC)
CAPACITY = {"H100": 8, "L4": 4}
WEIGHTS = {"a": 1.0, "b": 2.0}
FAIR = {"queueing": "strict-fifo", "fair_share": True, "fair_users": True}


def at(seconds):
    return START + timedelta(seconds=seconds)


class Fleet:
    """A node of each GPU model, two tenants with three users, and the rows of what happens."""

    def __init__(self, **policy):
        self.cluster = Cluster.objects.create(name="c", access={})
        self.tenants = {n: Tenant.objects.create(name=n, weight=w) for n, w in WEIGHTS.items()}
        self.users = [User.objects.create(username=name) for name in "xyz"]
        for model in CAPACITY:
            gpu_type = GpuType.objects.create(name=model)
            for tenant in self.tenants.values():
                Quota.objects.create(tenant=tenant, gpu_type=gpu_type, guaranteed_milli=64_000)
        self.policy = ClusterPolicy.objects.create(cluster=self.cluster, document=FAIR | policy)

    def submit(self, seconds, tenant, user, model, gpus):
        job = Job.objects.create(
            id=uuid.uuid4(), name="job", tenant=self.tenants[tenant], user=user,
            cluster=self.cluster, submitted_at=at(seconds), gpu_milli=gpus * 1000,
        )  # fmt: skip
        PodSet.objects.create(job=job, index=0, name="w", count=1, gpus=gpus, gpu_models=[model])
        return str(job.pk)

    def started(self, job_id, places, seconds):
        """Write what a session writes when the engine has started a job."""
        Job.objects.filter(pk=job_id).update(
            state="RUNNING", attempt=1, admitted_at=at(seconds), bound_at=at(seconds)
        )
        Placement.objects.bulk_create(
            Placement(
                job_id=job_id, attempt=1, pod_set=p.pod_set, ordinal=p.ordinal, namespace="jobs",
                pod_name=f"{job_id}-{p.ordinal}", node=p.node, gpu_model=p.node,
                devices=list(p.devices), held_milli=p.milli * len(p.devices), state="RUNNING",
                intended_at=at(seconds), bound_at=at(seconds), held_from=at(seconds),
            )
            for p in places
        )  # fmt: skip

    def ended(self, job_id, seconds):
        held = Placement.objects.filter(job=job_id, state__in=LIVE_PLACEMENTS)
        held.update(state=PlacementState.SUCCEEDED, ended_at=at(seconds))
        Job.objects.filter(pk=job_id).update(state="SUCCEEDED", ended_at=at(seconds))

    def set_policy(self, **fields):
        self.policy.document |= fields
        self.policy.version += 1
        self.policy.save()


class Scheduler:
    """The rows and the engine of a session; pods come and go as the test says."""

    def __init__(self, fleet, scope=WHOLE, shards=(), nodes=tuple(CAPACITY)):
        self.life, self.state = Lifecycle(), SchedulerState()
        self.changes = Changes(fleet.cluster, scope, shards, self.life)
        self.changes.start()
        self.life.out.deltas += (d.NodeChanged(node(m, CAPACITY[m], m)) for m in nodes)
        restore.take_up_jobs(self.changes)

    def cycle(self, seconds, *deltas):
        now = at(seconds).timestamp()
        self.changes.look_back(now)
        told, self.life.out.deltas = [*self.life.out.deltas, *deltas], []
        return run_cycle(self.state, told, now).started

    def shares(self):
        """Return the shares by which it orders, for comparison with others."""
        tenants, users = self.state.shares()
        near = None if users is None else pytest.approx(users, abs=1e-6)
        return pytest.approx(tenants, abs=1e-6), near


class History:
    """Random jobs that start as a scheduler decides, and what each of them held, for the
    reference."""

    def __init__(self, fleet, seed):
        self.fleet, self.rng, self.now = fleet, random.Random(seed), 0
        self.alive, self.stays = [], {}

    def pass_by(self, steps, *schedulers):
        """Let the same happen to all schedulers; what one of them starts, all must start."""
        for _ in range(steps):
            self.now += self.rng.choice((1, 3, 10, 40))
            deltas = [*self.submitted(), *self.over()]
            first, *others = [scheduler.cycle(self.now, *deltas) for scheduler in schedulers]
            assert all(other == first for other in others)
            for start in first:
                self.fleet.started(start.job_id, start.placements, self.now)
                job = schedulers[0].state.jobs[start.job_id].job
                self.stays[start.job_id] = Stay(job, self.now)

    def submitted(self):
        for _ in range(self.rng.choice((0, 1, 1, 3))):
            tenant, model = self.rng.choice("ab"), self.rng.choice(sorted(CAPACITY))
            user = self.rng.choice((None, *self.fleet.users))
            gpus = self.rng.randint(1, 4)
            self.alive.append(self.fleet.submit(self.now, tenant, user, model, gpus))
            (job,), _ = load.jobs(self.alive[-1:])
            yield d.JobSubmitted(job.request)

    def over(self):
        for job_id in self.rng.sample(self.alive, min(len(self.alive), self.rng.choice((0, 1, 2)))):
            self.alive.remove(job_id)
            self.fleet.ended(job_id, self.now)
            if job_id in self.stays:
                self.stays[job_id].until = self.now
            yield d.JobEnded(job_id)

    def shares(self, half_life_s):
        """Return the shares of tenants and their users by the naive reference."""
        policy = Policy(fair_share=True, fair_users=True, usage_half_life_s=half_life_s)
        naive, stays = Queue(CAPACITY, WEIGHTS, policy), list(self.stays.values())
        tenants, users = {}, {}
        for job in [stay.job for stay in stays]:
            of_tenant = [s for s in stays if s.job.tenant == job.tenant]
            of_user = [s for s in of_tenant if s.job.user == job.user]
            share = naive.dominant(of_tenant, 0.0, self.now)
            tenants[job.tenant] = share / WEIGHTS[job.tenant]
            users[job.tenant, job.user] = naive.dominant(of_user, 0.0, self.now)
        return tenants, users


@pytest.mark.parametrize("seed", seeds(6, usual=12))
def test_a_scheduler_that_starts_orders_as_one_that_never_stopped(seed):
    fleet = Fleet(usage_half_life_s=(300, 3600)[seed % 2])
    history, first = History(fleet, seed), Scheduler(fleet)
    history.pass_by(60, first)
    second = Scheduler(fleet)
    history.now += 7
    assert first.cycle(history.now) == second.cycle(history.now) == ()
    assert len(first.state.shares().users) >= 6
    assert tuple(first.state.shares()) == second.shares()
    assert first.state.queue.eq_classes
    # Jobs that wait or arrive start in the same order under both.
    history.pass_by(40, first, second)
    assert tuple(first.state.shares()) == second.shares()


def test_a_half_life_that_is_set_while_it_runs_counts_the_past_too(monkeypatch):
    monkeypatch.setattr("scheduling.session.changes.LOOK_S", -1.0)
    fleet = Fleet(fair_users=False)
    history, scheduler = History(fleet, 11), Scheduler(fleet)
    history.pass_by(60, scheduler)
    for fields in (
        {"usage_half_life_s": 300},
        {"usage_half_life_s": 2000},
        {"fair_users": True},
        {"fair_users": False, "fair_share": False},
        {"fair_users": True, "fair_share": True, "usage_half_life_s": 400},
    ):
        fleet.set_policy(**fields)
        scheduler.changes.read(history.now)
        history.pass_by(5, scheduler)
        policy = scheduler.state.policy
        tenants, users = history.shares(policy.usage_half_life_s)
        if policy.fair_share:
            expected = tenants, users if policy.fair_users else None
            assert scheduler.shares() == expected
    again = Scheduler(fleet)
    again.cycle(history.now)
    assert again.shares() == expected


def test_shards_order_by_what_was_and_is_held_in_all_of_the_cluster(monkeypatch):
    monkeypatch.setattr("scheduling.session.changes.LOOK_S", -1.0)
    monkeypatch.setattr("scheduling.session.changes.USED_S", -1.0)
    shards = (Shard("north", ("H100",)), Shard("south"))
    declared = [{"name": "north", "gpu_models": ["H100"]}, {"name": "south"}]
    fleet = Fleet(usage_half_life_s=100, shards=declared)
    scopes = {"H100": "north", "L4": "south"}
    for model, scope in scopes.items():
        NodeRecord.objects.create(
            cluster=fleet.cluster, name=model, scope=scope, gpu_model=model, gpus=CAPACITY[model]
        )

    def holds(tenant, model, gpus):
        job_id = fleet.submit(0, tenant, fleet.users[0], model, gpus)
        Job.objects.filter(pk=job_id).update(scope=scopes[model])
        fleet.started(job_id, (PodPlacement(0, 0, model, tuple(range(gpus)), 1000),), 0)
        return job_id

    def share(part, begin, end, now):
        """Return the share of someone who held a part of all GPUs of a model."""
        return part * (2 ** ((end - now) / 100) - 2 ** ((begin - now) / 100))

    def same_in_both(seconds, **expected):
        user = str(fleet.users[0].pk)
        users = {(tenant, user): share for tenant, share in expected.items()}
        tenants = {tenant: share / WEIGHTS[tenant] for tenant, share in expected.items()}
        for scheduler in schedulers:
            scheduler.cycle(seconds)
            assert scheduler.shares() == (tenants, users)

    first, second, _ = holds("a", "H100", 8), holds("b", "L4", 2), holds("a", "L4", 1)
    fleet.ended(first, 100)
    schedulers = [Scheduler(fleet, scope, shards, [model]) for model, scope in scopes.items()]
    # Present use counts beside it.
    a, b = share(1 / 4, 0, 150, 150), share(1 / 2, 0, 150, 150)
    assert 1 / 4 + a > share(1, 0, 100, 150)
    same_in_both(150, a=1 / 4 + a, b=1 / 2 + b)
    fleet.ended(second, 150)
    for scheduler in schedulers:
        scheduler.changes.read(150)
        scheduler.cycle(150, d.JobEnded(second))
    same_in_both(400, a=1 / 4 + share(1 / 4, 0, 400, 400), b=share(1 / 2, 0, 150, 400))
    fleet.set_policy(usage_half_life_s=0)
    for scheduler in schedulers:
        scheduler.changes.read(400)
    same_in_both(400, a=1 / 4)


def test_use_of_long_ago_is_not_read():
    fleet = Fleet(usage_half_life_s=100)
    job_id = fleet.submit(0, "a", None, "H100", 8)
    fleet.started(job_id, (PodPlacement(0, 0, "H100", tuple(range(8)), 1000),), 0)
    fleet.ended(job_id, 500)
    faded = at(500 + 100 * FADED)
    past = past_use(fleet.cluster.pk, 100.0, faded - timedelta(seconds=1))
    ((*whose, milli),) = past.held
    assert whose == ["a", "", "H100"]
    assert 0 < milli < 8000 / 2**FADED * 1.01
    assert past_use(fleet.cluster.pk, 100.0, faded).held == ()
    # A pod that has run for ever counts no more than what it holds.
    long_ago = at(-30 * 86400)
    Placement.objects.update(state="RUNNING", intended_at=long_ago, ended_at=None)
    for half_life_s in (0.5, 1, 1e-300):
        ((*whose, milli),) = past_use(fleet.cluster.pk, half_life_s, faded).held
        assert milli == pytest.approx(8000)


def test_the_past_is_found_by_when_it_ended():
    sql = query(lambda: past_use(1, 60.0, at(0)), "SUM")
    assert "ended_at" in re.sub(r"(?i)filter:.*", "", plan(sql))
