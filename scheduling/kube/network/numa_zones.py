"""How much one pod can get of a node whose kubelet aligns pods to one NUMA zone.

Read from its NodeResourceTopology (topology.node.k8s.io/v1alpha2). A kubelet with the policy
single-numa-node rejects a pod whose GPUs are not all in one zone (TopologyAffinityError); if no
zone has enough GPUs, it always does. Pure.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from scheduling.kube.translate.objects import Meta
from scheduling.kube.translate.quantities import GPU_RESOURCES, parse
from scheduling.kube.translate.texts import storable

GROUP, VERSION = "topology.node.k8s.io", "v1alpha2"
SINGLE, POLICY = "single-numa-node", "topologyManagerPolicy"
# The policy's names in objects without attributes (deprecated).
OLDER = frozenset({"SingleNUMANodePodLevel", "SingleNUMANodeContainerLevel"})


class _Attribute(Struct, gc=False):
    name: str
    value: str


class _Amounts(Struct, gc=False):
    name: str
    allocatable: str | int


class _Zone(Struct, gc=False):
    name: str
    type: str
    resources: list[_Amounts] = []


class _Zones(Struct, gc=False, rename="camel"):
    zones: list[_Zone]
    attributes: list[_Attribute] = []
    topology_policies: list[str] = []


class KubeNodeZones(Struct, gc=False, rename="camel"):
    """A NodeResourceTopology, unchecked; see `zone_facts`."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    zones: Any = None
    attributes: Any = None
    topology_policies: Any = None


class ZoneFacts(Struct, frozen=True, gc=False):
    """The most GPUs, by resource, that one pod can get on the node of that name.

    {} = all that the node has. `wrong`: why that is not known.
    """

    name: str
    uid: str
    most: Mapping[str, int] = {}
    wrong: str = ""

    def gpus(self, resource: str) -> int:
        """Return the most of these GPUs that one pod can get; 0 = no limit by zones."""
        return self.most.get(resource, 0)


def zone_facts(raw: KubeNodeZones) -> ZoneFacts:
    """Return the node's facts. Never raises."""
    facts = ZoneFacts(raw.metadata.name, raw.metadata.uid)
    said = {
        "zones": raw.zones,
        "attributes": raw.attributes or [],
        "topologyPolicies": raw.topology_policies or [],
    }
    try:
        found = msgspec.convert(said, _Zones)
        if not _is_single(found):
            return facts
        most: dict[str, int] = {}
        for zone in found.zones:
            for amounts in zone.resources if zone.type == "Node" else ():
                if amounts.name in GPU_RESOURCES:
                    here = int(parse(str(amounts.allocatable)))
                    most[amounts.name] = max(most.get(amounts.name, 0), here)
    except ValueError as wrong:
        return msgspec.structs.replace(facts, wrong=storable(str(wrong)))
    return msgspec.structs.replace(facts, most=most)


def _is_single(found: _Zones) -> bool:
    said = {each.name: each.value for each in found.attributes}
    if POLICY in said:
        return said[POLICY] == SINGLE
    return bool(found.topology_policies) and found.topology_policies[0] in OLDER
