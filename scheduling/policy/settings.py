"""A policy split into single settings: which of them differ, and which have no effect.

A setting is named after its field, or `strategies.training`, `preemption.reclaim`,
`spare_nodes.H100` if a field holds several. So two people who change different settings of one
field do not undo each other's changes.
"""

from collections.abc import Mapping
from typing import Any

from scheduling.engine.types import PreemptionKind, QueueingPolicy
from scheduling.policy.document import effective

Settings = dict[str, Any]

ONLY_BACKFILL = "Only under backfill."


def field_of(key: str) -> str:
    """Return the field of the policy that holds a setting."""
    return key.partition(".")[0]


def settings_of(policy: Mapping[str, Any]) -> Settings:
    """Return the settings of a whole policy, as `policies.effective` or the audit trail has it."""
    found: Settings = {}
    for name, value in policy.items():
        if name == "preemption":
            found |= {f"{name}.{kind}": kind in value for kind in PreemptionKind}
        elif isinstance(value, Mapping):
            found |= {f"{name}.{part}": each for part, each in value.items()}
        else:
            found[name] = value
    return found


def policy_from(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy of these settings, without GPU types that have no spare nodes."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        name, dot, part = key.partition(".")
        if not dot:
            found[name] = value
        elif name == "preemption":
            found.setdefault(name, []).extend([part] if value else [])
        elif name == "spare_nodes" and value == 0:
            found.setdefault(name, {})
        else:
            found.setdefault(name, {})[part] = value
    return found


def is_same(key: str, one: Any, other: Any) -> bool:
    """Whether two values of a setting mean the same; None = the policy does not contain it."""
    if field_of(key) == "spare_nodes":
        return (one or 0) == (other or 0)
    return bool(one == other)


def differing(before: Settings, after: Settings) -> list[str]:
    """Return the settings that differ, in the order of the policy."""
    keys = dict.fromkeys([*after, *before])
    return [key for key in keys if not is_same(key, before.get(key), after.get(key))]


def revised(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored document with these settings changed; other missing fields keep defaults.

    `services.policies.changes.document_faults` says what is wrong with the result.
    """
    then = policy_from({**settings_of(effective(document)), **changes})
    named = {*document, *map(field_of, changes)}
    return {name: value for name, value in then.items() if name in named}


def without_effect(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return {setting without effect beside the others: when it would have one}."""
    backfills = settings["queueing"] == QueueingPolicy.BACKFILL
    found: dict[str, str] = {}
    if not backfills:
        found[f"preemption.{PreemptionKind.BACKFILL}"] = ONLY_BACKFILL
        found["learned_run_times"] = ONLY_BACKFILL
        if not settings["shards"]:
            found["backfill_after_s"] = "Only under backfill, or with several schedulers."
    defrags = settings["defrag_loss"] > 0 and settings["defrag_moves"] > 0
    if not settings["defrag_loss"] > 0:
        found["defrag_above"] = found["defrag_moves"] = "Only where some work may be lost to moves."
    kinds = {kind for kind in PreemptionKind if settings[f"preemption.{kind}"]}
    if not backfills:
        kinds.discard(PreemptionKind.BACKFILL)
    if kinds <= {PreemptionKind.BACKFILL}:
        found["preempt_after_s"] = "Only with preemption by priority or reclaim."
    if not kinds:
        found["max_preemptions"] = "Only where some kind of preemption is allowed."
        if not (settings["consolidation"] or defrags):
            found["min_runtime_s"] = (
                "Only with some kind of preemption, consolidation or defragmentation."
            )
    if not settings["fair_share"]:
        found["fair_users"] = found["usage_half_life_s"] = "Only with fair share of tenants."
    return found
