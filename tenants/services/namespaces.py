"""Which Kubernetes namespace a tenant may have.

Pods of its jobs may use every secret, claim and service account there, so tenants share a namespace
only by inheritance.
"""

from tenants import facts
from tenants.errors import Invalid
from tenants.models import Tenant


def refuse_unfit_namespace(tenant: Tenant) -> None:
    """Raise Invalid when others use the tenant's namespace. The caller has checked its syntax."""
    name = tenant.namespace
    if name is None:
        return
    if name.startswith("kube-"):
        raise _unfit(f"{name} is one of Kubernetes' own namespaces: their names begin with kube-.")
    if name == "default":
        raise _unfit(
            "default is the namespace of everybody who names none; it belongs to no tenant."
        )
    if whose := facts.scheduling().reserved_namespaces().get(name):
        raise _unfit(whose)
    other = Tenant.objects.filter(namespace=name).exclude(pk=tenant.pk).first()
    if other is not None:
        raise _unfit(
            f"{name} is the namespace of tenant “{other.name}”. Tenants below it use it, too, "
            "unless they set their own."
        )


def _unfit(detail: str) -> Invalid:
    return Invalid.field("namespace", f"{detail} Choose another one.")
