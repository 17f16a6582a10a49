"""Pages that people refresh every few seconds cost the same however long the history is."""

import re
from uuid import uuid4

import pytest
from django.db import connection

from metrics import selectors
from metrics.models import MetricSample
from metrics.pages.overview.views import held_by
from metrics.selectors import MetricScope
from scheduling.models import Cluster, Job, NodeRecord
from tenants.models import User
from tests.metrics import rows
from tests.metrics.rows import at, exposition
from tests.plans import plan, queries, query

pytestmark = pytest.mark.django_db
COPIED = [f.attname for f in Job._meta.concrete_fields if not f.primary_key]


@pytest.fixture
def cluster(db):
    found = rows.cluster(2)
    rows.job(found, "over", submitted=0, bound=5, ended=50, nodes=("n000",))
    rows.job(found, "runs", submitted=0, bound=5, nodes=("n001",))
    return found


def test_waiting_jobs_are_found_among_all_that_are_over(cluster):
    over = Job.objects.get(name="over")
    copies = [Job(pk=uuid4(), **{f: getattr(over, f) for f in COPIED}) for _ in range(500)]
    Job.objects.bulk_create(copies)
    if connection.vendor == "postgresql":  # with this few rows it would take any index
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE scheduling_job")
    asked = queries(exposition, '"scheduling_job"."reason"')
    assert len(asked) == 2  # by cluster, and by queue
    for found in asked:
        assert re.search(r"scheduling__(cluster|tenant)_", plan(found)), plan(found)
    found = query(lambda: selectors.waiting_jobs(None, "H100").count(), "COUNT")
    assert re.search(r"scheduling__(cluster|tenant)_", plan(found)), plan(found)


def test_live_pods_are_found_among_all_that_are_gone(cluster, client):
    found = query(lambda: held_by(Job.objects.all()), "SUM")
    assert "scheduling__state" in plan(found), plan(found)
    client.force_login(User.objects.create_user("ops", is_operator=True))
    found = query(lambda: client.get("/ops/nodes/c1/n001/"), 'FROM "scheduling_placement"')
    assert "scheduling__state" in plan(found), plan(found)


def test_old_placements_are_not_read_for_how_well_new_ones_were_placed(cluster):
    other = Cluster.objects.create(name="c2")
    NodeRecord.objects.create(
        cluster=other, name="n000", gpu_model="H100", gpus=8, updated_at=at(0)
    )
    rows.job(other, "elsewhere", submitted=0, bound=5, nodes=("n000",))
    scope = MetricScope(cluster, "H100", at(0), at(100))
    assert [row.jobs for row in selectors.jtted(scope)] == [2]
    found = query(lambda: selectors.jtted(scope), 'FROM "scheduling_placement"')
    # On tables this small, PostgreSQL's choice of joins depends on statistics alone.
    assert connection.vendor != "sqlite" or "scheduling__ended_a" in plan(found), plan(found)


def test_the_newest_samples_are_found_among_all_that_there_are(cluster):
    MetricSample.objects.create(
        cluster=cluster, gpu_model="", at=at(0), nodes=2, fragmented_nodes=0,
        available_milli=16_000, allocated_milli=0,
    )  # fmt: skip
    found = query(lambda: selectors.latest_samples(cluster), '"at" =')
    assert "metrics_met_cluster" in plan(found), plan(found)


def test_samples_that_are_not_drawn_are_not_read(cluster, django_assert_num_queries):
    MetricSample.objects.bulk_create(
        MetricSample(
            cluster=cluster, gpu_model="", at=at(10 * i), nodes=2, fragmented_nodes=0,
            available_milli=16_000, allocated_milli=i,
        )
        for i in range(100)
    )  # fmt: skip
    scope = MetricScope(cluster, "", at(0), at(990))
    found = selectors.samples(scope, most=30)
    # Every fourth, to keep at most thirty, including the newest.
    assert [s.allocated_milli for s in found] == list(range(3, 100, 4))
    with django_assert_num_queries(2):
        selectors.samples(scope, most=30)
