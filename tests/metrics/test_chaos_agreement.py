import psycopg
import pytest

from metrics.chaos import invariants


@pytest.fixture
def clock(monkeypatch):
    """Time passes only when the code sleeps."""
    now = [0.0]
    monkeypatch.setattr(invariants.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(
        invariants.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds)
    )
    return now


def test_a_long_queue_has_the_time_that_it_needs(clock):
    def left() -> list[str]:
        return [f"job {number} is PENDING" for number in range(50 - int(clock[0] // 20))]

    assert invariants.agree_within(left, 30.0) == []
    assert clock[0] >= 1000


def test_what_stays_is_told_after_the_time_without_progress(clock):
    def left() -> list[str]:
        return [f"job {number} is PENDING" for number in range(max(3, 9 - int(clock[0] // 20)))]

    assert len(invariants.agree_within(left, 30.0)) == 3
    assert 150 < clock[0] < 160


def test_what_comes_and_goes_is_no_progress(clock):
    def left() -> list[str]:
        return ["a", "b"] if int(clock[0]) % 2 else ["a"]

    assert invariants.agree_within(left, 30.0)
    assert clock[0] < 40


def test_who_cannot_answer_makes_no_progress(clock):
    def left() -> list[str]:
        raise psycopg.OperationalError("the server is away")

    assert invariants.agree_within(left, 30.0) == ["OperationalError: the server is away"]
    assert clock[0] < 40
