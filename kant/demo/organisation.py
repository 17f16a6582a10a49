"""The demo organisation of the embedded mode: accounts, a tenant tree, quotas, one cluster.

Everything is created once, through the same services as people's own changes; later changes and
deletions survive the next start. GPU types of a fleet that runs for the first time get quotas in
the same shares.
"""

from pathlib import Path
from typing import NamedTuple

from django.contrib.auth.hashers import make_password

from kant.demo.accounts import ACCOUNTS, DEMO_DOMAIN, PASSWORD
from scheduling.engine.types import JobKind
from scheduling.kube.door.gateway import Gateway
from scheduling.kube.seam import NodeSeen
from scheduling.models import Cluster
from scheduling.services.clusters.changes import change_cluster, create_cluster
from scheduling.services.policies.changes import change_policy
from tenants.models import GpuType, QuotaMode, Role, Tenant, User
from tenants.services.audit import Why
from tenants.services.gpu_types import create_gpu_type
from tenants.services.members import set_member
from tenants.services.queues.change import create_queue
from tenants.services.queues.terms import QueueTerms
from tenants.services.quota_terms import QuotaChange, QuotaTerms
from tenants.services.quotas import change_quota
from tenants.services.tenant_terms import TenantTerms
from tenants.services.tenants import create_tenant

SOURCE = "command"


class DemoTenant(NamedTuple):
    """A tenant, the percentage of every GPU type that it is guaranteed, and its namespace.

    `namespace` None = that of its parent, or of the cluster.
    """

    name: str
    title: str
    parent: str | None
    percent: int
    mode: QuotaMode = QuotaMode.SHARED
    namespace: str | None = None


# Parents come before their children; a parent's share includes those of its children.
TENANTS = (
    DemoTenant("research", "Research", None, 50),
    DemoTenant("vision", "Computer vision", "research", 20),
    DemoTenant("language", "Language models", "research", 25),
    DemoTenant("products", "Products", None, 40, namespace="kant-products"),
    DemoTenant("search", "Search", "products", 15),
    DemoTenant("assistant", "Assistant", "products", 20),
    DemoTenant("platform", "Platform", None, 10, QuotaMode.ISOLATED),
)


class DemoQueue(NamedTuple):
    """A queue of a demo tenant, in addition to its default queue."""

    tenant: str
    name: str
    terms: QueueTerms


QUEUES = (
    DemoQueue(
        "vision",
        "interactive",
        QueueTerms(
            title="Notebooks, before all else",
            rank=1,
            kinds=[JobKind.DEVELOPMENT.value],
            max_running=8,
            default_run_limit_s=4 * 3600,
            max_run_limit_s=12 * 3600,
        ),
    ),
    DemoQueue("vision", "nightly", QueueTerms(title="Sweeps that can wait", rank=-1)),
    DemoQueue(
        "language",
        "pretraining",
        QueueTerms(title="Large runs", weight=3.0, roles=[Role.TENANT_ADMIN.value]),
    ),
    DemoQueue(
        "search",
        "serving",
        QueueTerms(
            title="Services",
            rank=1,
            kinds=[JobKind.INFERENCE.value],
            default_priority=10,
            default_preemptible=False,
        ),
    ),
)

# Fitting jobs pass blocked heads; training is packed into few groups, inference is spread.
POLICY = {
    "queueing": "backfill",
    "preemption": ["priority", "reclaim"],
    "strategies": {
        "training": "e-binpack",
        "inference": "e-spread",
        "development": "e-binpack",
    },
}


def seed(cluster_name: str, kubeconfig: Path) -> Cluster:
    """Update the embedded cluster's row, and create what is missing of the demo organisation."""
    operator = _accounts()
    cluster = _cluster(operator, cluster_name, kubeconfig)
    _tenants(operator)
    for name, (gpus, memory_mib) in sorted(_gpu_models(cluster).items()):
        if not GpuType.objects.filter(name=name).exists():
            gpu_type = create_gpu_type(operator, name, memory_mib=memory_mib, source=SOURCE)
            _quotas(operator, gpu_type, gpus)
    return cluster


def _cluster(operator: User, name: str, kubeconfig: Path) -> Cluster:
    """Return the row of this fleet's cluster.

    Clusters of other fleets are deactivated: they do not run now.
    """
    values = {"access": {"kubeconfig": str(kubeconfig)}, "is_active": True}
    cluster = Cluster.objects.filter(name=name).first()
    if cluster is None:
        values["title"] = f"Embedded cluster “{name}”"
        cluster = create_cluster(operator, name, values, source=SOURCE)
        change_policy(operator, cluster, POLICY, expected_version=0, source=SOURCE)
    elif (cluster.access, cluster.is_active) != (values["access"], True):
        cluster = change_cluster(operator, cluster, values, source=SOURCE)
    folder = str(kubeconfig.parent.parent)
    for other in Cluster.objects.filter(is_active=True).exclude(pk=cluster.pk):
        if str(other.access.get("kubeconfig", "")).startswith(folder):
            change_cluster(operator, other, {"is_active": False}, source=SOURCE)
    return cluster


def _accounts() -> User:
    there = set(User.objects.values_list("username", flat=True))
    if missing := [each for each in ACCOUNTS if each.username not in there]:
        hashed = make_password(PASSWORD)  # once for all: hashing is slow by design
        for account in missing:
            User.objects.create(
                username=account.username,
                email=f"{account.username}@{DEMO_DOMAIN}",
                password=hashed,
                is_operator=not account.tenant,
            )
    return User.objects.get(username=ACCOUNTS[0].username)


def _tenants(operator: User) -> None:
    if Tenant.objects.exists():
        return
    for tenant in TENANTS:
        create_tenant(
            operator,
            tenant.name,
            TenantTerms(title=tenant.title, parent=tenant.parent, namespace=tenant.namespace),
            source=SOURCE,
        )
    for queue in QUEUES:
        tenant_row = Tenant.objects.get(name=queue.tenant)
        create_queue(operator, tenant_row, queue.name, queue.terms, why=Why("", SOURCE))
    for account in ACCOUNTS:
        if account.tenant:
            tenant_row = Tenant.objects.get(name=account.tenant)
            set_member(operator, tenant_row, account.username, account.role, source=SOURCE)


def _quotas(operator: User, gpu_type: GpuType, gpus: int) -> None:
    for tenant in TENANTS:
        row = Tenant.objects.filter(name=tenant.name).first()
        if row is None:
            continue
        change_quota(
            operator,
            QuotaChange(row, gpu_type, 0, "Demo organisation", SOURCE),
            QuotaTerms(gpus * tenant.percent // 100 * 1000, tenant.mode),
            approved=True,  # nobody else exists yet who could approve
        )


def _gpu_models(cluster: Cluster) -> dict[str, tuple[int, int]]:
    """Return {GPU model: (GPUs in the cluster, MiB of memory of one)}, as its nodes report."""
    gateway = Gateway(cluster.access, namespace=cluster.namespace, label_map=cluster.label_map)
    gateway.start()
    try:
        gateway.wait_synced()
        nodes = [seen.facts.node for seen in gateway.drain() if isinstance(seen, NodeSeen)]
    finally:
        gateway.stop()
    found: dict[str, tuple[int, int]] = {}
    for node in nodes:
        if node.gpu_model and node.devices:
            gpus, _ = found.get(node.gpu_model, (0, 0))
            found[node.gpu_model] = (gpus + len(node.devices), node.devices[0].memory_mib)
    return found
