"""Objects of resource.k8s.io/v1, reduced to what allocation needs, decoded by msgspec."""

from typing import Any

import msgspec
from msgspec import Struct

from scheduling.kube.translate.node_selectors import NodeSelector
from scheduling.kube.translate.objects import Meta


class RawAttribute(Struct, gc=False):
    """An attribute; one of these fields is set."""

    text: str | None = msgspec.field(default=None, name="string")
    number: int | None = msgspec.field(default=None, name="int")
    flag: bool | None = msgspec.field(default=None, name="bool")
    version: str | None = None
    texts: Any = msgspec.field(default=None, name="strings")
    numbers: Any = msgspec.field(default=None, name="ints")
    flags: Any = msgspec.field(default=None, name="bools")
    versions: Any = None

    @property
    def is_list(self) -> bool:
        return any((self.texts, self.numbers, self.flags, self.versions))


class RawCounter(Struct, gc=False):
    value: str | int | float = 0


class RawRange(Struct, gc=False):
    min: str | int | float | None = None
    max: str | int | float | None = None
    step: str | int | float | None = None


class RawPolicy(Struct, gc=False, rename="camel"):
    default: str | int | float | None = None
    valid_values: list[str | int | float] = []
    valid_range: RawRange | None = None


class RawCapacity(Struct, gc=False, rename="camel"):
    value: str | int | float = 0
    request_policy: RawPolicy | None = None


class RawTaint(Struct, gc=False):
    key: str = ""
    value: str = ""
    effect: str = ""


class RawCounters(Struct, gc=False, rename="camel"):
    """A set of counters: what a device takes from it, or what it has."""

    counter_set: str = ""
    name: str = ""
    counters: dict[str, RawCounter] = {}


class RawDevice(Struct, gc=False, rename="camel"):
    name: str
    attributes: dict[str, RawAttribute] = {}
    capacity: dict[str, RawCapacity] = {}
    taints: list[RawTaint] = []
    consumes_counters: list[RawCounters] = []
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    binding_conditions: list[str] = []
    binding_failure_conditions: list[str] = []
    binds_to_node: bool = False
    allow_multiple_allocations: bool = False
    node_allocatable_resource_mappings: dict[str, Any] = {}


class SlicePool(Struct, gc=False, rename="camel"):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class SliceSpec(Struct, gc=False, rename="camel"):
    driver: str = ""
    pool: SlicePool = msgspec.field(default_factory=SlicePool)
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    devices: list[RawDevice] = []
    shared_counters: list[RawCounters] = []


class KubeResourceSlice(Struct, gc=False, rename="camel"):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: SliceSpec = msgspec.field(default_factory=SliceSpec)


class TaintSelector(Struct, gc=False):
    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class TaintRuleSpec(Struct, gc=False, rename="camel"):
    device_selector: TaintSelector | None = None
    taint: RawTaint = msgspec.field(default_factory=RawTaint)


class KubeTaintRule(Struct, gc=False, rename="camel"):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: TaintRuleSpec = msgspec.field(default_factory=TaintRuleSpec)


class Cel(Struct, gc=False):
    expression: str = ""


class RawSelector(Struct, gc=False):
    cel: Cel | None = None


class ClassSpec(Struct, gc=False, rename="camel"):
    selectors: list[RawSelector] = []
    config: msgspec.Raw = msgspec.Raw(b"[]")
    extended_resource_name: str = ""


class KubeDeviceClass(Struct, gc=False, rename="camel"):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: ClassSpec = msgspec.field(default_factory=ClassSpec)


class RawToleration(Struct, gc=False, rename="camel"):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class RawAmounts(Struct, gc=False):
    """Requested amounts by capacity name."""

    requests: dict[str, str | int | float] = {}


class RawAsk(Struct, gc=False, rename="camel"):
    """An ExactDeviceRequest, or a DeviceSubRequest."""

    name: str = ""
    device_class_name: str = ""
    selectors: list[RawSelector] = []
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool = False
    tolerations: list[RawToleration] = []
    capacity: RawAmounts | None = None


class RawRequest(Struct, gc=False, rename="camel"):
    name: str = ""
    exactly: RawAsk | None = None
    first_available: list[RawAsk] = []


class RawConstraint(Struct, gc=False, rename="camel"):
    requests: list[str] = []
    match_attribute: str = ""
    distinct_attribute: str = ""


class RawDevices(Struct, gc=False):
    requests: list[RawRequest] = []
    constraints: list[RawConstraint] = []
    config: list[Any] = []


class DeviceClaimSpec(Struct, gc=False):
    devices: RawDevices = msgspec.field(default_factory=RawDevices)


class TemplateMeta(Struct, gc=False):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class TemplateSpec(Struct, gc=False):
    """The template of a claim; `spec`: of claims made from it, as written."""

    metadata: TemplateMeta = msgspec.field(default_factory=TemplateMeta)
    spec: dict[str, Any] = {}


class KubeClaimTemplate(Struct, gc=False, rename="camel"):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: TemplateSpec = msgspec.field(default_factory=TemplateSpec)


class RawResult(Struct, gc=False, rename="camel"):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False
    binding_conditions: list[str] = []
    binding_failure_conditions: list[str] = []
    share_id: str = msgspec.field(default="", name="shareID")
    consumed_capacity: dict[str, str | int | float] = {}


class Results(Struct, gc=False):
    results: list[RawResult] = []


class Allocation(Struct, gc=False, rename="camel"):
    devices: Results = msgspec.field(default_factory=Results)
    node_selector: NodeSelector | None = None


class ClaimConsumer(Struct, gc=False, rename="camel"):
    resource: str = ""
    name: str = ""
    uid: str = ""
    api_group: str = ""


class DeviceCondition(Struct, gc=False):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class RawDeviceStatus(Struct, gc=False):
    """What a driver says of a device that a claim has."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str = msgspec.field(default="", name="shareID")
    conditions: list[DeviceCondition] = []


class DeviceClaimStatus(Struct, gc=False, rename="camel"):
    allocation: Allocation | None = None
    devices: list[RawDeviceStatus] = []
    reserved_for: list[ClaimConsumer] = []


class KubeResourceClaim(Struct, gc=False, rename="camel"):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: DeviceClaimSpec = msgspec.field(default_factory=DeviceClaimSpec)
    status: DeviceClaimStatus = msgspec.field(default_factory=DeviceClaimStatus)
