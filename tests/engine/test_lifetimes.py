"""How long pods stay, and which node a small pod therefore joins."""

import math

import numpy as np
import pytest

from scheduling.engine.cluster.lifetimes import LEFT_FREE_S, growth, mean_left, outlook
from scheduling.engine.deltas import JobEnded, JobRestored, JobSubmitted, NodeChanged
from scheduling.engine.lifecycle.apply_deltas import apply
from scheduling.engine.outcome import Outcome
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import NodeRules, PodPlacement
from tests.engine.fleet import cluster_of, gpu_node, job_of, nodes_of, place, pods

HOUR = 3600.0


def test_what_is_left_grows_with_the_age_and_never_beyond_what_was_declared():
    left = [mean_left(24 * HOUR, age) for age in (0, HOUR, 4 * HOUR, 9 * HOUR)]
    assert left == sorted(left)
    for age in np.linspace(0, 30 * HOUR, 200):
        assert 60 <= mean_left(24 * HOUR, age) <= 24 * HOUR
    assert mean_left(24 * HOUR, 25 * HOUR) == 60.0  # overdue: it may end at any moment
    assert mean_left(None, 10 * HOUR) > mean_left(None, 0.0)


def test_an_outlook_holds_until_an_age_doubles_and_no_longer():
    running = [(0.0, 24 * HOUR), (1_000.0, None), (5_000.0, HOUR)]
    now = 5_030.0
    assert outlook(running, 4 * HOUR)[:2] != outlook(running, 8 * HOUR)[:2]
    for _ in range(20):
        found = outlook(running, now)
        just_before = math.nextafter(found.until, 0.0)
        assert now < found.until
        assert outlook(running, just_before)[:2] == found[:2]
        now = found.until


def test_growth_is_the_integral_of_the_time_that_is_added():
    """Checked against the survival functions: a pod that outlives the last end adds time; while it
    and all others fill the node, it saves time."""
    running = [(0.0, 8 * HOUR), (3 * HOUR, 2 * HOUR)]
    node, mean = outlook(running, 4 * HOUR), 1.5 * HOUR
    t = np.linspace(0, 60 * HOUR, 600_001)
    there = np.exp(-t / mean)
    longer = np.trapezoid(there * (t >= node.last), t)
    filled = np.trapezoid(there * np.exp(-t * node.rate), t)
    assert growth(mean, node, 0) == pytest.approx(longer - filled, abs=1.0)
    assert growth(mean, node, 2) == pytest.approx(longer + 2 * LEFT_FREE_S, abs=1.0)


def running_since(state, name, at, declared_s, gpus, node):
    job = job_of(name, pods(1, gpus, nodes=NodeRules({"at": node})), declared_s=declared_s)
    assert nodes_of(place(state, job)) == [node]
    state.began(name, at, declared_s)


def two_nodes():
    return cluster_of(*(gpu_node(n, leaf="l", labels={"at": n}) for n in ("a", "b")))


def test_a_pod_joins_the_node_that_stays_longer_even_if_another_is_fuller():
    state = two_nodes()
    state.now = 10 * HOUR
    running_since(state, "short", 10 * HOUR, HOUR, 5, "a")
    running_since(state, "long", 0.0, 168 * HOUR, 4, "b")
    job = job_of("new", pods(1, 1), declared_s=24 * HOUR)
    assert nodes_of(place(state, job)) == ["b"]
    assert nodes_of(place(state, job_of("unknown", pods(1, 1)))) == ["a"]  # the fullest node


def test_a_pod_fills_a_node_if_that_lasts():
    state = two_nodes()
    state.now = 10 * HOUR
    running_since(state, "old", 0.0, 168 * HOUR, 4, "a")
    running_since(state, "as old", 0.0, 168 * HOUR, 7, "b")
    assert nodes_of(place(state, job_of("new", pods(1, 1), declared_s=HOUR))) == ["b"]


def test_an_idle_node_is_opened_last():
    state = two_nodes()
    running_since(state, "short", 0.0, 60.0, 1, "b")
    job = job_of("new", pods(1, 4), declared_s=168 * HOUR)
    assert nodes_of(place(state, job)) == ["b"]


def test_the_times_of_a_job_follow_its_life():
    state, out = SchedulerState(), Outcome(0.0, 0.0)
    job = job_of("j", pods(1, 1), declared_s=HOUR)
    apply(state, NodeChanged(gpu_node("a")), out)
    apply(state, JobRestored(job, (PodPlacement(0, 0, "a", (0,), 1000),), 5.0), out)
    assert state.cluster.times == {"j": (5.0, HOUR)}
    before = state.cluster.outlook(state.cluster.slot_of["a"])
    apply(state, JobSubmitted(job_of("j", pods(1, 1), declared_s=48 * HOUR)), out)
    assert state.cluster.times == {"j": (5.0, 48 * HOUR)}
    assert state.cluster.outlook(state.cluster.slot_of["a"]).last > before.last
    apply(state, JobEnded("j"), out)
    assert state.cluster.times == {}
