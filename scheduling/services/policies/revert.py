"""Take back a policy change from the audit trail, as for quotas (decision 0014).

Only the settings that the change set are set back, and only those that nobody has set since.
"""

from dataclasses import dataclass

from scheduling.models import Cluster, ClusterPolicy
from scheduling.policy.document import effective
from scheduling.policy.settings import Settings, differing, field_of, is_same, revised, settings_of
from scheduling.queries.wording import setting_name, setting_words
from scheduling.services.policies.changes import (
    change_policy,
    changes_of,
    operators_only,
    policy_of,
)
from tenants.errors import Conflict
from tenants.models import AuditRecord, User
from tenants.services.transactions import unit_of_work


@dataclass(frozen=True, slots=True)
class PolicyReversal:
    """What taking a change back does to the current policy.

    `undone`: the settings it sets, and to what. `version` is that of `now`.
    """

    cluster: Cluster
    now: Settings
    undone: Settings
    version: int


def policy_reversal_of(record: AuditRecord) -> PolicyReversal:
    """Return what taking back the change of `record` means now.

    Raises Conflict if that is impossible, naming what stands in the way.
    """
    cluster = Cluster.objects.filter(name=record.subject, created_at__lte=record.at).first()
    if cluster is None:
        raise Conflict(f"Cluster “{record.subject}” and its policy have been deleted since.")
    row = policy_of(cluster)
    now = settings_of(effective(row.document))
    before, after = settings_of(record.before or {}), settings_of(record.after or {})
    changed = differing(before, after)
    if gone := [key for key in changed if field_of(key) not in effective({})]:
        names = ", ".join(map(setting_name, gone))
        raise Conflict(f"This version of Kant has no {names}, which the change set.")
    at_work = [key for key in changed if not is_same(key, now.get(key), before.get(key))]
    conflicts = [key for key in at_work if not is_same(key, now.get(key), after.get(key))]
    if conflicts:
        raise Conflict(" ".join(_conflict(cluster, record, key, now) for key in conflicts))
    if not at_work:
        told = (
            "The policy already has its values from before this "
            f"change.{_since(cluster, record, changed)}"
        )
        raise Conflict(told)
    undone = {key: before.get(key, 0) for key in at_work}  # a type that was not named has no spares
    return PolicyReversal(cluster, now, undone, row.version)


def revert_policy_change(
    actor: User,
    record: AuditRecord,
    *,
    expected_version: int,
    reason: str = "",
    source: str,
    dry_run: bool = False,
) -> ClusterPolicy:
    """Take back the change of `record` as a change of its own.

    `expected_version` is that of the policy as it was shown. Raises like `policy_reversal_of` and
    `change_policy`.
    """
    operators_only(actor)
    with unit_of_work(dry_run):
        found = policy_reversal_of(record)
        return change_policy(
            actor,
            found.cluster,
            revised(policy_of(found.cluster).document, found.undone),
            expected_version=expected_version,
            reason=reason,
            source=source,
            reverts=record,
        )


def _conflict(cluster: Cluster, record: AuditRecord, key: str, now: Settings) -> str:
    after = settings_of(record.after or {})
    return (
        f"{setting_name(key)} was set to {setting_words(key, after.get(key))} by this change and "
        f"is {setting_words(key, now.get(key))} now.{_since(cluster, record, [key])} Revert "
        "that first, or edit the policy."
    )


def _since(cluster: Cluster, record: AuditRecord, keys: list[str]) -> str:
    """Return who last changed one of these settings."""
    for one in changes_of(cluster).filter(at__gt=record.at):
        if set(differing(settings_of(one.before or {}), settings_of(one.after or {}))) & {*keys}:
            return f" {one.actor_name} changed it at {one.at:%Y-%m-%d %H:%M:%S} UTC."
    return ""
