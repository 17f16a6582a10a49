"""A process that keeps states answers questions at once and correctly, or says why it cannot."""

import os
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context

import pytest
from django.core.cache import cache
from django.utils import timezone
from redis import Redis

from scheduling.models import Job
from scheduling.queries import effects, rehearsal, startable
from scheduling.queries.nodes import defragment
from scheduling.queries.whatif import by_rows, line
from scheduling.services.forecasts import answers as serving
from scheduling.services.forecasts import process
from scheduling.services.forecasts.answers import Answers, OutOfTime, WorkFailed
from scheduling.services.forecasts.forecaster import Forecaster
from tenants.outage import Crowded
from tenants.web.listeners import listened_to
from tests.live.test_production_shape import redis
from tests.scheduling.test_rehearsal import ask, fleet, runs, waits  # noqa: F401 - a fixture

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    with redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(params=["socket", pytest.param("redis", marks=pytest.mark.live)])
def answers(request, settings, tmp_path, monkeypatch):
    settings.REDIS_URL = ""
    if request.param == "redis":
        settings.REDIS_URL = request.getfixturevalue("redis_url")
        Redis.from_url(settings.REDIS_URL).flushall()
    monkeypatch.setattr(line.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(line, "PATIENCE_S", 30.0)  # however busy the machine is
    cache.clear()
    one = Answers(line.open_desk())
    yield one
    one.close()


def served(answers, work):
    """Run the work in a thread while questions are answered; yield its outcome."""
    found = []

    def carry_out():
        try:
            found.append(work())
        except Exception as error:  # reported to the caller
            found.append(error)

    thread = threading.Thread(target=carry_out)
    thread.start()
    until = time.monotonic() + 60
    while thread.is_alive() and time.monotonic() < until:
        answers.turn(0.02)
    thread.join(1)
    assert not answers._children or answers.turn(0.1) is None
    return found[0]


def keep(answers, cluster):
    answers.keep(cluster)
    answers.turn(0.01)


def asking(answers, monkeypatch):
    """Dry runs ask this process."""

    def through(*asked):
        said = served(answers, lambda: line.ask(*asked))
        if isinstance(said, Exception):
            raise said
        return said

    monkeypatch.setattr(by_rows, "ask", through)


def test_a_dry_run_is_told_the_same_by_the_kept_state(fleet, answers, monkeypatch):  # noqa: F811
    runs(fleet, ["h000", "h001"], declared_s=3600)
    waits(fleet, 4)
    asking(answers, monkeypatch)  # nobody keeps the state yet
    by_rows = [ask(fleet, replicas=n)["rehearsal"] for n in (1, 2, 3)]
    keep(answers, fleet.cluster)
    monkeypatch.setattr(rehearsal, "Known", None)  # answers read no rows
    for said, replicas in zip(by_rows, (1, 2, 3), strict=True):
        told = ask(fleet, replicas=replicas)["rehearsal"]
        at, then = told.pop("start"), said.pop("start")
        assert told == said
        assert (at and at["basis"]) == (then and then["basis"])
    Job.objects.filter(name="hello").update(state="CANCELLED", version=9)
    monkeypatch.setattr(serving, "FRESH_S", 0.0)
    assert ask(fleet, replicas=2)["rehearsal"]["position"] == 1, "what changed is known at once"


@pytest.mark.parametrize("answers", ["socket"], indirect=True)
def test_previews_plans_and_outlooks_are_told_the_same_by_the_kept_state(
    fleet,  # noqa: F811
    answers,
    monkeypatch,
):
    runs(fleet, ["h000", "h001"], declared_s=3600)
    runs(fleet, ["h002"], gpus=4, declared_s=7200)
    runs(fleet, ["h003"], gpus=4, declared_s=7200)
    job = waits(fleet, 2)
    asking(answers, monkeypatch)  # nobody keeps the state yet

    def told():
        ops, cluster = fleet.client("ops"), f"/api/v1/clusters/{fleet.cluster.name}"
        drained = {"action": "drain", "nodes": ["h000"]}
        quota = {"tenant": "vision", "gpu_type": "H100", "guaranteed": 0}
        asked = (
            ops.post("/api/v1/quotas:preview", {"quotas": [quota]}, format="json"),
            ops.post(f"{cluster}/nodes:preview", drained, format="json"),
            ops.post(f"{cluster}/nodes:plan", {"job": job}, format="json"),
            ops.get(f"/api/v1/jobs/{job}/outlook"),
            fleet.client("eve").get("/api/v1/startable"),
        )
        cache.clear()
        assert [answer.status_code for answer in asked] == [200] * 5
        return [without_times(answer.json()) for answer in asked]

    by_rows = told()
    keep(answers, fleet.cluster)
    for module in (rehearsal, effects, defragment, startable):
        monkeypatch.setattr(module, "Known", None)  # no rows are read for an answer
    assert told() == by_rows
    base = answers._kept[fleet.cluster.pk].state.base
    assert base is not None
    assert told() == by_rows
    state = answers._kept[fleet.cluster.pk].state
    assert state.base is base, "what goes on without a change is found out once"
    waits(fleet, 1)
    state.refresh(time.time())
    assert state.base is None


def without_times(told):
    """Return an answer without its times, which depend on when it was asked."""
    if isinstance(told, list):
        return [without_times(one) for one in told]
    if not isinstance(told, dict):
        return told
    times = {"as_of", "until", "again", "before", "after", "start", "lost_gpu_s", "requests"}
    return {key: without_times(value) for key, value in told.items() if key not in times}


@dataclass
class Sleeps:
    seconds: float

    def answer(self, _kept):
        time.sleep(self.seconds)
        return os.getpid()


@dataclass
class Fails:
    def answer(self, _kept):
        raise ValueError("a fault")


def test_a_question_that_fails_or_takes_too_long_has_no_answer(
    fleet,  # noqa: F811
    answers,
    monkeypatch,
):
    keep(answers, fleet.cluster)
    pk = fleet.cluster.pk
    assert served(answers, lambda: line.ask(pk, Sleeps(0.0))) != os.getpid()
    assert isinstance(served(answers, lambda: line.ask(pk, Fails())), line.Away)
    monkeypatch.setattr(serving, "LONGEST_S", 0.1)
    assert isinstance(served(answers, lambda: line.ask(pk, Sleeps(60.0))), line.Away)


def test_who_no_longer_listens_costs_nothing_more(fleet, answers, monkeypatch):  # noqa: F811
    keep(answers, fleet.cluster)
    monkeypatch.setattr(serving, "LONGEST_S", 600.0)
    pk = fleet.cluster.pk
    asker = get_context("fork").Process(target=lambda: line.ask(pk, Sleeps(600.0)))
    asker.start()
    until = time.monotonic() + 30
    while not answers._children and time.monotonic() < until:
        answers.turn(0.02)
    asker.kill()
    asker.join()
    while answers._children and time.monotonic() < until:
        answers.turn(0.02)
    assert time.monotonic() < until


def test_who_waits_for_long_is_told_that_many_ask(fleet, answers, monkeypatch):  # noqa: F811
    keep(answers, fleet.cluster)
    monkeypatch.setattr(serving, "LONGEST_S", 600.0)
    monkeypatch.setattr(line, "PATIENCE_S", 0.2)
    said = served(answers, lambda: line.ask(fleet.cluster.pk, Sleeps(600.0)))
    assert isinstance(said, Crowded)


def test_who_has_gone_is_not_waited_for(fleet, answers, monkeypatch):  # noqa: F811
    keep(answers, fleet.cluster)
    monkeypatch.setattr(serving, "LONGEST_S", 60.0)
    gone = threading.Event()
    threading.Timer(0.3, gone.set).start()

    def asks():
        with listened_to(gone):
            return line.ask(fleet.cluster.pk, Sleeps(60.0))

    assert isinstance(served(answers, asks), Crowded)
    assert gone.is_set()


def test_of_many_at_once_some_are_told_so(fleet, answers, monkeypatch):  # noqa: F811
    keep(answers, fleet.cluster)
    monkeypatch.setattr(serving, "AT_ONCE", 1)
    monkeypatch.setattr(line, "MOST_WAITING", 1)
    pk, found = fleet.cluster.pk, []

    def one():
        try:
            found.append(line.ask(pk, Sleeps(0.5)))
        except Crowded as error:
            found.append(error)

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        answers.turn(0.02)
    crowded = sum(isinstance(said, Crowded) for said in found)
    assert 1 <= crowded < 6


def test_work_beside_the_answers_is_done_while_questions_are_answered(fleet, answers):  # noqa: F811
    keep(answers, fleet.cluster)
    said = []

    def asks():
        said.append(line.ask(fleet.cluster.pk, Sleeps(0.0)))

    thread = threading.Thread(target=asks)
    thread.start()
    found, cpu_s = answers.beside(lambda: time.sleep(0.5) or list(range(100_000)), 60)
    assert (len(found), cpu_s < 60) == (100_000, True)
    while thread.is_alive():
        answers.turn(0.02)
    assert said
    with pytest.raises(WorkFailed, match="status"):
        answers.beside(lambda: 1 / 0, 60)


def test_work_beside_the_answers_is_ended_when_it_took_its_time(answers):
    def never():
        while True:
            pass

    with pytest.raises(OutOfTime):
        answers.beside(never, 1)
    assert answers.beside(lambda: 7, 60)[0] == 7


def test_a_state_that_somebody_asks_for_is_kept_and_forecasts_use_it(
    fleet,  # noqa: F811
    answers,
    monkeypatch,
):
    forecaster = Forecaster(answers=answers)
    pk = fleet.cluster.pk
    assert not process._keep_states(forecaster, answers)
    assert isinstance(served(answers, lambda: line.ask(pk, Sleeps(0.0))), line.Away)
    assert process._keep_states(forecaster, answers) == 1
    answers.turn(0.01)
    assert isinstance(served(answers, lambda: line.ask(pk, Sleeps(0.0))), int)
    runs(fleet, ["h000", "h001", "h002", "h003"], declared_s=3600)
    job = waits(fleet, 1)
    monkeypatch.setattr(serving, "FRESH_S", 0.0)
    Job.objects.filter(pk=job).update(submitted_at=timezone.now() - timedelta(minutes=1))
    assert forecaster.turn() == 1
    assert Job.objects.get(pk=job).estimate.p50 is not None
