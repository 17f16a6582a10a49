"""What the engine learns about tenants, quotas and use elsewhere."""

from scheduling.session.memory import load
from tenants.models import Tenant


def test_a_tenant_that_takes_no_new_jobs_stays_between_those_above_and_below_it(org):
    Tenant.objects.filter(name="vision").update(is_active=False, max_running=1)
    found = {tenant.id: tenant for tenant in load.tenancy(org.cluster.pk).tenants}
    assert found["vision-lab"].parent == "vision"
    assert (found["vision"].parent, found["vision"].max_running) == ("ml", 1)


def test_a_minimum_run_time_is_told_where_it_is_given(org):
    Tenant.objects.filter(name="ml").update(min_runtime_s=90.5)
    Tenant.objects.filter(name="vision-lab").update(min_runtime_s=0)
    found = {tenant.id: tenant.min_runtime_s for tenant in load.tenancy(org.cluster.pk).tenants}
    assert found == {"ml": 90.5, "vision": None, "vision-lab": 0.0, "law": None}
