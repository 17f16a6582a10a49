"""During a rolling upgrade, processes of the old version write to the tables of the new one."""

import pytest
from django.db import connection
from django.utils import timezone

from scheduling.models import Cluster, Job, NodeRecord, PodSet
from tenants.models import Tenant

ADDED = {
    PodSet: {"node_affinity": []},
    NodeRecord: {"allocated_cpu_milli": 0, "allocated_memory_mib": 0, "pods": 0},
}
# Columns in which a second row of the same job or cluster must differ.
UNIQUE = {PodSet: {"index": 1, "name": "other"}, NodeRecord: {"name": "other"}}


@pytest.fixture
def rows(db):
    tenant, cluster = Tenant.objects.create(name="team"), Cluster.objects.create(name="c")
    job = Job.objects.create(name="a", tenant=tenant, cluster=cluster, submitted_at=timezone.now())
    PodSet.objects.create(job=job, index=0, name="worker", count=1, gpus=1)
    NodeRecord.objects.create(cluster=cluster, name="n1", pods=7)


@pytest.mark.parametrize("model", ADDED)
def test_a_row_without_the_columns_that_were_added_can_be_written(rows, model):
    known = [f for f in model._meta.concrete_fields if f.name not in {"id", *ADDED[model]}]
    columns = ", ".join(f'"{field.column}"' for field in known)
    values = ", ".join("%s" if f.name in UNIQUE[model] else f'"{f.column}"' for f in known)
    given = [UNIQUE[model][f.name] for f in known if f.name in UNIQUE[model]]
    with connection.cursor() as cursor:
        table = model._meta.db_table
        cursor.execute(f"INSERT INTO {table} ({columns}) SELECT {values} FROM {table}", given)
    row = model.objects.get(name="other")
    assert {name: getattr(row, name) for name in ADDED[model]} == ADDED[model]
