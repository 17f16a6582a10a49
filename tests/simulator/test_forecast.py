"""Start bands: likely run times, runs ahead from what a scheduler knows, bands that hold."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from scheduling.engine.deltas import (
    JobEnded,
    JobRestored,
    JobSubmitted,
    NodeChanged,
    PolicyChanged,
    TenantsChanged,
)
from scheduling.engine.types import (
    PodPlacement,
    Policy,
    PreemptionKind,
    QueueingPolicy,
    QuotaSpec,
    TenantSpec,
)
from scheduling.simulator.forecast import bands as told
from scheduling.simulator.forecast.bands import Band, bands_of, quantile
from scheduling.simulator.forecast.calibration import (
    ENOUGH,
    Calibration,
    Miss,
    Side,
    ToldBand,
    asked,
    quantiles,
)
from scheduling.simulator.forecast.coming import Coming
from scheduling.simulator.forecast.ground import ground_of
from scheduling.simulator.forecast.likeness import Traits, stem_of
from scheduling.simulator.forecast.run_times import LONGEST_S, Basis, RunTimes, survival
from scheduling.simulator.forecast.scene import scene_of
from tests.simulator.runs import arrival, machines, rows, simulation

NOW = 1000.0


def job(name, at=0.0, **wishes):
    return arrival(name, at, 1.0, **wishes).job


def on(node, number=0, gpus=8):
    return PodPlacement(0, number, f"n{node:03}", tuple(range(gpus)), 1000, (), 0)


def scene(*facts, nodes=1, policy=None, quota=10**9):
    first = (
        PolicyChanged(policy or Policy()),
        TenantsChanged((TenantSpec("a"), TenantSpec("b")), (QuotaSpec("a", "H100", quota),)),
        *map(NodeChanged, machines(nodes)),
    )
    return scene_of((*first, *facts), NOW)


def bands(of, run_times=None, coming=None, **how):
    how = {"seed": 1, "most": told.LEAST_RUNS, **how}
    return bands_of(ground_of(of), run_times or RunTimes(), coming or Coming(), **how)


def learned(*took, declared=None, **traits):
    """Return run times that know runs of this many seconds."""
    known = RunTimes()
    of = Traits(**{"tenant": "a", "user": "", "name": "", "gpu_milli": 8000, **traits},
                declared_s=declared)  # fmt: skip
    for number, seconds in enumerate(took):
        known.ended(of, seconds, float(number))
    return known, of


def draws(likely, age=0.0, count=400):
    dice = np.random.Generator(np.random.PCG64(0))
    return [likely.draw(age, *dice.random(2)) for _ in range(count)]


# --- run times ------------------------------------------------------------------------------------
def test_who_declares_runs_as_long_as_its_like_used_of_their_declarations():
    known, of = learned(*[50.0] * 60, declared=200.0)
    likely = known.of(of._replace(declared_s=4000.0))
    assert np.median(draws(likely)) == pytest.approx(1000.0)
    assert (likely.basis, likely.words) == (
        Basis.SHARE, "declared, and used like 60 earlier runs in this tenant",
    )  # fmt: skip
    first = RunTimes().of(of)
    assert np.median(draws(first)) == pytest.approx(200.0)
    assert first.basis is Basis.DECLARED


def test_the_own_runs_of_a_name_count_before_all_others_and_others_where_they_are_few():
    known = RunTimes()
    mine = Traits("a", "7", "train-12", 8000, None)
    for _ in range(100):
        known.ended(mine._replace(user="8", name="eval-3"), 10.0, 0.0)
    assert np.median(draws(known.of(mine))) == pytest.approx(10.0)
    for _ in range(40):
        known.ended(mine._replace(name="train-11"), 9000.0, 1.0)
    likely = known.of(mine)
    assert np.median(draws(likely)) == pytest.approx(9000.0)
    assert likely.words == "like 40 earlier runs of train-* by this user"
    one = known.of(mine._replace(user="9", name="new"))
    assert 10.0 in draws(one)
    assert 9000.0 in draws(one)


def test_what_runs_goes_on_for_longer_than_it_has_run():
    known, of = learned(*[60.0] * 90, *[3600.0] * 10)
    left = draws(known.of(of), age=100.0)
    assert min(left) >= 100.0
    assert np.median(left) == pytest.approx(3600.0)
    outlived = draws(known.of(of), age=10_000.0)
    assert min(outlived) > 10_000.0
    assert max(outlived) <= LONGEST_S


def test_long_runs_that_have_not_ended_yet_count_as_long():
    """Of a hundred runs of 1 to 100 hours that began together, 49 have ended after 49 hours."""
    known, of = learned(*[3600.0 * hours for hours in range(1, 50)])
    blind = np.quantile(draws(known.of(of)), 0.75)
    known.going([(of, 3600.0 * 49.5)] * 51)
    likely = known.of(of)
    assert blind < 3600.0 * 45
    assert np.quantile(draws(likely), 0.25) == pytest.approx(3600.0 * 25, rel=0.2)
    assert np.quantile(draws(likely), 0.75) > 3600.0 * 49
    known.going([])
    assert np.quantile(draws(known.of(of)), 0.75) == blind


def test_the_product_limit_is_that_of_the_textbook():
    values, chances = survival([1.0, 3.0, 5.0], [2.0, 4.0, 6.0], by_share=False)
    assert values.tolist() == [1.0, 3.0, 5.0, 12.0]
    # First 1/6; then a quarter of the rest, then half of what remains, then all.
    assert chances == pytest.approx([1 / 6, 5 / 24, 5 / 16, 5 / 16])
    assert survival([0.5], [0.7, 2.0], by_share=True)[0].tolist() == [0.5, 1.0, 4.0]


def test_who_asks_often_is_answered_anew_for_runs_of_the_same_group_and_for_many_others():
    known, own = learned(*(60.0 for _ in range(100)), user="u")
    other = own._replace(user="w")
    before = known.nearly(own)
    known.ended(other, 7200.0, 100.0)
    assert known.nearly(own) is before
    known.ended(own, 7200.0, 101.0)
    assert same(known.nearly(own), known.of(own))
    assert not same(known.nearly(own), before)
    stale = known.nearly(other)
    for number in range(10):  # a twentieth of all runs, none of them its own
        known.ended(own, 7200.0, 102.0 + number)
    assert same(known.nearly(other), known.of(other))
    assert not same(known.nearly(other), stale)
    known.going([(own, 9000.0)])
    assert same(known.nearly(own), known.of(own))


def same(one, other):
    return np.array_equal(one.values, other.values) and np.array_equal(one.sums, other.sums)


def test_of_what_nothing_is_known_half_takes_up_to_an_hour():
    likely = RunTimes().of(Traits("a", "", "", 1000, None))
    assert likely.basis is Basis.PRIOR
    assert np.median(draws(likely, count=4000)) == pytest.approx(3600.0, rel=0.15)


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("train-17", "train"),
        ("train-18b", "train"),
        ("train", "train"),
        ("7", ""),
        ("a-b.3", "a-b"),
    ],
)
def test_repeated_runs_are_known_by_what_their_names_share(name, stem):
    assert stem_of(name) == stem


# --- runs ahead -----------------------------------------------------------------------------------
POLICIES = {
    "strict": Policy(queueing=QueueingPolicy.STRICT_FIFO),
    "best effort": Policy(queueing=QueueingPolicy.BEST_EFFORT_FIFO),
    "backfill": Policy(queueing=QueueingPolicy.BACKFILL),
    "fair share": Policy(fair_share=True),
    "preemption": Policy(preemption=(PreemptionKind.PRIORITY,)),
}


@pytest.mark.parametrize("name", POLICIES)
def test_with_certain_run_times_it_tells_the_starts_that_come_to_pass(name):
    """Halfway through a run, the forecast tells the starts that the simulator then produces."""
    policy = POLICIES[name]
    jobs = [
        arrival("first", 0.0, 1500.0, declared_s=1500.0),
        arrival("second", 10.0, 700.0, declared_s=700.0),
        arrival("wide", 20.0, 400.0, pods=2, declared_s=400.0),
        arrival("small", 30.0, 900.0, gpus=2, declared_s=900.0),
        arrival("urgent", 40.0, 300.0, priority=5, declared_s=300.0, tenant="b"),
    ]
    run = simulation(jobs, policy=policy)
    facts, last = [], {}
    outcome = rows(run.run())
    for one in jobs:
        begun, ended, _ = outcome[one.job.id]
        last[one.job.id] = begun
        if begun <= NOW < ended:
            # The node does not matter, because all jobs that run by then use whole nodes.
            places = tuple(on(len(facts) + k, k, one.job.pod_sets[0].gpus) for k in
                           range(one.job.pods))  # fmt: skip
            facts.append(JobRestored(one.job, places, begun))
    facts += [JobSubmitted(one.job) for one in jobs if last[one.job.id] > NOW]
    quotas = (QuotaSpec("a", "H100", 10**9), QuotaSpec("b", "H100", 10**9))
    tenants = TenantsChanged((TenantSpec("a"), TenantSpec("b")), quotas)
    at = scene_of([PolicyChanged(policy), tenants, *map(NodeChanged, machines(2)), *facts], NOW)
    found = bands(at)
    awaited = {name: start for name, start in last.items() if start > NOW}
    assert {name: band.p50 for name, band in found.bands.items()} == pytest.approx(awaited)
    assert not found.none


def test_a_band_spreads_as_run_times_do_and_is_the_same_again():
    known, _ = learned(*(600.0 + 60.0 * (37 * number % 90) for number in range(90)))
    at = scene(JobRestored(job("runs"), (on(0),), NOW - 500.0), JobSubmitted(job("waits", 900.0)))
    found = bands(at, known, most=40)
    band = found.bands["waits"]
    assert NOW < band.p10 < band.p50 < band.p90
    assert band.p50 - NOW == pytest.approx(2750.0, rel=0.35)
    assert band.basis is Basis.RUNS
    assert bands(at, known, most=40) == found
    assert bands(at, known, most=40, seed=2) != found


def test_gangs_services_and_what_leaves_free_their_places():
    whole, one_by_one = job("whole", pods=2), job("service", pods=2, gpus=4, gang=False)
    at = scene(
        JobRestored(whole, (on(0), on(1, 1)), 0.0, leaving=((0, 0), (0, 1))),
        JobRestored(one_by_one, (on(2, 0, 4),), 0.0, ended=((0, 1),)),
        JobSubmitted(job("waits", pods=3)),
        nodes=3,
    )
    assert bands(at).bands["waits"].p10 > NOW
    assert bands(at).bands["waits"].p90 < LONGEST_S


def test_what_cannot_start_has_no_band_but_a_reason():
    never, held = job("never", pods=5), job("held")
    late = job("late", after=("runs",))
    at = scene(
        JobRestored(job("runs", declared_s=9e7), (on(0),), NOW - 5.0),
        JobSubmitted(never),
        JobSubmitted(held, held=True),
        JobSubmitted(late),
    )
    found = bands(at)
    assert found.bands == {}
    assert found.none["never"] not in (told.TOO_LATE, told.HELD)
    assert found.none["held"] == told.HELD
    assert found.none["late"] == told.TOO_LATE
    assert found.vague == {}


def test_who_starts_in_some_runs_alone_has_a_band_that_ends_with_what_was_looked_at():
    """One job at a time: the last of twelve jobs, each of which runs a week or much longer."""
    known, _ = learned(*[7 * 86400.0] * 30, *[20 * 86400.0] * 30)
    line = [JobSubmitted(job(f"w{n:02}", float(n))) for n in range(6)]
    at = scene(JobRestored(job("runs"), (on(0),), NOW - 5.0), *line)
    found = bands(at, known, most=12)
    late = found.vague["w04"]
    assert found.none["w04"] == told.TOO_LATE
    assert NOW + 30 * 86400 < late.p10 < late.p90 == NOW + told.AHEAD_S
    assert told.earliest(late, NOW) == late.p10


def test_who_waits_for_one_on_hold_is_told_nothing_of_its_start():
    held, behind = job("held"), job("behind", after=("held",))
    found = bands(scene(JobSubmitted(held, held=True), JobSubmitted(behind)))
    assert found.none == {"held": told.HELD, "behind": told.TOO_LATE}
    assert found.vague == {}


@pytest.mark.parametrize(("hours", "is_told"), [(1.0, False), (23.9, False), (24.1, True)])
def test_the_earliest_start_is_told_where_it_is_a_day_off(hours, is_told):
    band = Band(NOW + hours * 3600, NOW + 30 * 86400, NOW + 60 * 86400, Basis.RUNS, "")
    assert told.earliest(band, NOW) == (band.p10 if is_told else None)


def test_it_stops_when_there_was_enough_and_says_so_where_that_was_too_little():
    at = scene(JobRestored(job("runs"), (on(0),), 0.0), JobSubmitted(job("waits")))
    assert bands(at, enough=lambda: True).runs == told.LEAST_RUNS
    few = bands(at, most=2)
    assert few.none["waits"] == told.NO_TIME


def test_where_time_is_short_near_starts_are_told_and_of_the_others_why_not():
    """Ten jobs follow one another on the only node; each look at the clock takes one second."""
    declared = {"declared_s": 3600}
    running = JobRestored(job("runs", **declared), (on(0),), NOW - 60.0)
    line = [JobSubmitted(job(f"w{n}", float(n), **declared)) for n in range(10)]
    told_of = []
    for time in (*range(0, 101, 10), 10**6):
        clock = itertools.count()
        found = bands(scene(running, *line), left=lambda: max(0, time - next(clock)))  # noqa: B023
        assert found.runs == told.LEAST_RUNS
        near = [n for n in range(10) if f"w{n}" in found.bands]
        assert near == list(range(len(near)))
        assert set(found.none.values()) <= {told.NO_TIME}
        assert len(found.none) + len(near) == 10
        told_of.append(len(near))
    assert told_of == sorted(told_of)
    assert (told_of[0], told_of[-1]) == (0, 10)
    assert set(told_of) - {0, 10}, "of some of them"


def test_jobs_of_higher_priority_that_keep_coming_put_a_job_off():
    """Jobs five minutes apart, each of which takes the only node for half an hour."""
    coming = Coming()
    for number in range(40):
        coming.came(job(f"urgent-{number}", NOW - 300.0 * (40 - number), priority=9))
    known, _ = learned(*[1800.0] * 50)
    at = scene(JobRestored(job("runs"), (on(0),), NOW - 60.0), JobSubmitted(job("waits")))
    alone, crowded = bands(at, known), bands(at, known, coming)
    assert alone.bands["waits"].p50 == pytest.approx(NOW + 1740.0)
    assert crowded.bands["waits"].p10 > alone.bands["waits"].p90 + 3600.0


def test_ended_dependencies_are_told_as_a_scheduler_is_told():
    at = scene(JobEnded("gone", succeeded=False), JobSubmitted(job("waits", after_ok=("gone",))))
    assert bands(at).none["waits"]


def test_behind_many_jobs_a_band_is_wider_the_less_is_known_of_their_run_times():
    """The jobs share what is unknown about their kind, so it does not average out over them."""
    logs = np.random.Generator(np.random.PCG64(5)).permutation(np.tile([6.0, 7.0, 8.0], 100))
    waiting = [JobSubmitted(job(f"w{n:02}", 900.0 + n)) for n in range(30)]
    at = scene(JobRestored(job("runs"), (on(0),), NOW - 5.0), *waiting)
    much, little = learned(*np.exp(logs))[0], learned(*np.exp(logs[:9]))[0]
    wide, narrow = (bands(at, known, most=20).bands["w29"] for known in (little, much))
    assert (wide.p90 / wide.p10) > 1.5 * (narrow.p90 / narrow.p10)


def test_runs_that_came_in_bursts_tell_less_of_others_than_as_many_that_did_not():
    dice = np.random.Generator(np.random.PCG64(5))
    bursts = np.repeat(dice.normal(7.0, 1.0, 10), 30)
    of = Traits("a", "", "", 8000, None)
    alike, apart = RunTimes(), RunTimes()
    for number, (one, other) in enumerate(zip(bursts, dice.permutation(bursts), strict=True)):
        at = 86400.0 * (number // 30) + number % 30
        alike.ended(of, float(np.exp(one)), at)
        apart.ended(of, float(np.exp(other)), at)
    assert apart.doubt(of).off < 0.1
    assert 0.2 < alike.doubt(of).off < 0.5
    assert learned(*[60.0] * 4)[0].doubt(of).off > 0.3
    assert RunTimes().doubt(of).off == 0.0  # nothing known could be wrong


@pytest.mark.parametrize(
    ("hours", "is_useful"),
    [((0.1, 5.0, 160.0), True), ((1.0, 100.0, 200.0), False), ((120.0, 240.0, 900.0), True)],
)
def test_a_band_of_more_than_a_week_is_told_of_a_start_that_is_far_off(hours, is_useful):
    low, middle, high = (NOW + 3600.0 * at for at in hours)
    assert told.useful(Band(low, middle, high, Basis.RUNS, ""), NOW) is is_useful


# --- bands that hold ------------------------------------------------------------------------------
@pytest.mark.parametrize(("spread", "bias"), [(3.0, 1.0), (0.4, 1.0), (1.0, 2.0), (1.0, 0.5)])
def test_bands_that_were_wrong_are_fitted_until_four_of_five_starts_lie_in_them(spread, bias):
    dice = np.random.Generator(np.random.PCG64(3))
    calibration, held = Calibration(), []
    band = Band(NOW + 50.0, NOW + 100.0, NOW + 200.0, Basis.RUNS, "")
    for at in np.arange(NOW, NOW + 600.0).tolist():
        scale = float(dice.uniform(0.5, 20.0))
        asked = replace(band, p10=at + 50 * scale, p50=at + 100 * scale, p90=at + 200 * scale)
        sigma = spread * np.log(2) / 1.2816
        start = at + 100 * scale * bias * float(np.exp(sigma * dice.normal()))
        fitted = calibration.fitted(asked, at)
        assert at < fitted.p10 <= fitted.p50 <= fitted.p90
        held.append(fitted.p10 <= start <= fitted.p90)
        calibration.started(calibration.as_told(asked, at), start)
    assert np.mean(held[4 * ENOUGH :]) == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize(
    "bias",
    [
        pytest.param(lambda part, _: 3.0 * part, id="later and later"),
        pytest.param(lambda part, _: -3.0 * part, id="earlier and earlier"),
        pytest.param(lambda part, _: 1.5 * (part > 0.5), id="late from one day on"),
        pytest.param(lambda _, chance: -2.0 * (chance < 0.25), id="early in bursts"),
    ],
)
def test_bands_hold_though_misses_drift_or_come_in_bursts(bias):
    """The bands of ten streams together hold. `bias` shifts the logarithm of all waits of an
    instant, given the elapsed part of the time and a random draw."""
    held = [it for seed in range(10) for it in held_of_a_stream(bias, seed)]
    assert 0.75 <= np.mean(held) <= 0.85


def held_of_a_stream(bias, seed):
    """Return whether each start was in the band that was told: sixty instants with 20 bands each,
    for waits of a minute to an hour."""
    dice = np.random.Generator(np.random.PCG64(seed))
    calibration, waiting, held = Calibration(), [], []
    for number in range(60):
        now = NOW + 1000.0 * number
        for start, told_then in sorted(one for one in waiting if one[0] <= now):
            calibration.started(told_then, start)
            held.append(told_then.p10 <= start <= told_then.p90)
        waiting = [one for one in waiting if one[0] > now]
        calibration.waiting([told_then for _, told_then in waiting], now)
        off = bias(number / 60, float(dice.random()))
        for wait in np.exp(dice.uniform(np.log(60), np.log(3600), 20)).tolist():
            runs = Band(now + wait / 2, now + wait, now + wait * 2, Basis.RUNS, "")
            start = now + wait * float(np.exp(off + 0.54 * dice.normal()))
            waiting.append((start, calibration.as_told(runs, now)))
    return held


def test_who_outlives_a_band_that_was_told_counts_as_missed_before_it_starts():
    """Two calibrations know the same runs and starts; one has told bands that all jobs still
    waiting have outlived."""
    runs, ends = Band(50.0, 100.0, 200.0, Basis.RUNS, ""), {}
    for told_p90 in (300.0, 900.0):
        calibration = Calibration()
        for at in range(60):
            start = at + 40.0 + 5.0 * (37 * at % 60)
            calibration.started(ToldBand(runs, 30.0, told_p90 + at, float(at)), start)
        calibration.waiting([ToldBand(runs, 30.0, told_p90, float(at)) for at in range(20)], 400.0)
        ends[told_p90] = calibration.fitted(runs, 0.0).p90
    assert ends[300.0] > ends[900.0]


def test_before_its_end_a_band_that_was_told_of_a_waiting_job_counts_on_neither_side():
    open_still = [Miss(float(n), True, float(n), None) for n in range(50)]
    known = [Miss(0.0, False, float(n), Side.AFTER) for n in range(10)]
    assert asked(open_still) == (0.1, 0.9)
    assert asked(known + open_still) == asked(known) == (pytest.approx(0.15), pytest.approx(0.995))


def test_narrow_bands_are_widened_more_than_wide_ones_before_anything_is_known_of_how_they_hold():
    calibration = Calibration()
    narrow = Band(NOW + 99.0, NOW + 100.0, NOW + 101.0, Basis.RUNS, "")
    wide = Band(NOW + 10.0, NOW + 100.0, NOW + 1000.0, Basis.RUNS, "")
    shares = [(found.p90 - NOW) / (of.p90 - NOW) for of in (narrow, wide)
              for found in [calibration.fitted(of, NOW)]]  # fmt: skip
    assert shares[0] > 1.5 > 1.2 > shares[1]
    sure = calibration.fitted(replace(narrow, basis=Basis.DECLARED), NOW)
    assert sure.p90 - NOW < 115.0


def test_outcomes_of_one_instant_hardly_change_a_band():
    calibration = Calibration()
    band = Band(NOW + 50.0, NOW + 100.0, NOW + 200.0, Basis.RUNS, "")
    for _ in range(100):
        calibration.started(calibration.as_told(band, NOW), NOW + 1000.0)
    fitted = calibration.fitted(band, NOW)
    assert NOW + 200.0 < fitted.p90 < NOW + 400.0


def test_who_still_waits_counts_as_late():
    """At each of many instants bands are told; half of those jobs still wait past the end of the
    band."""
    blind, seeing = Calibration(), Calibration()
    band = Band(50.0, 100.0, 200.0, Basis.RUNS, "")
    for number in range(100):
        told = replace(band, p10=50.0 + number, p50=100.0 + number, p90=200.0 + number)
        for one in (blind, seeing):
            one.started(one.as_told(told, float(number)), number + 70.0)
    late = [
        seeing.as_told(replace(band, p10=50.0 + n, p50=100.0 + n, p90=200.0 + n), float(n))
        for n in range(99)
    ]
    seeing.waiting(late, 1000.0)
    assert blind.fitted(band, 0.0).p90 < 120.0
    assert seeing.fitted(band, 0.0).p90 > 300.0
    assert seeing.fitted(band, 0.0).p10 < 100.0
    seeing.waiting([], 1000.0)
    assert seeing.fitted(band, 0.0) == blind.fitted(band, 0.0)


def test_misses_are_ranked_by_the_product_limit():
    known = [Miss(float(off), off in (3, 4), 0.0, None) for off in (1, 2, 3, 4, 5)]
    # The quantiles 1/5 and 2/5 are known to be 1 and 2; of the rest only 5 is known.
    assert quantiles(known, (0.1, 0.3, 0.5, 0.9)) == [1.0, 2.0, 5.0, 5.0]
    assert quantiles([Miss(1.0, False, 0.0, None), Miss(2.0, True, 0.0, None)], (0.9,)) == [2.0]


def test_quantiles_leave_out_what_never_came():
    assert quantile([1.0, 2.0, 3.0, float("inf")], 0.5) == 2.5
    assert quantile([1.0, float("inf"), float("inf")], 0.5) == float("inf")
    assert quantile([4.0] * 5, 0.9) == 4.0
