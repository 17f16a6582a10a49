"""The highest priority that jobs of a tenant may ask for: who goes first, and may preempt others,
is decided above the tenant."""

from tenants.errors import Invalid
from tenants.models import Tenant
from tenants.permissions import lineage
from tenants.selectors import parents_by_id


def refuse_too_high(tenant_id: int, priority: int) -> None:
    """Raises Invalid when the priority is above the `max_priority` of the tenant or of one above
    it."""
    limited = Tenant.objects.filter(max_priority__lt=priority)
    if not limited.exists():
        return
    above = limited.filter(id__in=set(lineage(parents_by_id(), tenant_id)))
    lowest = above.order_by("max_priority", "id").first()
    if lowest is not None:
        raise Invalid.field(
            "priority",
            f"Jobs of tenant “{lowest.name}” may ask for at most {lowest.max_priority}. Ask for "
            "less, or have an operator, or who administers a tenant above it, raise its "
            "max_priority.",
        )
