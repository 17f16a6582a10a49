"""A random month, told five times: placements, simulator, recorder, GPU-hours and quota books agree
to a thousandth of a GPU, with shares by memory counted as exact fractions."""

import random
from collections import defaultdict
from datetime import timedelta
from fractions import Fraction
from math import floor, isnan

import pytest

from metrics import selectors, services
from metrics.gpu_time import accounting, usage
from metrics.models import MetricSample, UsageDay
from scheduling.engine.types import (
    Device,
    JobKind,
    JobRequest,
    Node,
    PodSetSpec,
    Policy,
    PreemptionKind,
    QuotaSpec,
    TenantSpec,
)
from scheduling.models import Cluster, Job, NodeRecord, Placement
from scheduling.models.jobs import PlacementState
from scheduling.queries.quota_use import quota_uses
from scheduling.simulator.journal import RunJournal
from scheduling.simulator.loop import Simulation
from scheduling.simulator.model import Arrival, Settings
from tenants import models as tenants
from tests.cases import seeds
from tests.metrics.rows import T0, at

pytestmark = pytest.mark.django_db
DAY, MONTH = 86_400, 30 * 86_400
MODELS = {"H100": 81_559, "A10": 24_576}
TENANTS, USERS = ("vision", "speech", "search"), ("ada", "bob")


def near(amount):
    """Compare milli-GPU x milliseconds to within a hundred-thousandth of a GPU-hour."""
    return pytest.approx(float(amount), abs=36_000)


def machines():
    return tuple(
        Node(
            f"{model.lower()}-{i}",
            model,
            tuple(Device(k, memory_mib=memory) for k in range(8)),
            topology=(f"{model}-leaf-{i // 2}", "s0", "x"),
            cpu_milli=10**6,
            memory_mib=10**6,
            gives_shares=True,
        )
        for model, memory in MODELS.items()
        for i in range(4)
    )


def arrivals(rng):
    """Return jobs of all sorts; every time is a multiple of an eighth of a second."""
    found, now = [], 0.0
    while now < MONTH:
        now += rng.randrange(8 * 7200) / 8
        model, shape = rng.choice(list(MODELS)), rng.random()
        gang = rng.random() < 0.6
        if shape < 0.2:
            pods = PodSetSpec("main", 1, 1, (model,), gpu_milli=rng.choice((1, 125, 333, 500, 667)))
        elif shape < 0.4:
            memory = rng.choice((4_096, 8_192, 10_000))
            pods = PodSetSpec("main", 1, 1, (model,), gpu_memory_mib=memory)
        else:
            pods = PodSetSpec("main", rng.choice((1, 2, 3)), rng.choice((1, 3, 8)), (model,))
        request = JobRequest(
            f"job-{len(found)}",
            rng.choice(TENANTS),
            now,
            (pods,),
            gang=gang,
            kind=JobKind.TRAINING if gang else JobKind.INFERENCE,
            priority=rng.choice((0, 0, 4)),
            user=rng.choice(USERS),
        )
        found.append(Arrival(request, rng.randrange(8, 8 * 3 * DAY) / 8))
    return found


def simulated(seed):
    rng, journal, nodes = random.Random(seed), RunJournal(), machines()
    jobs = arrivals(rng)
    run = Simulation(
        nodes,
        jobs,
        policy=Policy(preemption=(PreemptionKind.PRIORITY,)),
        tenants=tuple(TenantSpec(name) for name in TENANTS),
        quotas=tuple(QuotaSpec(t, m, 10**6) for t in TENANTS for m in MODELS),
        settings=Settings(evict_s=7.125, stop_s=MONTH),
        journal=journal,
    )
    return jobs, run.run(), journal


def written(jobs, outcome, journal):
    """Create the rows of a Kant in which exactly this happened."""
    cluster = Cluster.objects.create(name="c1")
    NodeRecord.objects.bulk_create(
        NodeRecord(
            cluster=cluster, name=node.name, gpu_model=node.gpu_model, gpus=8, healthy_gpus=8,
            free_gpus=8, leaf=node.topology[0],
        )
        for node in machines()
    )  # fmt: skip
    users = {name: tenants.User.objects.create(username=name) for name in USERS}
    of = {name: tenants.Tenant.objects.create(name=name) for name in TENANTS}
    for name in MODELS:
        gpu_type = tenants.GpuType.objects.create(name=name)
        for tenant in of.values():
            tenants.Quota.objects.create(tenant=tenant, gpu_type=gpu_type, guaranteed_milli=10_000)
    requests = {a.job.id: a.job for a in jobs}
    columns, rows = outcome.observer.jobs, []
    for i, name in enumerate(columns.ids):
        request, ended = requests[name], columns.ended[i]
        rows.append(
            Job(
                name=name, tenant=of[request.tenant], cluster=cluster, user=users[request.user],
                kind=request.kind.value, gang=request.gang, gpu_milli=request.gpu_milli,
                submitted_at=at(request.submitted_at),
                ended_at=None if isnan(ended) else at(ended),
            )
        )  # fmt: skip
    Job.objects.bulk_create(rows)
    attempts, models = defaultdict(int), {node.name: node.gpu_model for node in machines()}
    placements = []
    for stay in journal.stays:
        p = stay.place
        attempts[stay.row, p.pod_set, p.ordinal] += 1
        live = isnan(stay.end)
        begin = at(stay.begin)
        placements.append(
            Placement(
                job=rows[stay.row], attempt=attempts[stay.row, p.pod_set, p.ordinal],
                pod_set=p.pod_set, ordinal=p.ordinal, pod_name="p", node=p.node,
                gpu_model=models[p.node], devices=list(p.devices), milli=p.milli,
                held_milli=p.milli * len(p.devices), held_beyond=p.beyond,
                intended_at=begin, bound_at=begin,
                held_from=begin, ended_at=None if live else at(stay.end),
                state=PlacementState.RUNNING if live else PlacementState.SUCCEEDED,
            )
        )  # fmt: skip
    Placement.objects.bulk_create(placements)
    return cluster


def exactly(place, job, model):
    """Return the GPU-milli of a pod."""
    s = job.pod_sets[place.pod_set]
    if s.gpu_memory_mib:
        return max(Fraction(1000 * s.gpu_memory_mib, MODELS[model]), Fraction(1))
    return Fraction(s.gpus * s.gpu_milli)


@pytest.mark.parametrize("seed", seeds(2))
def test_all_that_is_told_of_a_month_adds_up(seed, monkeypatch):
    jobs, outcome, journal = simulated(seed)
    cluster = written(jobs, outcome, journal)
    requests = {a.job.id: a.job for a in jobs}
    ids = outcome.observer.jobs.ids
    models = {node.name: node.gpu_model for node in machines()}

    # By hand: milli-GPU x milliseconds of each tenant, user, model and day.
    held, shares = defaultdict(Fraction), set()
    for stay in journal.stays:
        p, job = stay.place, requests[ids[stay.row]]
        shares.add(p.milli)
        begin, end = stay.begin, MONTH if isnan(stay.end) else stay.end
        while begin < end:
            day = int(begin // DAY)
            until = min(end, (day + 1) * DAY)
            key = (job.tenant, job.user, models[p.node], day)
            milliseconds = (until - begin) * 1000
            assert milliseconds == int(milliseconds)
            held[key] += exactly(p, job, models[p.node]) * int(milliseconds)
            begin = until
    assert len(shares) > 6
    assert outcome.observer.preempted

    # The simulator.
    for model, book in outcome.pools.items():
        of_model = sum(v for key, v in held.items() if key[2] == model)
        assert book.milli_s * 1000 == near(of_model)
    for tenant, milli_s in outcome.observer.tenant_milli_s.items():
        of_tenant = sum(v for key, v in held.items() if key[0] == tenant)
        assert milli_s * 1000 == near(of_tenant)

    # The recorder, looking at random instants.
    rng, now = random.Random(seed), 0.0
    while now < MONTH:
        services.record_sample(cluster, at(now))
        now += rng.choice((10, 3_000, 40_000, 100_000))
    services.record_sample(cluster, at(MONTH))
    for model in ("", *MODELS):
        last = MetricSample.objects.filter(gpu_model=model).latest("at")
        of_model = sum(v for key, v in held.items() if model in ("", key[2]))
        assert last.allocated_milli_s * 1000 == near(of_model)
        sor, _ = selectors.sor(selectors.MetricScope(cluster, model, T0, at(MONTH)))
        pools = [outcome.pools[m] for m in MODELS if model in ("", m)]
        expected = sum(b.milli_s for b in pools) / sum(b.offered_s for b in pools)
        assert sor == pytest.approx(expected, rel=1e-9)

    # GPU-hours, of written days and of one unwritten day, by any dimension.
    monkeypatch.setattr(accounting, "BUDGET_S", 1e9)
    accounting.account(at(MONTH - DAY))
    assert UsageDay.objects.exists()
    period = usage.Period(T0.date(), (T0 + timedelta(seconds=MONTH - 1)).date())
    scope = usage.UsageScope(period)
    by_hand = {
        "tenant": lambda key: key[0],
        "user": lambda key: key[1],
        "gpu_type": lambda key: key[2],
        "day": lambda key: str((T0 + timedelta(days=key[3])).date()),
    }
    for by in (["tenant"], ["user"], ["gpu_type"], ["day"], ["tenant", "user", "gpu_type", "day"]):
        expected = defaultdict(Fraction)
        for key, amount in held.items():
            expected[tuple(by_hand[name](key) for name in by)] += amount
        told = usage.usage(scope, by, at(MONTH))
        found = {labels: amount.held for labels, amount in told.items() if amount.held}
        assert found.keys() == expected.keys()
        for labels, amount in expected.items():
            assert found[labels] == near(amount)
    total = usage.total_of(usage.usage(scope, ["tenant"], at(MONTH)).values())
    assert total.held == near(sum(held.values()))
    assert total.pods == len(journal.stays)

    # What is held at the end: quota books, nodes and the last sample.
    live = defaultdict(Fraction)
    for stay in journal.stays:
        if isnan(stay.end):
            p, job = stay.place, requests[ids[stay.row]]
            live[job.tenant, models[p.node]] += exactly(p, job, models[p.node])
    assert live
    used = {(u.tenant, u.gpu_model): u.used for u in quota_uses() if u.used}
    assert used == {key: floor(amount) for key, amount in live.items()}
    last = MetricSample.objects.filter(gpu_model="").latest("at")
    assert last.allocated_milli == floor(sum(live.values()))
    assert last.allocated_milli == floor(sum(book.allocated for book in outcome.pools.values()))
