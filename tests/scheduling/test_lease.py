"""A lease has one holder at a time and a token that grows, and writes fail once it is lost."""

from datetime import UTC, datetime, timedelta

import pytest

from scheduling.models import Cluster, SchedulerLease
from scheduling.services.common.lease import LeaseLost, fence, give_back, take_or_renew

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def cluster(db):
    return Cluster.objects.create(name="c")


def at(seconds):
    return NOW + timedelta(seconds=seconds)


def test_the_first_takes_it_and_the_second_waits(cluster):
    lease = take_or_renew(cluster.pk, "a", now=NOW, seconds=15)
    assert (lease.token, lease.expires_at) == (1, at(15))
    assert take_or_renew(cluster.pk, "b", now=at(14), seconds=15) is None


def test_renewing_in_time_keeps_the_token(cluster):
    take_or_renew(cluster.pk, "a", now=NOW, seconds=15)
    assert take_or_renew(cluster.pk, "a", now=at(10), seconds=15).token == 1
    assert take_or_renew(cluster.pk, "b", now=at(20), seconds=15) is None


def test_a_new_holder_gets_a_higher_token_and_fences_the_old_one(cluster):
    old = take_or_renew(cluster.pk, "a", now=NOW, seconds=15)
    new = take_or_renew(cluster.pk, "b", now=at(15), seconds=15)
    assert new.token == old.token + 1
    fence(new)
    with pytest.raises(LeaseLost):
        fence(old)


def test_renewing_late_keeps_the_token_only_if_nobody_led_in_between(cluster):
    old = take_or_renew(cluster.pk, "a", now=NOW, seconds=15)
    assert take_or_renew(cluster.pk, "a", now=at(20), seconds=15).token == old.token
    take_or_renew(cluster.pk, "b", now=at(40), seconds=15)
    assert take_or_renew(cluster.pk, "a", now=at(41), seconds=15) is None
    again = take_or_renew(cluster.pk, "a", now=at(60), seconds=15)
    assert again.token == old.token + 2
    with pytest.raises(LeaseLost):
        fence(old)


def test_given_back_it_is_free_at_once_and_only_the_holder_can(cluster):
    lease = take_or_renew(cluster.pk, "a", now=NOW, seconds=15)
    give_back(lease)
    other = take_or_renew(cluster.pk, "b", now=at(1), seconds=15)
    assert other.token == 2
    give_back(lease)
    assert SchedulerLease.objects.get(cluster=cluster).expires_at == other.expires_at
