"""A snapshot without its names, for which the engine decides the same.

The engine breaks ties by names, so new names have the order of the old ones, kind by kind. Some
words stay because the engine reads them: those of kind `KEPT`, numbers among the values of labels
(which `Gt` and `Lt` compare), the default queue, and keys of taints by which Kubernetes marks a
passing state. Amounts, times and GPU models stay as they are.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from scheduling.engine import deltas as d
from scheduling.engine import types as t
from scheduling.engine.cluster.constraints import PASSING
from scheduling.queries.snapshots.document import Snapshot, SnapshotScope

KEPT: Final = ""  # the kind of what stays
# Separates a word that stays from what follows it. It sorts before all characters of such words, so
# that nothing comes between the two.
BEHIND: Final = "!"
# Sorts after the keys that begin with PASSING, and is none of them.
AFTER_PASSING: Final = "~"
NUMBER: Final = re.compile(r"[+-]?\d+")


class RowKinds(NamedTuple):
    """Rows of names and amounts: the kind of each column, KEPT for amounts."""

    kinds: tuple[str, ...]


class MappingKinds(NamedTuple):
    """A mapping: the kind of its keys, and of its values if these are names."""

    keys: str
    values: str = KEPT


Names = str | RowKinds | MappingKinds
JOB, NODE, TENANT, USER, QUEUE = "job", "node", "tenant", "user", "queue"
GROUP, LABEL, VALUE, POD, TEXT, MEANT = "group", "label", "value", "pod", "text", "meant"
RESOURCE, DEVICE, NIC, DRIVER, VOLUME = "resource", "device", "nic", "driver", "volume"
SHARD, SET, ADDRESS = "shard", "pod-set", "address"

# By type, the kind of each field that has names, also in lists.
KINDS: Mapping[type, Mapping[str, Names]] = {
    t.Device: {"id": DEVICE},
    t.Nic: {"name": NIC, "resource": RESOURCE},
    t.Taint: {"key": LABEL, "value": VALUE, "effect": KEPT},
    t.Toleration: {"key": LABEL, "operator": KEPT, "value": VALUE, "effect": KEPT},
    t.Node: {
        "name": NODE, "gpu_model": KEPT, "topology": GROUP, "hyper_node": GROUP,
        "labels": MappingKinds(LABEL, VALUE), "extended": MappingKinds(RESOURCE),
        "link_model": KEPT, "zone": KEPT, "problems": TEXT, "gpu_resource": RESOURCE,
        "out_of_service": TEXT,
        "attach_limits": MappingKinds(DRIVER),
    },
    t.NodeExpression: {"key": LABEL, "operator": KEPT, "values": VALUE},
    t.HostPort: {"protocol": KEPT, "address": ADDRESS},
    t.Apart: {"group": MEANT, "key": LABEL},
    t.Near: {"group": MEANT, "keys": LABEL},
    t.Spread: {"group": MEANT, "key": LABEL},
    t.Attached: {"driver": DRIVER, "volume": VOLUME},
    t.GroupWish: {"group": MEANT, "key": LABEL},
    t.FreeableDevices: {"node": NODE, "steps": JOB},
    t.PodRules: {"groups": MEANT, "sole": TEXT},
    t.NodeRules: {"node_selector": MappingKinds(LABEL, VALUE)},
    t.PodSetSpec: {
        "name": SET, "gpu_models": KEPT, "extended": MappingKinds(RESOURCE), "required_level": KEPT,
        "preferred_level": KEPT, "balance_level": KEPT,
    },
    t.JobRequest: {
        "id": JOB, "tenant": TENANT, "strategy": KEPT, "required_level": KEPT,
        "preferred_level": KEPT, "after": JOB, "after_ok": JOB, "array": JOB, "user": USER,
        "queue": QUEUE,
    },
    t.PodPlacement: {"node": NODE},
    t.TenantSpec: {"id": TENANT, "parent": TENANT},
    t.QueueSpec: {"tenant": TENANT, "name": QUEUE, "why": TEXT, "max_milli": MappingKinds(KEPT)},
    t.QuotaSpec: {"tenant": TENANT, "gpu_model": KEPT},
    t.Shard: {"name": SHARD, "gpu_models": KEPT, "groups": GROUP},
    t.Policy: {"strategies": MappingKinds(KEPT), "spare_nodes": MappingKinds(KEPT)},
    d.NodeRemoved: {"name": NODE},
    d.NeighbourChanged: {"name": NODE},
    d.OtherPodChanged: {"uid": POD, "node": NODE, "extended": MappingKinds(RESOURCE)},
    d.OtherPodRemoved: {"uid": POD},
    d.TenantsChanged: {
        "used_elsewhere": RowKinds((TENANT, KEPT, KEPT, KEPT)),
        "jobs_elsewhere": RowKinds((TENANT, KEPT)),
    },
    d.QueuesChanged: {
        "jobs_elsewhere": RowKinds((TENANT, QUEUE, KEPT)),
        "held_elsewhere": RowKinds((TENANT, QUEUE, KEPT, KEPT)),
    },
    d.OtherScopesChanged: {
        "held": RowKinds((TENANT, USER, KEPT, KEPT)),
        "gpus": RowKinds((KEPT, KEPT)),
    },
    d.JobHistory: {"job_id": JOB, "preempted_by": JOB, "gave_way_to": JOB},
    d.PastUse: {"held": RowKinds((TENANT, USER, KEPT, KEPT))},
    d.MovesBefore: {},
    d.QueueDebts: {"owed": RowKinds((TENANT, QUEUE, KEPT))},
    d.PodsRunning: {"job_id": JOB},
    d.PodHoldsMore: {"job_id": JOB, "extended": MappingKinds(RESOURCE)},
    d.PodEnded: {"job_id": JOB},
    d.PodRequeued: {"job_id": JOB, "avoided_nodes": NODE},
    d.JobEnded: {"job_id": JOB},
    d.JobRequeued: {"job_id": JOB, "avoided_nodes": NODE},
    d.Checkpointed: {"job_id": JOB},
    d.RunTimesLearned: {"of": RowKinds((JOB, KEPT))},
    d.DisruptionBudget: {"job_id": JOB},
}  # fmt: skip

Rename = Callable[[str, str], str]  # kind and name
Thing = TypeVar("Thing")


def anonymised(snapshot: Snapshot) -> Snapshot:
    """Return the same snapshot with meaningless names."""
    return Snapshot(
        "cluster",
        snapshot.at,
        _renamed_scopes(snapshot, renaming(snapshot)),
        anonymised=True,
    )


def renaming(snapshot: Snapshot) -> Rename:
    """Return the function that renames each name of the snapshot."""
    found: defaultdict[str, set[str]] = defaultdict(set)

    def note(kind: str, name: str) -> str:
        found[kind].add(name)
        return name

    _renamed_scopes(snapshot, note)
    new = {kind: _new_names(kind, names) for kind, names in found.items()}
    return lambda kind, name: new[kind][name]


def _renamed_scopes(snapshot: Snapshot, rename: Rename) -> tuple[SnapshotScope, ...]:
    return tuple(
        SnapshotScope(
            _named(one.scope, SHARD, rename),
            tuple(_renamed(fact, rename) for fact in one.facts),
        )
        for one in snapshot.scopes
    )


def _new_names(kind: str, names: set[str]) -> dict[str, str]:
    """Return another name for each name, in the same order."""
    kept = sorted(name for name in names if _stays(kind, name))
    wide = len(str(len(names)))
    new: dict[str, str] = {name: name for name in kept}
    for number, name in enumerate(sorted(names - set(kept)), 1):
        new[name] = f"{_head(kind, kept, name)}{number:0{wide}}"
    return new


def _head(kind: str, kept: list[str], name: str) -> str:
    """Return how a new name begins, so that it sorts among what is `kept` like the old one."""
    before = bisect_right(kept, name)
    if not kept:
        return f"{kind}-"
    if not before:
        return BEHIND
    return AFTER_PASSING if kind == LABEL else kept[before - 1] + BEHIND


def _stays(kind: str, name: str) -> bool:
    """Whether the engine reads the name itself."""
    if kind == VALUE:
        return NUMBER.fullmatch(name) is not None
    if kind == LABEL:
        return name.startswith(PASSING)
    return kind == QUEUE and name == t.DEFAULT_QUEUE


def _renamed(thing: Thing, rename: Rename) -> Thing:
    """Return a fact or noun of the engine with other names."""
    noun: Any = thing  # a dataclass, or a NamedTuple
    kinds = KINDS.get(type(noun), {})
    if isinstance(noun, t.NodeExpression) and noun.of_name:
        kinds = {**kinds, "values": NODE}
    as_class = is_dataclass(noun)
    new = {}
    for name in [each.name for each in fields(noun)] if as_class else noun._fields:
        before = getattr(noun, name)
        after = _named(before, kinds.get(name, KEPT), rename)
        if after is not before:
            new[name] = after
    if not new:
        return thing
    renamed: Thing = replace(noun, **new) if as_class else noun._replace(**new)
    return renamed


def _named(value: Any, kind: Names, rename: Rename) -> Any:
    if value is None or value == "" or isinstance(value, bool | int | float | Enum):
        return value
    if isinstance(value, str):
        return value if kind == KEPT else rename(_one(kind), value)
    if isinstance(value, Mapping):
        if not isinstance(kind, MappingKinds):
            return value
        return {
            _named(key, kind.keys, rename): _named(each, kind.values, rename)
            for key, each in value.items()
        }
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        if not value:
            return value
        if isinstance(kind, RowKinds):
            return tuple(
                tuple(_named(cell, k, rename) for cell, k in zip(row, kind.kinds, strict=True))
                for row in value
            )
        return tuple(_named(each, kind, rename) for each in value)
    return _renamed(value, rename)


def _one(kind: Names) -> str:
    assert isinstance(kind, str)
    return kind
