"""Fairness between tenants and between their users starts what the naive reference starts."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import Policy, QueueingPolicy, Quota, Tenant
from tests.engine.reference_order import Queue
from tests.engine.scenario import job, node

CAPACITY = {"H100": 8, "L4": 4}
WEIGHTS = {"a": 1.0, "b": 2.0}
QUEUEING = (QueueingPolicy.STRICT_FIFO, QueueingPolicy.BEST_EFFORT_FIFO)


@pytest.mark.parametrize("seed", range(24))
def test_jobs_start_in_the_order_of_the_naive_reference(seed: int) -> None:
    rng = random.Random(seed)
    half_life = rng.choice((0.0, 60.0, 600.0))
    policy = Policy(QUEUEING[seed % 2], fair_share=True, usage_half_life_s=half_life)
    naive, state = Queue(CAPACITY, WEIGHTS, policy), SchedulerState(policy=policy)
    quotas = tuple(Quota(t, model, 64_000) for t in WEIGHTS for model in CAPACITY)
    facts: list[d.Delta] = [
        d.TenantsChanged(tuple(Tenant(t, weight=w) for t, w in WEIGHTS.items()), quotas),
        *(d.NodeChanged(node(model, gpus, model)) for model, gpus in CAPACITY.items()),
    ]
    now, alive, seen = 0.0, list[str](), Counter[bool]()
    for number in range(160):
        now += rng.choice((1, 3, 10, 40))
        if number % 40 == 0:
            policy = replace(policy, fair_users=rng.random() < 0.8)
            if policy.fair_users and not naive.policy.fair_users:
                naive.users_since = now
            naive.policy = policy
            facts.append(d.PolicyChanged(policy))
        for part in range(rng.choice((0, 1, 1, 4))):
            model = rng.choice(sorted(CAPACITY))
            tenant, words = rng.choice("ab"), [f"user={rng.choice(('', 'x', 'x', 'x', 'y', 'z'))}"]
            words += [f"p{rng.choice((0, 0, 0, 1))}"]
            asked = f"1x{rng.randint(1, 4)} {model}"
            request = job(f"j{number}-{part}", tenant, asked, *words, at=now)
            naive.waiting.append(request)
            facts.append(d.JobSubmitted(request))
            alive.append(request.id)
        for name in rng.sample(alive, min(len(alive), rng.choice((0, 1, 2)))):
            alive.remove(name)
            naive.end(name, now)
            facts.append(d.JobEnded(name))
        expected = naive.cycle(now) if facts else []  # time alone decides nothing
        result = run_cycle(state, facts, now)
        facts = []
        assert [start.job_id for start in result.started] == expected, f"step {number}"
        seen[policy.fair_users] += len(expected)
    assert seen[True]


def test_thirty_jobs_of_a_colleague_are_passed_by_the_first_of_another_user() -> None:
    policy = Policy(QueueingPolicy.STRICT_FIFO, fair_share=True, fair_users=True)
    state = SchedulerState(policy=policy)
    many = [job(f"many{i:02}", "a", "1x1 H100", "user=x", at=float(i)) for i in range(38)]
    run_cycle(
        state,
        [
            d.NodeChanged(node("n0", 8)),
            d.TenantsChanged((Tenant("a"),), (Quota("a", "H100", 64_000),)),
            *map(d.JobSubmitted, many),
        ],
        100.0,
    )
    one = job("one", "a", "1x1 H100", "user=y", at=101.0)
    assert not run_cycle(state, [d.JobSubmitted(one)], 101.0).started
    result = run_cycle(state, [d.JobEnded("many00")], 102.0)
    assert [start.job_id for start in result.started] == ["one"]


def test_an_account_that_is_deleted_does_not_change_as_whose_its_jobs_count() -> None:
    policy = Policy(fair_share=True, fair_users=True)
    state = SchedulerState(policy=policy)
    asked = job("j", "a", "2x4 H100", "pods", "user=x")
    run_cycle(
        state,
        [
            d.NodeChanged(node("n0", 4)),
            d.TenantsChanged((Tenant("a"),), (Quota("a", "H100", 64_000),)),
            d.JobSubmitted(asked),
        ],
        0.0,
    )
    run_cycle(state, [d.JobSubmitted(replace(asked, user=""))], 1.0)
    assert state.usage.users is not None
    assert state.usage.users.now == {(("a", "x"), "H100"): 4000}
    run_cycle(state, [d.JobEnded("j")], 2.0)
    assert state.usage.users.now == {}
