"""Turns a Kubernetes node into the engine's Node, each fact with its source.

Bad input never raises: what cannot be used becomes one of `Node.problems`, and the cautious reading
applies (an unreadable or missing GPU is never free, and it stays open which one it is).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import msgspec

from scheduling.engine.cluster.facts import MAX_GPUS
from scheduling.engine.devices.links import LINK_MODELS
from scheduling.engine.devices.tables import link_problem
from scheduling.engine.types import DEFAULT_LEVELS, MILLI, Device, Nic, Node
from scheduling.kube.seam import NodeFacts, Sourced
from scheduling.kube.translate.devices import devices_of, nics_of, sockets
from scheduling.kube.translate.gpu_parts import Advertised, advertised, is_part
from scheduling.kube.translate.health import is_schedulable, taints_of
from scheduling.kube.translate.labels import SYNONYMS, LabelSource, label_table, read_fact
from scheduling.kube.translate.objects import KubeNode
from scheduling.kube.translate.quantities import (
    GPU_MILLI,
    GPU_RESOURCES,
    MIB,
    is_extended,
    parse,
    unit_of,
)
from scheduling.kube.translate.texts import storable
from scheduling.kube.translate.topology import TopologyTree

UNHEALTHY_GPUS = "kant.io/unhealthy-gpus"
UNHEALTHY_NICS = "kant.io/unhealthy-nics"
GPU_IDS = "kant.io/gpu-ids"
NICS = "kant.io/nics"
LINK_MODEL = "kant.io/link-model"

LARGEST = 1 << 53
# A label that Kant adds in its own copy of a node: the most GPUs that one pod can get, because they
# must be in one NUMA zone. It is absent if a pod can get all.
GPUS_IN_ZONE = "kant.io/gpus-in-one-zone"
# Facts that say where a node is in the network.
PLACES = (*DEFAULT_LEVELS, "hyper_node")


class PlacesNodes(Protocol):
    """Finds a node's place in the network from its name and labels: facts, and contradictions."""

    def place(
        self, node: str, labels: Mapping[str, str]
    ) -> tuple[dict[str, Sourced], tuple[str, ...]]: ...


class ZonesOfNode(Protocol):
    """What is known of a node's NUMA zones (`network.numa_zones`)."""

    @property
    def wrong(self) -> str: ...

    def gpus(self, resource: str) -> int: ...


class NodeTranslator:
    """Translates the nodes of one cluster; remembers their topology to find contradictions."""

    def __init__(self, label_map: Mapping[str, Any]) -> None:
        """Raise WrongRow for a row of `label_map` that cannot be used."""
        self._own_table = self._table = label_table(label_map)
        self._tree = TopologyTree()
        self._places_by_name: PlacesNodes | None = None
        self.zones: Mapping[str, ZonesOfNode] = {}  # by node
        self._contradictions: dict[str, tuple[str, ...]] = {}  # by node
        # Label keys and most values repeat on every node; keep one copy of each.
        self._texts: dict[str, str] = {}
        # GPUs seen last, by node: a restarting kubelet reports none until its device plugin is
        # back.
        self._gpus: dict[str, int] = {}

    def read_places_by(
        self, rows: Mapping[str, tuple[LabelSource, ...]], tree: PlacesNodes | None = None
    ) -> None:
        """Use these rows instead of the table's own from now on, and the tree, if given."""
        self._table = {**self._own_table, **rows}
        self._places_by_name = tree

    def placed_anew(self, facts: NodeFacts) -> NodeFacts:
        """Return the same node at its place by the current rows, with its current zones."""
        node = facts.node
        found = {n: it for n, it in facts.facts.items() if n not in PLACES and n != "gpus_in_zone"}
        found |= self._facts(node.labels, PLACES)
        before = set(self._contradictions.get(node.name, ()))
        problems = [text for text in node.problems if text not in before]
        topology, contradictions = self._place(node.name, node.labels, found)
        labels = self._with_zones(node.name, node.labels, len(node.devices), found)
        changed = replace(
            node,
            labels=labels,
            topology=topology,
            hyper_node=_text(found, "hyper_node"),
            problems=(*problems, *contradictions),
        )
        bare = facts.unplugged
        if bare is not None:
            others = [text for text in bare.problems if text not in before]
            bare = replace(
                bare,
                topology=topology,
                hyper_node=changed.hyper_node,
                problems=(*others, *contradictions),
            )
        return msgspec.structs.replace(facts, node=changed, facts=found, unplugged=bare)

    def _place(
        self, name: str, labels: Mapping[str, str], facts: dict[str, Sourced]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the node's groups and contradictions; add the facts that a tree provides."""
        told, twice = self._places_by_name.place(name, labels) if self._places_by_name else ({}, ())
        facts |= told
        zones = self.zones.get(name)
        if zones is not None and zones.wrong:
            text = "its NodeResourceTopology cannot be read, so its NUMA zones are not used"
            twice = (*twice, f"{text}: {zones.wrong}")
        topology, wrong = self._tree.place(name, [facts.get(level) for level in DEFAULT_LEVELS])
        contradictions = _storable((*twice, *wrong))
        self._contradictions.pop(name, None)
        if contradictions:
            self._contradictions[name] = contradictions
        return topology, contradictions

    def _with_zones(
        self, name: str, labels: Mapping[str, str], gpus: int, facts: dict[str, Sourced]
    ) -> Mapping[str, str]:
        """Return the node's labels according to its zones; add the fact."""
        zones = self.zones.get(name)
        most = zones.gpus(_text(facts, "gpu_resource")) if zones is not None else 0
        if GPUS_IN_ZONE in labels:
            labels = {key: value for key, value in labels.items() if key != GPUS_IN_ZONE}
        if not 0 < most < gpus:
            return labels
        facts["gpus_in_zone"] = Sourced(most, "NodeResourceTopology: single-numa-node")
        return {**labels, GPUS_IN_ZONE: str(most)}

    def _facts(self, labels: Mapping[str, str], names: Iterable[str]) -> dict[str, Sourced]:
        return {
            fact: found
            for fact in names
            if (found := read_fact(self._table[fact], labels)) is not None
        }

    def forget(self, name: str) -> None:
        self._tree.forget(name)
        self._contradictions.pop(name, None)
        self._gpus.pop(name, None)

    def translate(self, raw: KubeNode) -> NodeFacts:
        """Return the facts of one node. Never raises."""
        labels = self._interned(raw.metadata.labels)
        name = raw.metadata.name
        problems: list[str] = []
        facts = self._facts(labels, self._table)
        for one, other in SYNONYMS:
            if one in labels and other in labels and labels[one] != labels[other]:
                problems.append(f"labels {one}={labels[one]} and {other}={labels[other]} disagree")
        topology, contradictions = self._place(name, labels, facts)
        problems += contradictions
        told = advertised(labels)
        if "gpu_model" in facts:
            model = facts["gpu_model"]
            facts["gpu_model"] = Sourced(told.model(str(model.value)), model.source)
        of_gpus = list[str]()
        gpus = _gpus(raw, told, facts, self._gpus.get(name, 0), of_gpus)
        problems += of_gpus
        devices = gpus.devices
        self._gpus[name] = len(devices)
        schedulable = is_schedulable(raw, labels, facts, problems)
        taints = taints_of(raw)
        status = raw.status.allocatable
        node = Node(
            name=name,
            gpu_model=str(facts["gpu_model"].value) if devices and "gpu_model" in facts else "",
            devices=devices,
            nics=_nics(raw, devices, facts, problems),
            topology=topology,
            hyper_node=_text(facts, "hyper_node"),
            labels=self._with_zones(name, labels, len(devices), facts),
            taints=tuple(taints),
            cpu_milli=_amount(status, "cpu", Fraction(1, MILLI), problems),
            memory_mib=_amount(status, "memory", MIB, problems),
            max_pods=_amount(status, "pods", 1, problems) if "pods" in status else 110,
            extended=_extended(status, problems),
            schedulable=schedulable,
            link_model=_link_model(raw, devices, told.part, facts),
            zone=_text(facts, "zone"),
            gpu_resource=gpus.resource,
            gives_shares="shares" in facts,
            unnamed_unhealthy=gpus.unnamed,
            gpu_parts="gpu_parts" in facts,
            out_of_service="" if schedulable else _text(facts, "health"),
        )
        wrong_link = link_problem(node)
        if wrong_link:
            problems.append(wrong_link)
        if problems:
            node = replace(node, problems=_storable(problems))
        since = {taint: at for taint, at in taints.items() if at is not None}
        bare = None
        if devices and not gpus.by_plugin:
            others = _storable(each for each in problems if each not in of_gpus)
            bare = replace(node, devices=(), gpu_resource="", unnamed_unhealthy=0, problems=others)
        return NodeFacts(node, facts, raw.metadata.uid, bare, since)

    def _interned(self, labels: Mapping[str, str]) -> dict[str, str]:
        known = self._texts.setdefault
        return {known(key, key): known(value, value) for key, value in labels.items()}


def _storable(problems: Iterable[str]) -> tuple[str, ...]:
    return tuple(storable(each) for each in problems)


def _text(facts: Mapping[str, Sourced], name: str) -> str:
    return str(facts[name].value) if name in facts else ""


# --- GPUs -----------------------------------------------------------------------------------------
class _Gpus(NamedTuple):
    """The GPUs of a node.

    `resource`: the resource that counted them. `unnamed`: how many are out of service without being
    named. `by_plugin`: a device plugin counted them; otherwise labels, or the node's earlier
    report, did.
    """

    devices: tuple[Device, ...] = ()
    resource: str = ""
    unnamed: int = 0
    by_plugin: bool = True


def _gpus(
    raw: KubeNode,
    told: Advertised,
    facts: dict[str, Sourced],
    before: int,
    problems: list[str],
) -> _Gpus:
    """Read the GPUs of a node; `before`: how many it had the last time."""
    counted = _count_fact(facts, "gpu_count", problems)
    memory = _count_fact(facts, "gpu_memory_mib", problems)
    counts = {
        name: _amount(raw.status.capacity, name, 1, problems)
        for name in GPU_RESOURCES
        if name in raw.status.capacity
    }
    # A removed device plugin leaves its resource behind, at 0.
    resource = max(counts, key=lambda name: counts[name] > 0, default="")
    installed = counts.get(resource, 0)
    usable = _amount(raw.status.allocatable, resource, 1, problems) if resource else 0
    expected = counted * told.per_counted
    counted_by = facts["gpu_count"].source if expected else ""
    doubt = told.doubt(resource, installed, expected, counted_by)
    if doubt:
        problems.append(doubt)
    elif not resource and expected:
        problems.append(
            f"{counted_by} names {expected} GPUs, but status.capacity has none: "
            "is the device plugin running?"
        )
    elif expected and expected != installed:
        problems.append(f"{counted_by} says {expected} GPUs, status.capacity says {installed}")
    total = installed or expected or (0 if told.elsewhere else before)
    _parts(raw, told, total, facts, problems)
    if not total:
        for name in ("gpu_model", "gpu_count", "gpu_memory_mib"):
            facts.pop(name, None)
        return _Gpus()
    if "gpu_model" not in facts:
        problems.append("the GPU model is unknown: label the node, or set label_map.gpu_model")
    if total > MAX_GPUS:
        problems.append(f"{total} GPUs on one node; only the first {MAX_GPUS} are used")
        usable, total = min(usable, MAX_GPUS), MAX_GPUS
    bad, unnamed = _bad_gpus(raw, total, usable, problems)
    if doubt:
        unnamed = total - len(bad)
    if resource:
        facts["gpu_resource"] = Sourced(resource, "status.capacity")
    if installed:
        facts["gpus"] = Sourced(total, f"status.capacity[{resource}]")
    elif expected:
        facts["gpus"] = Sourced(total, counted_by)
    else:
        facts["gpus"] = Sourced(total, "what the node told before")
        problems.append(
            f"status.capacity has no GPUs, it had {total}: is the device plugin running?"
        )
    usable_by = f"{'labels and status.capacity' if doubt else 'status.allocatable'}[{resource}]"
    facts["healthy_gpus"] = Sourced(total - len(bad) - unnamed, f"{usable_by}, {UNHEALTHY_GPUS}")
    if unnamed:
        facts["unnamed_unhealthy_gpus"] = Sourced(unnamed, usable_by)
    _sharing(raw, resource, usable, told.part, facts, problems)
    facts["numa"] = Sourced(sockets(total), "assumed from the number of GPUs")
    devices = devices_of(total, bad, memory, _gpu_ids(raw, total, problems))
    return _Gpus(devices, resource, unnamed, by_plugin=installed > 0)


def _parts(
    raw: KubeNode, told: Advertised, total: int, facts: dict[str, Sourced], problems: list[str]
) -> None:
    """Note slices and replicas that are advertised under resource names of their own."""
    parts = {
        name: amount
        for name in sorted(raw.status.capacity)
        if is_part(name) and (amount := _amount(raw.status.capacity, name, 1, problems))
    }
    if not parts:
        return
    amounts = ", ".join(f"{amount} {name}" for name, amount in parts.items())
    facts["gpu_parts"] = Sourced(amounts, "status.capacity")
    if told.elsewhere and not total:
        problems.append(
            f"its GPUs are advertised as {' and '.join(parts)} only, which count for no quota and "
            f"which no job can ask for without a GPU; {told.elsewhere}"
        )


def _sharing(
    raw: KubeNode,
    resource: str,
    usable: int,
    part: str,
    facts: dict[str, Sourced],
    problems: list[str],
) -> None:
    """Note whether pods can get shares here, and whether they get exactly the GPUs that Kant chose.

    A plugin that advertises shares has to follow Kant's choice; others only know how many.
    """
    if GPU_MILLI not in raw.status.capacity:
        if resource:
            facts["device_choice"] = Sourced("count", f"status.capacity[{resource}]")
        return
    facts["device_choice"] = Sourced("exact", f"status.capacity[{GPU_MILLI}]")
    shares = _amount(raw.status.allocatable, GPU_MILLI, 1, problems)
    if part:
        problems.append(
            f"status.allocatable[{GPU_MILLI}] is {shares}, but these GPUs are parts of GPUs "
            f"({part[1:]}); no shares are placed here"
        )
    elif shares >= usable * MILLI:
        facts["shares"] = Sourced(shares, f"status.allocatable[{GPU_MILLI}]")
    else:
        problems.append(
            f"status.allocatable[{GPU_MILLI}] is {shares}, its {usable} GPUs are "
            f"{usable * MILLI}; no shares are placed here"
        )


def _bad_gpus(
    raw: KubeNode, total: int, usable: int, problems: list[str]
) -> tuple[tuple[int, ...], int]:
    """Return the indices of unusable GPUs, and how many more are unusable without a name.

    No job may lose its place because of a guess.
    """
    named = _indices(raw, UNHEALTHY_GPUS, total, problems)
    unnamed = max(total - usable - len(named), 0)
    if unnamed:
        problems.append(
            f"{total - usable} of {total} GPUs are not allocatable, and nothing names "
            f"{f'{unnamed} of them' if named else 'which'}; that many fewer are free, and no "
            f"job has to leave ({UNHEALTHY_GPUS} would name them)"
        )
    return tuple(sorted(named)), unnamed


def _gpu_ids(raw: KubeNode, total: int, problems: list[str]) -> tuple[str, ...]:
    ids = _json_list(raw, GPU_IDS, str, problems)
    if not ids:
        return ()
    if len(ids) != total:
        problems.append(f"annotation {GPU_IDS} names {len(ids)} GPUs, the node has {total}")
        return ()
    if len(set(ids)) != len(ids):
        twice = sorted({each for each in ids if ids.count(each) > 1})
        problems.append(f"annotation {GPU_IDS} names {', '.join(twice)} more than once")
        return ()
    return tuple(ids)


def _link_model(
    raw: KubeNode, devices: Sequence[Device], part: str, facts: dict[str, Sourced]
) -> str:
    if not devices or part:  # parts of GPUs are not linked
        facts.pop("link_model", None)
        return ""
    # A declared matrix has characters that labels do not allow.
    declared = storable(raw.metadata.annotations.get(LINK_MODEL, ""))
    if "link_model" not in facts and declared:
        facts["link_model"] = Sourced(declared, f"annotation {LINK_MODEL}")
    if "link_model" not in facts:
        assumed = _assumed_link_model(_text(facts, "gpu_model"), len(devices))
        if assumed:
            facts["link_model"] = Sourced(assumed, "assumed from the GPU model and count")
    return _text(facts, "link_model")


def _assumed_link_model(gpu_model: str, count: int) -> str:
    if count != 8:
        return ""
    if "V100-SXM" in gpu_model:
        return "hybrid-cube-mesh-8"
    switched = ("SXM", "HBM3", "H200", "B200", "B300", "HGX")
    found = "nvswitch-8" if any(part in gpu_model for part in switched) else ""
    return found if found in LINK_MODELS else ""


# --- NICs -----------------------------------------------------------------------------------------
def _nics(
    raw: KubeNode, devices: Sequence[Device], facts: dict[str, Sourced], problems: list[str]
) -> tuple[Nic, ...]:
    text = raw.metadata.annotations.get(NICS, "")
    total, source, counts = 0, f"annotation {NICS}", dict[str, int]()
    if text.isdecimal() and int(text) <= 64:
        total = int(text)
    elif text:
        problems.append(f"annotation {NICS} is {text!r}; it must be a number up to 64")
    else:
        names = sorted(r for r in raw.status.capacity if _is_nic_resource(r))
        counts = {name: _amount(raw.status.capacity, name, 1, problems) for name in names}
        total = sum(counts.values())
        source = ", ".join(f"status.capacity[{name}]" for name in names)
        if total > 64:
            # A shared RDMA device plugin advertises many handles for one NIC.
            problems.append(f"{source} is {total}, which is not a number of NICs; set {NICS}")
            total = 0
    if not total:
        return ()
    facts["nics"] = Sourced(total, source)
    bad = _indices(raw, UNHEALTHY_NICS, total, problems)
    return nics_of(total, tuple(sorted(bad)), len(devices), tuple(counts.items()))


def _is_nic_resource(name: str) -> bool:
    return name.startswith("rdma/") or name == "vpc.amazonaws.com/efa"


# --- numbers and lists ----------------------------------------------------------------------------
def _amount(
    amounts: Mapping[str, str], name: str, unit: Fraction | int, problems: list[str]
) -> int:
    """Return an amount in `unit`, rounded down; 0, with a problem, if it cannot be read."""
    text = amounts.get(name, "0")
    try:
        value = int(parse(text) / unit)
    except ValueError as wrong:
        problems.append(f"status: {name}: {wrong}")
        return 0
    if not 0 <= value <= LARGEST:
        problems.append(f"status: {name} is {text}, which is impossible")
        return 0
    return value


def _extended(amounts: Mapping[str, str], problems: list[str]) -> dict[str, int]:
    found = {
        name: _amount(amounts, name, unit_of(name), problems)
        for name in amounts
        if is_extended(name)
    }
    # Most nodes list kinds of huge pages of which they have none.
    return {name: amount for name, amount in found.items() if amount or "/" in name}


def _count_fact(facts: Mapping[str, Sourced], name: str, problems: list[str]) -> int:
    if name not in facts:
        return 0
    text = str(facts[name].value)
    if not text.isdecimal() or int(text) > LARGEST:
        problems.append(f"{facts[name].source} is {text!r}; it must be a whole number")
        return 0
    return int(text)


def _indices(raw: KubeNode, annotation: str, total: int, problems: list[str]) -> set[int]:
    given = _json_list(raw, annotation, int, problems)
    wrong = sorted({each for each in given if not 0 <= each < total})
    if wrong:
        problems.append(f"annotation {annotation} names {wrong}; indices are 0 to {total - 1}")
    return {each for each in given if 0 <= each < total}


def _json_list(raw: KubeNode, annotation: str, kind: type, problems: list[str]) -> list[Any]:
    text = raw.metadata.annotations.get(annotation, "")
    if not text:
        return []
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, list) or not all(type(each) is kind for each in value):
        problems.append(f"annotation {annotation} is {text[:80]!r}; it must be a JSON list")
        return []
    return value
