"""The highest priority that jobs of a tenant may ask for.

Who goes first, and may preempt others, is decided above the tenant.
"""

from tenants.errors import Invalid
from tenants.tree import Tree


def refuse_too_high(tree: Tree, tenant_id: int, priority: int) -> None:
    """Raise Invalid if the priority is above the `max_priority` of the tenant or one above it."""
    limits = [
        (b.max_priority, b.id, b.name) for b in tree.above(tenant_id) if b.max_priority is not None
    ]
    if not limits:
        return
    most, _, name = min(limits)
    if priority > most:
        raise Invalid.field(
            "priority",
            f"The highest priority of jobs of tenant “{name}” is {most}. Ask for less, or ask an "
            "operator or a tenant admin of a tenant above it to raise its max_priority.",
        )
