"""The whole cluster behind the API: its objects and everything that acts on them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from scheduling.simcluster.controllers.audit import Audit
from scheduling.simcluster.controllers.disruption import DisruptionController
from scheduling.simcluster.controllers.evictions import TaintEvictions
from scheduling.simcluster.controllers.expiry import EventExpiry, FinishedPods
from scheduling.simcluster.controllers.fleet import load_fleet, node_object
from scheduling.simcluster.controllers.kubelet import Delays, Kubelets
from scheduling.simcluster.controllers.resource_claims import ResourceClaimController
from scheduling.simcluster.controllers.storage import DEFAULT_CLASS, PROVISIONER, StorageController
from scheduling.simcluster.faults import FaultsInForce
from scheduling.simcluster.objects.journal import Journal
from scheduling.simcluster.objects.kinds import (
    NAMESPACES,
    NODES,
    PRIORITY_CLASSES,
    STORAGE_CLASSES,
    ResourceKind,
)
from scheduling.simcluster.objects.registry import Clock, Registry
from scheduling.simcluster.objects.rules import SYSTEM_PRIORITY_CLASSES
from scheduling.simcluster.objects.store import Obj, Store
from scheduling.simcluster.objects.timers import Timers
from scheduling.simcluster.objects.watch import Watches

_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")

# Storage classes: parameters by name; the first is the default.
_STORAGE_CLASSES: dict[str, dict[str, str]] = {
    "standard": {},
    "local": {"topologyKey": "kubernetes.io/hostname"},
}


class StateError(Exception):
    """A state directory cannot be used; one line with the remedy."""


class EmbeddedCluster:
    """One life of the cluster, from opening its state directory to closing it."""

    def __init__(
        self, directory: Path, fleet: str, delays: Delays, clock: Clock = time.time
    ) -> None:
        self.directory = directory
        self.fleet = fleet
        try:
            self.journal = Journal(directory)
            self._claim(fleet)
        except OSError as error:
            raise StateError(
                f"the state directory {directory} cannot be written: {error}"
            ) from error
        with _whole(directory):
            self.store = Store(self.journal)
        self.registry = Registry(self.store, clock)
        self.timers = Timers(clock)
        self._populate(fleet, clock())
        self.audit = Audit(directory, clock)
        with _whole(directory):
            self.audit.start(self.store)
        self.kubelets = Kubelets(self.registry, self.timers, delays)
        self.evictions = TaintEvictions(self.registry, self.timers)
        self.disruption = DisruptionController(self.registry, self.timers)
        self.storage = StorageController(self.registry, self.timers)
        self.resource_claims = ResourceClaimController(self.registry, self.timers)
        self.expiry = EventExpiry(self.registry, self.timers)
        self.finished = FinishedPods(self.registry, self.timers)
        self.watches = Watches(self.store)
        with _whole(directory):
            self.faults = FaultsInForce(self.registry, self.watches, directory, self._power)

    def _claim(self, fleet: str) -> None:
        """Check the fleet: a state directory belongs to the fleet that it was made for."""
        path = self.directory / "fleet"
        if path.exists() and path.read_text() != fleet:
            raise StateError(
                f"the state directory {self.directory} holds the fleet {path.read_text()!r}, not "
                f"{fleet!r}: name that fleet or another --state-dir"
            )

    def _populate(self, fleet: str, now: float) -> None:
        """Create the objects of a new cluster; the file `fleet` marks them as complete."""
        mark = self.directory / "fleet"
        if mark.exists():
            return
        nodes = load_fleet(fleet).nodes
        for name in _NAMESPACES:
            self._ensure(NAMESPACES, {"metadata": {"name": name}})
        for name, (value, text) in SYSTEM_PRIORITY_CLASSES.items():
            system = {"metadata": {"name": name}, "value": value, "description": text}
            self._ensure(PRIORITY_CLASSES, system)
        for name, parameters in _STORAGE_CLASSES.items():
            self._ensure(STORAGE_CLASSES, _storage_class(name, parameters))
        for number, node in enumerate(nodes, start=1):
            self._ensure(NODES, node_object(node, number, now))
        self.store.compact()
        mark.write_text(fleet)

    def _ensure(self, kind: ResourceKind, obj: Obj) -> None:
        """Create an object unless an interrupted start already did."""
        if self.store.get(kind.plural, obj["metadata"]["name"]) is None:
            self.registry.create(kind, "", obj)

    def _power(self, node: str, on: bool) -> None:
        if on:
            self.kubelets.bring_up(node)
        else:
            self.kubelets.take_down(node)

    def close(self) -> None:
        """Compact the state for the next start; everything is already on disk."""
        self.timers.stop()
        self.store.compact()
        self.journal.close()
        self.audit.close()

    def abandon(self) -> None:
        """Drop the memory without writing anything more, as a crash would."""
        self.timers.stop()
        self.journal.close()
        self.audit.close()


@contextmanager
def _whole(directory: Path) -> Iterator[None]:
    """Turn errors while reading the state into StateError.

    A kill leaves the files consistent; a disk fault, or a person, may not.
    """
    try:
        yield
    except (ValueError, LookupError, msgspec.MsgspecError) as error:
        raise StateError(
            f"the state directory {directory} cannot be read ({error}): put back a copy of it, or "
            "move it away, to begin with a new cluster"
        ) from error


def _storage_class(name: str, parameters: dict[str, str]) -> Obj:
    is_default = name == next(iter(_STORAGE_CLASSES))
    return {
        "metadata": {"name": name, "annotations": {DEFAULT_CLASS: str(is_default).lower()}},
        "provisioner": PROVISIONER,
        "parameters": parameters,
        "volumeBindingMode": "WaitForFirstConsumer",
    }
