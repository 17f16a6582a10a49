"""How replays are picked up, continue and end."""

import json
import os
from datetime import timedelta
from unittest.mock import Mock

import pytest
from django.conf import settings
from django.utils import timezone

from metrics import services as recorder
from metrics.models import Replay, ReplayState
from metrics.replays import process, services
from metrics.replays.results import result_of
from scheduling.models import Job
from scheduling.services.common import child
from tenants.errors import Conflict
from tests.metrics.replays import asked


@pytest.fixture
def cluster(blocked_head):
    return blocked_head


def test_one_runs_at_a_time_and_the_oldest_goes_first(cluster, operator):
    first, second = asked(cluster, operator), asked(cluster, operator)
    now = timezone.now()
    assert services.is_wanted(now)
    assert services.take_next().pk == first.pk
    assert services.take_next() is None
    assert not services.is_wanted(now)
    services.cancel_replay(operator, first)
    assert services.take_next().pk == second.pk


def test_who_is_cancelled_is_told_so_and_writes_nothing(cluster, operator):
    replay = asked(cluster, operator)
    running = services.take_next()
    assert services.is_alive(running, 0.25)
    services.cancel_replay(operator, replay)
    assert not services.is_alive(running, 0.5)
    process.carry_out(running, lambda _: None)
    replay.refresh_from_db()
    assert (replay.state, replay.progress, replay.result) == (ReplayState.CANCELLED, 0.25, None)
    assert replay.message == "Cancelled by ops."
    with pytest.raises(Conflict, match="over already"):
        services.cancel_replay(operator, replay)


def test_one_whose_process_is_gone_is_given_up(cluster, operator):
    replay = asked(cluster, operator)
    asked(cluster, operator)
    services.take_next()
    now = timezone.now()
    assert not services.is_wanted(now + services.SILENT / 2)
    assert services.is_wanted(now + services.SILENT * 2), "for the other one"
    replay.refresh_from_db()
    assert replay.state == ReplayState.FAILED
    assert "the process that computed it ended" in replay.message
    assert replay.ended_at is not None


class Left(BaseException):
    """Raised instead of ending the process."""


@pytest.mark.parametrize(
    ("parent", "most_s", "state", "text"),
    [
        (1_000_000_000, 60.0, ReplayState.FAILED, "the process that computed it ended"),
        (None, 0.0, ReplayState.FAILED, "It took more than 0 minutes of CPU time. Choose a"),
        (None, 60.0, ReplayState.CANCELLED, "Cancelled by ops."),
    ],
)
def test_the_process_ends_at_once_when_it_is_not_to_go_on(
    cluster, operator, monkeypatch, parent, most_s, state, text
):
    def leaves(_):
        raise Left

    monkeypatch.setattr(process.os, "_exit", leaves)
    monkeypatch.setattr(process, "LOOK_S", 0.01)
    monkeypatch.setattr(process, "MOST_S", most_s)
    monkeypatch.setattr(process, "connection", Mock())
    replay = asked(cluster, operator)
    watch = process._Watch(services.take_next(), parent)
    watch(0.5)
    if state == ReplayState.CANCELLED:
        services.cancel_replay(operator, replay)
    with pytest.raises(Left):
        watch._look()
    replay.refresh_from_db()
    assert replay.state == state
    assert text in replay.message


def test_the_process_takes_up_nothing_when_its_parent_is_gone(cluster, operator):
    replay = asked(cluster, operator)
    process.carry_out_all(1_000_000_000)
    replay.refresh_from_db()
    assert replay.state == ReplayState.QUEUED


@pytest.mark.parametrize("running", [False, True])
def test_the_worker_starts_one_process_where_one_is_wanted(cluster, operator, monkeypatch, running):
    started = Mock()
    monkeypatch.setattr(child.subprocess, "Popen", started)
    monkeypatch.setattr(process, "_child", child.WorkerChild("carry_out_replays"))
    process.start_if_wanted()
    started.assert_not_called()
    asked(cluster, operator)
    asked(cluster, operator)
    process.start_if_wanted()
    assert started.call_args[0][0][1:] == [
        str(settings.BASE_DIR / "manage.py"),
        "carry_out_replays",
        "--parent",
        str(os.getpid()),
    ]
    services.take_next()
    started.return_value.poll.return_value = None if running else 1
    process.start_if_wanted()
    Replay.objects.filter(state=ReplayState.RUNNING).update(
        alive_at=timezone.now() - services.SILENT * 2
    )
    process.start_if_wanted()
    assert started.call_count == (1 if running else 2), "while its child lives, it takes the next"
    assert Replay.objects.filter(state=ReplayState.FAILED).count() == 1


def test_a_history_that_cannot_be_read_fails_with_the_remedy(cluster, operator, monkeypatch):
    replay = asked(cluster, operator)
    for job in Job.objects.all():
        job.pod_sets.all().delete()
    process.carry_out(services.take_next(), lambda _: None)
    replay.refresh_from_db()
    assert (replay.state, replay.result) == (ReplayState.FAILED, None)
    assert replay.message.endswith("Choose another period.")


@pytest.mark.parametrize(
    ("error", "text"),
    [(MemoryError(), "needs more than 2 GiB of memory"), (RuntimeError("x"), "Kant failed")],
)
def test_what_goes_wrong_is_told(cluster, operator, monkeypatch, error, text):
    def fails(*_):
        raise error

    replay = asked(cluster, operator)
    monkeypatch.setattr(process, "result_of", fails)
    process.carry_out(services.take_next(), lambda _: None)
    replay.refresh_from_db()
    assert replay.state == ReplayState.FAILED
    assert text in replay.message


def test_too_many_jobs_are_refused(cluster, operator, monkeypatch):
    monkeypatch.setattr("metrics.replays.runs.MOST_JOBS", 2)
    replay = asked(cluster, operator)
    process.carry_out(services.take_next(), lambda _: None)
    replay.refresh_from_db()
    assert replay.message.startswith("More than 2 jobs waited or ran in this period.")


def test_they_are_deleted_with_the_rest(cluster, operator):
    old, new = asked(cluster, operator), asked(cluster, operator)
    ago = timezone.now() - timedelta(days=settings.KANT_KEEP_DAYS, hours=1)
    Replay.objects.filter(pk=old.pk).update(created_at=ago)
    recorder.prune(timezone.now())
    assert list(Replay.objects.values_list("pk", flat=True)) == [new.pk]


def test_progress_is_told_as_the_runs_go_on(cluster, operator, monkeypatch):
    monkeypatch.setattr("scheduling.simulator.loop.LOOK_EVENTS", 1)
    replay, told = asked(cluster, operator), []
    result_of(replay, timezone.now(), told.append)
    assert told == sorted(told)
    assert 0 <= told[0] < 0.5 < told[-1] <= 1


def test_results_are_plain_json(cluster, operator):
    replay = asked(cluster, operator)
    json.dumps(result_of(replay, timezone.now(), lambda _: None), allow_nan=False)
