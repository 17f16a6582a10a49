"""Who holds which device, and how much of it."""

from collections import defaultdict
from collections.abc import Iterable, Set
from fractions import Fraction

from scheduling.kube.dra.allocation import Used
from scheduling.kube.dra.facts import DeviceId, GivenDevice

Held = dict[DeviceId, dict[str, Fraction] | None]  # of one claim


class DeviceHolders:
    """Devices by uid of the claim. Admin access holds nothing."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._whole: dict[DeviceId, set[str]] = defaultdict(set)
        self._shares: dict[DeviceId, dict[str, dict[str, Fraction]]] = defaultdict(dict)

    def __len__(self) -> int:
        """The number of claims that hold devices."""
        return len(self._held)

    def __contains__(self, claim: str) -> bool:
        return claim in self._held

    def hold(self, claim: str, given: Iterable[GivenDevice]) -> list[DeviceId]:
        """Set the devices of the claim to exactly these. Return the devices whose share changed."""
        before, after = self._held.pop(claim, {}), _of_claim(given)
        if after:
            self._held[claim] = after
        kept = before.keys() & after.keys()
        changed = {d for d in before.keys() | after.keys() if d not in kept}
        changed |= {device for device in kept if before[device] != after[device]}
        for device in changed:
            self._whole[device].discard(claim)
            self._shares[device].pop(claim, None)
            if device in after:
                self._give(device, claim, after[device])
            for of in (self._whole, self._shares):
                if not of[device]:
                    del of[device]
        return list(changed)

    def _give(self, device: DeviceId, claim: str, consumed: dict[str, Fraction] | None) -> None:
        if consumed is None:
            self._whole[device].add(claim)
        else:
            self._shares[device][claim] = consumed

    def of(self, claim: str) -> Held:
        """Return the claim's devices and its share of each; None = all of it."""
        return self._held.get(claim, {})

    def claims_of(self, device: DeviceId) -> Set[str]:
        """Return the claims that hold the device or a part of it."""
        return self._whole.get(device, set()) | self._shares.get(device, {}).keys()

    def whole(self, without: Set[str] = frozenset()) -> Set[DeviceId]:
        """Return the devices that claims other than these hold as a whole."""
        if not without:
            return self._whole.keys()
        return {device for device, claims in self._whole.items() if not claims <= without}

    def shared(self, without: Set[str] = frozenset()) -> Set[DeviceId]:
        """Return the devices of which claims other than these hold parts."""
        if not without:
            return self._shares.keys()
        return {device for device, claims in self._shares.items() if not claims.keys() <= without}

    def used(self, devices: Iterable[DeviceId], without: Set[str] = frozenset()) -> Used:
        """Return the capacity that other claims than these use, of devices held in parts."""
        found: dict[DeviceId, dict[str, Fraction]] = {}
        for device in devices if self._shares else ():
            for claim, consumed in self._shares.get(device, {}).items():
                if claim not in without:
                    _add(found.setdefault(device, {}), consumed)
        return found


def _of_claim(given: Iterable[GivenDevice]) -> Held:
    found: Held = {}
    for each in given:
        if each.admin:
            continue
        if each.consumed is None:
            found[each.device] = None
            continue
        of = found.setdefault(each.device, {})
        if of is not None:
            _add(of, dict(each.consumed))
    return found


def _add(to: dict[str, Fraction], consumed: dict[str, Fraction]) -> None:
    for name, amount in consumed.items():
        to[name] = to.get(name, Fraction(0)) + amount
