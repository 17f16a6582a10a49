"""Devices and claims for them, as plain values (resource.k8s.io/v1).

Names of attributes are whole, as `gpu.nvidia.com/productName`: those that a driver publishes
without a domain are in its own.
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
Amounts = tuple[tuple[str, Fraction], ...]  # of capacities, by name, in the order of the names


class DeviceTaint(NamedTuple):
    key: str
    value: str
    effect: str


class Consumed(NamedTuple):
    """So much of a counter that devices of a pool share."""

    counter_set: str
    counter: str
    amount: Fraction


class RequestPolicy(NamedTuple):
    """How much of a capacity a claim may have: `default`, None = all, if it does not say it; else
    one of `values`, or from `least` on to `most`, None = all there is, in steps of `step`, None =
    of any size. What is asked for is rounded up to that."""

    default: Fraction | None = None
    values: tuple[Fraction, ...] = ()
    least: Fraction | None = None
    most: Fraction | None = None
    step: Fraction | None = None


class Capacity(NamedTuple):
    """How much there is of something in a device."""

    value: Fraction
    policy: RequestPolicy | None = None


class DeviceFacts(Struct, frozen=True, gc=False):
    """A device of a slice. `capacity`: by the names that the driver has published, which may be
    without its domain. `several`: claims may have it together, as far as its capacity goes.
    `consumes`: of counters of its pool. `node`, `nodes`, `everywhere`:
    where it is, if its slice leaves that to each device; `binds_to_node`: once allocated, only the
    node for which it was can use it. `ready_by`: conditions without which no pod that has it is
    bound, and `fails_by`: those by which it never will be. `unusable`: why Kant never allocates it,
    "" = it does."""

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
    """A ResourceSlice: `devices` of one `pool` of a `driver`, of which `slices` make up a
    `generation`. They are on `node`, or on those that match one of `nodes`, or `everywhere`, or
    each device says it (`by_device`). `counters`: what devices of the pool share."""

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
    """A DeviceTaintRule: `taint` is on all devices of this driver, pool and name, None = of any."""

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
    """A DeviceClass: expressions that its devices satisfy, and configuration that goes along, as it
    is written. `resource`: the extended resource that its devices stand for, too, "" = none;
    `created_at`: when it was made, in seconds since the epoch."""

    name: str
    uid: str
    selectors: tuple[str, ...] = ()
    config: bytes = b"[]"
    resource: str = ""
    created_at: float = 0.0


class DeviceAsk(NamedTuple):
    """What a request asks for, or one of its alternatives (`name` is then request/alternative):
    `amount` devices, None = all, of a class, that satisfy the expressions. `admin`: also devices
    that others have. `capacity`: so much of each, by the names that drivers have published.
    `problem`: why Kant cannot answer it, "" = it can."""

    name: str
    device_class: str
    selectors: tuple[str, ...] = ()
    amount: int | None = 1
    admin: bool = False
    tolerations: tuple[Toleration, ...] = ()
    problem: str = ""
    capacity: Amounts = ()


class Constraint(NamedTuple):
    """The devices of these requests, () = of all, have the same value of an attribute, or, if
    `distinct`, each another."""

    requests: tuple[str, ...]
    attribute: str
    distinct: bool = False


class DeviceId(NamedTuple):
    driver: str
    pool: str
    device: str


class GivenDevice(NamedTuple):
    """A device that a claim has, by which request. `admin`: others may have it, too. `consumed`: so
    much of its capacity, if others may have the rest; None = they may not. `ready_by`, `fails_by`:
    as of DeviceFacts."""

    request: str
    device: DeviceId
    admin: bool = False
    consumed: Amounts | None = None
    ready_by: tuple[str, ...] = ()
    fails_by: tuple[str, ...] = ()


class ClaimAsks(NamedTuple):
    """What a claim asks for: of each request the alternatives, mostly one."""

    requests: tuple[tuple[DeviceAsk, ...], ...]
    constraints: tuple[Constraint, ...] = ()


class ExtendedRequest(NamedTuple):
    """So much of an extended resource, by the name that it would have as a request of a claim."""

    name: str
    resource: str
    amount: int


class RequestMapping(NamedTuple):
    """By which request a container gets a resource."""

    container: str
    resource: str
    request: str


class ExtendedAsks(NamedTuple):
    """What a pod asks for by names of extended resources, as if devices stood for all of them."""

    requests: tuple[ExtendedRequest, ...] = ()
    mappings: tuple[RequestMapping, ...] = ()


class DeviceClaimFacts(Struct, frozen=True, gc=False):
    """A ResourceClaim. `given`: its devices, and `nodes`: where they can be used, () = everywhere;
    None = it is not allocated. `reserved_for`: uids of the pods that use it. `made_for`: name and
    uid of the pod of which it holds the extended resources; its scheduler has made it. `owner`:
    those of the pod that it goes with. `not_ready`: which conditions of its devices do not hold
    yet; `failed`: why they never will. `domains`: uids of the ComputeDomains of which it asks for
    channels."""

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
    """A ResourceClaimTemplate: what claims that are made of it ask for, and their `spec`, labels
    and annotations. `domain`: the uid of the ComputeDomain for which it is there, "" = for none."""

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
    """A claim that a pod names: `name` within the pod, and that of the ResourceClaim; None = it is
    not made yet of its `template`, "" = the pod needs none."""

    name: str
    claim: str | None
    template: str = ""


def whole_name(name: str, driver: str) -> str:
    """Of an attribute or a capacity: what a driver publishes without a domain is in its own."""
    return name if "/" in name else f"{driver}/{name}"


def model_of(driver: str, device: DeviceFacts) -> str:
    """The GPU model of a device, as GFD's label `nvidia.com/gpu.product` has it; "" = it is no
    whole GPU. A device is a GPU where it has a product name, and its type, if any, is `gpu`."""
    product = device.attributes.get(f"{driver}/{MODEL}")
    kind = device.attributes.get(f"{driver}/{KIND}", WHOLE_GPU)
    if not isinstance(product, str) or kind != WHOLE_GPU:
        return ""
    return "-".join(product.split())
