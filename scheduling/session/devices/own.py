"""The claims that a job defines itself (`device_claims`): Kant makes them for its pods.

Their names follow from the pod's name, so making one twice makes one. They are deleted with the
pod.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from scheduling.kube.dra.facts import DeviceClaimFacts, PodClaim
from scheduling.kube.dra.reading import asks_of
from scheduling.kube.seam import OwnClaim
from scheduling.kube.translate.manifests import name_of_claim
from scheduling.session.devices.books import DeviceBooks, PodNames, uid_of_new
from scheduling.session.devices.demand import NOT_HONOURED, NOT_READY, DeviceRefusal

Asked = Mapping[str, Mapping[str, Any]]  # as `device_claims` of a pod set


ToMake = tuple[DeviceClaimFacts, OwnClaim]


class OwnClaims(NamedTuple):
    """The claims of one pod: `named` exist, `new` are to be made.

    `all_anew`: all of them, as if none had been made.
    """

    named: tuple[PodClaim, ...]
    new: tuple[ToMake, ...]
    all_anew: tuple[ToMake, ...]


def own_claims(books: DeviceBooks, asked: Asked, pod: PodNames) -> OwnClaims:
    """Return the claims of a pod. `pod` has no name while it is not known which pod it is.

    Raises DeviceRefusal.
    """
    named, new, all_anew = list[PodClaim](), list[ToMake](), list[ToMake]()
    for name, of in asked.items():
        whole = name_of_claim(pod.name, name) if pod.name else name
        there = books.claims.get((pod.namespace, whole)) if pod.name else None
        uid = uid_of_new(pod.namespace, whole)
        if there is not None and there.owner is not None and _is(there.owner, pod):
            named.append(PodClaim(name, whole))
            facts = DeviceClaimFacts(pod.namespace, whole, uid, there.asks)
            all_anew.append((facts, OwnClaim({})))
            continue
        made_as = _from_template(books, pod.namespace, of["template"]) if "template" in of else None
        made_as = made_as or OwnClaim(spec_of(name, of))
        asks, problem = asks_of(made_as.spec)
        if problem:
            raise DeviceRefusal(NOT_HONOURED, f"Device claim {name}: {problem}.")
        new.append((DeviceClaimFacts(pod.namespace, whole, uid, asks), made_as))
        all_anew.append(new[-1])
    return OwnClaims(tuple(named), tuple(new), tuple(all_anew))


def _is(owner: tuple[str, str], pod: PodNames) -> bool:
    return owner[0] == pod.name and pod.uid in ("", owner[1])


def _from_template(books: DeviceBooks, namespace: str, name: str) -> OwnClaim:
    found = books.templates.get((namespace, name))
    if found is None:
        where = f"in namespace {namespace}"
        raise DeviceRefusal(
            NOT_READY, f"There is no resource claim template {name} {where}. Create it."
        )
    if found.deleting:
        text = f"Resource claim template {name} in namespace {namespace} is being deleted."
        raise DeviceRefusal(NOT_READY, f"{text} Create it again when it is gone.")
    return OwnClaim(found.spec, found.labels, found.annotations)


def spec_of(name: str, of: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a claim for a number of devices of a class."""
    exactly: dict[str, Any] = {
        "deviceClassName": of["device_class"],
        "allocationMode": "ExactCount",
        "count": of.get("count", 1),
    }
    if selectors := of.get("selectors"):
        exactly["selectors"] = [{"cel": {"expression": each}} for each in selectors]
    return {"devices": {"requests": [{"name": name, "exactly": exactly}]}}
