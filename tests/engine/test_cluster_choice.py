"""Which cluster a job goes to and when it moves on, as a table of known facts and decisions."""

import pytest

from scheduling.engine.cluster_choice.choice import (
    MIN_GAIN_S,
    MIN_STAY_S,
    TIE_S,
    choose,
    gains,
    span,
)
from scheduling.engine.cluster_choice.choice import ClusterOutlook as Outlook

NOW = 1000.0
HOUR = 3600.0


def named(**outlooks):
    return [Outlook(name, **known) for name, known in outlooks.items()]


AT_ONCE = {"starts_now": True}
IN_40_MIN = {"start_at": NOW + 2400, "why": "no H100 GPU is free"}
UNKNOWN = {"why": "quota leaves vision 0 H100 GPUs now"}
SILENT = {"silent": "not heard of since 09:00"}


@pytest.mark.parametrize(
    ("outlooks", "summary"),
    [
        pytest.param(
            {"a": IN_40_MIN, "b": AT_ONCE},
            "Runs on b: starts there at once; on a in 40 min (no H100 GPU is free).",
            id="now before later",
        ),
        pytest.param(
            {"a": {"start_at": NOW + 3 * HOUR}, "b": IN_40_MIN, "c": UNKNOWN},
            "Runs on b: starts there in 40 min (no H100 GPU is free); on a in 3 h; on c at an "
            "unknown time (quota leaves vision 0 H100 GPUs now).",
            id="the earliest that is known",
        ),
        pytest.param(
            {"a": SILENT, "b": UNKNOWN},
            "Runs on b: starts there at an unknown time (quota leaves vision 0 H100 GPUs "
            "now); a is passed over: not heard of since 09:00.",
            id="a silent cluster is passed over",
        ),
        pytest.param(
            {"a": SILENT, "b": {**SILENT, "labels": 1}},
            "Sent to b: not heard of since 09:00, as on a; it has more of the labels that "
            "the job prefers.",
            id="all are silent",
        ),
        pytest.param(
            {"a": {**AT_ONCE, "refused": "has no H100"}, "b": UNKNOWN},
            "Runs on b: starts there at an unknown time (quota leaves vision 0 H100 GPUs now).",
            id="never where it is refused",
        ),
        pytest.param(
            {"a": {**AT_ONCE, "groups": 2, "labels": 1}, "b": {**AT_ONCE, "groups": 1}},
            "Runs on b: starts there at once, as on a; its pods are within 1 network group there.",
            id="topology before labels",
        ),
        pytest.param(
            {"a": {**AT_ONCE, "room": 9e6}, "b": {**AT_ONCE, "labels": 2}},
            "Runs on b: starts there at once, as on a; it has more of the labels that the job "
            "prefers.",
            id="labels before room",
        ),
        pytest.param(
            {"a": AT_ONCE, "b": {**AT_ONCE, "room": 8000.0}},
            "Runs on b: starts there at once, as on a; it has the most room.",
            id="room",
        ),
        pytest.param(
            {"b": AT_ONCE, "a": AT_ONCE},
            "Runs on a: starts there at once, as on b; it is the first by name.",
            id="name",
        ),
        pytest.param(
            {"a": {"start_at": NOW + 600}, "b": {"start_at": NOW + 600 + TIE_S, "labels": 1}},
            "Runs on b: starts there in 11 min, as on a; it has more of the labels that the job "
            "prefers.",
            id="starts that are close are equal",
        ),
        pytest.param({"a": AT_ONCE}, "Runs on a: starts there at once.", id="one cluster"),
    ],
)
def test_a_job_goes_where_it_starts_first(outlooks, summary):
    chosen = choose(named(**outlooks), NOW)
    assert chosen.summary == summary
    assert f" {chosen.name}:" in summary
    # The order in which clusters are listed does not matter.
    assert choose(named(**outlooks)[::-1], NOW) == chosen


def test_a_job_that_can_run_nowhere_goes_nowhere():
    assert choose([], NOW) is None
    assert choose(named(a={"refused": "has no H100"}, b={"refused": "too small"}), NOW) is None


LONG = 10 * MIN_STAY_S


@pytest.mark.parametrize(
    ("here", "there", "stayed", "moves", "moved"),
    [
        pytest.param(IN_40_MIN, AT_ONCE, LONG, 0, True, id="another cluster frees up"),
        pytest.param(UNKNOWN, AT_ONCE, LONG, 0, True, id="when it starts here is not known"),
        pytest.param(AT_ONCE, AT_ONCE, LONG, 0, False, id="it starts here"),
        pytest.param(UNKNOWN, IN_40_MIN, LONG, 0, False, id="what is not known is not later"),
        pytest.param(IN_40_MIN, UNKNOWN, LONG, 0, False, id="known against not known"),
        pytest.param(IN_40_MIN, AT_ONCE, MIN_STAY_S - 1, 0, False, id="it came just now"),
        pytest.param(IN_40_MIN, AT_ONCE, 3 * MIN_STAY_S, 2, False, id="it has moved twice"),
        pytest.param(IN_40_MIN, AT_ONCE, 4 * MIN_STAY_S, 2, True, id="and has stayed since"),
        pytest.param(
            {"start_at": NOW + MIN_GAIN_S}, AT_ONCE, LONG, 0, False, id="it starts here soon"
        ),
        pytest.param(
            {"start_at": NOW + 10 * HOUR},
            {"start_at": NOW + 8 * HOUR},
            LONG,
            0,
            False,
            id="a small part of its wait",
        ),
        pytest.param(
            {"start_at": NOW + 10 * HOUR}, {"start_at": NOW + 7 * HOUR}, LONG, 0, True, id="hours"
        ),
        pytest.param(SILENT, UNKNOWN, 0.0, 6, True, id="nobody decides here"),
        pytest.param(SILENT, SILENT, LONG, 0, False, id="nobody decides there either"),
        pytest.param({"refused": "no node"}, UNKNOWN, 0.0, 0, True, id="it cannot run here now"),
        pytest.param(
            IN_40_MIN, {**AT_ONCE, "refused": "no"}, LONG, 0, False, id="it cannot run there"
        ),
        pytest.param(IN_40_MIN, {**AT_ONCE, **SILENT}, LONG, 0, False, id="nobody decides there"),
    ],
)
def test_a_job_moves_where_it_gains_enough(here, there, stayed, moves, moved):
    a, b = named(a=here, b=there)
    assert gains(a, b, stayed, moves, NOW) is moved


def test_no_two_clusters_pass_a_job_to_and_fro():
    """Of two reachable clusters at most one is better than the other, whatever is known of them."""
    kinds = [AT_ONCE, IN_40_MIN, UNKNOWN, {"refused": "x"}, {"start_at": NOW + 9 * HOUR}]
    for one in kinds:
        for other in kinds:
            a, b = named(a=one, b=other)
            assert not (gains(a, b, LONG, 0, NOW) and gains(b, a, LONG, 0, NOW))


def test_spans_in_words():
    told = [span(seconds) for seconds in (-5, 59, 60, 5399, 5400, 35 * HOUR, 36 * HOUR)]
    assert told == ["under 1 min", "under 1 min", "1 min", "90 min", "2 h", "35 h", "2 d"]
