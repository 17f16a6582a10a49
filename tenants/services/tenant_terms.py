"""A tenant in one place: its fields, their defaults, and who may set them."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from tenants.effects import PlannedTenant
from tenants.models import Tenant

MAX_JOBS = 1_000_000  # highest limit on jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantTerms:
    """The fields of a tenant. `parent`: the name of the parent; None = a root. Limits: None = no
    limit. `min_runtime_s` and `namespace`: None = inherited."""

    title: str = ""
    parent: str | None = None
    weight: float = 1.0
    max_running: int | None = None
    max_waiting: int | None = None
    max_priority: int | None = None
    min_runtime_s: float | None = None
    namespace: str | None = None

    def columns(self) -> dict[str, Any]:
        """Return all columns except the parent, which is a row of its own."""
        return {name: value for name, value in asdict(self).items() if name != "parent"}


# What tenant admins may change of their own tenant; all else is decided above it.
OWN_FIELDS = frozenset({"title"})
LIMITS = frozenset({"max_running", "max_waiting", "max_priority"})
# With these a tenant's jobs could use or keep what belongs to others, so only operators set them.
OPERATORS_FIELDS = {
    "namespace": "Only operators can set the namespace of a tenant: its jobs may use everything "
    "in it.",
    "min_runtime_s": (
        "Only operators can set the minimum run time of a tenant: for that time its jobs keep "
        "what others lent it."
    ),
}
FIELDS = (*(field.name for field in fields(TenantTerms)), "is_active")


# Fields whose change affects existing jobs.
FELT_BY_JOBS = frozenset(field.name for field in fields(PlannedTenant))


def planned(tenant: Tenant) -> PlannedTenant:
    """Return a tenant as the scheduler sees it, or would see it."""
    return PlannedTenant(
        tenant.parent.name if tenant.parent else None,
        tenant.weight,
        tenant.max_running,
        tenant.min_runtime_s,
    )


def as_document(tenant: Tenant) -> dict[str, Any]:
    """Return a tenant as a document of the audit trail."""
    said = {name: getattr(tenant, name) for name in FIELDS}
    return {"name": tenant.name, **said, "parent": tenant.parent.name if tenant.parent else None}
