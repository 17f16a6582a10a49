"""Tenants that always have waiting jobs hold GPUs by their weights: to within one job after a cycle
from empty, and over a day of random run times."""

import heapq
import random

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import Policy, QueueingPolicy, QuotaSpec, Sharing, TenantSpec
from tests.cases import seeds
from tests.engine.scenario import job, node

HOUR = 3600.0
MODES = (Sharing.SHARED, Sharing.ISOLATED)


def random_tree(rng):
    """Return tenants up to depth 3 with weights at each level; tenants with children submit no
    jobs."""
    tree = [
        TenantSpec(f"t{i}", weight=rng.choice((0.5, 1, 1, 2, 3))) for i in range(rng.randint(2, 4))
    ]
    for depth in range(2):
        parents = [t for t in tree if len(t.id) == 2 + depth and rng.random() < 0.5]
        for parent in parents:
            tree += [
                TenantSpec(f"{parent.id}{i}", parent.id, rng.choice((0.5, 1, 2, 3)))
                for i in range(rng.randint(1, 3))
            ]
    return tuple(tree)


def held_by(state, capacity):
    """Return, for each tenant with its subtree, its part of all GPUs divided by its weight."""
    tenants, held = state.book.tenants, dict.fromkeys(state.book.tenants, 0)
    for (name, _), milli in state.usage.tenants.now.items():
        for above in state.book.lineage(name):
            held[above] += milli / 1000
    return {name: gpus / capacity / tenants[name].weight for name, gpus in held.items()}


@pytest.mark.parametrize("seed", seeds(40))
def test_after_a_cycle_from_empty_nobody_is_ahead_by_more_than_a_job(seed):
    rng = random.Random(seed)
    tree, nodes, size = random_tree(rng), rng.randint(2, 12), rng.choice((1, 1, 2, 4))
    parents = {t.parent for t in tree}
    leaves = [t for t in tree if t.id not in parents]
    mode = rng.choice(MODES)
    policy = Policy(
        rng.choice(list(QueueingPolicy)),
        fair_share=True,
        fair_users=rng.random() < 0.3,
        usage_half_life_s=rng.choice((0.0, HOUR)),
    )
    state = SchedulerState(policy=policy)
    words = ["array=a"] if rng.random() < 0.3 else []
    facts = [
        d.TenantsChanged(tree, tuple(QuotaSpec(t.id, "H100", 10**6, mode) for t in tree)),
        *(d.NodeChanged(node(f"n{i}", 8)) for i in range(nodes)),
        *(
            d.JobSubmitted(job(f"{t.id}-{i:03}", t.id, f"1x{size} H100", *words, at=float(at)))
            for at, t in enumerate(leaves)
            for i in range(nodes * 8 // size)
        ),
    ]
    result = run_cycle(state, facts, 100.0)
    assert len(result.started) == nodes * 8 // size
    held, weights = held_by(state, nodes * 8), {t.id: t.weight for t in tree}
    for one in tree:
        for other in tree:
            if one.parent == other.parent:
                a_job = size / (nodes * 8) / weights[one.id]
                assert held[one.id] <= held[other.id] + a_job + 1e-9


def day(tenants, sizes, nodes, policy, mean_s=HOUR, seed=0, hours=48.0, users=None):
    """Return (GPU-hours by tenant, or by user of `users`, in the second half; the part of all GPUs
    in use). Each of them always has two jobs waiting."""
    rng, state = random.Random(seed), SchedulerState(policy=policy)
    facts = [
        d.TenantsChanged(tenants, tuple(QuotaSpec(t.id, "H100", 10**6) for t in tenants)),
        *(d.NodeChanged(node(f"n{i}", 8)) for i in range(nodes)),
    ]
    number, now, ends, running = 0, 0.0, [], {}
    got, waiting = dict.fromkeys(sizes, 0.0), dict.fromkeys(sizes, 0)
    while now < hours * HOUR:
        for who, size in sizes.items():
            while waiting[who] < 64 // size:
                tenant = who if users is None else users[who]
                words = [] if users is None else [f"user={who}"]
                name, number = f"{who}-{number}", number + 1
                asked = job(name, tenant, f"1x{size} H100", *words, at=now + number / 1e6)
                facts.append(d.JobSubmitted(asked))
                waiting[who] += 1
        result = run_cycle(state, facts, now)
        for start in result.started:
            who = start.job_id.rsplit("-", 1)[0]
            waiting[who] -= 1
            running[start.job_id] = (who, now)
            heapq.heappush(ends, (now + rng.expovariate(1 / mean_s), start.job_id))
        later, ended = heapq.heappop(ends)
        if result.next_at is not None and result.next_at < later:
            heapq.heappush(ends, (later, ended))
            now, facts = max(result.next_at, now + 1), []
            continue
        now, facts = later, [d.JobEnded(ended)]
        who, since = running.pop(ended)
        begin = max(since, hours / 2 * HOUR)
        got[who] += max(0.0, min(now, hours * HOUR) - begin) * sizes[who] / HOUR
    for who, since in running.values():
        got[who] += max(0.0, hours * HOUR - max(since, hours / 2 * HOUR)) * sizes[who] / HOUR
    return got, sum(got.values()) / (nodes * 8 * hours / 2)


TREE = (
    TenantSpec("x", weight=2),
    TenantSpec("a", "x", 1),
    TenantSpec("b", "x", 3),
    TenantSpec("c", weight=1),
)


@pytest.mark.parametrize("queueing", QueueingPolicy)
@pytest.mark.parametrize(
    ("tenants", "parts"),
    [
        (
            (TenantSpec("a", weight=2), TenantSpec("b"), TenantSpec("c")),
            {"a": 0.5, "b": 0.25, "c": 0.25},
        ),
        (TREE, {"a": 1 / 6, "b": 1 / 2, "c": 1 / 3}),
    ],
)
def test_over_a_day_shares_come_out_by_weight(tenants, parts, queueing):
    policy = Policy(queueing, fair_share=True)
    got, used = day(tenants, dict.fromkeys(parts, 1), 3, policy, hours=24.0)
    for who, part in parts.items():
        assert got[who] / sum(got.values()) == pytest.approx(part, abs=0.05)
    assert used > 0.99


@pytest.mark.parametrize(("weight", "part"), [(1, 1 / 2), (3, 3 / 4), (1 / 3, 1 / 4)])
def test_a_tenant_of_large_jobs_gets_its_part_beside_one_of_small_ones(weight, part):
    """Without turns it would get none of the 32 GPUs, because the small jobs take each one that
    frees at once."""
    tenants = (TenantSpec("large", weight=weight), TenantSpec("small"))
    got, used = day(tenants, {"small": 1, "large": 8}, 4, Policy(fair_share=True))
    assert got["large"] / sum(got.values()) == pytest.approx(part, abs=0.05)
    assert used > 0.85


def test_so_does_a_user_inside_a_tenant():
    policy = Policy(fair_share=True, fair_users=True)
    users = {"large": "a", "small": "a"}
    got, _ = day((TenantSpec("a"),), {"small": 1, "large": 8}, 4, policy, users=users)
    assert got["large"] / sum(got.values()) == pytest.approx(0.5, abs=0.05)
