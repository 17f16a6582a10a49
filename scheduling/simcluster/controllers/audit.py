"""The cluster's own record of which pod held which GPU from when to when.

It is written from the bindings that the API accepted, not from any scheduler's books nor from what
the kubelet ran: a pod holds the devices that its Binding named from the moment it is bound until it
has ended or is gone. If pods together hold more than a whole device, that is a double holding,
which is kept for ever; of other holdings that ended, the last `CLOSED` are kept. A device that two
claims have at once, except for administrator access, is recorded likewise.
"""

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from scheduling.simcluster.controllers.devices import GPU, GPU_MILLI, WHOLE, chosen
from scheduling.simcluster.objects.kinds import PODS, RESOURCE_CLAIMS
from scheduling.simcluster.objects.quantities import pod_requests
from scheduling.simcluster.objects.store import Obj, Store, StoredChange

CLOSED = 100_000

_PHASE = list(PODS.selectable).index("status.phase")
_NODE = list(PODS.selectable).index("spec.nodeName")
_FINISHED = ("Succeeded", "Failed")
_JOB_LABEL = "kant.io/job"


class Holding(msgspec.Struct, omit_defaults=True):
    """`milli` of each of `devices` on `node`, held by a pod since `since` (epoch seconds).

    `until` 0 = still held. `problem`: why the Binding's annotations do not say which devices it
    holds.
    """

    pod: str
    uid: str
    node: str
    devices: tuple[int, ...]
    milli: int
    since: float
    until: float = 0.0
    job: str = ""
    problem: str = ""


class DoubleHolding(msgspec.Struct):
    """At `at`, these pods together held `milli` (more than 1000) of one device."""

    node: str
    device: int
    milli: int
    at: float
    pods: tuple[str, ...]


class DoubleClaim(msgspec.Struct):
    """At `at`, both claims had the device (driver/pool/device)."""

    device: str
    at: float
    claims: tuple[str, str]


class Audit:
    """The record, in memory and in the file `audit` of the state directory."""

    def __init__(self, directory: Path, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.open: dict[str, Holding] = {}
        self.closed: deque[Holding] = deque(maxlen=CLOSED)
        self.doubles: list[DoubleHolding] = []
        self.double_claims: list[DoubleClaim] = []
        self._claimed: dict[str, tuple[str, ...]] = {}  # devices by claim
        self._by_device: dict[tuple[str, int], set[str]] = {}
        self._path = directory / "audit"
        self._fd = -1
        self._lines = 0

    def start(self, store: Store) -> None:
        """Read the record of earlier processes, then follow the store."""
        if self._path.exists():
            os.truncate(self._path, self._load(self._path.read_bytes()))
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        present = {p.uid: p for p in store.objects["pods"].values()}
        for uid in [u for u in self.open if u not in present]:
            self._release(uid)
        for pod in present.values():
            self._observe(pod.uid, pod.key, pod.fields, pod.decode())
        for claim in store.objects[RESOURCE_CLAIMS.table].values():
            self._claimed[claim.key] = _devices_of(claim.decode())
        store.listeners.append(self._on_change)

    def _load(self, data: bytes) -> int:
        """Load all complete lines and return their length.

        A kill may have cut off the last line.
        """
        whole = data.rfind(b"\n") + 1
        for line in data[:whole].splitlines():
            self._lines += 1
            kind, _, body = line.partition(b" ")
            if kind == b"double":
                self.doubles.append(msgspec.json.decode(body, type=DoubleHolding))
                continue
            if kind == b"claimed-twice":
                self.double_claims.append(msgspec.json.decode(body, type=DoubleClaim))
                continue
            holding = msgspec.json.decode(body, type=Holding)
            if kind == b"held":
                self.closed.append(holding)
            elif kind == b"hold":
                self._add(holding)
            else:
                self._drop(holding.uid, holding.until)
        return whole

    def _on_change(self, plural: str, change: StoredChange, obj: Obj) -> None:
        if plural == RESOURCE_CLAIMS.table:
            self._observe_claim(
                change.new.key, () if change.type == "DELETED" else _devices_of(obj)
            )
        if plural != "pods":
            return
        new = change.new
        if change.type == "DELETED":
            self._release(new.uid)
        else:
            self._observe(new.uid, new.key, new.fields, obj)

    def _observe_claim(self, key: str, devices: tuple[str, ...]) -> None:
        before = self._claimed.pop(key, ())
        for other, theirs in self._claimed.items():
            for device in set(devices).difference(before).intersection(theirs):
                double = DoubleClaim(device, self._clock(), (other, key))
                self.double_claims.append(double)
                self._write("claimed-twice", double)
        if devices:
            self._claimed[key] = devices

    def _observe(self, uid: str, key: str, fields: tuple[str, ...], obj: Obj) -> None:
        if fields[_PHASE] in _FINISHED:
            self._release(uid)
        elif fields[_NODE] and uid not in self.open:
            holding = _holding(uid, key, fields[_NODE], obj, self._clock())
            if holding is not None:
                self._add(holding)
                self._write("hold", holding)
                self._find_doubles(holding)

    def _add(self, holding: Holding) -> None:
        self.open[holding.uid] = holding
        for device in holding.devices:
            self._by_device.setdefault((holding.node, device), set()).add(holding.uid)

    def _find_doubles(self, holding: Holding) -> None:
        for device in holding.devices:
            holders = [self.open[u] for u in self._by_device[(holding.node, device)]]
            milli = sum(h.milli for h in holders)
            if milli > WHOLE:
                pods = tuple(sorted(h.pod for h in holders))
                double = DoubleHolding(holding.node, device, milli, holding.since, pods)
                self.doubles.append(double)
                self._write("double", double)

    def _release(self, uid: str) -> None:
        if uid in self.open:
            holding = self._drop(uid, self._clock())
            self._write("release", holding)

    def _drop(self, uid: str, until: float) -> Holding:
        holding = self.open.pop(uid)
        holding.until = until
        for device in holding.devices:
            self._by_device[(holding.node, device)].discard(uid)
        self.closed.append(holding)
        return holding

    def _write(self, kind: str, record: msgspec.Struct) -> None:
        os.write(self._fd, _line(kind, record))
        self._lines += 1
        if self._lines > 4 * CLOSED + len(self.open) + len(self.doubles):
            self._rewrite()

    def _rewrite(self) -> None:
        """Rewrite the file with only what is still kept.

        A crash leaves the old file or the new one.
        """
        kept = (
            ("double", self.doubles),
            ("claimed-twice", self.double_claims),
            ("held", self.closed),
            ("hold", self.open.values()),
        )
        draft = self._path.with_suffix(".tmp")
        with draft.open("wb") as out:
            out.writelines(_line(kind, record) for kind, records in kept for record in records)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(self._path)
        os.close(self._fd)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._lines = len(self.doubles) + len(self.closed) + len(self.open)

    def close(self) -> None:
        os.close(self._fd)

    def report(self, *, node: str = "", pod: str = "") -> dict[str, Any]:
        """Return the record as GET /sim/audit shows it; `node` and `pod` filter the holdings."""
        every = (*self.closed, *self.open.values())
        return {
            "double_holdings": self.doubles,
            "double_claims": self.double_claims,
            "open": len(self.open),
            "closed": len(self.closed),
            "holdings": [
                h for h in every if (not node or h.node == node) and (not pod or h.pod == pod)
            ],
        }


def _line(kind: str, record: msgspec.Struct) -> bytes:
    return kind.encode() + b" " + msgspec.json.encode(record) + b"\n"


def _devices_of(claim: Obj) -> tuple[str, ...]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    # Others may have the rest of a shared device.
    alone = (r for r in results if not r.get("adminAccess") and "shareID" not in r)
    return tuple(f"{r['driver']}/{r['pool']}/{r['device']}" for r in alone)


def _holding(uid: str, key: str, node: str, pod: Obj, now: float) -> Holding | None:
    """Return what a bound pod holds; None if it asks for no GPU."""
    requests = pod_requests(pod["spec"])
    if not requests.get(GPU) and not requests.get(GPU_MILLI):
        return None
    meta = pod["metadata"]
    job = (meta.get("labels") or {}).get(_JOB_LABEL, "")
    devices: tuple[int, ...] = ()
    milli, problem = 0, ""
    try:
        named = chosen(meta.get("annotations") or {})
    except ValueError as error:
        problem = str(error)
    else:
        if named is None:
            problem = "its Binding named no devices; the kubelet chose"
        else:
            devices, milli = named
    return Holding(key, uid, node, devices, milli, now, job=job, problem=problem)
