"""Devices and claims for them as plain values (resource.k8s.io/v1).

Attribute names are complete, e.g. `gpu.nvidia.com/productName`: those that a driver publishes
without a domain are in the driver's domain.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from msgspec import Struct

from scheduling.engine.types import NodeTerm, Toleration

MODEL, KIND, WHOLE_GPU = "productName", "type", "gpu"


class Version(NamedTuple):
    """An attribute that is a semantic version."""

    text: str


Attribute = str | bool | int | Version
Amounts = tuple[tuple[str, Fraction], ...]  # (capacity, amount), sorted by name


class DeviceTaint(NamedTuple):
    key: str
    value: str
    effect: str


class Consumed(NamedTuple):
    """An amount of a counter that devices of a pool share."""

    counter_set: str
    counter: str
    amount: Fraction


class RequestPolicy(NamedTuple):
    """How much of a capacity a claim may have.

    `default`: if the claim does not say, None = all. Otherwise one of `values`, or from `least` to
    `most` (None = all there is) in steps of `step` (None = any size). Requests are rounded up to an
    allowed amount.
    """

    default: Fraction | None = None
    values: tuple[Fraction, ...] = ()
    least: Fraction | None = None
    most: Fraction | None = None
    step: Fraction | None = None


class Capacity(NamedTuple):
    """A capacity of a device."""

    value: Fraction
    policy: RequestPolicy | None = None


class DeviceFacts(Struct, frozen=True, gc=False):
    """A device of a slice.

    - `capacity`: by the names that the driver published, which may lack its domain.
    - `several`: several claims may share it, within its capacity.
    - `consumes`: what it takes from counters of its pool.
    - `node`, `nodes`, `everywhere`: where it is, if its slice leaves that to each device.
    - `binds_to_node`: once allocated, only the node that it was allocated for can use it.
    - `ready_by`: conditions that must hold before a pod with it is bound; `fails_by`: conditions
      after which it never will be.
    - `unusable`: why Kant never allocates it, "" = it does.
    """

    name: str
    attributes: Mapping[str, Attribute] = {}
    capacity: Mapping[str, Capacity] = {}
    taints: tuple[DeviceTaint, ...] = ()
    consumes: tuple[Consumed, ...] = ()
    node: str = ""
    nodes: tuple[NodeTerm, ...] = ()
    everywhere: bool = False
    binds_to_node: bool = False
    several: bool = False
    ready_by: tuple[str, ...] = ()
    fails_by: tuple[str, ...] = ()
    unusable: str = ""


class SliceFacts(Struct, frozen=True, gc=False):
    """A ResourceSlice: some `devices` of one `pool` of a `driver`.

    `slices`: how many slices make up this `generation` of the pool. The devices are on `node`, on
    nodes that match one of `nodes`, or `everywhere`; with `by_device`, each device says where.
    `counters`: what devices of the pool share.
    """

    name: str
    uid: str
    driver: str
    pool: str
    generation: int
    slices: int
    devices: tuple[DeviceFacts, ...] = ()
    counters: tuple[Consumed, ...] = ()
    node: str = ""
    nodes: tuple[NodeTerm, ...] = ()
    everywhere: bool = False
    by_device: bool = False


class TaintRuleFacts(Struct, frozen=True, gc=False):
    """A DeviceTaintRule: puts `taint` on devices with this driver, pool and name, None = any."""

    name: str
    uid: str
    taint: DeviceTaint
    driver: str | None = None
    pool: str | None = None
    device: str | None = None

    def means(self, of: SliceFacts, device: DeviceFacts) -> bool:
        asked = (self.driver, self.pool, self.device)
        has = (of.driver, of.pool, device.name)
        return all(a is None or a == h for a, h in zip(asked, has, strict=True))


class ClassFacts(Struct, frozen=True, gc=False):
    """A DeviceClass: expressions that its devices satisfy, and its configuration, as written.

    `resource`: the extended resource that its devices also stand for, "" = none. `created_at`: in
    seconds since the epoch.
    """

    name: str
    uid: str
    selectors: tuple[str, ...] = ()
    config: bytes = b"[]"
    resource: str = ""
    created_at: float = 0.0


class DeviceAsk(NamedTuple):
    """A request, or one of its alternatives (then `name` is request/alternative).

    It asks for `amount` devices, None = all, of a class that satisfy the expressions. `admin`: also
    devices that others have. `capacity`: how much of each, by the names that drivers published.
    `problem`: why Kant cannot answer it, "" = it can.
    """

    name: str
    device_class: str
    selectors: tuple[str, ...] = ()
    amount: int | None = 1
    admin: bool = False
    tolerations: tuple[Toleration, ...] = ()
    problem: str = ""
    capacity: Amounts = ()


class Constraint(NamedTuple):
    """A constraint on the devices of these requests, () = of all requests.

    They must have the same value of an attribute, or all different values if `distinct`.
    """

    requests: tuple[str, ...]
    attribute: str
    distinct: bool = False


class DeviceId(NamedTuple):
    driver: str
    pool: str
    device: str


class GivenDevice(NamedTuple):
    """A device that a claim has, and the request that it answers.

    `admin`: others may have it, too. `consumed`: the part of its capacity that the claim uses if
    others may have the rest; None = they may not. `ready_by`, `fails_by`: as in DeviceFacts.
    """

    request: str
    device: DeviceId
    admin: bool = False
    consumed: Amounts | None = None
    ready_by: tuple[str, ...] = ()
    fails_by: tuple[str, ...] = ()


class ClaimAsks(NamedTuple):
    """What a claim asks for: the alternatives of each request, usually one."""

    requests: tuple[tuple[DeviceAsk, ...], ...]
    constraints: tuple[Constraint, ...] = ()


class ExtendedRequest(NamedTuple):
    """An amount of an extended resource, and its name as a request of a claim."""

    name: str
    resource: str
    amount: int


class RequestMapping(NamedTuple):
    """The request by which a container gets a resource."""

    container: str
    resource: str
    request: str


class ExtendedAsks(NamedTuple):
    """What a pod asks for by names of extended resources, as if devices stood for all of them."""

    requests: tuple[ExtendedRequest, ...] = ()
    mappings: tuple[RequestMapping, ...] = ()


class DeviceClaimFacts(Struct, frozen=True, gc=False):
    """A ResourceClaim.

    - `given`: its devices, None = it is not allocated; `nodes`: where they can be used,
      () = everywhere.
    - `reserved_for`: uids of the pods that use it.
    - `made_for`: name and uid of the pod whose extended resources it holds; that pod's scheduler
      made it.
    - `owner`: name and uid of the pod that it is deleted with.
    - `not_ready`: conditions of its devices that do not hold yet; `failed`: why they never will.
    - `domains`: uids of the ComputeDomains from which it requests channels.
    """

    namespace: str
    name: str
    uid: str
    asks: ClaimAsks
    given: tuple[GivenDevice, ...] | None = None
    nodes: tuple[NodeTerm, ...] = ()
    reserved_for: tuple[str, ...] = ()
    deleting: bool = False
    problem: str = ""
    made_for: tuple[str, str] | None = None
    owner: tuple[str, str] | None = None
    not_ready: tuple[str, ...] = ()
    failed: str = ""
    domains: tuple[str, ...] = ()


class TemplateFacts(Struct, frozen=True, gc=False):
    """A ResourceClaimTemplate, with `asks`, `spec`, labels and annotations of claims made from it.

    `domain`: the uid of the ComputeDomain that it belongs to, "" = none.
    """

    namespace: str
    name: str
    uid: str
    asks: ClaimAsks
    spec: Mapping[str, Any] = {}
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    problem: str = ""
    domain: str = ""
    deleting: bool = False


DeviceObject = SliceFacts | TaintRuleFacts | ClassFacts | DeviceClaimFacts | TemplateFacts


class PodClaim(NamedTuple):
    """A claim that a pod names: its `name` in the pod and the name of the ResourceClaim.

    `claim`: None = not yet made from its `template`, "" = the pod needs none.
    """

    name: str
    claim: str | None
    template: str = ""


def whole_name(name: str, driver: str) -> str:
    """Complete the name of an attribute or capacity: without a domain it is in its driver's."""
    return name if "/" in name else f"{driver}/{name}"


def model_of(driver: str, device: DeviceFacts) -> str:
    """Return a device's GPU model as in GFD's label `nvidia.com/gpu.product`; "" = no whole GPU.

    A device is a GPU if it has a product name and its type, if any, is `gpu`.
    """
    product = device.attributes.get(f"{driver}/{MODEL}")
    kind = device.attributes.get(f"{driver}/{KIND}", WHOLE_GPU)
    if not isinstance(product, str) or kind != WHOLE_GPU:
        return ""
    return "-".join(product.split())
