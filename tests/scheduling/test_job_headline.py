"""The headline on a job's page says the most important thing about it."""

from datetime import timedelta

import pytest
from django.utils import timezone

from scheduling.engine.states import JobState
from scheduling.engine.verdict import NEVER, Reason
from scheduling.models import Job
from scheduling.pages.jobs.headline import Headline, headline
from scheduling.queries.explain import Start
from scheduling.queries.starts import ToldStart

MINUTES = 60


def said(state=JobState.PENDING, told=None, start=None, **fields) -> Headline:
    return headline(Job(state=state.value, **fields), told, start)


def ago(seconds):
    return timezone.now() - timedelta(seconds=seconds)


def band(*minutes, overdue=False):
    ends = [ago(-m * MINUTES) for m in minutes] if minutes else [None] * 3
    return ToldStart(
        *ends, "runs", "2 h", "" if minutes else "none", timezone.now(), overdue, False
    )


def at(minutes, basis):
    return Start(ago(-minutes * MINUTES) if minutes else None, basis, "")


@pytest.mark.parametrize(
    ("told", "start", "text", "tone"),
    [
        ([20.5, 25, 34.5], None, "Starts in 20–35 min", ""),
        ([-30, -20, -10], (5, "reservation"), "Overdue", "wait"),
        ([], (24.5, "reservation"), "Starts in 24 min", ""),
        (None, (24.5, "earliest"), "Starts in 24 min", ""),
        (None, (24.5, "forecast"), "Starts in 24 min", ""),
        (None, (-3, "reservation"), "Overdue", "wait"),
        (None, (-3, "earliest"), "Waiting", ""),
        ([], (None, "unknown"), "Waiting", ""),
        (None, None, "Waiting", ""),
    ],
)
def test_of_a_job_that_waits_when_it_starts(told, start, text, tone):
    # Computed within the test: much time passes between the collection of parameters and their use.
    told = None if told is None else band(*told, overdue=min(told, default=0) < 0)
    start = at(*start) if start else None
    found = said(told=told, start=start)
    assert (found.text.partition("min")[0], found.tone) == (text.partition("min")[0], tone)
    assert found.text.endswith("or later") == bool(
        start and start.at and start.at > timezone.now() and start.basis != "reservation"
    )
    assert found.share is None


def test_what_keeps_it_from_starting_comes_before_any_estimate():
    soon = {"told": band(1, 2, 3), "start": at(2, "reservation")}
    assert said(held=True, reason=Reason.FRAGMENTED_CAPACITY, **soon).text == "On hold"
    for reason in NEVER:
        found = said(reason=reason, **soon)
        assert (found.text, found.tone) == ("Will not start as it is", "bad")


@pytest.mark.parametrize(
    ("ran_s", "fields", "text", "tone", "share"),
    [
        (3 * 3600, {"declared_s": 12 * 3600}, "Ran 3 h of 12 h", "", 0.25),
        (3 * 3600, {"run_limit_s": 6 * 3600}, "Ran 3 h of 6 h", "", 0.5),
        (3 * 3600, {}, "Ran 3 h", "", None),
        (13 * 3600, {"declared_s": 12 * 3600}, "Ran 13 h, 12 h declared", "wait", 1.0),
        (13 * 3600, {"run_limit_s": 12 * 3600}, "Ran 13 h, 12 h allowed", "wait", 1.0),
        (
            3 * 3600,
            {"declared_s": 12 * 3600, "run_limit_s": 4 * 3600},
            "Ran 3 h of 4 h",
            "",
            0.75,
        ),
    ],
)
def test_of_a_job_that_runs_how_much_of_its_time_has_passed(ran_s, fields, text, tone, share):
    found = said(JobState.RUNNING, running_at=ago(ran_s + 1), **fields)
    assert (found.text, found.tone) == (text, tone)
    assert found.share == (None if share is None else pytest.approx(share, abs=0.001))


def test_of_a_job_whose_pods_do_not_run_yet_or_any_more():
    assert said(JobState.ADMITTED, bound_at=ago(1)).text == "Starting"
    hour = {"running_at": ago(3700), "ended_at": ago(100)}
    for state, text, tone in (
        (JobState.SUCCEEDED, "Succeeded after 1 h", ""),
        (JobState.FAILED, "Failed after 1 h", "bad"),
        (JobState.CANCELLED, "Cancelled after 1 h", ""),
    ):
        assert said(state, **hour) == Headline(text, tone)
    assert said(JobState.CANCELLED, ended_at=ago(1)) == Headline("Cancelled")
