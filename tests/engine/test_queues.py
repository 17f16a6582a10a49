"""Queues of tenants: order, holds, limits (see scenario.py)."""

import heapq
import random
from dataclasses import replace

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.queue.queues import Queues
from scheduling.engine.types import (
    MILLI,
    Policy,
    PreemptionKind,
    QueueingPolicy,
    QueueSpec,
    QuotaSpec,
    TenantSpec,
)
from scheduling.engine.verdict import Reason
from tests.cases import seeds
from tests.engine.scenario import job, node, play

HOUR = 3600.0
SCENARIOS = {
    "the queue of the higher rank goes first": """
        nodes  H100: 8
        quota  a H100 16
        queue  a/default
        queue  a/urgent rank=1
        at 0
          + old    a 1x8 H100              -> InsufficientGpus
          + new    a 1x8 H100 queue=urgent -> starts
        at 10
          + newer  a 1x8 H100 queue=urgent
        at 20
          ends new
          newer -> starts
    """,
    "of equal ranks the one whose jobs hold less by weight, as read after each start": """
        nodes  H100: 8
        quota  a H100 16
        queue  a/default
        queue  a/wide weight=3
        at 0
          + d0 a 1x2 H100 -> starts
          + d1 a 1x2 H100 -> InsufficientGpus
          + d2 a 1x2 H100
          + d3 a 1x2 H100
          + w0 a 1x2 H100 queue=wide -> starts
          + w1 a 1x2 H100 queue=wide -> starts
          + w2 a 1x2 H100 queue=wide -> starts
    """,
    "a higher priority goes before any rank": """
        nodes  H100: 8
        quota  a H100 16
        queue  a/default
        queue  a/urgent rank=1
        at 0
          + rank a 1x8 H100 queue=urgent
          + high a 1x8 H100 p5 -> starts
    """,
    "no queue brings a job before that of another tenant": """
        nodes  H100: 8
        quota  a H100 16 | b H100 16
        queue  a/default
        queue  a/urgent rank=1
        policy strict-fifo
        at 0
          + first  a 1x8 H100
          + theirs b 1x8 H100 -> starts
          + urgent a 1x8 H100 queue=urgent -> InsufficientGpus
          first -> BehindInQueue
    """,
    "where tenants have shares, queues decide inside of theirs": """
        nodes  H100: 8
        quota  a H100 16 | b H100 16
        queue  a/default
        queue  a/urgent rank=1
        policy strict-fifo, fair_share=yes
        at 0
          + first  a 1x4 H100
          + theirs b 1x4 H100 -> starts
          + more   b 1x4 H100
          + urgent a 1x4 H100 queue=urgent -> starts
    """,
    "users of a queue take turns where it says so": """
        nodes  H100: 2
        quota  a H100 16
        queue  a/default
        queue  a/fair fair_users=yes
        at 0
          + x0 a 1x1 H100 queue=fair user=x -> starts
          + x1 a 1x1 H100 queue=fair user=x -> InsufficientGpus
          + y0 a 1x1 H100 queue=fair user=y -> starts
        at 10
          queue a/fair fair_users=no
          ends y0
          x1 -> starts
    """,
    "a queue in FIFO stays so where the policy is fair among users": """
        nodes  H100: 2
        quota  a H100 16
        queue  a/default fifo=yes
        policy best-effort-fifo, fair_share=yes, fair_users=yes
        at 0
          + x0 a 1x1 H100 user=x -> starts
          + x1 a 1x1 H100 user=x -> starts
          + y0 a 1x1 H100 user=y
    """,
    "a held queue starts nothing, and what runs goes on": """
        nodes  H100: 8
        quota  a H100 16
        at 0
          + runs a 1x4 H100 -> starts
        at 10
          queue  a/default held=yes why=Racks.
          + waits a 1x4 H100 -> QueueHeld queue=default tenant=a
        at 20
          + more  a 1x4 H100 -> QueueHeld
          runs -> starts
    """.replace("\n          runs -> starts", ""),
    "released, its jobs start in their places": """
        nodes  H100: 8
        quota  a H100 16
        queue  a/default held=yes
        at 0
          + one a 1x8 H100 -> QueueHeld
          + two a 1x8 H100 -> QueueHeld
        at 10
          queue a/default held=no
          one -> starts
          two -> InsufficientGpus
    """,
    "nobody waits behind a job of a held queue": """
        nodes  H100: 8
        quota  a H100 16 | b H100 16
        queue  a/default
        queue  a/night
        policy strict-fifo
        at 0
          + runs  b 1x4 H100 -> starts
          + large a 1x8 H100 queue=night -> InsufficientGpus
          + small b 1x4 H100 -> BehindInQueue
        at 10
          queue a/night held=yes
          large -> QueueHeld
          small -> starts
    """,
    "places that others leave are not kept for a job whose queue is held": """
        nodes  H100: 8
        quota  a H100 16 | b H100 16
        queue  a/default
        queue  a/night
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low  b 1x8 H100 -> starts
        at 10
          + high a 1x8 H100 p9 queue=night -> WaitingForPreemption
          low  -> preempted for high
        at 11
          queue a/night held=yes
          high -> QueueHeld
        at 12
          gone low
          low -> starts
    """,
    "a queue runs no more jobs than it may": """
        nodes  H100: 8
        quota  a H100 16
        queue  a/default
        queue  a/two max_running=2
        at 0
          + t0 a 1x1 H100 queue=two -> starts
          + t1 a 1x1 H100 queue=two -> starts
          + t2 a 1x1 H100 queue=two -> QueueLimitReached running=2 max_running=2 queue=two
          + d0 a 1x1 H100 -> starts
        at 10
          ends t0
          t2 -> starts
    """,
    "and holds no more GPUs of a model, but others": """
        nodes  H100: 8 | L4: 8
        quota  a H100 8 | a L4 8
        queue  a/small max_milli=H100:4000
        at 0
          + one    a 1x3 H100 queue=small -> starts
          + two    a 1x2 H100 queue=small -> QueueLimitReached used=3 asked=2 max_gpus=4
          + three  a 1x1 H100 queue=small -> starts
          + either a 1x2 H100|L4 queue=small -> starts on n1
          + other  a 1x2 H100 -> starts
        at 10
          ends one
          two -> starts
    """,
    "an elastic gang takes what its queue may hold": """
        nodes  H100: 8
        quota  a H100 16
        queue  a/small max_milli=H100:4000
        at 0
          + some a 6x1 H100 queue=small min=2 -> starts 4 pods
        at 10
          queue a/small max_milli=H100:5000
          some -> starts 1 pod
    """,
    "who is at the limit of its queue is in nobody's way": """
        nodes  H100: 8
        quota  a H100 16 | b H100 16
        queue  a/one max_running=1
        policy strict-fifo
        at 0
          + runs  a 1x4 H100 queue=one -> starts
          + waits a 1x4 H100 queue=one -> QueueLimitReached
          + other b 1x4 H100 -> starts
    """,
    "nobody is preempted for who is at the limit of its queue": """
        nodes  H100: 8
        quota  a H100 16 | b H100 16
        queue  a/one max_running=1
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + runs a 1x4 H100 queue=one -> starts
          + low  b 1x4 H100 -> starts
        at 10
          + high a 1x4 H100 p9 queue=one -> QueueLimitReached
    """,
    "a limit below what runs stops nothing": """
        nodes  H100: 8
        quota  a H100 16
        queue  a/default
        at 0
          + one a 1x4 H100 -> starts
        at 10
          queue a/default max_milli=H100:1000
          + two a 1x1 H100 -> QueueLimitReached used=4 max_gpus=1
        at 20
          ends one
          two -> starts
    """,
    "a node is kept for the queue whose turn it is, whatever fits there meanwhile": """
        nodes  H100: 4 4
        quota  a H100 64 | b H100 64
        queue  a/default
        queue  a/small
        at 0
          + s1 a 1x2 H100 queue=small -> starts on n0
          + s2 a 1x2 H100 queue=small -> starts on n0
          + s3 a 1x2 H100 queue=small -> starts on n1
          + s4 a 1x2 H100 queue=small -> starts on n1
        at 100
          + d1 a 1x4 H100 -> InsufficientGpus kept_nodes=1
          + s5 a 1x2 H100 queue=small -> InsufficientGpus
          + b1 b 1x2 H100 -> InsufficientGpus
        at 170
          ends s1
          s5 -> ReservedForHead ahead=d1
          b1 -> ReservedForHead ahead=d1
        at 190
          ends s2
          d1 -> starts on n0
        at 200
          ends s3
          s5 -> starts on n1
    """,
    "who had too much starts nothing past a job of who had too little, for some hours": """
        nodes  H100: 4 4
        quota  a H100 64 | b H100 64
        queue  a/default
        queue  a/small
        policy backfill, backfill_after_s=99999
        at 0
          + s1 a 1x2 H100 queue=small -> starts on n0
          + s2 a 1x3 H100 queue=small -> starts on n1
        at 10
          + d1 a 1x4 H100             -> InsufficientGpus
          + s3 a 1x4 H100 queue=small -> InsufficientGpus
        at 1000
          + s4 a 1x1 H100 queue=small -> starts on n1
        at 9000
          + s5 a 1x1 H100 queue=small -> BehindInQueue ahead=d1
          + b1 b 1x1 H100 -> starts on n0
        at 15000
          s5 -> starts on n0
    """,
    "also where a reservation puts the job of who had too little off": """
        nodes  H100: 4 4
        quota  a H100 64 | b H100 64
        queue  a/default
        queue  a/small
        policy backfill, backfill_after_s=99999
        at 0
          + s1 a 1x2 H100 queue=small s=99999 -> starts on n0
          + s2 a 1x3 H100 queue=small s=20000 -> starts on n1
        at 10
          + big b 1x4 H100            -> InsufficientGpus
          + d1 a 1x3 H100             -> FragmentedCapacity
          + s3 a 1x4 H100 queue=small -> InsufficientGpus
        at 9000
          + s4 a 1x1 H100 queue=small s=100 -> BehindInQueue ahead=d1
          + b1 b 1x1 H100 s=100 -> starts
        at 15000
          s4 -> starts
    """,
    "and the job of who had too little goes first": """
        nodes  H100: 4
        quota  a H100 64
        queue  a/default
        queue  a/small
        policy backfill, backfill_after_s=99999
        at 0
          + s1 a 1x2 H100 queue=small -> starts
        at 10
          + s2 a 1x4 H100 queue=small -> InsufficientGpus
          + d1 a 1x4 H100             -> InsufficientGpus
        at 9000
          ends s1
          d1 -> starts
    """,
    "ranks have no turns: the higher one goes first, and whatever fits passes it": """
        nodes  H100: 4
        quota  a H100 64
        queue  a/default rank=1
        queue  a/small
        at 0
          + s1 a 1x2 H100 queue=small -> starts
          + s2 a 1x2 H100 queue=small -> starts
        at 100
          + d1 a 1x4 H100 -> InsufficientGpus
          + s3 a 1x2 H100 queue=small -> InsufficientGpus
        at 110
          ends s1
          s3 -> starts
    """,
    "who moves to another queue has its turn no more": """
        nodes  H100: 4
        quota  a H100 64
        queue  a/default
        queue  a/small
        at 0
          + s1 a 1x2 H100 queue=small -> starts
          + s2 a 1x2 H100 queue=small -> starts
        at 100
          + d1 a 1x4 H100 -> InsufficientGpus kept_nodes=1
          + s3 a 1x2 H100 queue=small -> InsufficientGpus
        at 110
          change d1 queue=small
          ends s1
          s3 -> starts
    """,
    "a job that moves stands in its new queue by the time of its submission": """
        nodes  H100: 8
        quota  a H100 16
        queue  a/default rank=1
        queue  a/night
        at 0
          + runs  a 1x8 H100 -> starts
          + first a 1x8 H100 queue=night -> InsufficientGpus
          + other a 1x8 H100 -> InsufficientGpus
        at 10
          change first queue=default
          ends runs
          first -> starts
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name):
    play(SCENARIOS[name])


QUEUES = (("a", "default"), ("a", "x"), ("a", "y"), ("b", "default"), ("b", "x"))


def random_queues(rng, *, held=0.2, limits=True):
    """Return some of the queues, with random settings."""
    most = (None, None, 1, 4) if limits else (None,)
    gpus = ({}, {}, {"H100": 8000}) if limits else ({},)
    return tuple(
        QueueSpec(
            tenant,
            name,
            weight=rng.choice((0.5, 1.0, 3.0)),
            rank=rng.choice((0, 0, 1)),
            fifo=(fifo := rng.random() < 0.3),
            fair_users=not fifo and rng.random() < 0.3,
            held=rng.random() < held,
            max_running=rng.choice(most),
            max_milli=rng.choice(gpus),
        )
        for tenant, name in QUEUES
    )


def random_policy(rng):
    fair = rng.random() < 0.4
    return Policy(
        rng.choice(list(QueueingPolicy)),
        fair_share=fair,
        fair_users=fair and rng.random() < 0.5,
        preemption=rng.choice(((), (), tuple(PreemptionKind))),
        min_runtime_s=0,
        backfill_after_s=30,
    )


def random_job(rng, number, now):
    tenant, queue = rng.choice(QUEUES)
    asks = rng.choice(("1x1 H100", "1x2 H100", "1x8 H100", "2x8 H100", "2x1 L4", "1x3 H100|L4"))
    words = [f"queue={queue}", f"user={rng.choice('uv')}", f"p{rng.choice((0, 0, 0, 5))}"]
    words += rng.choice(([], ["pods"], ["min=1"], ["s=30"]))
    return job(f"j{number:03}", tenant, asks, *words, at=now + number / 1000)


NODES = [node(f"n{i}", 8) for i in range(3)] + [node("l0", 4, "L4")]
QUOTAS = tuple(QuotaSpec(t, m, 16 * MILLI) for t in "ab" for m in ("H100", "L4"))
FACTS = [d.TenantsChanged((TenantSpec("a"), TenantSpec("b")), QUOTAS), *map(d.NodeChanged, NODES)]


def told(result):
    """Return what a cycle decided."""
    return result.started, result.preempted, result.reservations, result.blocked


@pytest.mark.parametrize("seed", seeds(60))
def test_a_hold_is_as_if_the_waiting_jobs_of_the_queue_were_not_there(seed):
    """Two clusters: in one, the jobs of a held queue wait; the other never heard of them."""
    rng = random.Random(seed)
    with_them, without = SchedulerState(), SchedulerState()
    queues = random_queues(rng, held=0.0)
    held = rng.randrange(len(QUEUES))
    queues = (*queues[:held], replace(queues[held], held=True), *queues[held + 1 :])
    policy = random_policy(rng)
    facts = [*FACTS, d.PolicyChanged(policy), d.QueuesChanged(queues)]
    now, number, running, hidden = 0.0, 0, [], set()
    mine, theirs = list(facts), list(facts)
    for _ in range(60):
        now += rng.choice((1.0, 10.0))
        for _ in range(rng.choice((0, 1, 1, 3))):
            asked = random_job(rng, number, now)
            number += 1
            mine.append(d.JobSubmitted(asked))
            if (asked.tenant, asked.queue) == QUEUES[held]:
                hidden.add(asked.id)
            else:
                theirs.append(d.JobSubmitted(asked))
        one, other = run_cycle(with_them, mine, now), run_cycle(without, theirs, now)
        assert told(one) == told(other)
        for name, record in without.jobs.items():
            mine_of_it = with_them.jobs[name]
            assert mine_of_it.pods == record.pods
            assert (mine_of_it.verdict is None) == (record.verdict is None)
            if record.verdict is not None:
                assert mine_of_it.verdict.reason is record.verdict.reason
        running += [s.job_id for s in one.started]
        mine = [d.JobRequeued(p.job_id, now) for p in one.preempted if p.whole]
        mine += [d.PodEnded(p.job_id, *pod) for p in one.preempted if not p.whole for pod in p.pods]
        if running and rng.random() < 0.4:
            mine.append(d.JobEnded(running.pop(rng.randrange(len(running)))))
        theirs = list(mine)
    for name in hidden:
        verdict = with_them.jobs[name].verdict
        assert verdict is not None
        assert verdict.reason is Reason.QUEUE_HELD


@pytest.mark.parametrize("seed", seeds(60))
def test_held_and_released_a_queue_goes_on_as_if_nothing_had_happened(seed):
    """A hold and release between two cycles, or over cycles in which no other job changes, leaves
    all jobs and fair-share turns where they were; each job starts in the end, once."""
    rng = random.Random(seed)
    state, never_held = SchedulerState(), SchedulerState()
    queues = random_queues(rng, held=0.0, limits=False)
    policy = replace(random_policy(rng), preemption=())
    jobs = [random_job(rng, number, 0.0) for number in range(40)]
    facts = [*FACTS, d.PolicyChanged(policy), d.QueuesChanged(queues)]
    facts += [d.JobSubmitted(asked) for asked in jobs]
    run_cycle(state, facts, 1.0)
    run_cycle(never_held, facts, 1.0)
    alive = {asked.id for asked in jobs}
    for at in range(2, 200):
        now = float(at)
        ends = []
        if state.running:
            ends = [d.JobEnded(rng.choice(sorted(state.running)))]
            alive.discard(ends[0].job_id)
        shut = tuple(replace(q, held=rng.random() < 0.5) for q in queues)
        deltas = [d.QueuesChanged(shut), d.QueuesChanged(queues), *ends]
        one, other = run_cycle(state, deltas, now), run_cycle(never_held, ends, now)
        assert one.started == other.started
        assert set(state.jobs) == alive
        if not alive:
            break
    assert all(state.jobs[n].verdict.will_never_run for n in alive)


@pytest.mark.parametrize("seed", seeds(40))
def test_limits_are_kept_and_a_fifo_queue_starts_in_its_order(seed):
    rng = random.Random(seed)
    state = SchedulerState()
    now, number, running = 0.0, 0, []
    facts = [*FACTS, d.PolicyChanged(replace(random_policy(rng), preemption=()))]
    started = {}
    for step in range(80):
        now += rng.choice((1.0, 10.0))
        if step % 20 == 0:
            queues = random_queues(rng)
            facts.append(d.QueuesChanged(queues))
        for _ in range(rng.choice((0, 1, 3))):
            tenant, queue = rng.choice(QUEUES)
            words = (f"queue={queue}", f"user={rng.choice('uv')}")
            asked = job(f"j{number:04}", tenant, "1x2 H100", *words, at=now + number / 1000)
            number += 1
            facts.append(d.JobSubmitted(asked))
        before = {name: used(state, *name) for name in QUEUES}
        result = run_cycle(state, facts, now)
        facts = []
        for start in result.started:
            asked = state.jobs[start.job_id].job
            running.append(asked.id)
            started.setdefault((asked.tenant, asked.queue), []).append(asked.id)
        for queue in queues:
            jobs, gpus = used(state, queue.tenant, queue.name)
            had = before[queue.tenant, queue.name]
            if (jobs, gpus) > had:
                assert not queue.held
                assert queue.max_running is None or jobs <= queue.max_running
                assert jobs * 2 * MILLI <= queue.max_milli.get("H100", 10**9)
        fifo = {(q.tenant, q.name) for q in queues if q.fifo or not q.fair_users}
        for name in fifo if not state.policy.fair_users else ():
            now_started = [s.job_id for s in result.started if of(state, s.job_id) == name]
            waits = [n for n, r in state.jobs.items() if r.eq_class and of(state, n) == name]
            assert now_started == sorted(now_started)
            assert not (now_started and waits) or max(now_started) < min(waits)
        while running and rng.random() < 0.5:
            facts.append(d.JobEnded(running.pop(rng.randrange(len(running)))))


def of(state, name):
    asked = state.jobs[name].job
    return asked.tenant, asked.queue


def used(state, tenant, queue):
    """Return (running jobs, GPUs that they hold) of a queue."""
    mine = [r for r in state.running.values() if of(state, r.job.id) == (tenant, queue)]
    return len(mine), sum(milli for r in mine for _, milli in r.pods.values()) // MILLI


STRICT, BEST_EFFORT, BACKFILL = QueueingPolicy
SMALL, NODES, GANGS = ("1x1",), ("1x8",), ("1x8", "2x8")
MIXED = ("1x1", "1x2", "1x4", "1x8")
LARGE = ("4x8", "8x8")
# Policy, fair share, nodes by GPU model; per queue its weight, jobs and models; and the same for
# the queues of another tenant.
DAYS = {
    "whole nodes beside whole nodes of another tenant": (
        (BEST_EFFORT, False, {"A": 20}),
        {"default": (1.0, NODES, "A"), "y": (2.0, ("1x2", "1x4"), "A"), "z": (5.0, SMALL, "A")},
        (NODES, "A"),
    ),
    "jobs that accept several models, of tenants with shares": (
        (BEST_EFFORT, True, {"A": 10, "B": 10}),
        {"default": (3.0, MIXED, "A|B"), "y": (1.0, SMALL, "A")},
        (NODES, "B|A"),
    ),
    "single GPUs, in order": (
        (STRICT, False, {"A": 10}),
        {"default": (1.0, SMALL, "A"), "y": (8.0, SMALL, "A")},
        (NODES, "A"),
    ),
    "gangs of 32 and 64 GPUs beside single GPUs, in order": (
        (STRICT, False, {"A": 20}),
        {"default": (1.0, SMALL, "A"), "y": (3.0, LARGE, "A")},
        None,
    ),
    "gangs of 32 and 64 GPUs beside single GPUs, by turns of tenants as well": (
        (BEST_EFFORT, True, {"A": 20}),
        {"default": (1.0, SMALL, "A"), "y": (1.0, LARGE, "A")},
        (MIXED, "A"),
    ),
    "gangs of 32 and 64 GPUs beside small jobs, which fill all gaps": (
        (BACKFILL, False, {"A": 20}),
        {"default": (1.0, MIXED, "A"), "y": (2.0, LARGE, "A")},
        (MIXED, "A"),
    ),
}


@pytest.mark.parametrize("name", DAYS)
def test_saturated_queues_hold_their_weights_over_a_day(name):
    """Each queue is within 5 % of its share of what the tenant holds, if no single job is most of a
    queue's daily share."""
    (queueing, fair, nodes), queues, others = DAYS[name]
    policy = Policy(queueing, fair_share=fair)
    off, _ = _off(policy, nodes, queues, others, seed=7, hours=lambda rng: rng.uniform(0.5, 1.5))
    assert all(abs(share) <= 0.05 for share, _ in off.values()), off


@pytest.mark.parametrize("seed", seeds(60, usual=2))
def test_so_they_do_whatever_they_run(seed):
    """With any policy, weights, jobs, GPU models and other tenants, each queue is within 5 % of its
    share or within the GPU-hours of the largest job that a queue ran: no order can split a job."""
    rng = random.Random(seed)
    policy = Policy(list(QueueingPolicy)[1 - seed % 3], fair_share=rng.random() < 0.5)
    nodes = dict.fromkeys("ABC"[: rng.choice((1, 1, 2, 3))], 10)
    sizes = (SMALL, ("1x2", "1x4"), MIXED, NODES, GANGS)
    if seed % 2:
        nodes, sizes = dict.fromkeys("AB"[: rng.choice((1, 2))], 20), (SMALL, MIXED, GANGS, LARGE)
    queues = {
        name: (rng.choice((1.0, 2.0, 3.0, 8.0)), rng.choice(sizes), "|".join(rng.sample("ABC", 3)))
        for name in ("default", "y", "z")[: rng.choice((2, 3))]
    }
    queues = {name: (w, s, _only(m, nodes)) for name, (w, s, m) in queues.items()}
    others = (rng.choice(sizes), "|".join(nodes)) if rng.random() < 0.7 else None
    declared = rng.random() < 0.3
    off, one = _off(policy, nodes, queues, others, seed=seed, declared=declared)
    assert all(abs(share) <= 0.05 or abs(gpus) <= one for share, gpus in off.values()), (off, one)


def _only(models, nodes):
    """Keep only the models that exist."""
    return "|".join(model for model in models.split("|") if model in nodes)


def _off(
    policy, nodes, queues, others, *, seed, declared=False, hours=lambda rng: rng.expovariate(1)
):
    """Return how far a tenant's queues are from their weights over a day, as {queue: (relative to
    its share, GPUs)}, and the largest of their jobs, as GPUs all day. All queues, and `others` of
    another tenant, always have more waiting than all GPUs; the first half day is not counted.
    `nodes`: of 8 GPUs, by model; `queues`: (weight, sizes of jobs, models); `hours`: how long a job
    runs."""
    rng, state, hour = random.Random(seed), SchedulerState(policy=policy), 3600.0
    begin, end = 12 * hour, 36 * hour
    facts = [
        d.TenantsChanged(
            (TenantSpec("a"), TenantSpec("b")),
            tuple(QuotaSpec(t, m, 10**6) for t in "ab" for m in nodes),
        ),
        d.QueuesChanged(
            tuple(QueueSpec("a", name, weight=w) for name, (w, _, _) in queues.items())
        ),
        *(d.NodeChanged(node(f"{m}{i}", 8, m)) for m, many in nodes.items() for i in range(many)),
    ]
    of = {name: ("a", name, sizes, models) for name, (_, sizes, models) in queues.items()}
    if others:
        of["b"] = ("b", "default", *others)
    now, number, ends = 0.0, 0, []
    got, waiting, lengths = dict.fromkeys(of, 0.0), dict.fromkeys(of, 0), {}
    largest = 0.0
    while now < end:
        for who, (tenant, queue, sizes, models) in of.items():
            while waiting[who] < sum(nodes.values()) * 10:
                number, length = number + 1, hours(rng) * hour
                words = (f"queue={queue}", *([f"s={int(length) + 1}"] if declared else ()))
                asks = f"{rng.choice(sizes)} {models}"
                asked = job(f"{who}-{number}", tenant, asks, *words, at=now + number / 1e6)
                lengths[asked.id] = length
                facts.append(d.JobSubmitted(asked))
                waiting[who] += asked.gpu_milli // MILLI
        for start in run_cycle(state, facts, now).started:
            who, over = start.job_id.split("-")[0], now + lengths.pop(start.job_id)
            gpus = state.jobs[start.job_id].job.gpu_milli // MILLI
            waiting[who] -= gpus
            if who in queues:
                largest = max(largest, gpus * (over - now) / (24 * hour))
            got[who] += gpus * max(0.0, min(over, end) - max(now, begin)) / (end - begin)
            heapq.heappush(ends, (over, start.job_id))
        facts = []
        now += 600.0
        while ends and ends[0][0] <= now:
            facts.append(d.JobEnded(heapq.heappop(ends)[1]))
    for_weight = sum(got[name] for name in queues) / sum(w for w, _, _ in queues.values())
    parts = {name: for_weight * w for name, (w, _, _) in queues.items()}
    off = {name: (got[name] / part - 1, got[name] - part) for name, part in parts.items()}
    return off, largest


def test_a_queue_that_waited_for_room_is_owed_no_more_than_some_parts():
    """However long a queue could not start, it shuts others out for no longer than that; and a
    queue without waiting jobs is owed nothing."""
    queues = Queues()
    queues.replace(d.QueuesChanged((QueueSpec("a"), QueueSpec("a", "x"))))
    runs = job("runs", "a", "1x10 H100")
    queues.change(runs, "H100", 10 * MILLI)
    both = {("a", "default"): 1, ("a", "x"): 1}
    one = job("one", "a", "1x1 H100", "queue=x")
    for at in range(100):
        queues.pass_time(at * HOUR, both)
    assert queues.standing(one)[1] == pytest.approx(-4 * 5 + 0.5)
    queues.pass_time(100 * HOUR, {("a", "default"): 1})
    queues.pass_time(100 * HOUR + 1, both)
    assert queues.standing(one)[1] == pytest.approx(0.5, abs=1e-2)


def test_what_one_large_job_had_too_much_is_repaid_to_its_end():
    """The debt is repaid in full, whatever multiple of the queue's share the job was, and even if
    the queue has started nothing for long."""
    queues = Queues()
    queues.replace(d.QueuesChanged((QueueSpec("a"), QueueSpec("a", "x", weight=9.0))))
    both = {("a", "default"): 1, ("a", "x"): 1}
    gang, small = job("gang", "a", "1x100 H100"), job("small", "a", "1x1 H100", "queue=x")
    queues.pass_time(0.0, both)
    queues.change(gang, "H100", 100 * MILLI)
    queues.pass_time(HOUR, both)
    assert owed(queues) == pytest.approx({"default": -90.0, "x": 90.0})
    assert queues.wait_for(small) == {"default"}
    queues.change(gang, "H100", -100 * MILLI)
    queues.change(small, "H100", 100 * MILLI)
    for at in range(2, 8):
        queues.pass_time(at * HOUR, both)
        assert queues.wait_for(gang) == set()
    assert -30.0 < owed(queues)["default"] < -10.0
    for at in range(8, 11):
        queues.pass_time(at * HOUR, both)
    assert queues.wait_for(gang) == {"x"}


def test_nobody_owes_what_nobody_is_owed():
    """A queue whose creditor has no jobs left counts as one that owes nothing."""
    queues = Queues()
    queues.replace(d.QueuesChanged((QueueSpec("a"), QueueSpec("a", "x"), QueueSpec("a", "y"))))
    queues.pass_time(0.0, {})
    queues.change(job("runs", "a", "1x10 H100"), "H100", 10 * MILLI)
    queues.pass_time(HOUR, {("a", "default"): 1, ("a", "x"): 1})
    assert owed(queues) == pytest.approx({"default": -5.0, "x": 5.0})
    queues.change(job("runs", "a", "1x10 H100"), "H100", -10 * MILLI)
    queues.pass_time(HOUR + 60, {("a", "default"): 1, ("a", "y"): 1})
    assert owed(queues) == {}


def owed(queues):
    """Return the GPUs owed, by queue of the only tenant."""
    return {queue: gpus for _, queue, gpus in queues.debts()}
