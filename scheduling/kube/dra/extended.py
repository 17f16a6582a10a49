"""Extended resources served by DRA drivers: a pod's requests by resource name, turned into a claim.

A DeviceClass stands for the resource that it names, and for `deviceclass.resource.kubernetes.io/`
with its own name. If no device plugin of a node offers the resource, a pod gets it through a claim
that its scheduler makes. Names and order of the requests are those of kube-scheduler 1.36
(plugins/dynamicresources/extendeddynamicresources.go).
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from scheduling.kube.dra.facts import ExtendedAsks, ExtendedRequest, RequestMapping
from scheduling.kube.translate.objects import Container, PodSpec
from scheduling.kube.translate.quantities import GPU_MILLI, parse

OF_CLASS = "deviceclass.resource.kubernetes.io/"
ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
NATIVE, QUOTA = "kubernetes.io/", "requests."
NAME_LENGTH = 253
NOTHING = ExtendedAsks()


class _Wish(NamedTuple):
    """A container, its index among all containers, and the amounts it asks for by name."""

    number: int
    container: str
    amounts: dict[str, Fraction]


def is_by_name(resource: str) -> bool:
    """Whether a device class may stand for the resource."""
    if resource.startswith(OF_CLASS):
        return True
    native = "/" not in resource or NATIVE in resource
    return not native and not resource.startswith(QUOTA) and resource != GPU_MILLI


def claim_name(pod: str, uid: str) -> str:
    """Return the name of the claim for a pod's extended resources; it never changes."""
    tail = f"-extended-resources-{uid[-12:]}"
    return f"{pod[: NAME_LENGTH - len(tail)].rstrip('-.')}{tail}"


def extended_asks(spec: PodSpec) -> ExtendedAsks:
    """Return what a pod's containers ask for by names that device classes may serve.

    Raises ValueError on a malformed quantity.
    """
    inits, all_of_them = len(spec.init_containers), [*spec.init_containers, *spec.containers]
    if not any("/" in name for each in all_of_them for name in _asked(each)):
        return NOTHING
    lasting, passing = list[_Wish](), list[_Wish]()
    for index, each in enumerate(all_of_them):
        amounts = {name: parse(amount) for name, amount in _asked(each).items()}
        ends = index < inits and each.restart_policy != "Always"
        (passing if ends else lasting).append(_Wish(index, each.name, amounts))
    wishes = (*lasting, *passing)
    names = sorted({name for wish in wishes for name in wish.amounts if is_by_name(name)})
    found = [_of_resource(name, lasting, passing) for name in names]
    return ExtendedAsks(
        tuple(sorted(request for requests, _ in found for request in requests)),
        tuple(mapping for _, mappings in found for mapping in mappings),
    )


def _asked(container: Container) -> dict[str, str | int | float]:
    # A limit without a request counts as the request, as the API server defaults it.
    return {**container.resources.limits, **container.resources.requests}


def _of_resource(
    resource: str, lasting: Sequence[_Wish], passing: Sequence[_Wish]
) -> tuple[list[ExtendedRequest], list[RequestMapping]]:
    """Return the requests for one resource.

    Init containers reuse what later containers have. What they need beyond that they share one
    after another, so the largest such request serves them all.
    """
    own = [(wish.number, _request(wish, resource)) for wish in lasting]
    requests = [(index, request) for index, request in own if request is not None]
    mappings = [
        RequestMapping(wish.container, resource, request.name)
        for wish, (_, request) in zip(lasting, own, strict=True)
        if request is not None
    ]
    largest: ExtendedRequest | None = None
    beyond: list[tuple[_Wish, list[str], ExtendedRequest | None]] = []
    for wish in passing:
        later = [request for index, request in requests if index >= wish.number]
        used, request = _reusing(wish, resource, later)
        beyond.append((wish, used, request))
        if request is not None and (largest is None or largest.amount < request.amount):
            largest = request
    for wish, used, request in beyond:
        names = used if request is None or largest is None else [*used, largest.name]
        mappings += [RequestMapping(wish.container, resource, name) for name in names]
    return [*([largest] if largest else ()), *(request for _, request in requests)], mappings


def _request(wish: _Wish, resource: str, already: int = 0) -> ExtendedRequest | None:
    amount = wish.amounts.get(resource, Fraction(0))
    if not amount or amount.denominator != 1:
        return None
    number = sorted(wish.amounts).index(resource)
    name = f"container-{wish.number}-request-{number}"
    return ExtendedRequest(name, resource, int(amount) - already)


def _reusing(
    wish: _Wish, resource: str, later: Iterable[ExtendedRequest]
) -> tuple[list[str], ExtendedRequest | None]:
    """Return the later containers' requests that an init container reuses.

    Also its own request for what these do not cover.
    """
    wanted, used, total = wish.amounts.get(resource, Fraction(0)), list[str](), 0
    if not wanted or wanted.denominator != 1:
        return [], None
    for request in later:
        used.append(request.name)
        total += request.amount
        if total >= wanted:
            return used, None
    return used, _request(wish, resource, total)
