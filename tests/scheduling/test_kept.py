"""Slow answers are kept in Redis, and computed if Redis is away."""

from itertools import count

import pytest
from django.core.cache import cache
from redis.exceptions import ConnectionError as RedisConnectionError

from scheduling.queries import kept
from scheduling.queries.kept import kept_before


@pytest.fixture
def ask(monkeypatch):
    """Ask; return how often the answer was computed."""
    cache.clear()
    return count(1).__next__


def break_from(monkeypatch, name):
    def away(*_, **__):
        raise RedisConnectionError("refused")

    monkeypatch.setattr(kept.cache, name, away)


def test_an_answer_is_told_again_while_it_is_fresh(ask):
    assert [kept.kept("a", ask), kept.kept("a", ask)] == [1, 1]
    assert kept_before("a", int) == 1
    assert kept_before("a", str) is None
    assert kept_before("b", int) is None


@pytest.mark.parametrize("name", ["get", "add", "set", "delete"])
def test_without_redis_everybody_asks_anew(ask, monkeypatch, name):
    break_from(monkeypatch, name)
    again = 1 if name == "delete" else 2  # it was kept before
    assert [kept.kept("a", ask), kept.kept("a", ask)] == [1, again]


def test_without_redis_nothing_was_told_before(monkeypatch):
    break_from(monkeypatch, "get")
    assert kept_before("a", int) is None
