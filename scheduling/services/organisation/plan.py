"""What a document changes: a three-way merge of what it says, last said, and what exists."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from scheduling.services.organisation.things import (
    CLUSTER,
    DEFAULTS,
    KINDS,
    POLICY,
    TENANT,
    Key,
    Values,
    is_permanent,
    short,
)

Applied = Mapping[Key, Collection[str]]  # the fields of each thing that the document last had


@dataclass(frozen=True, slots=True)
class ThingChange:
    """One change: `before` None creates, `after` None deletes. Values have no defaults."""

    key: Key
    before: Values | None
    after: Values | None

    @property
    def action(self) -> str:
        if self.before is None:
            return "create"
        return "update" if self.after is not None else "delete"

    @property
    def fields(self) -> dict[str, tuple[Any, Any]]:
        """{field that differs: (value before, value after)}; None = no value."""
        usual = DEFAULTS[self.key[0]]
        old = None if self.before is None else {**usual, **self.before}
        new = None if self.after is None else {**usual, **self.after}
        names = sorted({*(self.before or ()), *(self.after or ())})
        pairs = {n: (old and old.get(n), new and new.get(n)) for n in names}
        return {n: pair for n, pair in pairs.items() if pair[0] != pair[1]}


@dataclass(frozen=True, slots=True)
class OrganisationPlan:
    """The changes, in the order in which they are made.

    `kept`: things that the document last had and no longer has, and that stay as nothing is pruned.
    """

    changes: tuple[ThingChange, ...]
    kept: tuple[Key, ...]


def plan(
    asked: Mapping[Key, Values], applied: Applied, live: Mapping[Key, Values], *, prune: bool
) -> OrganisationPlan:
    """Return the changes that the document asks for.

    A field that is asked for is set. One that was asked for last time and no longer is gets its
    default. Any other field stays as it is. A thing that was asked for last time and no longer is
    gets deleted if `prune`. What the document never had is left alone.
    """
    changes, kept = [], []
    for key, values in asked.items():
        before = live.get(key)
        after = _merged(key[0], before or {}, applied.get(key, ()), values)
        if after != before:
            changes.append(ThingChange(key, before, after))
    for key in applied:
        if key in asked or key not in live:
            continue
        if not prune:
            kept.append(key)
        elif not is_permanent(key):
            changes.append(ThingChange(key, live[key], None))
        elif _owner(key) in asked:
            after = _merged(key[0], live[key], applied[key], {})
            if after != live[key]:
                changes.append(ThingChange(key, live[key], after))
    depths = _depths({**live, **asked})
    changes.sort(key=lambda change: _order(change, depths))
    return OrganisationPlan(tuple(changes), tuple(kept))


def _merged(
    kind: str, live: Mapping[str, Any], applied: Collection[str], asked: Mapping[str, Any]
) -> Values:
    usual = DEFAULTS[kind]
    stays = {n: v for n, v in live.items() if n in asked or n not in applied or n not in usual}
    return short(kind, {**stays, **asked})


def _owner(key: Key) -> Key:
    return (CLUSTER if key[0] == POLICY else TENANT, key[1])


def _depths(things: Mapping[Key, Values]) -> dict[str, int]:
    """Return {tenant: how many tenants are above it}. Cycles, refused later, are cut."""
    above = {key[1]: values.get("parent") for key, values in things.items() if key[0] == TENANT}
    depths = {}
    for name in above:
        seen = {name}
        parent = above[name]
        while parent in above and parent not in seen:
            seen.add(parent)
            parent = above[parent]
        depths[name] = len(seen) - 1
    return depths


def _order(change: ThingChange, depths: Mapping[str, int]) -> tuple[int, int, int, Key]:
    """Sort key: things are created from the top down, then deleted from the bottom up."""
    rank, depth = KINDS.index(change.key[0]), depths.get(change.key[1], 0)
    if change.after is None:
        return 1, -rank, -depth, change.key
    return 0, rank, depth, change.key
