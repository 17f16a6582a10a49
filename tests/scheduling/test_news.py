"""Each job event is reported once, in whatever order the transactions end."""

from datetime import UTC, datetime

import pytest

from scheduling.engine.states import JobEventKind as K
from scheduling.models import Cluster, Job, JobEvent, PodSet
from scheduling.session import changes
from scheduling.session.memory import news
from scheduling.session.memory.look import look
from scheduling.session.memory.news import News
from scheduling.session.pods.follow import Lifecycle
from tenants.models import Tenant

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def jobs(db, monkeypatch):
    monkeypatch.setattr(news, "LATE_S", 3600.0)  # however long a test takes
    tenant, cluster = Tenant.objects.create(name="team"), Cluster.objects.create(name="c")
    fields = {"tenant": tenant, "cluster": cluster, "submitted_at": NOW}
    return [Job.objects.create(name=f"job-{i}", **fields) for i in range(4)]


def follow(jobs):
    """Follow the news of these jobs' cluster, from before anything is written about them."""
    found = News(jobs[0].cluster_id)
    found.start()
    return found


def write(event_id, job, kind=K.SUBMITTED):
    JobEvent.objects.create(id=event_id, job=job, at=NOW, kind=kind.value, to_state=job.state)


def told(found):
    return {job_id for job_id, _ in found.read()[1]}


def ids(*jobs):
    return {str(job.pk) for job in jobs}


def test_an_event_that_appears_after_later_ones_is_told(jobs):
    first, second, third, _ = jobs
    found = follow(jobs)
    write(11, second)
    write(14, third)
    assert told(found) == ids(second, third)
    write(10, first)
    assert told(found) == ids(first)
    write(12, first, K.RUNNING)  # written by its own scheduler
    write(13, second, K.CANCELLED)
    assert told(found) == ids(second)
    assert told(found) == set()


def test_an_event_that_appears_while_others_are_read_is_told(jobs, monkeypatch):
    found, look_for_gaps = follow(jobs), News._look_for_gaps
    write(2, jobs[1])

    def meanwhile(self, to):
        write(1, jobs[0])
        return look_for_gaps(self, to)

    monkeypatch.setattr(News, "_look_for_gaps", meanwhile)
    assert told(found) == ids(*jobs[:2])
    assert told(found) == set()


def test_what_a_scheduler_wrote_itself_is_not_read_back(jobs, django_assert_num_queries):
    """Events that others wrote between its own events are still read."""
    first, second, third, _ = jobs
    found = follow(jobs)
    for event_id, job in enumerate([first] * 3 + [second] + [first] * 3 + [third] + [first], 1):
        write(event_id, job)
    found.wrote([9, 1, 2, 3, 5, 6, 7])
    with django_assert_num_queries(1):
        assert told(found) == ids(second, third)
    write(10, first)
    found.wrote([10])
    write(12, second)
    with django_assert_num_queries(2):
        assert told(found) == ids(second)  # and 11 is missing
    found.wrote([13])
    write(13, first)
    write(11, third)
    assert told(found) == ids(third)


def test_all_that_a_pass_asks_is_as_of_one_instant(jobs, django_assert_num_queries):
    cluster = jobs[0].cluster
    write(1, jobs[0], K.RUNNING)
    before = look(cluster.pk)
    write(2, jobs[0])
    Tenant.objects.update(version=2)
    with django_assert_num_queries(1):
        after = look(cluster.pk, before.newest, (), 10)
    assert (before.newest, before.news, before.is_active, before.alone) == (1, [], True, True)
    assert (after.newest, after.there) == (2, 1)
    assert after.news == [(2, str(jobs[0].pk), "", cluster.pk)]
    assert after.settings != before.settings
    Cluster.objects.create(name="other")
    Cluster.objects.filter(pk=cluster.pk).update(is_active=False)
    gone = look(cluster.pk)
    assert (gone.is_active, gone.alone, gone.settings) == (False, False, after.settings)
    assert look(0).is_active is False


def test_many_events_are_told_in_parts_and_none_is_left_out(jobs, monkeypatch):
    monkeypatch.setattr(news, "AT_ONCE", 2)
    found = follow(jobs)
    for event_id, job in ((1, jobs[0]), (2, jobs[1]), (4, jobs[3])):
        write(event_id, job)
    assert (told(found), found.more) == (ids(jobs[0], jobs[1]), True)
    assert (told(found), found.more) == (ids(jobs[3]), False)
    write(3, jobs[2])
    assert told(found) == ids(jobs[2])


def test_an_id_that_was_rolled_back_is_not_looked_for_for_ever(
    jobs, monkeypatch, django_assert_num_queries
):
    found = follow(jobs)
    write(5, jobs[0])
    assert told(found) == ids(jobs[0])
    monkeypatch.setattr(news, "LATE_S", 0.0)
    found.read()
    with django_assert_num_queries(1):
        found.read()


def test_when_all_jobs_are_counted_too_no_pass_reads_many_thousands(jobs, monkeypatch):
    """A pass takes in a few of the jobs whose wake-up was lost; jobs whose news are still to be
    read wait for these news."""
    monkeypatch.setattr(changes, "COUNT_S", 0.0)
    monkeypatch.setattr(changes, "AT_ONCE", 1)
    monkeypatch.setattr(news, "AT_ONCE", 1)
    for job in jobs:
        PodSet.objects.create(job=job, index=0, name="worker", count=1, gpus=1)
    life = Lifecycle()
    session = changes.Changes(jobs[0].cluster, "", (), life)
    session.start()
    write(1, jobs[0])
    write(2, jobs[1])
    known = []
    for _ in range(4):
        session.read(NOW.timestamp())
        known.append(len(life.jobs))
    assert known == [1, 2, 3, 4]
