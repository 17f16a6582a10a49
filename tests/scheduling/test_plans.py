"""What a scheduler asks in every pass, or every few seconds, reads as many rows however many jobs
the cluster ever had."""

from datetime import UTC, datetime

import pytest
from django.db import connection

from scheduling.engine.shards.division import WHOLE
from scheduling.models import Cluster, Job, JobEvent, PodSet
from scheduling.pages.tenants import tenants as tenant_views
from scheduling.services.jobs.dependencies import refuse_cycle
from scheduling.session.memory import divided, load
from scheduling.session.memory.news import News
from tenants.models import Tenant
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
