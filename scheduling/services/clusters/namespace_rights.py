"""Which tenants plain pods may use: by their namespace, not by what they claim.

Anyone who may create pods in a namespace can give them any label. So a tenant's namespace serves
that tenant and those below it; for any other namespace, operators set the cluster's
`namespace_tenants` (docs/decisions/0052).
"""

from collections.abc import Iterable
from typing import Any

from scheduling.job_fields.faults import SLUG, SLUG_RULE
from scheduling.models import Cluster
from tenants.errors import FieldError
from tenants.models import Tenant
from tenants.tree import Tree

ALL = "*"
FIELD = "namespace_tenants"


def refusal(cluster: Cluster, tree: Tree, namespace: str, tenant: Tenant) -> str:
    """Return why pods of this namespace may not use the tenant, and what helps; "" = they may."""
    owner = tree.owner_of(namespace)
    if owner is not None:
        if owner in tree.above(tenant.pk):
            return ""
        return (
            f"Namespace {namespace} belongs to tenant “{owner.name}”: its pods may use that "
            f"tenant and those below it, not “{tenant.name}”. Set the label kant.io/tenant to "
            "one of them."
        )
    allowed = cluster.namespace_tenants.get(namespace, cluster.namespace_tenants.get(ALL, []))
    if ALL in allowed or tenant.name in allowed:
        return ""
    now = f"may use {', '.join(allowed)}" if allowed else "may use no tenant"
    return (
        f"Pods of namespace {namespace} {now}, not “{tenant.name}”. An operator can allow it in "
        f"{FIELD} of cluster {cluster.name}, or make it the namespace of the tenant."
    )


def only_tenant(cluster: Cluster, tree: Tree, namespace: str) -> str:
    """Return the name of the tenant that pods of this namespace use if they name none.

    That is the tenant whose namespace it is, or the only one that they may use; "" = there is none.
    """
    owner = tree.owner_of(namespace)
    if owner is not None:
        return owner.name
    allowed = cluster.namespace_tenants.get(namespace, cluster.namespace_tenants.get(ALL, []))
    return allowed[0] if len(allowed) == 1 and allowed != [ALL] else ""


def faults(document: Any) -> Iterable[FieldError]:
    """Yield the faults of a cluster's `namespace_tenants`."""
    if not isinstance(document, dict):
        yield FieldError((FIELD,), 'Must be an object: {"namespace": ["tenant", …]}.')
        return
    known = set(Tenant.objects.values_list("name", flat=True))
    for namespace, names in document.items():
        if namespace != ALL and not SLUG.fullmatch(namespace):
            detail = f"Not the name of a namespace, nor “{ALL}” for all that are not named. "
            yield FieldError((FIELD, namespace), detail + SLUG_RULE)
        elif not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            detail = f"Must be a list of names of tenants, or of “{ALL}” for all of them."
            yield FieldError((FIELD, namespace), detail)
        elif unknown := sorted(set(names) - known - {ALL}):
            detail = f"There is no tenant “{unknown[0]}”. Create it first, or leave it out."
            yield FieldError((FIELD, namespace), detail)
