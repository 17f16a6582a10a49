"""The accounts of the demo organisation: the sign-in page lists them, system checks guard them."""

from typing import NamedTuple

from tenants.models import Role

DEMO_DOMAIN = "demo.kant.invalid"
PASSWORD = "kant-demo"


class DemoAccount(NamedTuple):
    """A demo account; `tenant` and `role` are empty for the operator."""

    username: str
    title: str
    tenant: str = ""
    role: str = ""


ACCOUNTS = (
    DemoAccount("operator", "operator: clusters, all tenants, all quotas"),
    DemoAccount("vera", "tenant admin of research", "research", Role.TENANT_ADMIN),
    DemoAccount("piet", "tenant admin of products", "products", Role.TENANT_ADMIN),
    DemoAccount("erin", "engineer in vision, a tenant of research", "vision", Role.ENGINEER),
)
