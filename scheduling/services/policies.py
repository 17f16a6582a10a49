"""The scheduling policy of a cluster: read as a document, changed under its version."""

import math
from collections.abc import Mapping
from dataclasses import Field, asdict, fields
from enum import StrEnum
from functools import partial
from typing import Any, get_type_hints

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from scheduling.engine.placement.strategies import STRATEGIES
from scheduling.engine.types import JobKind, Policy
from scheduling.models import Cluster, ClusterPolicy
from scheduling.services.doorbell import ring
from tenants.errors import FieldError, Invalid, NotAllowed, Path, Stale
from tenants.models import User
from tenants.services import audit
from tenants.services.transactions import unit_of_work

MAX_SECONDS = 366 * 86400
MAX_COUNT = 1_000_000
_FIELDS: dict[str, "Field[Any]"] = {f.name: f for f in fields(Policy)}
_TYPES = get_type_hints(Policy)


def effective(document: Mapping[str, Any]) -> dict[str, Any]:
    """Every field of the policy as JSON; what the document does not name has its default."""
    result = {name: _json(value) for name, value in asdict(Policy()).items()}
    for name, value in document.items():
        if name in result:
            result[name] = {**result[name], **value} if isinstance(value, dict) else value
    return result


def policy_of(cluster: Cluster) -> ClusterPolicy:
    """The stored policy, or the default one (version 0, not stored)."""
    row = ClusterPolicy.objects.filter(cluster=cluster).first()
    return row or ClusterPolicy(cluster=cluster, document={}, version=0)


def change_policy(
    actor: User,
    cluster: Cluster,
    document: Mapping[str, Any],
    *,
    expected_version: int,
    reason: str = "",
    source: str,
    dry_run: bool = False,
) -> ClusterPolicy:
    """Replace the policy document; fields it does not name get their defaults.

    `expected_version` 0 = none is stored yet. Raises NotAllowed, Invalid naming each field, Stale.
    """
    if not actor.is_operator:
        raise NotAllowed("Only operators change the policy of a cluster.")
    faults = _faults(document)
    if faults:
        raise Invalid.fields(faults)
    with unit_of_work(dry_run):
        before = policy_of(cluster)
        if before.version != expected_version:
            raise _stale(cluster, before, expected_version)
        after = _stored(cluster, before, dict(document))
        audit.record(
            actor,
            "policy.changed",
            cluster.name,
            before=effective(before.document),
            after=effective(after.document),
            reason=reason.strip(),
            source=source,
        )
        transaction.on_commit(partial(ring, cluster.pk), robust=True)
    return after


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


def _faults(document: Mapping[str, Any]) -> list[FieldError]:
    """Every fault of a policy document, judged by the types of the engine's Policy."""
    faults: list[FieldError] = []
    for name, value in document.items():
        if name not in _FIELDS:
            known = ", ".join(_FIELDS)
            faults.append(FieldError((name,), f"Unknown field. Known here: {known}."))
        elif name == "strategies":
            faults += _strategy_faults(value, (name,))
        elif detail := _value_fault(_TYPES[name], value):
            faults.append(FieldError((name,), detail))
    return faults


def _strategy_faults(value: Any, at: Path) -> list[FieldError]:
    if not isinstance(value, Mapping):
        return [FieldError(at, "Must be an object, e.g. {“training”: “binpack”}.")]
    kinds, known = [k.value for k in JobKind], ", ".join(STRATEGIES)
    return [
        FieldError((*at, kind), f"Unknown kind of job. Known: {', '.join(kinds)}.")
        for kind in value
        if kind not in kinds
    ] + [
        FieldError((*at, kind), f"Choose one of {known}.")
        for kind, strategy in value.items()
        if kind in kinds and not (isinstance(strategy, str) and strategy in STRATEGIES)
    ]


def _value_fault(kind: Any, value: Any) -> str:
    """What is wrong with one value; "" when nothing is."""
    if kind is bool:
        return "" if isinstance(value, bool) else "Must be true or false."
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        known = [k.value for k in kind]
        return "" if value in known else f"Choose one of {', '.join(known)}."
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        good = isinstance(value, int) and number and 0 <= value <= MAX_COUNT
        return "" if good else f"Must be a whole number from 0 to {MAX_COUNT}."
    good = number and 0 <= value <= MAX_SECONDS and math.isfinite(value)
    return "" if good else f"Must be a number from 0 to {MAX_SECONDS}."


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _json(item) for name, item in value.items()}
    return str(value) if isinstance(value, StrEnum) else value
