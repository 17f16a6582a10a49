"""Fairness between tenants and between their users starts what the naive reference starts."""

import math
import random
from collections import Counter
from dataclasses import replace

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.queue.fair_share import Shares
from scheduling.engine.types import Policy, QueueingPolicy, QuotaSpec, TenantSpec
from tests.cases import seeds
from tests.engine.reference_order import Queue
from tests.engine.scenario import job, node

CAPACITY = {"H100": 8, "L4": 4}
USERS = ("", "x", "x", "x", "y", "z")
QUEUEING = (QueueingPolicy.STRICT_FIFO, QueueingPolicy.BEST_EFFORT_FIFO)


TREES: tuple[tuple[dict[str, str], dict[str, float]], ...] = (
    ({}, {"a": 1.0, "b": 2.0}),
    ({"a": "dept", "b": "dept"}, {"a": 1.0, "b": 3.0, "c": 1.0, "dept": 2.0}),
    (
        {"a": "team", "b": "team", "team": "dept", "c": "dept"},
        {"a": 0.5, "b": 1.0, "c": 3.0, "team": 2.0, "dept": 1.0, "d": 1.5},
    ),
)


@pytest.mark.parametrize("seed", seeds(36, usual=12))
def test_jobs_start_in_the_order_of_the_naive_reference(seed: int) -> None:
    """The trees have depth 1 to 3 and weights at each level; departments have jobs of their own."""
    rng = random.Random(seed)
    half_life = rng.choice((0.0, 60.0, 600.0))
    parents, weights = TREES[seed // 2 % 3]
    policy = Policy(QUEUEING[seed % 2], fair_share=True, usage_half_life_s=half_life)
    naive, state = Queue(CAPACITY, weights, policy, parents), SchedulerState(policy=policy)
    quotas = tuple(QuotaSpec(t, model, 64_000) for t in weights for model in CAPACITY)
    tree = tuple(TenantSpec(t, parents.get(t), weight=w) for t, w in weights.items())
    facts: list[d.Delta] = [
        d.TenantsChanged(tree, quotas),
        *(d.NodeChanged(node(model, gpus, model)) for model, gpus in CAPACITY.items()),
    ]
    wakes_at = math.inf
    now, alive, seen = 0.0, list[str](), Counter[bool]()
    for number in range(100):
        now += rng.choice((1, 3, 10, 40))
        if number % 25 == 0:
            policy = replace(policy, fair_users=rng.random() < 0.8)
            if policy.fair_users and not naive.policy.fair_users:
                naive.users_since = now
            naive.policy = policy
            naive.turns.clear()
            facts.append(d.PolicyChanged(policy))
        for part in range(rng.choice((0, 1, 1, 4))):
            model = rng.choice(sorted(CAPACITY))
            tenant, words = (
                rng.choice(sorted(weights)),
                [f"user={rng.choice(USERS)}"],
            )
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
        # Time alone decides nothing, except that nodes which have not emptied are chosen anew.
        expected = naive.cycle(now) if facts or wakes_at <= now else []
        result = run_cycle(state, facts, now)
        wakes_at = math.inf if result.next_at is None else result.next_at
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
            d.TenantsChanged((TenantSpec("a"),), (QuotaSpec("a", "H100", 64_000),)),
            *map(d.JobSubmitted, many),
        ],
        100.0,
    )
    one = job("one", "a", "1x1 H100", "user=y", at=101.0)
    assert not run_cycle(state, [d.JobSubmitted(one)], 101.0).started
    result = run_cycle(state, [d.JobEnded("many00")], 102.0)
    assert [start.job_id for start in result.started] == ["one"]


def test_what_is_held_in_other_scopes_counts_in_all_of_the_cluster() -> None:
    state = SchedulerState(policy=Policy(fair_share=True))
    asked = job("j", "a", "1x4 H100", "user=x")
    there = d.OtherScopesChanged((("a", "x", "H100", 4000), ("a", "y", "L4", 7000)), (("L4", 8),))
    facts: list[d.Delta] = [
        d.NodeChanged(node("n0", 16)),
        d.TenantsChanged((TenantSpec("a"),), (QuotaSpec("a", "H100", 64_000),)),
        d.JobSubmitted(asked),
        there,
    ]
    run_cycle(state, facts, 0.0)
    assert state.shares() == Shares({"a": 7 / 8})
    # Users without a known past are now known by what they hold here, too.
    run_cycle(state, [d.PolicyChanged(replace(state.policy, fair_users=True))], 1.0)
    assert state.shares().users == {("a", "x"): 8 / 16, ("a", "y"): 7 / 8}
    run_cycle(state, [d.OtherScopesChanged((("a", "x", "L4", 2000),), (("L4", 8),))], 2.0)
    assert state.shares() == Shares({"a": 1 / 4}, {("a", "x"): 1 / 4})
    run_cycle(state, [d.OtherScopesChanged(), d.JobEnded("j")], 3.0)
    assert state.shares() == Shares({}, {})


@pytest.mark.parametrize("fair_users", [False, True])
def test_what_was_held_can_be_told_to_another_state(fair_users: bool) -> None:
    policy = Policy(fair_share=True, fair_users=fair_users, usage_half_life_s=100.0)
    states = [SchedulerState(policy=policy), SchedulerState(policy=policy)]
    facts: list[d.Delta] = [
        d.NodeChanged(node("n0", 16)),
        d.TenantsChanged((TenantSpec("a"), TenantSpec("b")), (QuotaSpec("a", "H100", 64_000),)),
    ]
    past = (("a", "", "H100", 8000.0), ("a", "x", "H100", 4000.0), ("b", "x", "H100", 2000.0))
    run_cycle(states[0], [*facts, d.PastUse(past)], 0.0)
    assert states[0].shares().tenants == {"a": 12 / 16, "b": 2 / 16}
    run_cycle(states[0], [], 100.0)
    run_cycle(states[1], [*facts, d.PastUse(states[0].usage.past)], 100.0)
    users = {("a", ""): 4 / 16, ("a", "x"): 2 / 16, ("b", "x"): 1 / 16} if fair_users else None
    assert states[0].shares() == states[1].shares() == Shares({"a": 6 / 16, "b": 1 / 16}, users)


def test_an_account_that_is_deleted_does_not_change_as_whose_its_jobs_count() -> None:
    policy = Policy(fair_share=True, fair_users=True)
    state = SchedulerState(policy=policy)
    asked = job("j", "a", "2x4 H100", "pods", "user=x")
    run_cycle(
        state,
        [
            d.NodeChanged(node("n0", 4)),
            d.TenantsChanged((TenantSpec("a"),), (QuotaSpec("a", "H100", 64_000),)),
            d.JobSubmitted(asked),
        ],
        0.0,
    )
    run_cycle(state, [d.JobSubmitted(replace(asked, user=""))], 1.0)
    assert state.usage.users is not None
    assert state.usage.users.now == {(("a", "x"), "H100"): 4000}
    run_cycle(state, [d.JobEnded("j")], 2.0)
    assert state.usage.users.now == {}
