"""How many jobs of a tenant, and of all tenants below it, may wait at once."""

from tenants.errors import Conflict
from tenants.models import Tenant


def refuse_more(tenant: Tenant, waiting: int, more: int) -> None:
    """Raises Conflict where so many jobs of a tenant, and of those below it, may not wait."""
    if tenant.max_waiting is not None and waiting + more > tenant.max_waiting:
        raise Conflict(
            f"Tenant “{tenant.name}” has {waiting} waiting jobs and may have {tenant.max_waiting}; "
            f"{more} more are too many. Wait until some have started, cancel some, or ask for a "
            "higher max_waiting."
        )
