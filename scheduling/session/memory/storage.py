"""Volume claims, volumes, storage classes and drivers, and what they mean for a pod."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from scheduling.engine.types import Attached, NodeExpression, NodeTerm, PodRules
from scheduling.engine.verdict import Reason
from scheduling.kube.seam import (
    CapacityFacts,
    ClaimFacts,
    CsiDriverFacts,
    CsiNodeFacts,
    StorageClassFacts,
    StorageFacts,
    VolumeFacts,
)

GIB = 1 << 30
EVERYWHERE: NodeTerm = ()
ClaimName = tuple[str, str]  # namespace and name


class ClaimHold(NamedTuple):
    """Why a claim keeps a pod from being placed now, and what helps."""

    text: str
    helps: str
    reason: Reason = Reason.WAITING_FOR_VOLUME


class Need(NamedTuple):
    """What a claim requires of the node of a pod that mounts it.

    - `affinity`: groups of terms; the node must match one term of each group.
    - `hold`: why no node will do now.
    - `first`: the claim, if its volume is to be made for the node of its first consumer.
    """

    affinity: tuple[tuple[NodeTerm, ...], ...] = ()
    hold: ClaimHold | None = None
    first: ClaimFacts | None = None

    @property
    def can_be_mounted(self) -> bool:
        return self.hold is None and self.first is None


class Storage:
    """Volume claims, volumes, storage classes and drivers.

    - `version`: differs after each change of what claims require.
    - `changed`: claims whose requirements may have changed.
    - `limits`: by node, how many volumes of each driver it can have.
    - `changed_limits`: nodes whose limits changed.
    """

    def __init__(self) -> None:
        self.version = 0
        self.changed: set[ClaimName] = set()
        self.limits: dict[str, CsiNodeFacts] = {}
        self.changed_limits: set[str] = set()
        self._claims: dict[ClaimName, ClaimFacts] = {}
        self._volumes: dict[str, VolumeFacts] = {}
        self._claim_of: dict[str, ClaimName] = {}  # by volume
        self._classes: dict[str, StorageClassFacts] = {}
        self._waiting: Counter[str] = Counter()  # unbound claims by class
        self._limited: Counter[str] = Counter()  # by driver, nodes with a limit for it
        self._tells_capacity: dict[str, str] = {}  # uids of drivers
        self._capacities: dict[str, dict[str, CapacityFacts]] = defaultdict(dict)  # by class, uid

    def seen(self, facts: StorageFacts) -> None:
        self._take(facts, comes=True)

    def gone(self, facts: StorageFacts) -> None:
        """Forget an object, unless another of its name has replaced it."""
        self._take(facts, comes=False)

    def _take(self, facts: StorageFacts, *, comes: bool) -> None:
        match facts:
            case ClaimFacts():
                self._take_claim(facts, comes=comes)
            case VolumeFacts():
                _take(self._volumes, facts.name, facts, comes=comes)
                if facts.name in self._claim_of:
                    self.changed.add(self._claim_of[facts.name])
            case StorageClassFacts():
                _take(self._classes, facts.name, facts, comes=comes)
                self.changed |= self._claims.keys()
            case CsiNodeFacts():
                self._take_limits(facts, comes=comes)
                return
            case CsiDriverFacts():
                if comes and facts.tells_capacity:
                    self._tells_capacity[facts.name] = facts.uid
                elif comes or self._tells_capacity.get(facts.name) == facts.uid:
                    self._tells_capacity.pop(facts.name, None)
            case CapacityFacts():
                of = self._capacities[facts.storage_class]
                _take(of, facts.uid, facts, comes=comes)
                if not self._waiting[facts.storage_class]:
                    return
        self.version += 1

    def _take_claim(self, facts: ClaimFacts, *, comes: bool) -> None:
        name = facts.namespace, facts.name
        before = self._claims.get(name)
        _take(self._claims, name, facts, comes=comes)
        after = self._claims.get(name)
        for claim, sign in ((before, -1), (after, 1)):
            if claim is not None and not claim.bound:
                self._waiting[claim.storage_class] += sign
        if before is not None and self._claim_of.get(before.volume) == name:
            del self._claim_of[before.volume]
        if after is not None and after.volume:
            self._claim_of[after.volume] = name
        self.changed.add(name)

    def _take_limits(self, facts: CsiNodeFacts, *, comes: bool) -> None:
        before = self.limits.get(facts.name)
        if comes and facts.limits:
            self.limits[facts.name] = facts
        elif comes or (before is not None and before.uid == facts.uid):
            self.limits.pop(facts.name, None)
        after = self.limits.get(facts.name)
        if before == after:
            return
        known = set(+self._limited)
        self._limited.subtract(before.limits.keys() if before is not None else ())
        self._limited.update(after.limits.keys() if after is not None else ())
        self.changed_limits.add(facts.name)
        if known != set(+self._limited):
            self.changed |= self._claims.keys()
            self.version += 1

    # --- what claims give to pods -----------------------------------------------------------------
    def with_mounts(
        self, rules: PodRules | None, namespace: str, claims: Iterable[str]
    ) -> PodRules | None:
        """Return the rules of a pod with those of the claims that it mounts; None = no rules."""
        sole, attached = list[str](), set[Attached]()
        for name in claims:
            claim = self._claims.get((namespace, name))
            if claim is None:
                continue
            if claim.sole:
                sole.append(f"volume claim {name} of namespace {namespace} (ReadWriteOncePod)")
            volume = self._attached(claim)
            if volume is not None and self._limited[volume.driver] > 0:
                attached.add(volume)
        if not sole and not attached:
            return rules
        rules = PodRules() if rules is None else rules
        return rules._replace(sole=tuple(sorted(sole)), attached=tuple(sorted(attached)))

    def _attached(self, claim: ClaimFacts) -> Attached | None:
        """Return what the claim attaches to a node, now or later."""
        if claim.volume:
            volume = self._volumes.get(claim.volume)
            known = volume is not None and volume.driver
            return Attached(volume.driver, volume.handle) if volume is not None and known else None
        of = self._classes.get(claim.storage_class)
        return Attached(of.driver, f"{claim.namespace}/{claim.name}") if of is not None else None

    def selected_node(self, namespace: str, name: str) -> str:
        """Return the node for which the claim's volume is being made; "" = none."""
        claim = self._claims.get((namespace, name))
        return claim.selected_node if claim is not None and not claim.bound else ""

    def refused(self, namespace: str, name: str) -> int:
        """Return how often a node chosen for the claim's volume was withdrawn again."""
        claim = self._claims.get((namespace, name))
        return claim.refused if claim is not None else 0

    def need(self, namespace: str, name: str) -> Need:
        """Return what the claim of this name requires."""
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
        """Return what an unbound claim requires, by the rules of kube-scheduler's volume binding.

        A provisioner chooses among existing volumes, too.
        """
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
        found = [of.topologies] if of.topologies else []
        if claim.size and of.driver in self._tells_capacity:
            room = self._room(of.name, claim.size)
            if not room:
                return _held(
                    f"{text}, and storage class {of.name} has {claim.size / GIB:g} GiB on no node",
                    "free or add storage",
                )
            if EVERYWHERE not in room:
                found.append(room)
        return Need(tuple(found), first=claim)

    def _room(self, storage_class: str, size: int) -> tuple[NodeTerm, ...]:
        """Return where volumes of `size` bytes can be made, as the driver reports; () = nowhere."""
        capacities = self._capacities.get(storage_class, {}).values()
        terms = {t for c in capacities if c.size >= size for t in c.nodes}
        # Most capacities are of one node each: join them into one expression with many values.
        values: dict[str, set[str]] = defaultdict(set)
        others = set[NodeTerm]()
        for term in terms:
            if len(term) == 1 and term[0].operator == "In":
                values[term[0].key].update(term[0].values)
            else:
                others.add(term)
        joined = ((NodeExpression(k, "In", tuple(sorted(v))),) for k, v in values.items())
        return tuple(sorted({*others, *joined}))


def _held(text: str, helps: str) -> Need:
    return Need(hold=ClaimHold(f"{text}.", helps))


def _take(known: dict[Any, Any], key: object, facts: StorageFacts, *, comes: bool) -> None:
    if comes:
        known[key] = facts
    elif key in known and known[key].uid == facts.uid:
        del known[key]
