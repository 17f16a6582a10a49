"""Gangs against an exact solver: the fewest leaf groups by integer programming (scipy.milp)."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from scheduling.engine.placement import PlacementFailure
from scheduling.engine.placement.topology import balanced, fewest, tightest
from tests.cases import examples
from tests.engine.fleet import cluster_of, gpu_node, job_of, nodes_of, place, pods


def fewest_groups(capacity, count):
    """Return the optimum: the fewest groups whose capacities add up to at least `count`."""
    size = len(capacity)
    solved = milp(
        np.ones(size),
        constraints=LinearConstraint(np.array([capacity]), count, np.inf),
        bounds=Bounds(0, 1),
        integrality=np.ones(size),
    )
    assert solved.success
    return round(solved.fun)


@settings(max_examples=examples(150))
@given(st.lists(st.integers(0, 8), min_size=1, max_size=10), st.data())
def test_the_plan_uses_no_more_groups_than_the_optimum(capacity, data):
    if not sum(capacity):
        return
    count = data.draw(st.integers(1, sum(capacity)))
    plan = fewest(np.array(capacity), count)
    assert sum(pods for _, pods in plan) == count
    assert all(0 < pods <= capacity[group] for group, pods in plan)
    assert len(plan) == fewest_groups(capacity, count)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=10), st.integers(1, 9))
def test_the_tightest_group_is_the_smallest_that_suffices(capacity, count):
    group = tightest(np.array(capacity), count)
    enough = [pods for pods in capacity if pods >= count]
    assert (capacity[group] == min(enough)) if enough else group == -1


@given(st.lists(st.integers(0, 8), min_size=1, max_size=8), st.integers(0, 40))
def test_balanced_groups_differ_only_where_they_are_full(capacity, count):
    given = dict(balanced(np.array(capacity), count))
    assert sum(given.values()) == min(count, sum(capacity))
    open_groups = [given.get(g, 0) for g in range(len(capacity)) if given.get(g, 0) < capacity[g]]
    assert max(given.values(), default=0) - min(open_groups, default=99) <= 1


@settings(max_examples=examples(60))
@given(data=st.data())
def test_gangs_on_one_level_and_the_gap_on_several(data):
    """In one spine Kant uses as few leaves as possible. With two spines the narrowest level that
    holds the gang comes first, which may take more leaves than the optimum; the test prints the
    gap."""
    spines = data.draw(st.sampled_from((1, 2)))
    idle = data.draw(st.lists(st.integers(0, 4), min_size=2 * spines, max_size=4 * spines))
    if not sum(idle):
        return
    nodes = [
        gpu_node(f"n{leaf}-{i}", leaf=f"l{leaf}", spine=f"s{leaf % spines}", top="t")
        for leaf, count in enumerate(idle)
        for i in range(count)
    ]
    count = data.draw(st.integers(1, sum(idle)))
    state = cluster_of(*nodes)
    found = place(state, job_of("x", pods(count, 8)))
    assert not isinstance(found, PlacementFailure)
    used = len({state.node(name).topology[0] for name in nodes_of(found)})
    optimum = fewest_groups(idle, count)
    if spines == 1:
        assert used == optimum
    elif used > optimum:
        spines_used = {state.node(name).topology[1] for name in nodes_of(found)}
        assert len(spines_used) == 1  # the price of staying under one spine
        print(f"multi-level gap: {used} leaves under one spine, {optimum} under several")
