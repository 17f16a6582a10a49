"""While an upgrade is rolled out, processes of the version before write the tables of this one."""

from django.db import connection
from django.utils import timezone

from scheduling.models import Cluster, Job, PodSet
from tenants.models import Tenant


def test_a_pod_set_without_what_was_added_since_can_be_written(db):
    tenant, cluster = Tenant.objects.create(name="team"), Cluster.objects.create(name="c")
    job = Job.objects.create(name="a", tenant=tenant, cluster=cluster, submitted_at=timezone.now())
    PodSet.objects.create(job=job, index=0, name="worker", count=1, gpus=1)
    fields = [f for f in PodSet._meta.concrete_fields if f.name not in ("id", "node_affinity")]
    names = ", ".join(f'"{field.column}"' for field in fields)
    values = names.replace('"index"', '"index" + 1').replace('"name"', "'other'")
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO scheduling_podset ({names}) SELECT {values} FROM scheduling_podset"
        )
    assert PodSet.objects.get(name="other").node_affinity == []
