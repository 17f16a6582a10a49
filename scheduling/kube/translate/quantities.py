"""Kubernetes quantities ("500m", "16Gi", "1e3"), and what a pod holds of its node.

Source: apimachinery `resource.Quantity`; component-helpers `PodRequests` for the accounting.
"""

import math
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import msgspec

from scheduling.engine.types import MILLI
from scheduling.kube.translate.objects import Container, PodSpec, PodStatus, Resources

MIB = 1 << 20
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
GPU_MILLI = "kant.io/gpu-milli"
DISK = "ephemeral-storage"
HUGE_PAGES = "hugepages-"

_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,3})|([KMGTPE]i|[numkMGTPE]))?")
_SUFFIX = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{letter: Fraction(1000) ** n for n, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Fraction(1024) ** n for n, letter in enumerate("KMGTPE", 1)},
}

Amount = str | int | float


@lru_cache(maxsize=4096)
def parse(amount: Amount) -> Fraction:
    """Return the exact value. Raises ValueError if it is not a quantity."""
    found = _FORM.fullmatch(str(amount).strip())
    if not found:
        raise ValueError(f"{amount!r} is not a quantity such as 2, 500m or 16Gi")
    number, exponent, suffix = found.groups()
    if exponent:
        return Fraction(number) * Fraction(10) ** int(exponent[1:])
    return Fraction(number) * _SUFFIX.get(suffix or "", Fraction(1))


def written(amount: Fraction) -> str:
    """Write an amount as a quantity, rounded up to the smallest unit that there is."""
    for parts, suffix in ((1, ""), (10**3, "m"), (10**6, "u")):
        if (amount * parts).denominator == 1:
            return f"{amount * parts}{suffix}"
    return f"{math.ceil(amount * 10**9)}n"


# --- pods -----------------------------------------------------------------------------------------
_NO_MORE: Mapping[str, int] = {}


class PodHolding(NamedTuple):
    """What a pod holds of its node.

    `gpus`: whole GPUs; `gpu_milli`: a fractional request. `extended`: all other extended resources
    by name; disk space and huge pages in MiB. `gpu_resources`: the resources that whole GPUs are
    requested as, if not nvidia.com/gpu alone.
    """

    gpus: int
    gpu_milli: int
    cpu_milli: int
    memory_mib: int
    extended: Mapping[str, int] = _NO_MORE
    gpu_resources: tuple[str, ...] = ()


Requests = dict[str, Fraction]
# What nodes gave to containers, by name; the key "" marks a resize that the node cannot do.
Given = Mapping[str, Requests]
NOTHING_GIVEN: Given = {}
IMPOSSIBLE = ""


def holding(spec: PodSpec, resized: PodStatus | None = None) -> PodHolding:
    """Return a pod's requests by Kubernetes' own rule. Raises ValueError on a malformed quantity.

    That is the larger of all containers and sidecars together, and of each init container with the
    sidecars started before it; pod-level resources replace this if given; overhead is added.
    `resized`: the status of a pod whose spec was changed. Until its node has followed, it holds the
    larger of the old and the new requests.
    """
    if resized is not None and (given := _given(resized)):
        return _counted(requested(spec, given))
    plain = not spec.init_containers and not spec.overhead and spec.resources is None
    if plain and len(spec.containers) == 1:
        only = spec.containers[0].resources
        return _of_one(tuple(only.limits.items()), tuple(only.requests.items()))
    return _counted(requested(spec))


def requested(spec: PodSpec, given: Given = NOTHING_GIVEN) -> Requests:
    """Return all requests by resource, also those that `holding` leaves out. Raises as it does."""
    total = _of_containers(spec.containers, spec.init_containers, given)
    if spec.resources is not None:
        total.update(_requests(spec.resources))
    if spec.overhead:
        _add(total, _parsed(spec.overhead))
    return total


@lru_cache(maxsize=4096)
def _of_one(
    limits: tuple[tuple[str, Amount], ...], requests: tuple[tuple[str, Amount], ...]
) -> PodHolding:
    # Most pods have one container and equal others, and each is seen several times.
    return _counted(_parsed({**dict(limits), **dict(requests)}))


def _counted(total: Requests) -> PodHolding:
    zero = Fraction(0)
    gpus = {name: total[name] for name in GPU_RESOURCES if total.get(name)}
    return PodHolding(
        gpus=math.ceil(sum(gpus.values(), zero)),
        gpu_milli=math.ceil(total.get(GPU_MILLI, zero)),
        cpu_milli=math.ceil(total.get("cpu", zero) * MILLI),
        memory_mib=math.ceil(total.get("memory", zero) / MIB),
        extended={
            name: math.ceil(amount / unit_of(name))
            for name, amount in total.items()
            if is_extended(name) and (amount or "/" in name)
        }
        or _NO_MORE,
        gpu_resources=() if gpus.keys() <= {GPU_RESOURCES[0]} else tuple(gpus),
    )


def is_extended(name: str) -> bool:
    """Whether the resource is counted by name.

    These are extended resources that are no GPUs, and space on a node other than memory.
    """
    if "/" in name:
        return name not in GPU_RESOURCES and name != GPU_MILLI
    return is_space(name)


def is_space(name: str) -> bool:
    """Whether the resource is space on a node in bytes, which is counted in MiB."""
    return name == DISK or name.startswith(HUGE_PAGES)


def unit_of(name: str) -> int:
    """Return the unit in which an extended resource is counted."""
    return MIB if is_space(name) else 1


def is_counted(name: str) -> bool:
    """Whether `PodHolding` includes what pods hold of the resource."""
    return "/" in name or name in ("cpu", "memory") or is_space(name)


def _of_containers(
    containers: Iterable[Container], inits: Iterable[Container], given: Given
) -> Requests:
    total: Requests = {}
    for each in containers:
        _add(total, _of_container(each, given))
    sidecars: Requests = {}
    peak: Requests = {}
    for each in inits:
        own = _of_container(each, given)
        if each.restart_policy == "Always":
            _add(total, own)
            _add(sidecars, own)
            _raise(peak, sidecars)
        else:
            _add(own, sidecars)
            _raise(peak, own)
    _raise(total, peak)
    return total


def _of_container(container: Container, given: Given) -> Requests:
    asked = _requests(container.resources)
    if (has := given.get(container.name)) is None:
        return asked
    if IMPOSSIBLE in given:
        return dict(has)
    _raise(asked, has)
    return asked


def _given(status: PodStatus) -> dict[str, Requests]:
    """Return what containers hold: the larger of actual and allocated amounts.

    kube-scheduler does the same.
    """
    found: dict[str, Requests] = {}
    for each in (*status.container_statuses, *status.init_container_statuses):
        if bytes(each.resources) in (b"", b"null"):
            continue
        has = _parsed(msgspec.json.decode(each.resources, type=Resources).requests)
        if bytes(each.allocated_resources) not in (b"", b"null"):
            amounts = msgspec.json.decode(each.allocated_resources, type=dict[str, Amount])
            _raise(has, _parsed(amounts))
        found[each.name] = has
    if found and any(
        c.type == "PodResizePending" and c.status == "True" and c.reason == "Infeasible"
        for c in status.conditions
    ):
        found[IMPOSSIBLE] = {}
    return found


def _requests(resources: Resources) -> Requests:
    # A limit without a request counts as the request, as the API server defaults it.
    return _parsed({**resources.limits, **resources.requests})


def _parsed(amounts: Mapping[str, Amount]) -> Requests:
    return {name: parse(amount) for name, amount in amounts.items()}


def _add(total: Requests, more: Requests) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Fraction(0)) + amount


def _raise(total: Requests, floor: Requests) -> None:
    for name, amount in floor.items():
        total[name] = max(total.get(name, Fraction(0)), amount)
