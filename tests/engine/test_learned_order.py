"""The queue order by learned run times: short jobs go first, but no job is put off for ever."""

import random
from dataclasses import replace

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import run_cycle
from scheduling.engine.deltas import LearnedTime
from scheduling.engine.queue.order import LATER, LATER_FOR_SEVERAL, order_key, stands_at
from scheduling.engine.types import Policy, QueueingPolicy, QueueSpec
from tests.cases import seeds
from tests.engine.test_learned_run_times import BACKFILL, Cluster, job

SHORT, MIDDLE, LONG = (LearnedTime(2.0 * s, (s, 2.0 * s)) for s in (10.0, 60.0, 3600.0))


def full(policy=BACKFILL):
    """A cluster with nothing free."""
    cluster = Cluster(policy)
    cluster.submit(0.0, job("0-runs", 16))
    return cluster


def order(cluster):
    return cluster.state.order_now(100)


def told(cluster, at, *deltas):
    """Return the places of jobs in the queue, as far as they changed."""
    return {s.job_id: s.at for s in run_cycle(cluster.state, deltas, at).stand_at}


def learned(likely, *names):
    return d.RunTimesLearned(tuple((name, likely) for name in names))


def test_short_jobs_stand_before_long_ones_and_it_is_told_where():
    cluster = full()
    jobs = [job("1-long"), job("2-middle"), job("3-short")]
    likely = dict(zip([j.id for j in jobs], (LONG, MIDDLE, SHORT), strict=True))
    found = told(
        cluster, 10.0, *map(d.JobSubmitted, jobs), d.RunTimesLearned(tuple(likely.items()))
    )
    assert found == {j.id: j.submitted_at + LATER * likely[j.id].middles[0] for j in jobs}
    assert order(cluster) == ["3-short", "2-middle", "1-long"]


def test_who_needs_several_nodes_stands_later_by_less_of_its_run_time():
    cluster = full()
    found = told(
        cluster, 10.0, d.JobSubmitted(job("1-node", 8)), d.JobSubmitted(job("2-nodes", 16)),
        learned(MIDDLE, "1-node", "2-nodes"),
    )  # fmt: skip
    assert found == {"1-node": 1 + LATER * 60, "2-nodes": 2 + LATER_FOR_SEVERAL * 60}


def test_a_place_stays_whatever_is_learned_later():
    cluster = full()
    told(cluster, 10.0, *map(d.JobSubmitted, (job("1-a"), job("2-b"))))
    assert order(cluster) == ["1-a", "2-b"]  # nothing is learned about them yet
    assert told(cluster, 11.0, learned(MIDDLE, "1-a")) == {"1-a": 1 + LATER * 60}
    assert order(cluster) == ["2-b", "1-a"]
    assert told(cluster, 12.0, learned(SHORT, "1-a")) == {}
    assert order(cluster) == ["2-b", "1-a"]
    cluster.submit(13.0, replace(job("1-a"), priority=1), likely=SHORT)
    assert cluster.state.jobs["1-a"].key.stands_at == 1 + LATER * 60


def test_it_stays_when_a_job_that_ran_comes_back():
    cluster = Cluster()
    assert told(cluster, 0.0, d.JobSubmitted(job("0-a")), learned(MIDDLE, "0-a")) == {
        "0-a": LATER * 60
    }
    told(cluster, 5.0, d.JobRequeued("0-a", 1000.0))
    assert cluster.state.jobs["0-a"].key.stands_at == LATER * 60


def test_who_declares_a_run_time_stands_by_its_submission():
    cluster = full()
    told(cluster, 10.0, *map(d.JobSubmitted, (job("1-a"), job("2-b"))), learned(LONG, "1-a", "2-b"))
    cluster.tell(11.0, d.JobSubmitted(job("3-declares", declared_s=1e6)))
    assert order(cluster) == ["3-declares", "1-a", "2-b"]
    cluster.tell(12.0, d.JobChanged(job("2-b", declared_s=1e6)))
    assert order(cluster) == ["2-b", "3-declares", "1-a"]


@pytest.mark.parametrize(
    "policy",
    [
        replace(BACKFILL, learned_run_times=False),
        Policy(QueueingPolicy.BEST_EFFORT_FIFO),
        Policy(QueueingPolicy.STRICT_FIFO),
    ],
)
def test_elsewhere_jobs_stand_by_submission_also_once_the_policy_changes(policy):
    jobs = (job("1-a"), job("2-b"))
    news = [*map(d.JobSubmitted, jobs), d.RunTimesLearned((("1-a", LONG), ("2-b", SHORT)))]
    assert told(full(policy), 10.0, *news) == {}
    cluster = full()
    told(cluster, 10.0, *news)
    assert order(cluster) == ["2-b", "1-a"]
    back = told(cluster, 11.0, d.PolicyChanged(policy))
    assert back == {"0-runs": None, "1-a": None, "2-b": None}
    assert order(cluster) == ["1-a", "2-b"]
    assert told(cluster, 12.0, d.PolicyChanged(BACKFILL)).keys() == {"1-a", "2-b"}
    assert order(cluster) == ["2-b", "1-a"]


def test_a_state_that_begins_anew_has_the_same_order():
    cluster = full()
    jobs = (job("1-a"), job("2-b"))
    news = d.RunTimesLearned((("1-a", LONG), ("2-b", SHORT)))
    at = told(cluster, 10.0, *map(d.JobSubmitted, jobs), news)
    anew = full()
    before = [d.JobHistory(name, stands_at=at[name]) for name in at]
    other = d.RunTimesLearned((("1-a", SHORT), ("2-b", LONG)))  # what it would be told by now
    assert told(anew, 10.0, *map(d.JobSubmitted, jobs), *before, other) == {}
    assert order(anew) == order(cluster) == ["2-b", "1-a"]


def test_a_place_from_before_the_policy_changed_is_told_to_be_none():
    cluster = full(replace(BACKFILL, learned_run_times=False))
    found = told(cluster, 10.0, d.JobSubmitted(job("1-a")), d.JobHistory("1-a", stands_at=1e6))
    assert found == {"1-a": None}
    assert cluster.state.jobs["1-a"].key.stands_at == 1.0


def test_who_is_in_a_held_queue_keeps_what_was_learned_of_it_meanwhile():
    cluster = full()
    jobs = (job("1-a"), job("2-b"))
    cluster.tell(10.0, *map(d.JobSubmitted, jobs))
    cluster.tell(11.0, d.QueuesChanged((QueueSpec("a", "default", held=True),)))
    cluster.tell(12.0, d.RunTimesLearned((("1-a", LONG), ("2-b", SHORT))))
    cluster.tell(13.0, d.QueuesChanged((QueueSpec("a", "default"),)))
    assert order(cluster) == ["2-b", "1-a"]


def test_in_a_queue_that_is_to_be_in_order_jobs_stand_by_submission():
    cluster = full()
    jobs = (job("1-a"), job("2-b"))
    in_order = d.QueuesChanged((QueueSpec("a", "default", fifo=True),))
    news = d.RunTimesLearned((("1-a", LONG), ("2-b", SHORT)))
    cluster.tell(9.0, in_order)
    assert told(cluster, 10.0, *map(d.JobSubmitted, jobs), news) == {}
    assert order(cluster) == ["1-a", "2-b"]
    as_any = d.QueuesChanged((QueueSpec("a", "default"),))
    assert told(cluster, 11.0, as_any).keys() == {"1-a", "2-b"}
    assert order(cluster) == ["2-b", "1-a"]
    back = told(cluster, 12.0, in_order)
    assert (back["1-a"], back["2-b"]) == (None, None)
    assert order(cluster) == ["1-a", "2-b"]
    before = d.JobHistory("1-a", stands_at=1e6)
    assert told(cluster, 13.0, before) == {"1-a": None}


@pytest.mark.parametrize("seed", seeds(6))
def test_nobody_is_passed_by_who_came_later_than_some_of_its_run_times(seed):
    rng = random.Random(seed)
    jobs = [
        replace(job(f"{n}-x"), id=f"j{n}", submitted_at=rng.uniform(0, 1e4), priority=0)
        for n in range(200)
    ]
    likely = {j.id: rng.choice((1.0, 60.0, 1e3, 1e4)) for j in jobs}
    several = {j.id: rng.random() < 0.3 for j in jobs}
    at = {j.id: stands_at(j, likely[j.id], needs_several=several[j.id]) for j in jobs}
    queue = sorted(jobs, key=lambda j: order_key(j, stands_at=at[j.id]))
    for place, mine in enumerate(queue):
        later = LATER_FOR_SEVERAL if several[mine.id] else LATER
        latest = mine.submitted_at + later * likely[mine.id] + 1
        assert all(ahead.submitted_at <= latest for ahead in queue[:place])
