"""The organisation document: nested by tenant and cluster, as people write it, and its things.

gpu_types: {H100: {memory_mib: 81920}}
tenants:
  vision:
    parent: ml
    members: {eve: engineer}
    quotas: {H100: {guaranteed: 64}}     # GPUs
    queues: {nightly: {max_running: 4}}
clusters:
  prod: {access: {in_cluster: true}, policy: {queueing: backfill}}
"""

from collections.abc import Mapping
from typing import Any

from scheduling.services.organisation.things import (
    CLUSTER,
    GPU_TYPE,
    MEMBER,
    POLICY,
    QUEUE,
    QUOTA,
    TENANT,
    Key,
    Values,
)
from tenants.errors import Path
from tenants.services.quota_terms import AMOUNTS, gpus

Document = dict[str, dict[str, Any]]
# The place of a kind: the field of the document, and the field of an entry there.
_AT = {
    GPU_TYPE: ("gpu_types", ""),
    TENANT: ("tenants", ""),
    MEMBER: ("tenants", "members"),
    QUOTA: ("tenants", "quotas"),
    QUEUE: ("tenants", "queues"),
    CLUSTER: ("clusters", ""),
    POLICY: ("clusters", "policy"),
}
_PARTS = {"members": MEMBER, "quotas": QUOTA, "queues": QUEUE}  # parts of a tenant


def things_of(document: Mapping[str, Mapping[str, Any]]) -> dict[Key, Values]:
    """Return the things of a document whose shape was checked, with quotas in milli-GPU."""
    found: dict[Key, Values] = {}
    for name, values in document.get("gpu_types", {}).items():
        found[GPU_TYPE, name] = dict(values)
    for tenant, entry in document.get("tenants", {}).items():
        found[TENANT, tenant] = {n: v for n, v in entry.items() if n not in _PARTS}
        for part, kind in _PARTS.items():
            for name, values in entry.get(part, {}).items():
                own = {"role": values} if kind == MEMBER else dict(values)
                found[kind, tenant, name] = own
    for cluster, entry in document.get("clusters", {}).items():
        found[CLUSTER, cluster] = {n: v for n, v in entry.items() if n != "policy"}
        if "policy" in entry:
            found[POLICY, cluster] = dict(entry["policy"])
    return found


def document_of(things: Mapping[Key, Values]) -> Document:
    """Return the document of these things: the reverse of `things_of`, with quotas in GPUs."""
    found: Document = {"gpu_types": {}, "tenants": {}, "clusters": {}}
    for (kind, name, *rest), values in things.items():
        at, part = _AT[kind]
        if not part:
            found[at].setdefault(name, {}).update(told(kind, values))
        elif kind == POLICY:
            found[at].setdefault(name, {})[part] = told(kind, values)
        else:
            entry = found[at].setdefault(name, {}).setdefault(part, {})
            entry[rest[0]] = values["role"] if kind == MEMBER else told(kind, values)
    return found


def told(kind: str, values: Mapping[str, Any]) -> Values:
    """Return the values as people read and write them."""
    if kind != QUOTA:
        return dict(values)
    return {n: gpus(v) if n in AMOUNTS and v is not None else v for n, v in values.items()}


def path_of(key: Key) -> Path:
    """Return the place of a thing in the document."""
    kind, name, *rest = key
    at, part = _AT[kind]
    return (at, name, part, *rest) if part else (at, name)
