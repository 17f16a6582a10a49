"""The scheduling policy of a cluster: read as a document, changed under its version."""

from collections.abc import Iterator, Mapping
from typing import Any

from django.db.models import F, QuerySet
from django.utils import timezone

from scheduling.models import Cluster, ClusterPolicy
from scheduling.policy.document import effective, faults, to_policy
from scheduling.queries.effects import policy_effects
from scheduling.services.common.doorbell import ring_after_commit
from tenants.effects import Effects
from tenants.errors import FieldError, Invalid, NotAllowed, Stale
from tenants.models import AuditRecord, GpuType, User
from tenants.selectors import known_gpu_types_hint
from tenants.services import audit
from tenants.services.previews.kept import attach, digest_of, keep
from tenants.services.transactions import unit_of_work

CHANGED = "policy.changed"


def policy_of(cluster: Cluster) -> ClusterPolicy:
    """Return the stored policy, or the default one (version 0, not stored)."""
    row = ClusterPolicy.objects.filter(cluster=cluster).first()
    return row or ClusterPolicy(cluster=cluster, document={}, version=0)


def changes_of(cluster: Cluster) -> QuerySet[AuditRecord]:
    """Return the changes of its policy in the audit trail, newest first."""
    # An earlier cluster may have had the same name.
    return AuditRecord.objects.filter(
        action=CHANGED, subject=cluster.name, at__gte=cluster.created_at
    )


def change_policy(
    actor: User,
    cluster: Cluster,
    document: Mapping[str, Any],
    *,
    expected_version: int,
    reason: str = "",
    source: str,
    reverts: AuditRecord | None = None,
    dry_run: bool = False,
) -> ClusterPolicy:
    """Replace the policy document; fields that it lacks get their defaults.

    `expected_version` 0 = none is stored yet. `reverts`: the change that this one takes back.
    Raises NotAllowed, Invalid naming each field, Stale.
    """
    operators_only(actor)
    if wrong := document_faults(document):
        raise Invalid.fields(wrong)
    with unit_of_work(dry_run):
        before = policy_of(cluster)
        if before.version != expected_version:
            raise _stale(cluster, before, expected_version)
        after = _stored(cluster, before, dict(document))
        record = audit.record(
            actor,
            CHANGED,
            cluster.name,
            before=effective(before.document),
            after=effective(after.document),
            reason=reason.strip(),
            source=source,
            reverts=reverts,
        )
        attach(digest_of_policy(cluster, effective(after.document)), [record])
        ring_after_commit(cluster.pk)
    return after


def previewed(viewer: User, cluster: Cluster, policy: dict[str, Any]) -> Effects:
    """Return the effects from now on of scheduling a cluster by this whole policy.

    They are kept for when the policy is set.
    """
    effects = policy_effects(viewer, cluster, to_policy(policy))
    keep(viewer, digest_of_policy(cluster, policy), effects, cluster=cluster.name)
    return effects


def digest_of_policy(cluster: Cluster, policy: dict[str, Any]) -> str:
    return digest_of(["policy", cluster.name, policy])


def operators_only(actor: User) -> None:
    """Raise NotAllowed unless the actor is an operator."""
    if not actor.is_operator:
        raise NotAllowed("Only operators can change the policy of a cluster.")


def document_faults(
    document: Mapping[str, Any], others: Mapping[str, Any] | None = None
) -> list[FieldError]:
    """Return all faults of a policy document, each with the path of its field.

    `others`: the values of fields that it lacks, if not the defaults.
    """
    return faults(document, others) or [*_unknown_gpu_types(document)]


def _unknown_gpu_types(document: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield unknown GPU types of spare nodes: such nodes would never be kept."""
    spares = document.get("spare_nodes")
    names = list(spares) if isinstance(spares, dict) else []
    known = set(GpuType.objects.filter(name__in=names).values_list("name", flat=True))
    for name in names:
        if name not in known:
            detail = f"There is no GPU type “{name}”. {known_gpu_types_hint()}"
            yield FieldError(("spare_nodes", name), detail)


def _stored(cluster: Cluster, before: ClusterPolicy, document: dict[str, Any]) -> ClusterPolicy:
    if before.version == 0:
        row, created = ClusterPolicy.objects.get_or_create(
            cluster=cluster, defaults={"document": document}
        )
        if not created:
            raise _stale(cluster, row, 0)
        return row
    changed = ClusterPolicy.objects.filter(cluster=cluster, version=before.version).update(
        document=document, version=F("version") + 1, updated_at=timezone.now()
    )
    row = policy_of(cluster)
    if not changed:
        raise _stale(cluster, row, before.version)
    return row


def _stale(cluster: Cluster, now: ClusterPolicy, expected: int) -> Stale:
    return Stale(
        f"The policy of “{cluster.name}” is at version {now.version}; you expected {expected}. "
        "Read it again.",
        current_version=now.version,
        current=effective(now.document),
    )
