"""The things in an organisation document: how each is read, written and deleted.

A thing is named by its kind and names, and has values by field, without those that are defaults.
Quotas are in milli-GPU, as everywhere inside.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from scheduling.models import Cluster, ClusterPolicy
from scheduling.policy.document import effective
from scheduling.queries.selectors import cluster_by_name
from scheduling.services.clusters import changes as clusters
from scheduling.services.policies.changes import change_policy, policy_of
from tenants.models import GpuType, Membership, Queue, QueueState, Quota, Tenant, User
from tenants.permissions import access_of
from tenants.selectors import gpu_type_by_name, tenant_by_name
from tenants.services import gpu_types, members
from tenants.services.audit import Why
from tenants.services.queues import change as queues
from tenants.services.queues.terms import QueueTerms
from tenants.services.quota_terms import QuotaChange, QuotaTerms
from tenants.services.quotas import change_quota, delete_quota
from tenants.services.tenant_terms import TenantTerms
from tenants.services.tenants import change_tenant, create_tenant, delete_tenant

Key = tuple[str, ...]  # the kind, then the names: ("quota", "vision", "H100")
Values = dict[str, Any]

GPU_TYPE, TENANT, MEMBER, QUOTA = "gpu-type", "tenant", "member", "quota"
QUEUE, CLUSTER, POLICY = "queue", "cluster", "policy"
# In the order in which they are written: each refers to those before it.
KINDS = (GPU_TYPE, TENANT, MEMBER, QUOTA, QUEUE, CLUSTER, POLICY)
_NEW_CLUSTER = Cluster()
# Defaults of fields. A new thing must have the fields that are missing here.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    GPU_TYPE: {"title": "", "memory_mib": 0},
    TENANT: {**asdict(TenantTerms()), "is_active": True},
    MEMBER: {},
    QUOTA: {name: value for name, value in asdict(QuotaTerms(0)).items() if name != "guaranteed"},
    QUEUE: {**QueueTerms().columns(), "state": QueueState.OPEN.value},
    CLUSTER: {n: getattr(_NEW_CLUSTER, n) for n in clusters.FIELDS if n != "access"},
    POLICY: effective({}),
}
REQUIRED = {MEMBER: ("role",), QUOTA: ("guaranteed",), CLUSTER: ("access",)}


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes, and what goes into the audit trail.

    `overcommit`: promise more GPUs than are installed.
    """

    actor: User
    why: Why
    overcommit: bool = False


def short(kind: str, values: Mapping[str, Any]) -> Values:
    """Return the values without those that are defaults."""
    usual = DEFAULTS[kind]
    return {n: v for n, v in values.items() if n not in usual or v != usual[n]}


def is_permanent(key: Key) -> bool:
    """Whether it exists as long as its owner, so that only its fields can be taken back."""
    return key[0] == POLICY or (key[0] == QUEUE and key[2] == "default")


def read_all() -> dict[Key, Values]:
    """Return all things that exist.

    Roles that come from groups of the OpenID provider are left out: they follow the groups.
    """
    found: dict[Key, Values] = {}
    for model in GpuType.objects.all():
        found[GPU_TYPE, model.name] = {"title": model.title, "memory_mib": model.memory_mib}
    for tenant in Tenant.objects.select_related("parent"):
        values = {name: getattr(tenant, name) for name in DEFAULTS[TENANT] if name != "parent"}
        above = tenant.parent.name if tenant.parent else None
        found[TENANT, tenant.name] = {**values, "parent": above}
    for member in Membership.objects.filter(by_group=False).select_related("tenant", "user"):
        found[MEMBER, member.tenant.name, member.user.get_username()] = {"role": member.role}
    for quota in Quota.objects.select_related("tenant", "gpu_type"):
        found[QUOTA, quota.tenant.name, quota.gpu_type.name] = asdict(QuotaTerms.of(quota))
    for queue in Queue.objects.select_related("tenant"):
        values = {**QueueTerms.of(queue).columns(), "state": queue.state}
        found[QUEUE, queue.tenant.name, queue.name] = values
    for cluster in Cluster.objects.all():
        found[CLUSTER, cluster.name] = {name: getattr(cluster, name) for name in clusters.FIELDS}
    for policy in ClusterPolicy.objects.select_related("cluster"):
        found[POLICY, policy.cluster.name] = effective(policy.document)
    return {key: short(key[0], values) for key, values in found.items()}


def write(writer: Writer, key: Key, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Create or change the thing so that it has these values, and defaults for the rest.

    Returns warnings. Raises DomainError, whose errors name fields of the thing.
    """
    kind, *names = key
    return _WRITERS[kind](writer, *names, {**DEFAULTS[kind], **values})


def delete(writer: Writer, key: Key) -> None:
    """Delete the thing. Raises DomainError, e.g. Conflict for a tenant that has jobs."""
    kind, *names = key
    _DELETERS[kind](writer, *names)


def _write_gpu_type(writer: Writer, name: str, values: Values) -> tuple[str, ...]:
    row = GpuType.objects.filter(name=name).first()
    if row is None:
        gpu_types.create_gpu_type(writer.actor, name, **values, source=writer.why.source)
    else:
        gpu_types.change_gpu_type(writer.actor, row, **values, source=writer.why.source)
    return ()


def _write_tenant(writer: Writer, name: str, values: Values) -> tuple[str, ...]:
    actor, why = writer.actor, writer.why
    row = Tenant.objects.filter(name=name).select_related("parent").first()
    if row is None:
        terms = TenantTerms(**{n: v for n, v in values.items() if n != "is_active"})
        row = create_tenant(actor, name, terms, source=why.source)
        if values["is_active"]:
            return ()
    above = row.parent.name if row.parent else None
    now = {n: above if n == "parent" else getattr(row, n) for n in values}
    changed = {n: v for n, v in values.items() if v != now[n]}
    change_tenant(actor, row, changed, reason=why.reason, source=why.source)
    return ()


def _write_member(writer: Writer, tenant: str, user: str, values: Values) -> tuple[str, ...]:
    why = writer.why
    row = _tenant(writer, tenant)
    role = values["role"]
    members.set_member(writer.actor, row, user, role, reason=why.reason, source=why.source)
    return ()


def _write_quota(writer: Writer, tenant: str, gpu_type: str, values: Values) -> tuple[str, ...]:
    change = _quota_change(writer, tenant, gpu_type)
    terms = QuotaTerms(**values)
    found = change_quota(writer.actor, change, terms, overcommit=writer.overcommit)
    return tuple(f"{change.subject}: {warning}" for warning in found.warnings)


def _quota_change(writer: Writer, tenant: str, gpu_type: str) -> QuotaChange:
    owner, model = _tenant(writer, tenant), gpu_type_by_name(gpu_type)
    row = Quota.objects.filter(tenant=owner, gpu_type=model).first()
    version = row.version if row else 0
    return QuotaChange(owner, model, version, writer.why.reason, writer.why.source)


def _write_queue(writer: Writer, tenant: str, name: str, values: Values) -> tuple[str, ...]:
    owner = _tenant(writer, tenant)
    row = _queue(owner, name)
    if row is None:
        terms = QueueTerms.given(values)
        made = queues.create_queue(
            writer.actor, owner, name, terms, why=writer.why, state=values["state"]
        )
        return made.warnings
    changed = queues.change_queue(
        writer.actor, row, values, expected_version=row.version, why=writer.why
    )
    return tuple(f"{queues.subject(row)}: {warning}" for warning in changed.warnings)


def _write_cluster(writer: Writer, name: str, values: Values) -> tuple[str, ...]:
    row = Cluster.objects.filter(name=name).first()
    if row is None:
        clusters.create_cluster(writer.actor, name, values, source=writer.why.source)
    else:
        clusters.change_cluster(writer.actor, row, values, source=writer.why.source)
    return ()


def _write_policy(writer: Writer, cluster: str, values: Values) -> tuple[str, ...]:
    row = cluster_by_name(cluster)
    change_policy(
        writer.actor,
        row,
        short(POLICY, values),
        expected_version=policy_of(row).version,
        reason=writer.why.reason,
        source=writer.why.source,
    )
    return ()


def _delete_gpu_type(writer: Writer, name: str) -> None:
    gpu_types.delete_gpu_type(writer.actor, gpu_type_by_name(name), source=writer.why.source)


def _delete_tenant(writer: Writer, name: str) -> None:
    why = writer.why
    delete_tenant(writer.actor, _tenant(writer, name), reason=why.reason, source=why.source)


def _delete_member(writer: Writer, tenant: str, user: str) -> None:
    row, why = _tenant(writer, tenant), writer.why
    members.remove_member(writer.actor, row, user, reason=why.reason, source=why.source)


def _delete_quota(writer: Writer, tenant: str, gpu_type: str) -> None:
    delete_quota(writer.actor, _quota_change(writer, tenant, gpu_type))


def _delete_queue(writer: Writer, tenant: str, name: str) -> None:
    row = _queue(_tenant(writer, tenant), name)
    if row is not None:
        queues.delete_queue(writer.actor, row, expected_version=row.version, why=writer.why)


def _delete_cluster(writer: Writer, name: str) -> None:
    clusters.delete_cluster(writer.actor, cluster_by_name(name), source=writer.why.source)


def _tenant(writer: Writer, name: str) -> Tenant:
    return tenant_by_name(access_of(writer.actor), name)


def _queue(tenant: Tenant, name: str) -> Queue | None:
    return Queue.objects.filter(tenant=tenant, name=name).select_related("tenant").first()


_WRITERS: Mapping[str, Callable[..., tuple[str, ...]]] = {
    GPU_TYPE: _write_gpu_type,
    TENANT: _write_tenant,
    MEMBER: _write_member,
    QUOTA: _write_quota,
    QUEUE: _write_queue,
    CLUSTER: _write_cluster,
    POLICY: _write_policy,
}
_DELETERS: Mapping[str, Callable[..., None]] = {
    GPU_TYPE: _delete_gpu_type,
    TENANT: _delete_tenant,
    MEMBER: _delete_member,
    QUOTA: _delete_quota,
    QUEUE: _delete_queue,
    CLUSTER: _delete_cluster,
}
