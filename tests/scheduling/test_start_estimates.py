"""Start estimates are computed from rows, stored in rows, and compared with the actual starts."""

import os
import re
import time
from datetime import datetime, timedelta
from unittest.mock import Mock

import pytest
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from metrics.prometheus.starts import start_families
from scheduling.engine.shards.division import WIDE
from scheduling.models import Cluster, ClusterPolicy, Forecasting, Job, PodSet, StartEstimate
from scheduling.queries import starts
from scheduling.queries.start_words import record_words, span_words, start_words
from scheduling.queries.starts import ToldStart, hit_rates, told_start, words_of_size
from scheduling.queries.whatif.state import KeptState
from scheduling.services.forecasts import forecaster, process
from scheduling.services.forecasts import told as estimates
from scheduling.services.forecasts.answers import OutOfTime, WorkFailed
from scheduling.services.forecasts.forecaster import Forecaster
from scheduling.simulator.forecast import bands
from scheduling.simulator.forecast.calibration import Calibration
from scheduling.simulator.forecast.run_times import Basis
from tenants.models import Quota
from tests.scheduling.test_rehearsal import runs

HOUR = 3600.0


@pytest.fixture
def fleet(org, monkeypatch):
    """Four nodes of 8 H100; law may use all of them."""
    monkeypatch.setattr(bands, "ARRIVALS", 0)
    monkeypatch.setattr(bands, "RUNS", bands.LEAST_RUNS)
    Cluster.objects.update(connected=True, last_cycle_at=timezone.now() + timedelta(hours=1))
    Quota.objects.create(
        tenant=org.tenants["law"], gpu_type=org.gpu_types["H100"], guaranteed_milli=32_000
    )
    ClusterPolicy.objects.create(cluster=org.cluster, document={"preemption": []})
    return org


def ended(org, count, took_s, name="train", **fields):
    """Record runs that ended a day ago after this many seconds."""
    at = timezone.now() - timedelta(days=1)
    return Job.objects.bulk_create(
        Job(
            name=f"{name}-{number}", tenant=org.tenants["law"], cluster=org.cluster,
            user=org.users["lex"], state="SUCCEEDED", gpu_milli=8000, submitted_at=at,
            admitted_at=at, ended_at=at + timedelta(seconds=took_s), **fields,
        )
        for number in range(count)
    )  # fmt: skip


def waits(org, name="train-99", **fields):
    document = {"name": name, "tenant": "law", "gpu_type": "H100", "gpus": 8, **fields}
    answer = org.client("lex").post("/api/v1/jobs", document, format="json")
    assert answer.status_code == 201, answer.json()
    minute = timezone.now() - timedelta(minutes=1)
    Job.objects.filter(state="PENDING").update(submitted_at=minute, reason="InsufficientGpus")
    return answer.json()["id"]


def told(org, job_id):
    return org.client("lex").get(f"/api/v1/jobs/{job_id}").json()["start_estimate"]


def full(org, **fields):
    return [runs(org, [f"h00{n}"], **fields) for n in range(4)]


def test_a_waiting_job_is_told_a_band_by_declared_times_and_a_started_one_none(fleet):
    running = full(fleet, declared_s=3600)
    job_id = waits(fleet)
    before = told(fleet, job_id)
    assert (before["p50"], before["reason"], before["as_of"]) == (None, starts.NOT_YET, None)
    assert Forecaster().turn() == 1
    after = told(fleet, job_id)
    assert after["p10"] <= after["p50"] <= after["p90"]
    row = StartEstimate.objects.get(pk=job_id)
    assert (row.p50 - running[0].admitted_at).total_seconds() == pytest.approx(HOUR, abs=0.1)
    assert after["basis"] == "declared"
    assert (after["reason"], after["overdue"]) == ("", False)
    state = Forecasting.objects.get()
    assert (state.waiting, state.as_of) == (1, row.as_of)
    assert state.runs >= bands.LEAST_RUNS
    assert told(fleet, str(running[0].pk)) is None


def test_where_nothing_is_declared_like_runs_tell_and_are_named(fleet):
    ended(fleet, 30, 2 * HOUR)
    begun = full(fleet)
    for running in begun:
        Job.objects.filter(pk=running.pk).update(user=fleet.users["lex"], name="train-7")
    job_id = waits(fleet)
    Forecaster().turn()
    row = StartEstimate.objects.get(pk=job_id)
    assert row.basis == "runs"
    assert row.text == "like 30 earlier runs of train-* by this user"
    assert (row.p50 - begun[0].admitted_at).total_seconds() == pytest.approx(2 * HOUR, abs=0.1)


class Ending:
    """Answers whose computation never completes."""

    clusters = ()

    def __init__(self, how):
        self._how = how

    def keep(self, _):
        return None

    def beside(self, work, most_s):
        assert most_s > forecaster.MOST_S
        raise self._how


def test_a_pass_that_fails_leaves_what_was_told_and_other_clusters_alone(fleet, caplog):
    full(fleet, declared_s=3600)
    job_id = waits(fleet)
    well = Forecaster()
    well.turn()
    before, row = told(fleet, job_id), Forecasting.objects.get()
    assert before["p50"]
    waits(fleet, "another")
    Cluster.objects.create(name="other", access={"server": "http://127.0.0.1:1"})
    Job.objects.filter(name="another").update(cluster=Cluster.objects.get(name="other"))
    failing = Forecaster(well.holder, answers=Ending(WorkFailed("status 256", 2.0)))
    assert failing.turn() == 2
    assert told(fleet, job_id)["p50"] == before["p50"]
    assert Forecasting.objects.get(cluster=row.cluster).as_of == row.as_of
    assert "no new estimates of cluster demo: status 256" in caplog.text


def test_a_pass_that_is_ended_for_its_time_says_so(fleet):
    full(fleet, declared_s=3600)
    job_id = waits(fleet)
    assert Forecaster(answers=Ending(OutOfTime())).turn() == 1
    assert told(fleet, job_id)["reason"] == bands.NO_TIME
    assert Forecasting.objects.get().cpu_s >= forecaster.HARD_S


def test_what_cannot_be_told_says_why(fleet):
    full(fleet, declared_s=3600)
    held = waits(fleet, "held")
    fleet.client("lex").post(f"/api/v1/jobs/{held}/hold")
    never = waits(fleet, "never")
    PodSet.objects.filter(job=never).update(count=5)
    Forecaster().turn()
    assert told(fleet, held)["reason"] == bands.HELD
    assert told(fleet, never)["p50"] is None
    assert told(fleet, never)["reason"] not in ("", bands.HELD, starts.NOT_YET)


def test_of_a_job_that_fits_no_shard_it_is_said_that_nobody_can_tell(fleet):
    shards = [{"name": "one", "groups": ["leaf-0"]}, {"name": "rest"}]
    ClusterPolicy.objects.update(document={"preemption": [], "shards": shards})
    job_id = waits(fleet)
    Job.objects.filter(pk=job_id).update(scope=WIDE)
    Forecaster().turn()
    assert told(fleet, job_id)["reason"] == forecaster.NO_SHARD


def test_a_band_that_gets_too_wide_when_it_is_calibrated_is_not_told(fleet):
    job_id, now = waits(fleet), time.time()
    band = bands.Band(now + 1e5, now + 2e5, now + 6e5, Basis.RUNS, "")
    wide = Calibration()
    for at in range(200):
        wide.started(wide.as_told(band, now - at), now - at + (1e3, 9e6)[at % 2])
    estimates.write_estimates(bands.Bands(now, 5, {job_id: band}, {}), Calibration())
    assert told(fleet, job_id)["p50"]
    estimates.write_estimates(bands.Bands(now, 5, {job_id: band}, {}), wide)
    after = told(fleet, job_id)
    assert (after["reason"], after["p10"], after["p50"]) == (bands.TOO_WIDE, None, None)
    assert after["earliest"] is None


def test_who_starts_too_late_to_tell_is_told_from_when_on(fleet):
    job_id, now = waits(fleet), time.time()
    found = bands.Bands(now, 5, {}, {job_id: bands.TOO_LATE})
    estimates.write_estimates(found, Calibration())
    assert told(fleet, job_id)["earliest"] is None
    band = bands.Band(now + 9e5, now + 4e6, now + bands.AHEAD_S, Basis.RUNS, "like others")
    found = bands.Bands(now, 5, {}, {job_id: bands.TOO_LATE}, {job_id: band})
    estimates.write_estimates(found, Calibration())
    after = told(fleet, job_id)
    assert (after["reason"], after["p10"], after["p90"]) == (bands.TOO_LATE, None, None)
    assert datetime.fromisoformat(after["earliest"]).timestamp() < now + 9e5  # as bands are widened
    row = StartEstimate.objects.get(pk=job_id)
    assert (row.first_as_of, row.basis) == (None, "")  # not compared with its start


def test_the_first_estimate_is_kept_and_held_against_the_start(fleet):
    full(fleet, declared_s=3600)
    job_id = waits(fleet)
    one = Forecaster()
    one.turn()
    first = StartEstimate.objects.get(pk=job_id)
    Job.objects.filter(state="RUNNING").update(declared_s=7200)
    Forecaster(holder=one.holder).turn()
    second = StartEstimate.objects.get(pk=job_id)
    assert second.p50 > first.p50
    for name in ("first_p10", "first_p90", "first_as_of", "first_runs"):
        assert getattr(second, name) == getattr(first, name)
    Job.objects.filter(pk=job_id).update(state="RUNNING", admitted_at=first.p50)
    waits(fleet, "next")
    learned = forecaster.Lessons(fleet.cluster)
    forecaster.foretell(fleet.cluster, learned)
    assert StartEstimate.objects.get(pk=job_id).started_at == first.p50
    assert [(r.size, r.basis, r.starts, r.held) for r in starts._hit_rates()] == [
        (4, "declared", 1, 1)
    ]


def test_a_new_process_asks_of_bands_what_those_that_were_told_before_it_teach(fleet):
    """Most of 60 starts came after the band shown, if that was as wide as the runs suggested;
    none did if it was much wider."""
    begin = timezone.now() - timedelta(days=1)
    at = begin.timestamp()
    asked = bands.Band(at + 100, at + 200, at + 400, Basis.RUNS, "")
    ends = []
    for told_s in (400, 4000):
        lived = forecaster.Lessons(fleet.cluster)
        Job.objects.all().delete()
        for number in range(60):
            (job,) = ended(fleet, 1, 600, f"told-{told_s}-{number}")
            first = begin + timedelta(minutes=20 * number)
            since = first.timestamp()
            StartEstimate.objects.create(
                job=job,
                as_of=first,
                first_as_of=first,
                first_basis="runs",
                first_runs=[since + 100, since + 200, since + 400],
                first_p10=first + timedelta(seconds=100),
                first_p90=first + timedelta(seconds=told_s),
                started_at=first + timedelta(seconds=150 + 15 * (37 * number % 60)),
            )
            if number % 20 == 19:
                lived.catch_up()
        anew = forecaster.Lessons(fleet.cluster)
        anew.catch_up()
        fitted = anew.calibration.fitted(asked, at)
        assert fitted == lived.calibration.fitted(asked, at)
        ends.append(fitted.p90)
    assert ends[0] > ends[1]


def test_ended_runs_are_learned_once_by_a_process_that_keeps_the_state(fleet):
    ended(fleet, 12, 600)
    full(fleet)
    waits(fleet)
    kept, learned = KeptState(fleet.cluster), forecaster.Lessons(fleet.cluster)
    kept.refresh(time.time())
    assert learned.run_times_now(None).ended_runs == 12
    with CaptureQueriesContext(connection) as asked:
        assert learned.run_times_now(kept) is kept.run_times
    assert not asked.captured_queries
    assert kept.run_times.ended_runs == 12


def test_operators_see_how_true_estimates_were_on_page_rest_and_prometheus(fleet):
    full(fleet, declared_s=3600)
    Forecaster().turn()
    job_id = waits(fleet)
    Forecaster().turn()
    row = StartEstimate.objects.get(pk=job_id)
    StartEstimate.objects.update(started_at=row.first_p90 + timedelta(minutes=5))
    cache.clear()  # fresh rates, left by another test, would be reused
    client = fleet.client("ops")
    body = client.get("/api/v1/metrics/start-estimates").json()
    assert body["hit_rates"] == [
        {"gpus": "5–8 GPUs", "basis": "declared", "starts": 1, "held": 0, "share": 0.0}
    ]
    assert [(one["cluster"], one["waiting"]) for one in body["clusters"]] == [("demo", 1)]
    assert fleet.client("lex").get("/api/v1/metrics/start-estimates").status_code == 403
    told_of = {family.name: family.samples for family in start_families()}
    assert [s.value for s in told_of["kant_start_estimates"]] == [1]
    assert [s.value for s in told_of["kant_start_estimates_held"]] == [0]
    assert [s.value for s in told_of["kant_forecast_as_of_seconds"]] == [row.as_of.timestamp()]
    pages = Client()
    pages.force_login(fleet.users["ops"])
    page = pages.get("/ops/").content.decode()
    assert "How often start estimates held" in page
    assert "0.0 %" in page
    page = pages.get(f"/jobs/{job_id}/").content.decode()
    assert "<dt>Starts</dt>" in page
    assert "By declared run times; its own run time: " in page
    assert "Too few such jobs have started to tell how often estimates hold." in page
    assert "in " in pages.get("/jobs/").content.decode()


def test_everything_goes_on_while_the_forecaster_is_away(fleet):
    full(fleet, declared_s=3600)
    job_id = waits(fleet)
    Forecaster().turn()
    earlier = timezone.now() - timedelta(hours=2)
    StartEstimate.objects.update(as_of=earlier, p10=earlier, p50=earlier, p90=earlier)
    Cluster.objects.update(connected=False)
    Forecaster().turn()
    assert told(fleet, job_id)["overdue"]
    job = Job.objects.get(pk=job_id)
    now = told_start(job)
    assert now.old
    assert start_words(now).short == "overdue"
    # Once, with the delay.
    assert re.match(r"It was expected before \S+ \S+ UTC, [^.]+ ago\. By ", start_words(now).more)


@pytest.mark.parametrize(
    ("minutes", "overdue", "passed"),
    [
        ((-9, -5, -1), True, (True, True, True)),
        ((-9, -5, 9), False, (False, False, False)),
        ((-9, 5, 9), False, (False, False, False)),
        ((1, 5, 9), False, (False, False, False)),
    ],
)
def test_no_time_is_told_that_has_passed_but_of_an_overdue_start(fleet, minutes, overdue, passed):
    full(fleet, declared_s=3600)
    job_id = waits(fleet)
    Forecaster().turn()
    began = timezone.now()
    low, middle, high = (began + timedelta(minutes=it) for it in minutes)
    StartEstimate.objects.update(p10=low, p50=middle, p90=high)
    found = told(fleet, job_id)
    times = [datetime.fromisoformat(found[name]) for name in ("p10", "p50", "p90")]
    assert found["overdue"] is overdue
    assert tuple(at < began for at in times) == passed
    assert times == sorted(times)
    assert times[2] == high


def test_one_process_forecasts_for_a_cluster_and_another_takes_over(fleet):
    full(fleet, declared_s=3600)
    assert not forecaster.is_wanted(timezone.now())
    waits(fleet)
    assert forecaster.is_wanted(timezone.now())
    first, second = Forecaster(), Forecaster()
    assert (first.turn(), second.turn()) == (1, 0)
    now = timezone.now()
    assert not forecaster.is_wanted(now)
    assert forecaster.is_wanted(now + 2 * forecaster.SILENT)
    forecaster.let_go(first.holder)
    assert second.turn() == 1


def test_it_rests_in_proportion_to_what_it_took_and_works_when_something_changed(
    fleet, monkeypatch
):
    full(fleet, declared_s=3600)
    waits(fleet)
    passes, clock = Mock(return_value=0.0), [100.0]
    monkeypatch.setattr(forecaster, "foretell", passes)
    monkeypatch.setattr(forecaster.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(forecaster.time, "process_time", Mock(side_effect=[0.0, 1.0, 1.0, 1.0]))
    one = Forecaster()
    one.turn()
    assert passes.call_count == 1
    clock[0] += 1.0 / forecaster.SHARE - 0.1
    one.turn()
    assert passes.call_count == 1, "it has used a second, and a twentieth is its share"
    clock[0] += 0.2
    one.turn()
    assert passes.call_count == 1, "nothing has changed"
    Job.objects.update(version=9)
    monkeypatch.setattr(forecaster.time, "process_time", lambda: 1.0)
    clock[0] += forecaster.EVERY_S + 0.1
    one.turn()
    assert passes.call_count == 2


def test_the_process_ends_with_its_parent_and_when_nobody_waits(fleet, monkeypatch):
    cache.clear()  # nobody has asked for a forecast
    monkeypatch.setattr(process, "IDLE_S", 0.05)
    monkeypatch.setattr(process, "LOOK_S", 0.01)
    process.keep(None)
    process.keep(os.getppid() + 1)


def test_lists_of_jobs_ask_no_more_often_for_estimates(fleet):
    full(fleet, declared_s=3600)
    client = fleet.client("lex")
    counts = []
    client.get("/api/v1/jobs")
    for names in (["a"], ["b", "c", "d"]):
        for name in names:
            waits(fleet, name)
        Forecaster().turn()
        with CaptureQueriesContext(
            connection,
        ) as asked:
            assert client.get("/api/v1/jobs").status_code == 200
        counts.append(len(asked))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0, 20, "within 1 min"),
        (10, 290, "within 5 min"),
        (1210, 2095, "in 20–35 min"),
        (1500, 1501, "in 25–26 min"),
        (1800, 5000, "in 30–84 min"),
        (1800, 20_000, "in less than 6 h"),
        (3 * HOUR, 5 * HOUR, "in 3–5 h"),
        (90 * HOUR, 100 * HOUR, "in 3–5 d"),
        (-500, 600, "within 10 min"),
    ],
)
def test_spans_are_told_in_whole_units(low, high, text):
    assert span_words(low, high) == text


def test_words_say_how_often_such_estimates_held():
    assert "Too few" in record_words(None)
    assert record_words(starts.HitRate(4, "runs", 40, 33)) == (
        "33 of 40 such estimates of jobs with 5–8 GPUs held in the last 30 days."
    )
    assert [words_of_size(n) for n in range(5)] == [
        "no GPU", "up to 1 GPU", "2 GPUs", "3–4 GPUs", "5–8 GPUs",
    ]  # fmt: skip
    nothing = ToldStart(None, None, None, "", "", "It is held.", None, False, False)
    assert start_words(nothing).more == "It is held."
    assert hit_rates is not None
