"""The event loop on runs small enough to work out by hand."""

import math
import random

import pytest

from scheduling.engine.deltas import JobEnded, QueuesChanged, TenantsChanged
from scheduling.engine.states import JobState
from scheduling.engine.types import (
    Policy,
    PreemptionKind,
    QueueingPolicy,
    QueueSpec,
    QuotaSpec,
    Sharing,
    TenantSpec,
)
from scheduling.simulator.model import HardwareFault, Settings, TimedChange
from scheduling.simulator.run import TraceError
from tests.simulator.runs import arrival, rows, simulation


def test_a_job_waits_for_the_end_of_another():
    out = simulation([arrival("x", 0, 100, pods=2), arrival("y", 10, 50)]).run()
    assert rows(out) == {"x": (0, 100, "SUCCEEDED"), "y": (100, 150, "SUCCEEDED")}
    pool = out.pools["H100"]
    assert pool.milli_s == 16_000 * 100 + 8_000 * 50
    assert pool.offered_s == 16_000 * 150
    assert pool.fragmented_s == 0


def test_partly_used_nodes_are_integrated_exactly():
    out = simulation([arrival("x", 10, 30, gpus=3)], nodes=4, settings=Settings(stop_s=100)).run()
    pool = out.pools["H100"]
    assert pool.fragmented_s / pool.nodes_s == pytest.approx(30 / 160)
    assert out.ended_at == 40, "the run rests when nothing can happen any more"


def test_bind_delay_and_period_of_cycles():
    out = simulation([arrival("x", 1, 10)], settings=Settings(cycle_s=5.0, bind_delay_s=2.0)).run()
    assert rows(out)["x"] == (5, 17, "SUCCEEDED")


def test_pods_of_a_service_start_and_end_one_by_one():
    out = simulation(
        [arrival("hold", 0, 20), arrival("service", 0, 30, pods=3, gpus=4, gang=False)], nodes=2
    ).run()
    found = rows(out)
    assert found["service"][0] == 20, "its third pod waited for the other job"
    assert found["service"][1] == 50


def test_pods_of_a_gang_end_when_each_of_them_did():
    out = simulation(
        [
            arrival("gang", 0, 30, pods=2, pod_s={(0, 0): 10, (0, 1): 30}),
            arrival("next", 1, 5),
        ]
    ).run()
    assert rows(out) == {"gang": (0, 30, "SUCCEEDED"), "next": (10, 15, "SUCCEEDED")}
    assert out.pools["H100"].milli_s == 8000 * (10 + 30 + 5)


@pytest.mark.parametrize("known", [None, {(0, 0): (3.0,)}])
def test_a_victim_works_no_more_while_it_leaves_and_nobody_enters_before_it_is_gone(known):
    low = arrival("low", 0, 100, gpus=8, leaves_s=known)
    out = simulation(
        [low, arrival("high", 40, 10, gpus=2, priority=9), arrival("next", 41, 30, gpus=4)],
        nodes=1,
        policy=Policy(preemption=(PreemptionKind.PRIORITY,), min_runtime_s=0),
        settings=Settings(evict_s=5.0, checkpoint_s=30.0),
    ).run()
    gone = 43 if known else 45
    found = rows(out)
    assert found["high"] == (gone, gone + 10, "SUCCEEDED")
    assert found["next"] == (gone, gone + 30, "SUCCEEDED")
    # 30 of its 40 s of work were saved; while leaving it did no work.
    assert found["low"] == (gone + 30, gone + 30 + 70, "SUCCEEDED")
    jobs = out.observer.jobs
    assert jobs.lost_milli_s[0] == 8000 * (gone - 30)
    assert out.pools["H100"].milli_s == 8000 * (gone + 70) + 2000 * 10 + 4000 * 30


def test_who_is_cancelled_while_it_leaves_is_over_when_it_is_gone():
    out = simulation(
        [
            arrival("low", 0, 100, cancel_after_s=42),
            arrival("high", 40, 10, priority=9),
        ],
        nodes=1,
        policy=Policy(preemption=(PreemptionKind.PRIORITY,), min_runtime_s=0),
        settings=Settings(evict_s=5.0),
    ).run()
    assert rows(out) == {"low": (0, 45, "CANCELLED"), "high": (45, 55, "SUCCEEDED")}
    assert out.pools["H100"].milli_s == 8000 * 55


def test_a_pod_of_a_service_ends_by_being_preempted_or_by_itself_but_not_twice():
    out = simulation(
        [
            arrival("service", 0, 43, pods=2, gpus=4, gang=False),
            arrival("high", 40, 10, gpus=4, priority=9),
        ],
        nodes=1,
        policy=Policy(preemption=(PreemptionKind.PRIORITY,), min_runtime_s=0),
        settings=Settings(evict_s=5.0),
    ).run()
    # One pod leaves from 40 to 45, the other ends at 43; the first restarts at 45.
    assert rows(out) == {"service": (45, 88, "SUCCEEDED"), "high": (45, 55, "SUCCEEDED")}
    assert out.pools["H100"].milli_s == 4000 * (45 + 43 + 10 + 43)


def test_a_pods_own_end_keeps_what_was_saved():
    out = simulation(
        [arrival("gang", 0, 100, pods=2, pod_s={(0, 0): 40, (0, 1): 100})],
        faults=[HardwareFault(at=70, node="n001", repair_s=10)],
        settings=Settings(checkpoint_s=30.0),
    ).run()
    # The first pod had ended before the fault; placed again, it has nothing left to do.
    assert rows(out)["gang"] == (80, 120, "SUCCEEDED")


def test_a_job_is_heard_of_later_than_it_was_submitted():
    out = simulation(
        [
            arrival("late", 0, 5, heard_after_s=4),
            arrival("after", 1, 5),
            arrival("held", 2, 5, not_before=50),
        ]
    ).run()
    # The scheduler hears of jobs in sequence.
    assert rows(out) == {
        "late": (4, 9, "SUCCEEDED"),
        "after": (4, 9, "SUCCEEDED"),
        "held": (50, 55, "SUCCEEDED"),
    }


def test_a_job_that_needs_the_success_of_a_failed_one_never_starts():
    out = simulation(
        [
            arrival("x", 0, 10, ends=JobState.FAILED),
            arrival("y", 1, 10, after_ok=("x",)),
            arrival("z", 1, 10, after=("x",)),
        ],
        nodes=1,
    ).run()
    assert rows(out)["z"] == (10, 20, "SUCCEEDED")
    assert "did not" in out.never["y"]


def test_a_failed_big_job_is_submitted_again():
    out = simulation([arrival("x", 0, 10, ends=JobState.FAILED, resubmit_after_s=5)]).run()
    assert rows(out) == {"x": (0, 10, "FAILED"), "x+": (15, 25, "SUCCEEDED")}


def test_an_owner_gives_up_waiting_or_running():
    out = simulation(
        [
            arrival("x", 0, 100, pods=2, cancel_after_s=60),
            arrival("y", 1, 100, cancel_after_s=30),
        ]
    ).run()
    assert rows(out)["x"] == (0, 60, "CANCELLED")
    started, ended, state = rows(out)["y"]
    assert math.isnan(started)
    assert (ended, state) == (31, "CANCELLED")


def test_a_quota_change_on_the_timeline_lets_a_job_in():
    out = simulation(
        [arrival("x", 0, 10)],
        quota=4_000,
        changes=[
            TimedChange(
                50,
                TenantsChanged(
                    (TenantSpec("a"),), (QuotaSpec("a", "H100", 8_000, Sharing.ISOLATED),)
                ),
            )
        ],
    )
    # The first quota book lets tenant a borrow none of b's 4 GPUs beyond 8 in all.
    out = out.run()
    assert rows(out)["x"][2] == "SUCCEEDED"


@pytest.mark.parametrize(
    ("last", "ended", "state", "never"),
    [(8_000, 60, "SUCCEEDED", set()), (6_000, 50, "FAILED", {"x"})],
)
def test_who_is_beyond_quota_waits_for_its_last_change(last, ended, state, never):
    def tenancy(at, milli):
        quota = QuotaSpec("a", "H100", milli, Sharing.ISOLATED)
        return TimedChange(at, TenantsChanged((TenantSpec("a"),), (quota,)))

    changes = [tenancy(0, 4_000), tenancy(40, 5_000), tenancy(50, last)]
    out = simulation([arrival("x", 0, 10)], changes=changes).run()
    assert rows(out)["x"][1:] == (ended, state)
    assert set(out.never) == never


def test_a_job_larger_than_the_fleet_is_reported_and_the_rest_goes_on():
    out = simulation([arrival("huge", 0, 10, pods=9), arrival("y", 1, 10)]).run()
    assert set(out.never) == {"huge"}
    assert rows(out)["huge"][2] == "FAILED"
    assert rows(out)["y"] == (1, 11, "SUCCEEDED")


@pytest.mark.parametrize(
    ("jobs", "text"),
    [
        ([("x", 5, 1), ("y", 4, 1)], "before its predecessor"),
        ([("x", 5, -1)], "negative"),
        ([("x", 5, math.nan)], "negative"),
    ],
)
def test_a_trace_that_cannot_be(jobs, text):
    with pytest.raises(TraceError, match=text):
        simulation([arrival(*j) for j in jobs]).run()


def test_only_facts_of_policy_tenants_and_nodes_stand_on_the_timeline():
    with pytest.raises(TraceError, match="JobEnded"):
        simulation([], changes=[TimedChange(1, JobEnded("x"))]).run()


def test_the_warm_up_is_left_out():
    out = simulation(
        [arrival("x", 0, 100, pods=2)], settings=Settings(warm_up_s=60.0, sample_s=10.0)
    ).run()
    pool = out.pools["H100"]
    assert pool.milli_s == 16_000 * 40
    assert list(pool.series.at) == [70, 80, 90, 100]


def test_cancelling_keeps_what_there_is():
    many = [arrival(f"j{i:05}", i, 10, gpus=1) for i in range(3000)]
    out = simulation(many).run(cancelled=lambda: True)
    assert out.partial
    assert 0 < len(out.observer.jobs) < 3000


@pytest.mark.parametrize("queueing", list(QueueingPolicy))
def test_two_runs_are_equal_to_the_byte_and_nothing_is_lost(queueing):
    def once():
        rng = random.Random(7)
        t, jobs = 0.0, []
        for i in range(400):
            t += rng.expovariate(1 / 20)
            pods, gpus = rng.choice([(1, 1), (1, 2), (1, 8), (2, 8), (4, 8)])
            jobs.append(arrival(f"j{i:03}", t, rng.expovariate(1 / 200), pods=pods, gpus=gpus))
        out = simulation(jobs, nodes=6, policy=Policy(queueing=queueing)).run()
        columns = out.observer.jobs
        return (
            columns.started.tobytes(),
            columns.ended.tobytes(),
            columns.nodes.tobytes(),
            out.pools["H100"].milli_s,
            out.waiting,
            sum(columns.state[i] == 1 for i in range(len(columns))),
        )

    first = once()
    assert first == once()
    assert first[-2:] == (0, 400)


def test_a_high_priority_job_takes_the_place_of_a_low_one_which_goes_on_later():
    out = simulation(
        [
            arrival("low", 0, 2000, pods=2, priority=-100),
            arrival("high", 1000, 100, pods=2, priority=100),
        ],
        settings=Settings(checkpoint_s=300.0),
        policy=Policy(preemption=tuple(PreemptionKind)),
    ).run()
    found = rows(out)
    assert found["high"] == (1000, 1100, "SUCCEEDED")
    # 900 of its 1,000 seconds were saved.
    assert found["low"] == (1100, 2200, "SUCCEEDED")
    jobs = out.observer.jobs
    assert jobs.preemptions[0] == 1
    assert jobs.lost_milli_s[0] == 16_000 * 100


def test_what_is_lost_since_the_warm_up_counts_whoever_came_before_it():
    out = simulation(
        [arrival("low", 0, 100, pods=2), arrival("high", 50, 30, pods=2, priority=9)],
        policy=Policy(preemption=(PreemptionKind.PRIORITY,), min_runtime_s=0),
        settings=Settings(warm_up_s=20.0, restart_s=10.0),
    ).run()
    assert rows(out)["low"] == (80, 190, "SUCCEEDED")
    observer = out.observer
    assert observer.jobs.lost_milli_s[0] == 16_000 * (50 + 10)
    assert out.pools["H100"].lost_milli_s == 16_000 * (30 + 10)
    assert (observer.preemptions, observer.preempted) == (1, {0})


def test_a_restart_that_is_interrupted_is_lost_only_as_far_as_it_came():
    out = simulation(
        [arrival("x", 0, 100, pods=2)],
        faults=[HardwareFault(at=at, node="n001", repair_s=10) for at in (70, 84)],
        settings=Settings(checkpoint_s=30.0, restart_s=5.0),
    ).run()
    # From 80 it restarts, from 84 in vain; from 94 the restart takes 5 s and the work 40 s.
    assert rows(out)["x"] == (94, 139, "SUCCEEDED")
    assert out.observer.jobs.lost_milli_s[0] == 16_000 * (10 + 4 + 5)


def test_who_waits_for_a_job_that_never_runs_goes_on():
    jobs = [
        arrival("never", 0, 10, pods=9),
        arrival("after", 1, 10, after=("never",)),
        arrival("ok", 2, 10, after_ok=("never",)),
    ]
    out = simulation(jobs).run()
    found = rows(out)
    assert found["after"] == (1, 11, "SUCCEEDED")
    assert set(out.never) == {"never", "ok"}


def test_a_run_is_over_with_its_last_job_whatever_breaks_later():
    out = simulation(
        [arrival("x", 0, 100)], faults=[HardwareFault(at=500, node="n001", repair_s=10_000)]
    ).run()
    assert (out.ended_at, out.events) == (100, 2)


@pytest.mark.parametrize("restart_s", [0.0, 7.0])
def test_what_is_held_is_work_or_lost(restart_s):
    jobs = [
        arrival("hold", 0, 20),
        arrival("service", 0, 30, pods=3, gpus=4, gang=False),
        arrival("high", 25, 10, priority=9),
        arrival("gang", 26, 40, pods=2),
    ]
    policy = Policy(preemption=(PreemptionKind.PRIORITY,), min_runtime_s=0)
    out = simulation(
        jobs,
        policy=policy,
        settings=Settings(checkpoint_s=9.0, restart_s=restart_s),
        faults=[HardwareFault(at=90, node="n001", repair_s=5)],
    ).run()
    jobs_seen, pool = out.observer.jobs, out.pools["H100"]
    assert list(jobs_seen.preemptions) == [0, 1, 0, 0]
    assert jobs_seen.requeues[3] == 1
    # The third pod of the service had held its place from 20, for 5 s, when it had to leave.
    assert jobs_seen.lost_milli_s[1] == 4000 * (5 + restart_s)
    work = 8000 * 20 + 3 * 4000 * 30 + 8000 * 10 + 16_000 * 40
    assert pool.milli_s == pytest.approx(work + pool.lost_milli_s)


def test_a_run_that_ends_in_its_warm_up_has_seen_nothing():
    run = simulation([arrival("x", 0, 100, pods=2)], settings=Settings(warm_up_s=500))
    out = run.run()
    pool = out.pools["H100"]
    assert (out.ended_at, pool.milli_s, pool.offered_s) == (100, 0, 0)


def test_jobs_that_run_when_the_run_ends_are_told_from_those_that_wait():
    jobs = [arrival("x", 0, 100, pods=2), arrival("y", 1, 100)]
    found = rows(simulation(jobs, settings=Settings(stop_s=50)).run())
    assert [found[name][2] for name in ("x", "y")] == ["RUNNING", "WAITING"]


def test_it_is_asked_whether_to_go_on_however_many_events_an_instant_has():
    jobs = [arrival(f"{at}-{which}", at, 0.5) for at in range(3000) for which in "ab"]
    asked = []

    def cancelled():
        asked.append(1)
        return True

    out = simulation(jobs, settings=Settings(warm_up_s=0.25)).run(cancelled=cancelled)
    assert (out.partial, asked) == (True, [1])


def test_what_tenants_used_is_what_was_used_since_the_warm_up():
    own = {(0, 0): 10.0, (0, 1): 60.0}
    out = simulation(
        [
            arrival("gang", 0, 60, pods=2, pod_s=own, tenant="a"),
            arrival("service", 0, 50, pods=2, gpus=4, gang=False, tenant="b"),
            arrival("high", 40, 100, gpus=8, priority=9, tenant="a"),
        ],
        nodes=3,
        faults=[HardwareFault(at=35, node="n002", repair_s=10)],
        policy=Policy(preemption=(PreemptionKind.PRIORITY,), min_runtime_s=0),
        settings=Settings(evict_s=2.0, warm_up_s=30.0, stop_s=90.0),
    ).run()
    used = out.observer.tenant_milli_s
    assert set(used) == {"a", "b"}
    assert all(milli_s > 0 for milli_s in used.values())
    assert sum(used.values()) == pytest.approx(out.pools["H100"].milli_s)


def test_queues_of_a_tenant_are_known_and_may_change():
    jobs = [arrival("old", 0, 50), arrival("late", 1, 50), arrival("new", 2, 50, queue="urgent")]
    queues = (QueueSpec("a"), QueueSpec("a", "urgent", rank=1))
    out = simulation(jobs, nodes=1, queues=queues).run()
    assert [rows(out)[name][0] for name in ("old", "new", "late")] == [0, 50, 100]
    held = TimedChange(10, QueuesChanged((queues[0], QueueSpec("a", "urgent", held=True))))
    again = TimedChange(120, QueuesChanged(queues))
    out = simulation(jobs, nodes=1, queues=queues, changes=[held, again]).run()
    assert [rows(out)[name][0] for name in ("old", "late", "new")] == [0, 50, 120]
