"""The demo organisation of the embedded mode: accounts, a tenant tree, quotas, one cluster."""

from typing import NamedTuple

DEMO_DOMAIN = "demo.kant.invalid"
PASSWORD = "kant-demo"


class Account(NamedTuple):
    """A demo account; `tenant` and `role` are empty for the operator."""

    username: str
    title: str
    tenant: str = ""
    role: str = ""


ACCOUNTS = (
    Account("operator", "operator: clusters, all tenants, all quotas"),
    Account("vera", "tenant admin of research", "research", "tenant-admin"),
    Account("piet", "tenant admin of products", "products", "tenant-admin"),
    Account("erin", "engineer in research / vision", "vision", "engineer"),
)
