"""The order that `explain` reads from rows is the one in which the scheduler takes jobs."""

import random
from dataclasses import astuple
from datetime import timedelta
from uuid import UUID

import pytest
from django.utils import timezone

from scheduling.engine.queue.fair_order import FairOrder
from scheduling.engine.queue.fair_share import Usage
from scheduling.engine.queue.job import order_key
from scheduling.engine.queue.queues import Queues
from scheduling.engine.queue.standings import Standings
from scheduling.engine.queue.waiting import EquivalenceClass
from scheduling.engine.quota.book import QuotaBook
from scheduling.engine.types import JobRequest, Tenant
from scheduling.engine.verdict import KEPT_NODES
from scheduling.models import Job, PodSet, SchedulerLease
from scheduling.queries.explain import ahead_of, before_in_queue, position_of
from scheduling.session.memory import load
from tests.cases import seeds

CAPACITY = {"H100": 32, "A100": 8}
WEIGHTS = {"ml": 2.0, "vision": 1.0, "vision-lab": 3.0, "law": 1.0}
JOBS = 30


def submitted(org, rng):
    """Waiting jobs, of which many are equal in all but one thing, or in everything but their id."""
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
            evidence={KEPT_NODES: 1} if rng.random() < 0.1 else {},
        )
        for number in range(JOBS)
    )
    for job in jobs:
        gpus = job.gpu_milli // 1000
        PodSet.objects.create(job=job, index=0, name="w", count=1, gpus=gpus, gpu_models=["H100"])
    return jobs


def standings(rng, jobs, tree):
    """What tenants and users hold, some of them the same."""
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
    """Ids of the jobs in the order in which a walk of the queue would come to them."""
    classes = []
    for job in jobs:
        live = load.live_job(job, job.tenant.name, list(job.pod_sets.all()))
        each = EquivalenceClass((), live.request.tenant, live.request.user)
        each.jobs.append(order_key(live.request, front=job.front))
        classes.append(each)
    turns = [str(job.pk) for job in jobs if KEPT_NODES in job.evidence]
    walk, order = FairOrder(classes, found, turns, Queues(), {}), []
    while (each := walk.pop()) is not None:
        order.append(each.jobs.pop(0).job_id)
        walk.push(each)
    return order


@pytest.mark.parametrize("seed", seeds(12))
@pytest.mark.parametrize("fair", [False, True])
def test_rows_are_ordered_as_the_scheduler_orders(org, fair, seed):
    rng = random.Random(seed)
    jobs = submitted(org, rng)
    tree = tuple(
        Tenant(name, row.parent.name if row.parent else None, weight=WEIGHTS[name])
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
    for job in Job.objects.all():
        before = [str(pk) for pk in before_in_queue(job).values_list("pk", flat=True)]
        assert before == order[: order.index(str(job.pk))]
        assert position_of(job) == 1 + len(before)
        named = [astuple(each)[0] for each in ahead_of(org.users["ops"], job)]
        assert named == before[: len(named)]
