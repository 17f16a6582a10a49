"""How many jobs of a tenant, and of all tenants below it, may wait at once."""

from collections import Counter
from collections.abc import Collection

from django.db.models import Count

from scheduling.engine.states import WAITING
from scheduling.models import Job
from tenants.errors import Conflict
from tenants.models import Tenant


def waiting_in(tenant_ids: Collection[int]) -> Counter[tuple[int, str]]:
    """Return how many jobs of these tenants wait, by tenant and queue."""
    waits = Job.objects.filter(tenant__in=tenant_ids, state__in=list(WAITING)).order_by()
    counts = waits.values_list("tenant_id", "queue").annotate(Count("id"))
    return Counter({(tenant, queue): jobs for tenant, queue, jobs in counts})


def refuse_more(tenant: Tenant, waiting: int, more: int) -> None:
    """Raise Conflict if that many more jobs of a tenant, and those below it, may not wait."""
    if tenant.max_waiting is not None and waiting + more > tenant.max_waiting:
        raise Conflict(
            f"Tenant “{tenant.name}” has {waiting} waiting jobs of at most {tenant.max_waiting}; "
            f"{more} more would exceed the limit. Wait until some have started, cancel some, or "
            "ask for a higher max_waiting."
        )
