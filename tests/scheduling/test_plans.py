"""Frequent queries of a scheduler read the same number of rows, however many jobs the cluster
ever had."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from django.db import connection

from scheduling.api.filters import JobFilter
from scheduling.engine.shards.division import WHOLE
from scheduling.models import Cluster, Job, JobEvent, PodSet
from scheduling.pages.tenants import tenants as tenant_views
from scheduling.queries.whatif.rows import KeptRows
from scheduling.services.jobs.dependencies import refuse_cycle
from scheduling.session.memory import divided, load
from scheduling.session.memory.news import News
from tenants.models import Tenant, User
from tests.plans import plan, queries, query

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def cluster(db):
    tenant, found = Tenant.objects.create(name="team"), Cluster.objects.create(name="c")
    job = Job.objects.create(name="job", tenant=tenant, cluster=found, submitted_at=NOW)
    PodSet.objects.create(job=job, index=0, name="worker", count=1, gpus=1)
    return found


def test_news_are_found_by_their_number_and_not_among_the_events_of_all_jobs(cluster):
    news = News(cluster.pk)
    news.start()
    job = Job.objects.get()
    JobEvent.objects.create(job=job, at=NOW, kind="SUBMITTED", to_state=job.state)
    found = plan(query(lambda: news.read(), "scheduling_jobevent", "kind IN"))
    assert "scheduling_jobevent" in found
    assert connection.vendor != "sqlite" or "SCAN scheduling_jobevent" not in found, found


@pytest.mark.parametrize(
    "ask",
    [
        lambda cluster: load.versions(cluster.pk, WHOLE),
        lambda cluster: divided.demand(cluster.pk),
        lambda cluster: refuse_cycle(cluster.pk, (), {}),
        lambda cluster: tenant_views.open_jobs(Tenant.objects.all()),
    ],
    ids=["versions", "demand", "refuse_cycle", "open_jobs"],
)
def test_open_jobs_are_found_by_their_states_among_all_that_are_over(cluster, ask):
    asked = queries(lambda: ask(cluster), '"scheduling_job"."state" IN')
    assert asked
    for found in map(plan, asked):
        assert connection.vendor != "sqlite" or "=? AND state=?" in found, found


def test_live_places_are_those_of_open_jobs_which_are_found_by_their_states(cluster):
    kept = KeptRows(cluster)
    kept.refresh(0.0)
    asked = queries(lambda: kept.refresh(1.0), 'FROM "scheduling_placement"')
    assert asked
    for found in map(plan, asked):
        assert connection.vendor != "sqlite" or "=? AND state=?" in found, found


@pytest.mark.parametrize(
    ("asked", "index"),
    [
        ({"q": "zzz"}, "parts_of_job_names"),
        ({"q": "abc"}, "parts_of_job_names"),  # or the beginning of an id
        ({"name": "job"}, "parts_of_job_names"),
        ({"reason": "WaitingForQuota"}, "jobs_with_a_reason"),
        ({"held": "true"}, "held_jobs"),
        ({"min_gpus": "512"}, "large_jobs"),
    ],
)
@pytest.mark.stored
def test_lists_of_few_jobs_do_not_read_all_jobs(cluster, asked, index):
    """A page asks every few seconds, even if nothing is found."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite takes no such index for what is not written the same")
    ordered = Job.objects.order_by("-submitted_at", "-id")
    rows = JobFilter(asked, queryset=ordered, request=SimpleNamespace(user=User())).qs
    # As with many jobs, where the page's sort order would be the slowest way to a few of them.
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_indexscan = off")
    found = plan(query(lambda: list(rows), 'FROM "scheduling_job"'))
    assert index in found, found
