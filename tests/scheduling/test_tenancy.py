"""What the engine is told of tenants, quotas and what others use."""

from scheduling.session import load
from tenants.models import Tenant


def test_a_tenant_that_takes_no_new_jobs_stays_between_those_above_and_below_it(org):
    Tenant.objects.filter(name="vision").update(is_active=False, max_running=1)
    found = {tenant.id: tenant for tenant in load.tenancy(org.cluster.pk).tenants}
    assert found["vision-lab"].parent == "vision"
    assert (found["vision"].parent, found["vision"].max_running) == ("ml", 1)
