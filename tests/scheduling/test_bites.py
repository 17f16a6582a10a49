"""Passes wait for more news when much comes, and never when little does."""

import pytest

from scheduling.session import bites
from scheduling.session.bites import Bites


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(bites, "time", clock)
    return clock


def passes(clock, news_a_second, seconds, takes_s=0.02):
    """Run passes for this many seconds; return how many news each took in, and the last rest."""
    found, taken, until, rest = Bites(), [], clock.now + seconds, 0.0
    came_at = clock.now
    while clock.now < until:
        news = int((clock.now - came_at) * news_a_second)
        if news:
            came_at += news / news_a_second
            found.took(news)
            taken.append(news)
        clock.now += takes_s
        rest = found.rest()
        clock.now += rest
    return taken, rest


@pytest.mark.parametrize("rate", [0.2, 5, 50])
def test_where_little_comes_nothing_waits(clock, rate):
    assert passes(clock, rate, 60)[1] == 0.0


@pytest.mark.parametrize("rate", [200, 600, 3000])
def test_where_much_comes_passes_are_few(clock, rate):
    taken, rest = passes(clock, rate, 60)
    later = taken[-20:-1]
    assert min(later) >= min(0.95 * rate, 400)
    assert rest < bites.MOST_S


def test_pods_of_one_gang_hardly_put_off_what_comes_after_them(clock):
    found = Bites()
    found.took(1)
    for _ in range(10):
        clock.now += 0.05
        found.took(13)
    assert found.rest() < 0.1
    clock.now += 10.0
    found.took(1)
    assert found.rest() == 0.0


def test_after_the_load_nothing_rests(clock):
    found = Bites()
    for _ in range(20):
        clock.now += 1.0
        found.took(500)
    assert found.rest() > 0.5
    assert found.are_large
    clock.now += 0.9
    assert found.rest() < 0.1
    clock.now += 15.0
    found.took(3)
    assert found.rest() == 0.0
