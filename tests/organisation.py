"""A small organisation for tests of REST and pages: a tenant tree, one person in each role.

ml ── vision ── vision-lab          law (a foreign tenant)
"""

import secrets
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.hashers import make_password
from rest_framework.test import APIClient

from scheduling.models import Cluster, NodeRecord
from tenants.models import ApiToken, GpuType, Membership, Role, Tenant, User
from tenants.services.tokens import PREFIX, SHOWN, digest_of


@dataclass
class Organisation:
    tenants: dict[str, Tenant] = field(default_factory=dict)
    users: dict[str, User] = field(default_factory=dict)
    gpu_types: dict[str, GpuType] = field(default_factory=dict)
    cluster: Any = None

    def client(self, who: str, **headers: str) -> APIClient:
        """Return a REST client that acts as a user, with a real token."""
        client = APIClient(headers={"Accept": "application/json", **headers})
        # Insert the row directly: tests need more tokens than one user may have.
        secret = PREFIX + secrets.token_urlsafe(32)
        ApiToken.objects.create(
            user=self.users[who], name="test", prefix=secret[:SHOWN], digest=digest_of(secret)
        )
        client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
        return client


ROLES = {
    "root": {"ml": Role.TENANT_ADMIN},  # tenant admin of ml and below
    "ada": {"vision": Role.TENANT_ADMIN},
    "eve": {"vision": Role.ENGINEER},
    "joe": {"vision": Role.ENGINEER},
    "vic": {"vision": Role.VIEWER},
    "lex": {"law": Role.TENANT_ADMIN},
}


def build(nodes: int = 4) -> Organisation:
    """Create the organisation and a cluster of `nodes` nodes with 8 H100 each and 2 with 4 A100."""
    org = Organisation()
    for name, parent in (("ml", None), ("vision", "ml"), ("vision-lab", "vision"), ("law", None)):
        org.tenants[name] = Tenant.objects.create(
            name=name, title=name.title(), parent=org.tenants.get(parent or "")
        )
    # Thousands of tests begin here, so rows are created in bulk.
    password = make_password("x")
    users = [User(username=name, password=password) for name in ROLES]
    users.append(User(username="ops", password=password, is_operator=True))
    org.users = {user.username: user for user in User.objects.bulk_create(users)}
    Membership.objects.bulk_create(
        Membership(user=org.users[name], tenant=org.tenants[tenant], role=role)
        for name, roles in ROLES.items()
        for tenant, role in roles.items()
    )
    types = [GpuType(name=name, memory_mib=81920) for name in ("H100", "A100", "T4")]
    org.gpu_types = {each.name: each for each in GpuType.objects.bulk_create(types)}
    org.cluster = Cluster.objects.create(
        name="demo", title="Demo", access={"server": "http://127.0.0.1:1"}
    )
    NodeRecord.objects.bulk_create(
        [_node(org.cluster, f"h{i:03}", "H100", 8, f"leaf-{i // 2}") for i in range(nodes)]
        + [_node(org.cluster, f"a{i:03}", "A100", 4, "leaf-a") for i in range(2)]
    )
    return org


def _node(cluster: Cluster, name: str, model: str, gpus: int, leaf: str) -> NodeRecord:
    return NodeRecord(
        cluster=cluster, name=name, gpu_model=model, gpus=gpus, healthy_gpus=gpus, leaf=leaf
    )
