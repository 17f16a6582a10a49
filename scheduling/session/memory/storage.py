"""What is known of volume claims, volumes and storage classes, and what it means for a pod."""

from typing import Any, NamedTuple

from scheduling.engine.types import NodeTerm
from scheduling.kube.seam import ClaimFacts, StorageClassFacts, StorageFacts, VolumeFacts


class ClaimHold(NamedTuple):
    """Why a pod that mounts a claim cannot be placed now, and what helps."""

    text: str
    helps: str


class Need(NamedTuple):
    """What a claim asks of the node of a pod that mounts it.

    `affinity`: terms, of each of which the node has to match one. `hold`: why there is no such node
    now. `first`: the claim, where its volume is to be made for the node of its first consumer.
    """

    affinity: tuple[tuple[NodeTerm, ...], ...] = ()
    hold: ClaimHold | None = None
    first: ClaimFacts | None = None

    @property
    def can_be_mounted(self) -> bool:
        return self.hold is None and self.first is None


class Storage:
    """Volume claims, volumes and storage classes. `version`: another one after each change."""

    def __init__(self) -> None:
        self.version = 0
        self._claims: dict[tuple[str, str], ClaimFacts] = {}
        self._volumes: dict[str, VolumeFacts] = {}
        self._classes: dict[str, StorageClassFacts] = {}

    def seen(self, facts: StorageFacts) -> None:
        self.version += 1
        match facts:
            case ClaimFacts():
                self._claims[facts.namespace, facts.name] = facts
            case VolumeFacts():
                self._volumes[facts.name] = facts
            case StorageClassFacts():
                self._classes[facts.name] = facts

    def gone(self, facts: StorageFacts) -> None:
        """Unless another incarnation has come under its name."""
        self.version += 1
        match facts:
            case ClaimFacts():
                _forget(self._claims, (facts.namespace, facts.name), facts.uid)
            case VolumeFacts():
                _forget(self._volumes, facts.name, facts.uid)
            case StorageClassFacts():
                _forget(self._classes, facts.name, facts.uid)

    def selected_node(self, namespace: str, name: str) -> str:
        """For which node the volume of the claim is being made; "" = for none."""
        claim = self._claims.get((namespace, name))
        return claim.selected_node if claim is not None and not claim.bound else ""

    def need(self, namespace: str, name: str) -> Need:
        """What the claim of this name asks for."""
        claim = self._claims.get((namespace, name))
        if claim is None:
            return _held(
                f"There is no volume claim {name} in namespace {namespace}", "create the claim"
            )
        if claim.deleting:
            return _held(
                f"Volume claim {name} is being deleted", "create the claim again when it is gone"
            )
        if claim.lost:
            return _held(f"Volume claim {name} has lost its volume", "create the claim again")
        if claim.bound:
            volume = self._volumes.get(claim.volume)
            if volume is None:
                return _held(
                    f"There is no volume {claim.volume} of claim {name}", "create the claim again"
                )
            return Need(volume.affinity)
        return self._unbound(claim)

    def _unbound(self, claim: ClaimFacts) -> Need:
        """As kube-scheduler's volume binding has it; who makes volumes chooses among those that
        are there too."""
        text = f"Volume claim {claim.name} is not bound"
        look = f"see kubectl --namespace {claim.namespace} describe pvc {claim.name}"
        if claim.volume:
            return _held(f"{text} to its volume {claim.volume} yet", look)
        if not claim.storage_class:
            return _held(f"{text} and has no storage class", "create a volume for it")
        of = self._classes.get(claim.storage_class)
        if of is None:
            return _held(
                f"{text}, and there is no storage class {claim.storage_class}", "create the class"
            )
        if not of.waits:
            return _held(f"{text} yet", look)
        if not of.provisions:
            return _held(
                f"{text}, and storage class {of.name} waits for its first consumer but makes no "
                "volumes",
                "name one of its volumes in spec.volumeName of the claim",
            )
        if claim.selected_node:
            return _held(f"A volume is being made for claim {claim.name}", look)
        return Need((of.topologies,) if of.topologies else (), first=claim)


def _held(text: str, helps: str) -> Need:
    return Need(hold=ClaimHold(f"{text}.", helps))


def _forget(known: dict[Any, Any], key: object, uid: str) -> None:
    if key in known and known[key].uid == uid:
        del known[key]
