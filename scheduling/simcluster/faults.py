"""Faults on request (`/sim/faults`), which only the embedded cluster has.

A fault happens once (dropped watches, a restart), or lasts until it is used up or cleared. Node and
device faults are cleared by their opposite or by DELETE, and survive a restart; faults of requests
do not survive it.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from scheduling.simcluster.controllers import nodes
from scheduling.simcluster.objects.kinds import NODES, STORED
from scheduling.simcluster.objects.registry import Registry
from scheduling.simcluster.objects.status import ApiError, bad_request
from scheduling.simcluster.objects.watch import Watches

Verb = Literal[
    "", "get", "list", "watch", "create", "update", "patch", "delete", "deletecollection",
    "bind", "evict", "log",
]  # fmt: skip


class Fault(msgspec.Struct, tag_field="fault", forbid_unknown_fields=True, kw_only=True):
    """A fault; the server assigns its id."""

    id: int = 0


class NodeFault(Fault, kw_only=True):
    node: str


class NodeDown(NodeFault, tag="node-down", kw_only=True):
    """The machine is off: unreachable, its pods frozen until it is up again, then dead."""


class NodeUp(NodeFault, tag="node-up", kw_only=True):
    """Ends `node-down`."""


class GpuBad(NodeFault, tag="gpu-bad", kw_only=True):
    gpu: int


class GpuGood(NodeFault, tag="gpu-good", kw_only=True):
    gpu: int


class NicBad(NodeFault, tag="nic-bad", kw_only=True):
    nic: int


class NicGood(NodeFault, tag="nic-good", kw_only=True):
    nic: int


class DropWatches(Fault, tag="drop-watches", kw_only=True):
    """Cut the connections of all watches, or of one resource (plural)."""

    resource: str = ""


class ExpireWatches(Fault, tag="expire-watches", kw_only=True):
    """End watches with an in-stream 410 and forget the past, so that resuming gives 410, too."""

    resource: str = ""


class RequestFault(Fault, kw_only=True):
    """Applies to the next `count` requests (0 = until cleared) of `verb` on `resource`."""

    verb: Verb = ""
    resource: str = ""
    count: int = 1


class TooManyRequests(RequestFault, tag="too-many-requests", kw_only=True):
    """Answer 429 with Retry-After; do nothing."""

    retry_after_s: int = 1


class LoseReply(RequestFault, tag="lose-reply", kw_only=True):
    """Carry out the request, then close the connection without a reply."""


class SlowReplies(RequestFault, tag="slow-replies", kw_only=True):
    """Delay the reply by `delay_ms` after carrying out the request."""

    delay_ms: int


class Restart(Fault, tag="restart", kw_only=True):
    """Close all connections; the server is away for `down_s` and continues from its disk."""

    down_s: float = 0.0


AnyFault = (
    NodeDown | NodeUp | GpuBad | GpuGood | NicBad | NicGood | DropWatches | ExpireWatches
    | TooManyRequests | LoseReply | SlowReplies | Restart
)  # fmt: skip
_CLASSES: tuple[type[Fault], ...] = AnyFault.__args__
NAMES = tuple(str(c.__struct_config__.tag) for c in _CLASSES)
_Lasting = NodeDown | GpuBad | NicBad


def parse_fault(data: bytes) -> AnyFault:
    """Parse a fault. Raises ApiError 400 naming the field and what it must be."""
    try:
        body = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise bad_request(f"the fault is not JSON: {error}") from None
    if not isinstance(body, dict) or body.get("fault") not in NAMES:
        raise bad_request(f"fault: must be one of {', '.join(NAMES)}")
    if "id" in body:
        raise bad_request("id: is given by the server")
    try:
        fault: AnyFault = msgspec.convert(body, AnyFault)
    except msgspec.ValidationError as error:
        raise bad_request(f"{body['fault']}: {error}") from None
    for field, least, most in (
        ("count", 0, 1_000_000), ("retry_after_s", 0, 3600), ("delay_ms", 0, 600_000),
        ("down_s", 0, 600),
    ):  # fmt: skip
        value = getattr(fault, field, least)
        if not least <= value <= most:
            raise bad_request(f"{field}: must be from {least} to {most}, not {value}")
    resource = getattr(fault, "resource", "")
    if resource and resource not in STORED:
        raise bad_request(f"resource: must be one of {', '.join(STORED)}, not {resource!r}")
    return fault


class FaultsInForce:
    """The faults in force, and their effects on requests."""

    def __init__(
        self,
        registry: Registry,
        watches: Watches,
        directory: Path,
        power: Callable[[str, bool], None],
    ) -> None:
        self._registry = registry
        self._watches = watches
        self._power = power
        self._path = directory / "faults.json"
        self.active: dict[int, AnyFault] = {}
        self._next_id = 1
        if self._path.exists():
            self._restore()

    def _restore(self) -> None:
        for fault in msgspec.json.decode(self._path.read_bytes(), type=list[AnyFault]):
            self.active[fault.id] = fault
            self._next_id = max(self._next_id, fault.id + 1)
            if isinstance(fault, NodeDown):
                self._power(fault.node, False)

    def _save(self) -> None:
        lasting = [f for f in self.active.values() if isinstance(f, _Lasting)]
        draft = self._path.with_suffix(".tmp")
        draft.write_bytes(msgspec.json.encode(lasting))
        draft.replace(self._path)

    # --- setting and clearing -----------------------------------------------------------------
    def apply(self, fault: AnyFault) -> AnyFault:
        """Let a fault happen; returns it with its id. The server handles restarts.

        Raises:
            ApiError: 404 for an unknown node, 400 for a device that the node does not have.
        """
        if isinstance(fault, NodeFault):
            self._check_device(fault)
            self._forget_same(fault)
        fault.id = self._next_id
        self._next_id += 1
        self._happen(fault)
        if isinstance(fault, RequestFault | NodeDown | GpuBad | NicBad):
            self.active[fault.id] = fault
        self._save()
        return fault

    def _happen(self, fault: AnyFault) -> None:
        registry = self._registry
        match fault:
            case NodeDown():
                self._power(fault.node, False)
                nodes.mark_unreachable(registry, fault.node)
            case NodeUp():
                nodes.mark_reachable(registry, fault.node)
                self._power(fault.node, True)
            case GpuBad() | GpuGood():
                healthy = isinstance(fault, GpuGood)
                nodes.set_gpu_health(registry, fault.node, fault.gpu, healthy=healthy)
            case NicBad() | NicGood():
                healthy = isinstance(fault, NicGood)
                nodes.set_nic_health(registry, fault.node, fault.nic, healthy=healthy)
            case DropWatches():
                self._watches.drop(fault.resource)
            case ExpireWatches():
                self._watches.expire(fault.resource)

    def _check_device(self, fault: NodeFault) -> None:
        obj = self._registry.stored(NODES, "", fault.node).decode()
        gpus, nics = nodes.device_counts(obj)
        for field, count in (("gpu", gpus), ("nic", nics)):
            index = getattr(fault, field, None)
            if index is not None and not 0 <= index < count:
                raise bad_request(
                    f"{field}: node {fault.node} has {count}, so {index} is not one of them"
                )

    def _forget_same(self, fault: NodeFault) -> None:
        """Remove an earlier fault of the same thing: a fault or its opposite replaces it."""
        thing = _thing(fault)
        same = [
            i for i, f in self.active.items() if isinstance(f, NodeFault) and _thing(f) == thing
        ]
        for old in same:
            del self.active[old]

    def clear(self, fault_id: int) -> None:
        """End one fault.

        Raises:
            ApiError: 404 if no fault has that id.
        """
        fault = self.active.get(fault_id)
        if fault is None:
            raise ApiError(404, "NotFound", f"no fault {fault_id} is in force")
        opposite: NodeUp | GpuGood | NicGood | None = None
        if isinstance(fault, NodeDown):
            opposite = NodeUp(node=fault.node)
        elif isinstance(fault, GpuBad):
            opposite = GpuGood(node=fault.node, gpu=fault.gpu)
        elif isinstance(fault, NicBad):
            opposite = NicGood(node=fault.node, nic=fault.nic)
        del self.active[fault_id]
        if opposite and self._registry.store.get("nodes", opposite.node):
            self._happen(opposite)
        self._save()

    def clear_all(self) -> None:
        for fault_id in list(self.active):
            self.clear(fault_id)

    # --- requests -----------------------------------------------------------------------------
    def taken(self, verb: str, resource: str) -> list[RequestFault]:
        """Return the faults that hit this request, and count it for each of them."""
        if not self.active:
            return []
        hit: list[RequestFault] = [
            f
            for f in self.active.values()
            if isinstance(f, RequestFault) and f.verb in ("", verb) and f.resource in ("", resource)
        ]
        for fault in hit:
            if fault.count == 1:
                del self.active[fault.id]
            elif fault.count:
                fault.count -= 1
        return hit


async def delay(faults: list[RequestFault]) -> None:
    slow = sum(f.delay_ms for f in faults if isinstance(f, SlowReplies))
    if slow:
        await asyncio.sleep(slow / 1000)


def _thing(fault: NodeFault) -> tuple[str, int | None, int | None]:
    return fault.node, getattr(fault, "gpu", None), getattr(fault, "nic", None)
