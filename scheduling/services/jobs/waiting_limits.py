"""How many jobs of a tenant, and of all tenants below it, may wait at once."""

from scheduling.engine.states import WAITING
from scheduling.models import Job
from tenants.errors import Conflict
from tenants.models import Tenant
from tenants.permissions import lineage
from tenants.selectors import parents_by_id, subtree_ids


def refuse_too_many_waiting(tenant: Tenant, more: int) -> None:
    """Raises Conflict when `more` waiting jobs are too many for the tenant or one above it.

    To be called in the transaction that writes them: the row of a limited tenant is locked, so
    that submissions that cross each other count each other.
    """
    if not Tenant.objects.exclude(max_waiting=None).exists():
        return
    parents = parents_by_id()
    limited = Tenant.objects.select_for_update().filter(id__in=set(lineage(parents, tenant.pk)))
    for above in limited.exclude(max_waiting=None).order_by("id"):
        ids = subtree_ids(above.pk, parents)
        waiting = Job.objects.filter(tenant__in=ids, state__in=list(WAITING)).count()
        refuse_more(above, waiting, more)


def refuse_more(tenant: Tenant, waiting: int, more: int) -> None:
    """Raises Conflict where so many jobs of a tenant, and of those below it, may not wait."""
    if tenant.max_waiting is not None and waiting + more > tenant.max_waiting:
        raise Conflict(
            f"Tenant “{tenant.name}” has {waiting} waiting jobs and may have {tenant.max_waiting}; "
            f"{more} more are too many. Wait until some have started, cancel some, or ask for a "
            "higher max_waiting."
        )
