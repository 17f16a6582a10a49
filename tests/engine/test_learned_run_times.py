"""Reservations for heads rely on learned run times for jobs that declare none."""

from dataclasses import replace

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.deltas import LearnedTime
from scheduling.engine.types import (
    Device,
    JobRequest,
    Node,
    PodSetSpec,
    Policy,
    QueueingPolicy,
    QuotaSpec,
    TenantSpec,
)

BACKFILL = Policy(QueueingPolicy.BACKFILL, backfill_after_s=600)
LIKELY = LearnedTime(100.0, (60.0, 90.0, 200.0))
LONG = LearnedTime(10_000.0, (5_000.0,))


def job(name, gpus=4, **more):
    """Return a job with this many GPUs; the first digit of its name is its place in the queue."""
    pods, each = max(1, gpus // 8), min(gpus, 8)
    return JobRequest(
        name, "a", float(name[0]), (PodSetSpec("main", pods, each, ("H100",)),), **more
    )


class Cluster:
    """Two nodes of 8 GPUs."""

    def __init__(self, policy=BACKFILL):
        self.state = SchedulerState(policy=policy)
        self.nodes = ("n0", "n1")
        facts = [
            d.NodeChanged(Node(n, "H100", tuple(map(Device, range(8))), topology=("", "", "")))
            for n in self.nodes
        ]
        quota = QuotaSpec("a", "H100", 10**6)
        self.tell(0.0, d.TenantsChanged((TenantSpec("a"),), (quota,)), *facts)

    def tell(self, at, *deltas):
        """Return the jobs that start, and the last start that each head was told."""
        result = run_cycle(self.state, deltas, at)
        told = {r.job_id: r.start_at for r in result.reservations}
        return {s.job_id for s in result.started}, told

    def submit(self, at, *jobs, likely=LIKELY):
        learned = d.RunTimesLearned(tuple((j.id, likely) for j in jobs))
        return self.tell(at, *map(d.JobSubmitted, jobs), learned)


def blocked(policy=BACKFILL, **more):
    """One job has run on 8 GPUs since 0; the head has needed all 16 since 10."""
    cluster = Cluster(policy)
    cluster.submit(0.0, job("0-runs", 8, **more))
    _, told = cluster.submit(10.0, job("1-head", 16))
    return cluster, told


def test_a_head_is_told_the_middle_of_what_runs_and_only_who_is_mostly_over_passes():
    cluster, told = blocked()
    assert told == {"1-head": 60.0}
    short = LearnedTime(40.0, (20.0,))
    started, _ = cluster.submit(20.0, job("2-likely-over"), likely=short)
    assert started == {"2-likely-over"}
    half = LearnedTime(41.0, (20.0,))  # half of them end in time, most do not
    started, _ = cluster.submit(20.0, job("3-too-long"), likely=half)
    assert started == set()


def test_who_outlives_what_was_likely_is_corrected_and_the_head_told_anew():
    cluster, _ = blocked()
    assert cluster.tell(59.0) == (set(), {})
    assert cluster.tell(60.0) == (set(), {"1-head": 90.0})
    assert cluster.tell(95.0) == (set(), {"1-head": 200.0})
    assert cluster.tell(200.0) == (set(), {"1-head": 400.0})  # no run lasted that long
    started, _ = cluster.tell(210.0, d.JobEnded("0-runs"))
    assert started == {"1-head"}


def test_the_engine_wakes_by_itself_when_a_run_time_is_outlived():
    cluster, _ = blocked()
    assert run_cycle(cluster.state, (), 20.0).next_at == 60.0


def test_what_is_declared_goes_before_what_was_learned():
    _, told = blocked(declared_s=500.0)
    assert told == {"1-head": 500.0}


def test_what_is_learned_later_moves_the_start_and_what_waits_goes_by_it():
    cluster, _ = blocked()
    cluster.tell(20.0, d.JobSubmitted(replace(job("2-waits"), submitted_at=70.0)))
    later = d.RunTimesLearned((("0-runs", LearnedTime(90.0, (80.0,))),))
    assert cluster.tell(30.0, later) == (set(), {"1-head": 80.0})
    now_known = d.RunTimesLearned((("2-waits", LearnedTime(45.0, (5.0,))),))
    assert cluster.tell(31.0, now_known)[0] == {"2-waits"}


def test_a_job_that_comes_back_waits_as_one_that_never_ran():
    cluster, _ = blocked()
    cluster.tell(70.0)
    cluster.tell(75.0, d.JobRequeued("0-runs", 1000.0))
    assert cluster.state.jobs["0-runs"].planned_s == LIKELY.most_s


def test_a_restored_job_goes_by_its_age():
    cluster, _ = blocked()
    restored = Cluster()
    places = cluster.state.cluster.placements_of("0-runs")
    again = [
        d.JobRestored(job("0-runs", 8), places, 0.0),
        d.JobSubmitted(job("1-head", 16)),
        d.RunTimesLearned((("0-runs", LIKELY), ("1-head", LIKELY))),
    ]
    assert restored.tell(70.0, *again) == (set(), {"1-head": 90.0})


@pytest.mark.parametrize(
    "policy",
    [
        replace(BACKFILL, learned_run_times=False),
        Policy(QueueingPolicy.BEST_EFFORT_FIFO),
        Policy(QueueingPolicy.STRICT_FIFO),
    ],
)
def test_a_policy_that_does_not_plan_by_them_is_as_if_nothing_was_learned(policy):
    cluster, told = blocked(policy)
    assert told == {}
    assert all(record.planned_s is None for record in cluster.state.jobs.values())
    switched = d.PolicyChanged(BACKFILL)
    assert cluster.tell(20.0, switched) == (set(), {"1-head": 60.0})
    _, told = cluster.tell(30.0, d.PolicyChanged(policy))
    assert told in ({"1-head": None}, {})
    assert all(record.planned_s is None for record in cluster.state.jobs.values())


def test_pods_that_come_and_go_one_by_one_are_not_planned():
    cluster = Cluster()
    cluster.submit(0.0, job("0-service", 8, gang=False))
    assert cluster.state.jobs["0-service"].planned_s is None


def crowded(policy=BACKFILL, **more):
    """12 of 16 GPUs have been in use since 0; the head has needed one whole node since 10."""
    cluster = Cluster(policy)
    cluster.submit(0.0, job("0-b", 8), job("0-a", 4))
    _, told = cluster.submit(10.0, job("1-head", 8, **more))
    return cluster, told


def test_nodes_are_kept_for_who_needs_several_and_not_for_who_fits_on_one():
    cluster, told = crowded()
    assert told == {}
    assert cluster.submit(20.0, job("2-fits", 4), likely=LONG) == ({"2-fits"}, {})
    cluster.submit(30.0, job("3-wide", 16))
    assert set(cluster.state.reserving) == {"3-wide"}


def test_who_fits_on_one_node_is_kept_one_once_it_starves():
    cluster, _ = crowded()
    starves = 1.0 + 2 * LIKELY.most_s  # two jobs of its size fit into the pool
    assert run_cycle(cluster.state, (), 200.5).next_at == starves
    assert cluster.tell(starves - 0.1)[1] == {}
    _, told = cluster.tell(starves)
    assert set(told) == {"1-head"}
    assert told["1-head"] > starves
    assert cluster.submit(starves + 1, job("2-fits", 4), likely=LONG)[0] == set()


def test_when_a_job_starves_goes_by_what_is_learned_later():
    cluster, _ = crowded()
    longer = LearnedTime(400.0, (60.0, 90.0, 200.0))
    cluster.tell(20.0, d.RunTimesLearned((("1-head", longer),)))
    assert cluster.tell(202.0)[1] == {}
    assert set(cluster.tell(801.0)[1]) == {"1-head"}


@pytest.mark.parametrize("declared_s", [5.0, 5_000.0])
def test_a_head_that_declares_its_run_time_is_kept_a_node_at_once(declared_s):
    _, told = crowded(declared_s=declared_s)
    assert set(told) == {"1-head"}


def test_a_head_of_which_nothing_was_learned_is_kept_a_node_at_once():
    cluster = Cluster()
    cluster.submit(0.0, job("0-b", 8), job("0-a", 4))
    assert set(cluster.tell(10.0, d.JobSubmitted(job("1-head", 8)))[1]) == {"1-head"}
