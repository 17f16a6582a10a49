"""The Prometheus page parses and says what the tables say."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from metrics import exporter, services
from scheduling.models import Job, JobEvent
from tenants.models import GpuType, Quota, Tenant
from tests.metrics.rows import at, cluster, job

pytestmark = pytest.mark.django_db


def values(text):
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_gauges_and_histogram():
    c = cluster(2)
    job(c, "a", submitted=0, bound=4, nodes=("n000",))
    job(c, "b", submitted=0)
    moved = {"at": at(5), "kind": "REASON", "to_state": "RUNNING", "reason": "Moved"}
    JobEvent.objects.create(job=Job.objects.get(name="a"), **moved)
    services.record_sample(c, at(10))
    found = values(exporter.exposition().decode())
    assert (
        found["kant_pending_gpus", (("cluster", "c1"), ("reason", ""), ("tenant", "vision"))] == 8
    )
    assert found["kant_job_wait_seconds_bucket", (("le", "1.0"), ("size_class", "8"))] == 0
    assert found["kant_job_wait_seconds_bucket", (("le", "5.0"), ("size_class", "8"))] == 1
    assert found["kant_job_wait_seconds_sum", (("size_class", "8"),)] == 4
    assert found["kant_job_events_total", (("cluster", "c1"), ("event", "moved"))] == 1
    key = (("cluster", "c1"), ("gpu_type", "H100"))
    assert found["kant_gpu_allocation_ratio", key] == 0
    assert found["kant_gpus", (*key, ("state", "available"))] == 16


def test_a_tenant_uses_what_those_below_it_use():
    c = cluster(2)
    job(c, "a", bound=4, nodes=("n000",))
    above, below = Tenant.objects.create(name="research"), Tenant.objects.get(name="vision")
    Tenant.objects.filter(pk=below.pk).update(parent=above)
    kind = GpuType.objects.create(name="H100")
    for tenant in (above, below):
        Quota.objects.create(tenant=tenant, gpu_type=kind, guaranteed_milli=16_000)
    found = values(exporter.exposition().decode())
    for tenant in ("research", "vision"):
        key = (("gpu_type", "H100"), ("kind", "used"), ("tenant", tenant))
        assert found["kant_quota_gpus", key] == 8


def test_an_empty_installation_has_an_empty_page():
    assert values(exporter.exposition().decode()) == {}


def test_closed_to_strangers_where_the_setting_says_so(client, settings):
    settings.KANT_METRICS_OPEN = False
    assert client.get("/metrics").status_code == 403
    settings.KANT_METRICS_OPEN = True
    assert client.get("/metrics").status_code == 200
