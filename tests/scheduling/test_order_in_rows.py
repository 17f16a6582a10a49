"""`explain` reads from rows the same order in which the scheduler takes jobs."""

import random
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from django.utils import timezone

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.queue.fair_order import FairOrder
from scheduling.engine.queue.fair_share import Usage
from scheduling.engine.queue.order import order_key
from scheduling.engine.queue.queues import Queues
from scheduling.engine.queue.standings import Standings
from scheduling.engine.queue.waiting import EquivalenceClass
from scheduling.engine.quota.book import QuotaBook
from scheduling.engine.types import (
    JobRequest,
    Policy,
    QueueingPolicy,
    QueueSpec,
    QuotaSpec,
    TenantSpec,
)
from scheduling.engine.verdict import KEPT_NODES
from scheduling.models import Job, PodSet, SchedulerLease, StandingOrder
from scheduling.queries.queues.stages import first_of, queues_now
from scheduling.queries.queues.waiting_order import SHOWN_AHEAD, place_of, standing_in
from scheduling.services.common.lease import Lease
from scheduling.services.scheduler.standing import EVERY_S, LastWritten
from scheduling.session.memory import load
from tenants.models import Queue
from tests.cases import seeds
from tests.engine.scenario import node

CAPACITY = {"H100": 32, "A100": 8}
WEIGHTS = {"ml": 2.0, "vision": 1.0, "vision-lab": 3.0, "law": 1.0}
JOBS = 30
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def submitted(org, rng):
    """Return waiting jobs, many of which differ in one thing only, or only in their ids."""
    begin = timezone.now() - timedelta(hours=1)
    users = [None, org.users["eve"], org.users["joe"], org.users["lex"]]
    jobs = Job.objects.bulk_create(
        Job(
            id=UUID(int=rng.getrandbits(128), version=4),
            name=f"job-{number}",
            cluster=org.cluster,
            tenant=org.tenants[rng.choice(sorted(WEIGHTS))],
            user=rng.choice(users),
            state="PENDING",
            priority=rng.choice((0, 0, 0, 5)),
            submitted_at=begin + timedelta(seconds=rng.choice((0, 0, 1))),
            gpu_milli=rng.choice((1000, 8000)),
            front=rng.random() < 0.15,
            stands_at=rng.choice((None, begin, begin + timedelta(seconds=1))),
            declared_s=rng.choice((None, None, 60)),
            evidence={KEPT_NODES: 1} if rng.random() < 0.1 else {},
        )
        for number in range(JOBS)
    )
    for job in jobs:
        gpus = job.gpu_milli // 1000
        PodSet.objects.create(job=job, index=0, name="w", count=1, gpus=gpus, gpu_models=["H100"])
    return jobs


def standings(rng, jobs, tree):
    """Return what tenants and users hold; some hold the same."""
    usage = Usage(of_users=True)
    who = sorted({(job.tenant.name, str(job.user_id or "")) for job in jobs})
    for tenant, user in who:
        holder = JobRequest("x", tenant, 0.0, (), user=user)
        for model in CAPACITY:
            usage.change(holder, model, 1000 * rng.choice((0, 0, 2, 4)))
    book = QuotaBook()
    book.replace(tree, ())
    return Standings(usage, book.tenants, book.lineage, CAPACITY, 0.0)


def as_the_scheduler(jobs, found):
    """Return job ids in the order in which a walk of the queue comes to them."""
    classes = []
    for job in jobs:
        live = load.live_job(job, job.tenant.name, list(job.pod_sets.all()))
        each = EquivalenceClass((), live.request.tenant, live.request.user)
        each.jobs.append(order_key(live.request, front=job.front, stands_at=live.stands_at))
        classes.append(each)
    turns = [str(job.pk) for job in jobs if KEPT_NODES in job.evidence]
    walk, order = FairOrder(classes, found, turns, Queues(), {}), []
    while (each := walk.pop()) is not None:
        order.append(each.jobs.pop(0).job_id)
        walk.push(each)
    return order


def assert_queues_go_by(order):
    """Check that the head of each queue, and its next jobs, are those that the scheduler reaches
    first."""
    jobs = Job.objects.in_bulk(order)
    for tenant, name in {(job.tenant_id, job.queue) for job in jobs.values()}:
        Queue.objects.get_or_create(tenant_id=tenant, name=name)
    for now in queues_now(Queue.objects.select_related("tenant")):
        queue = now.queue
        key = queue.tenant_id, queue.name
        mine = [pk for pk in order if (jobs[pk].tenant_id, jobs[pk].queue) == key]
        assert [job.pk for job in first_of(queue, len(mine))] == mine
        if mine:
            assert now.head.pk == mine[0]


@pytest.mark.parametrize("seed", seeds(12))
@pytest.mark.parametrize("fair", [False, True])
def test_rows_are_ordered_as_the_scheduler_orders(org, fair, seed):
    rng = random.Random(seed)
    jobs = submitted(org, rng)
    tree = tuple(
        TenantSpec(name, row.parent.name if row.parent else None, weight=WEIGHTS[name])
        for name, row in org.tenants.items()
    )
    found = (
        standings(rng, jobs, tree)
        if fair
        else Standings(Usage(of_users=False), {}, lambda tenant: [tenant], CAPACITY, 0.0)
    )
    if fair:
        shares = found.shares()
        users: dict[str, dict[str, float]] = {}
        for (tenant, user), share in (shares.users or {}).items():
            users.setdefault(tenant, {})[user] = share
        lease = {"shares": dict(shares.tenants), "user_shares": users}
        SchedulerLease.objects.create(cluster=org.cluster, **lease)
    order = as_the_scheduler(jobs, found)
    assert len(order) == JOBS
    assert [str(pk) for pk in standing_in(org.cluster.pk, "").ids()] == order
    for job in Job.objects.all():
        place, at = place_of(org.users["ops"], job), order.index(str(job.pk))
        assert place.position == 1 + at
        assert [ahead.job for ahead in place.ahead] == order[:at][:SHOWN_AHEAD]
    assert_queues_go_by([UUID(pk) for pk in order])


# --- with queues ----------------------------------------------------------------------------------
QUEUES = ("default", "x", "y")


def in_queues(org, rng, number):
    """Return the row of a waiting job in a queue; no two are alike."""
    job = Job.objects.create(
        id=UUID(int=rng.getrandbits(128), version=4),
        name=f"job-{number:02}",
        cluster=org.cluster,
        tenant=org.tenants[rng.choice(("ml", "vision"))],
        queue=rng.choice(QUEUES),
        user=rng.choice((None, org.users["eve"], org.users["joe"])),
        state="PENDING",
        priority=rng.choice((0, 0, 0, 5)),
        submitted_at=BEGIN + timedelta(seconds=number),
        gpu_milli=1000 * (gpus := rng.choice((1, 2, 8))),
        stands_at=rng.choice((None, BEGIN + timedelta(seconds=rng.randrange(90)))),
        held=rng.random() < 0.1,
    )
    PodSet.objects.create(
        job=job, index=0, name="w", count=1, gpus=gpus, gpu_models=["H100"], cpu_milli=1 + number
    )
    return job


def scheduler(rng):
    """Return a state with random queues, some of them held, and its policy."""
    queues = [
        QueueSpec(
            tenant,
            name,
            weight=rng.choice((0.5, 1.0, 3.0)),
            rank=rng.choice((0, 0, 1)),
            fifo=(fifo := rng.random() < 0.2),
            fair_users=not fifo and rng.random() < 0.5,
            held=rng.random() < 0.2,
        )
        for tenant in ("ml", "vision")
        for name in QUEUES
    ]
    fair = rng.random() < 0.5
    policy = Policy(
        QueueingPolicy.BACKFILL, fair_share=fair, fair_users=fair and rng.random() < 0.5
    )
    tenants = (TenantSpec("ml"), TenantSpec("vision", "ml"))
    quotas = tuple(QuotaSpec(name, "H100", 10**6) for name in ("ml", "vision"))
    nodes = [node(f"n{number}", 8) for number in range(4)]
    facts = [d.TenantsChanged(tenants, quotas), *map(d.NodeChanged, nodes)]
    facts += [d.PolicyChanged(policy), d.QueuesChanged(tuple(queues))]
    run_cycle(state := SchedulerState(), facts, 0.0)
    return state


def walked(state):
    """Return the jobs as a walk of now reaches them, where each job is a class of its own."""
    state.dirty, found = True, []
    walk = state.next_walk()
    while (eq_class := walk.pop()) is not None:
        found.append(UUID(eq_class.head))
    return found


def asked(org, state, jobs, now):
    """Run a cycle with these rows; write where jobs stand, which started, and why others wait."""
    live = [load.live_job(job, job.tenant.name, list(job.pod_sets.all())) for job in jobs]
    said = [d.JobSubmitted(each.request, 0.0, each.held) for each in live]
    said += load.histories(org.cluster.pk, "", live, state.policy)
    for stands in run_cycle(state, said, now).stand_at:  # not in queues that are in order
        at = None if stands.at is None else datetime.fromtimestamp(stands.at, UTC)
        Job.objects.filter(pk=stands.job_id).update(stands_at=at)
    for job in Job.objects.filter(cluster=org.cluster):
        record = state.jobs[str(job.pk)]
        if record.started_at is not None:
            Job.objects.filter(pk=job.pk).update(state="RUNNING")
        elif record.eq_class is None:
            Job.objects.filter(pk=job.pk).update(reason=record.verdict.reason)


@pytest.mark.parametrize("seed", seeds(8))
def test_the_page_shows_the_order_of_the_queues_as_the_scheduler_has_it(org, client, seed):
    rng = random.Random(seed)
    lease_row = SchedulerLease.objects.create(cluster=org.cluster, token=1)
    lease, state, told = Lease(org.cluster.pk, "me", 1, BEGIN), scheduler(rng), LastWritten()
    for number in range(12):  # the jobs that start, and so add to shares
        asked(org, state, [in_queues(org, rng, number)], float(number))
    asked(org, state, [in_queues(org, rng, number) for number in range(12, 45)], 50.0)
    told.tell(lease, state, 1)
    order = walked(state)
    assert order
    assert standing_in(org.cluster.pk, "").ids() == order
    client.force_login(org.users["ops"])
    page = client.get(f"/clusters/{org.cluster.name}/queue/")
    assert [place.job.pk for place in page.context["places"]] == order
    for at, job in [*enumerate(order)][::7]:
        place = place_of(org.users["ops"], Job.objects.get(pk=job))
        assert place.position == 1 + at
        assert [ahead.job for ahead in place.ahead] == [*map(str, order[:at][:SHOWN_AHEAD])]
    assert_queues_go_by(order)
    # Without queues, jobs are ordered by their own values.
    run_cycle(state, [d.QueuesChanged(())], 60.0)
    told.again_at = 0.0
    told.tell(lease, state, 2)
    assert not StandingOrder.objects.filter(lease=lease_row).exists()


def test_the_order_is_written_when_it_changes_and_not_in_every_pass(org):
    rng = random.Random(1)
    SchedulerLease.objects.create(cluster=org.cluster, token=1)
    lease, state, told = Lease(org.cluster.pk, "me", 1, BEGIN), scheduler(rng), LastWritten()
    asked(org, state, [in_queues(org, rng, number) for number in range(30)], 0.0)
    told.tell(lease, state, 1)
    assert told.again_at >= time.monotonic() + EVERY_S - 1
    before = StandingOrder.objects.get().jobs
    asked(org, state, [in_queues(org, rng, number) for number in range(30, 40)], 1.0)
    told.tell(lease, state, 2)
    assert StandingOrder.objects.get().jobs == before
    told.again_at = 0.0
    told.tell(lease, state, 2)
    assert len(StandingOrder.objects.get().jobs) > len(before)


@pytest.mark.parametrize("whole", [True, False])
def test_who_is_not_in_what_was_told_stands_behind_or_at_the_end(org, whole):
    jobs = [in_queues(org, random.Random(number), number) for number in range(4)]
    Job.objects.update(held=False, priority=0, stands_at=None)
    ids = [job.pk for job in jobs]
    standing = replace(standing_in(org.cluster.pk, ""), told=(ids[2], ids[0]), whole=whole)
    expected = [ids[2], ids[3], ids[0], ids[1]] if whole else [ids[2], ids[0], ids[1], ids[3]]
    assert standing.ids() == expected
    Job.objects.filter(pk=ids[0]).update(state="RUNNING")
    assert ids[0] not in standing.ids()
