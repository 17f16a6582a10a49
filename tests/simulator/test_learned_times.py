"""What the engine learns of run times: it comes from ended runs, is brief, and arrives only when it
matters."""

from itertools import pairwise

from scheduling.engine.deltas import JobEnded, JobSubmitted
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.order import order_key
from scheduling.engine.types import JobKind, Policy, QueueingPolicy
from scheduling.simulator.forecast.learned import WARM, LearnedTimes, times_of
from scheduling.simulator.forecast.likeness import traits_of
from scheduling.simulator.forecast.run_times import RunTimes
from tests.simulator.runs import arrival, rows, simulation


def known(*times):
    run_times = RunTimes()
    for number, seconds in enumerate(times):
        run_times.ended(traits_of(arrival("old", 0.0, 1.0).job), seconds, float(number))
    return run_times


def told(learned, deltas, jobs=None, now=0.0):
    found = learned.follow(deltas, jobs or {}, now)
    return {job_id: times for delta in found for job_id, times in delta.of}


def submitted(name, **more):
    return JobSubmitted(arrival(name, 0.0, 1.0, **more).job)


def test_the_times_are_those_of_ended_runs():
    likely = known(*([100.0] * 60 + [1000.0] * 40)).of(traits_of(arrival("new", 0.0, 1.0).job))
    times = times_of(likely)
    assert (times.most_s, times.middles[:2]) == (1000.0, (100.0, 1000.0))
    assert all(one < other for one, other in pairwise(times.middles))


def test_nothing_is_told_before_enough_runs_have_ended_nor_of_who_declares_or_serves():
    learned = LearnedTimes(known(*[10.0] * (WARM - 1)), learns=False)
    assert told(learned, [submitted("early")]) == {}
    learned = LearnedTimes(known(*[10.0] * WARM), learns=False)
    jobs = [
        submitted("plain"),
        submitted("declares", declared_s=5.0),
        submitted("pods", gang=False),
        submitted("serves", kind=JobKind.INFERENCE),
    ]
    assert told(learned, jobs).keys() == {"plain"}


def test_it_is_told_once_again_for_a_job_told_anew_and_when_much_more_has_ended():
    learned = LearnedTimes(known(*[10.0] * WARM), learns=False)
    assert told(learned, [submitted("one")]).keys() == {"one"}
    assert told(learned, []) == {}
    assert told(learned, [submitted("one")]).keys() == {"one"}  # the engine may have forgotten it
    for _ in range(WARM):
        learned.run_times.ended(traits_of(arrival("old", 0.0, 1.0).job), 9e4, 0.0)
    assert told(learned, [])["one"].most_s > 10.0
    assert told(learned, [JobEnded("one")]) == {}


def test_it_learns_from_the_ends_that_the_engine_is_told_and_takes_up_who_is_there():
    learned = LearnedTimes(RunTimes())
    jobs = {}
    for number in range(WARM):
        job = arrival(f"j{number}", 0.0, 1.0).job
        jobs[job.id] = JobRecord(job, order_key(job))
        jobs[job.id].started_at = 5.0
    waits = arrival("waits", 0.0, 1.0).job
    jobs["waits"] = JobRecord(waits, order_key(waits))
    ends = [JobEnded(f"j{number}") for number in range(WARM)]
    assert told(learned, ends, jobs, 47.0)["waits"].most_s == 42.0
    assert learned.run_times.ended_runs == WARM


def test_a_run_backfills_by_what_it_has_learned():
    """Jobs of 8 GPUs run for 100 s. Once enough of them have ended, a short job passes the head of
    24 GPUs, but a job of their kind does not."""
    before = [arrival(f"a{n:02}", 0.0, 100.0, gpus=8) for n in range(2 * WARM)]
    before += [arrival(f"b{n:02}", 0.0, 10.0, gpus=1) for n in range(2 * WARM)]
    late = 100.0 * WARM + 200
    after = [
        arrival("runs", late, 100.0, gpus=8),
        arrival("head", late + 1, 50.0, pods=3, gpus=8),
        arrival("short", late + 2, 10.0, gpus=1),
        arrival("long", late + 3, 100.0, gpus=8),
    ]
    found = {}
    for learns in (True, False):
        policy = Policy(QueueingPolicy.BACKFILL, backfill_after_s=1e6, learned_run_times=learns)
        run = simulation([*before, *after], policy=policy, nodes=3)
        found[learns] = rows(run.run())
    assert found[False]["long"][0] == late + 3  # without learning, any job that fits passes
    assert found[True]["short"][0] == late + 2
    assert found[True]["head"][0] == late + 100
    assert found[True]["long"][0] > found[True]["head"][0]
