"""The objects of the cluster, one order of changes, and the recent past for watches.

An object is kept as encoded JSON without kind and apiVersion (these differ by version and are put
before it on the wire), plus the few values that selectors compare. So a hundred thousand pods stay
small, and a list is a join of bytes. As in etcd, the resourceVersion is one counter for all kinds.
"""

import sys
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from scheduling.simcluster.objects.journal import Journal, Record
from scheduling.simcluster.objects.kinds import STORED, ResourceKind, field_values, storage_kind

# Changes kept per kind; a watch that resumes from before them gets 410 (the watch cache window).
HISTORY = 20_000
# Lists in progress (limit/continue) that are kept; the oldest is forgotten first.
SNAPSHOTS = 16

Obj = dict[str, Any]


class Stored:
    """One immutable version of an object."""

    __slots__ = ("body", "fields", "key", "labels", "name", "namespace", "rv", "uid")

    def __init__(self, kind: ResourceKind, key: str, rv: int, obj: Obj, body: bytes) -> None:
        meta = obj["metadata"]
        self.key = key
        self.name: str = meta["name"]
        self.namespace: str = sys.intern(meta.get("namespace", ""))
        self.uid: str = meta["uid"]
        self.rv = rv
        self.labels: dict[str, str] = meta.get("labels") or {}
        self.fields = field_values(kind, obj)
        self.body = body

    def decode(self) -> Obj:
        """Return the object as a new dictionary, without kind and apiVersion."""
        out: Obj = msgspec.json.decode(self.body)
        return out


class StoredChange(NamedTuple):
    """A committed change; `new`: the object after it (its last state if deleted)."""

    type: str
    new: Stored
    old: Stored | None


Listener = Callable[[str, StoredChange, Obj], None]


class History:
    """The recent changes of one kind.

    `start`: the index of `changes[0]`, counted from the very first change. `complete_since`: all
    changes with a greater resourceVersion are still here.
    """

    __slots__ = ("changes", "complete_since", "rvs", "start")

    def __init__(self, rv: int) -> None:
        self.changes: list[StoredChange] = []
        self.rvs: list[int] = []
        self.start = 0
        self.complete_since = rv

    @property
    def end(self) -> int:
        return self.start + len(self.changes)

    def append(self, change: StoredChange) -> None:
        self.changes.append(change)
        self.rvs.append(change.new.rv)
        if len(self.changes) >= 2 * HISTORY:
            self.forget(HISTORY)

    def forget(self, keep: int) -> None:
        """Drop all but the last `keep` changes."""
        cut = len(self.changes) - keep
        if cut > 0:
            self.complete_since = self.rvs[cut - 1]
            del self.changes[:cut], self.rvs[:cut]
            self.start += cut

    def position_after(self, rv: int) -> int:
        """Return the index of the first change later than `rv`."""
        return self.start + bisect_right(self.rvs, rv)


class Store:
    """All objects by kind (plural) and key ("namespace/name", or "name")."""

    def __init__(self, journal: Journal) -> None:
        self.rv = 0
        self.objects: dict[str, dict[str, Stored]] = {plural: {} for plural in STORED}
        self.listeners: list[Listener] = []
        self.wakers: dict[str, set[Callable[[], None]]] = {plural: set() for plural in STORED}
        self.snapshots: OrderedDict[tuple[str, int], list[Stored]] = OrderedDict()
        self._journal = journal
        self._kinds = {plural: storage_kind(plural) for plural in STORED}
        for record in journal.recover():
            self._apply(record)
        self.rv = max(self.rv, journal.last_rv)
        self.history = {plural: History(self.rv) for plural in STORED}

    def _apply(self, record: Record) -> None:
        table = self.objects[record.plural]
        if record.body:
            kind = self._kinds[record.plural]
            obj = msgspec.json.decode(record.body)
            table[record.key] = Stored(kind, record.key, record.rv, obj, record.body)
        else:
            table.pop(record.key, None)
        self.rv = max(self.rv, record.rv)

    def get(self, plural: str, key: str) -> Stored | None:
        return self.objects[plural].get(key)

    def put(self, plural: str, key: str, obj: Obj) -> Stored:
        """Commit `obj` (no kind, no apiVersion) as the newest version of `key`.

        Sets metadata.resourceVersion in `obj`. It is on disk before this returns.
        """
        old = self.objects[plural].get(key)
        new = self._encode(plural, key, obj)
        self._journal.put(plural, key, new.rv, new.body)
        self.objects[plural][key] = new
        self._publish(plural, StoredChange("ADDED" if old is None else "MODIFIED", new, old), obj)
        return new

    def remove(self, plural: str, key: str, obj: Obj) -> Stored:
        """Delete `key`; `obj` is its final state. Return that state as watches see it."""
        old = self.objects[plural][key]
        new = self._encode(plural, key, obj)
        self._journal.delete(plural, key, new.rv)
        del self.objects[plural][key]
        self._publish(plural, StoredChange("DELETED", new, old), obj)
        return new

    def _encode(self, plural: str, key: str, obj: Obj) -> Stored:
        self.rv += 1
        obj["metadata"]["resourceVersion"] = str(self.rv)
        return Stored(self._kinds[plural], key, self.rv, obj, msgspec.json.encode(obj))

    def _publish(self, plural: str, change: StoredChange, obj: Obj) -> None:
        self.history[plural].append(change)
        for wake in self.wakers[plural]:
            wake()
        for listener in self.listeners:
            listener(plural, change, obj)
        if self._journal.wants_compaction():
            self.compact()

    def skip_version(self) -> int:
        """Advance the version without a change, so that all earlier versions are in the past."""
        self.rv += 1
        return self.rv

    def compact(self) -> None:
        """Rewrite the disk as one snapshot of the current state."""
        self._journal.compact(
            self.rv,
            (
                Record(plural, o.key, o.rv, o.body)
                for plural, table in self.objects.items()
                for o in table.values()
            ),
        )

    def sorted(self, plural: str, namespace: str = "") -> list[Stored]:
        """Return all objects of a kind, ordered by key."""
        table = self.objects[plural]
        out = [table[key] for key in sorted(table)]
        return [o for o in out if o.namespace == namespace] if namespace else out

    def snapshot(self, plural: str) -> list[Stored]:
        """Return the current objects of a kind, kept so that later pages of a list agree."""
        objects = self.sorted(plural)
        self.snapshots[(plural, self.rv)] = objects
        if len(self.snapshots) > SNAPSHOTS:
            self.snapshots.popitem(last=False)
        return objects
