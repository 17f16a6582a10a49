"""Rules of pods about other pods: which nodes the pods may use, and which of these they prefer.

The rules are those of kube-scheduler (plugins NodePorts, InterPodAffinity, PodTopologySpread,
NodeAffinity, VolumeRestrictions and NodeVolumeLimits of 1.36). All existing pods count, whoever
placed them, as do pods of the same job that already have places. Sets of nodes are arrays indexed
by slot of the cluster.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from scheduling.engine.cluster.affinity import matches
from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.columns import PodKey
from scheduling.engine.cluster.company import LabelDomains
from scheduling.engine.cluster.constraints import counted_nodes, lets_in
from scheduling.engine.cluster.index_layout import Ints
from scheduling.engine.types import (
    FreeableDevices,
    HostPort,
    Near,
    PodRules,
    PodSetSpec,
    Spread,
)

Nodes = NDArray[np.bool_]  # by slot
Scores = NDArray[np.float64]
# The plugins of kube-scheduler score from 0 to 100; Kant weighs those for pods and labels equally.
FULL = 100.0
EVERY_ADDRESS = ("", "0.0.0.0")


class Around:
    """The pods that rules look at, by node.

    These are the pods that hold places, and `beside`: pods (slot, rules) of the job being placed
    whose places are not booked yet. The slots of the cluster are followed by its neighbours, nodes
    of other scopes: pods there count, but nothing can be placed there.
    """

    def __init__(self, state: ClusterState, beside: Iterable[tuple[int, PodRules]] = ()) -> None:
        self.state, self.company = state, state.company
        self.beside = list(beside)
        neighbours = state.company.neighbours
        self.facts = state.facts + neighbours if neighbours else state.facts
        self.size = len(self.facts)

    def domains(self, key: str) -> LabelDomains:
        return self.company.domains(key, self.facts)

    def members(self, group: str) -> Ints:
        """Return the number of pods of the group, by slot."""
        found = self._by_slot(self.company.members.get(group, {}))
        for slot, rules in self.beside:
            found[slot] += group in rules.groups
        return found

    def keepers(self, of: PodRules) -> Iterator[tuple[str, Ints]]:
        """Yield (label, pods by slot) for pods whose rules keep a group of these pods away."""
        for rule, nodes in self.company.keepers.items():
            if rule.group in of.groups:
                yield rule.key, self._by_slot(nodes)
        for slot, rules in self.beside:
            for rule in rules.apart:
                if rule.group in of.groups:
                    one = np.zeros(self.size, np.int64)
                    one[slot] = 1
                    yield rule.key, one

    def has_sole(self, name: str) -> bool:
        """Whether a pod already has this thing that only one pod may have."""
        taken = bool(self.company.sole.get(name))
        return taken or any(name in rules.sole for _, rules in self.beside)

    def volumes(self, driver: str) -> dict[int, set[str]]:
        """Return the attached volumes of the driver, by slot."""
        slot_of = self.state.slot_of
        there = self.company.volumes.get(driver, {})
        found = {slot_of[node]: set(held) for node, held in there.items() if node in slot_of}
        for slot, rules in self.beside:
            if rules.attached:
                more = (each.volume for each in rules.attached if each.driver == driver)
                found.setdefault(slot, set()).update(more)
        return found

    def _by_slot(self, nodes: Mapping[str, int]) -> Ints:
        found = np.zeros(self.size, np.int64)
        own, company = self.state.facts, self.company
        for node, pods in nodes.items():
            slot = self.state.slot_of.get(node)
            if slot is None or own[slot] is None:
                at = company.neighbour_at(node)
                slot = slot if at is None else len(own) + at
            if slot is not None:
                found[slot] = pods
        return found


def by_domain(domains: LabelDomains, pods: Ints) -> Ints:
    """Sum pods by the values of a label."""
    known = domains.of >= 0
    return np.bincount(domains.of[known], pods[known], domains.size).astype(np.int64)


def where(domains: LabelDomains, values: Nodes) -> Nodes:
    """Return the nodes with one of these values of a label, by slot."""
    found: Nodes = np.append(values, False)[domains.of]  # -1 (no value) indexes the appended entry
    return found


def score_of(domains: LabelDomains, values: Ints, without: int) -> Scores:
    """Return the score of each node by its value of a label; `without`: for nodes without it."""
    return np.append(values, without)[domains.of].astype(np.float64)


# --- rules ----------------------------------------------------------------------------------------
def kept_from(around: Around, pod_set: PodSetSpec) -> Iterator[tuple[str, Nodes]]:
    """Yield each rule that closes nodes to a further pod of the set, in words, with those nodes."""
    rules = pod_set.rules
    if rules is None:
        return
    if rules.ports:
        yield "its host ports are taken", _ports_taken(around, rules.ports)
    for name in rules.sole:
        if around.has_sole(name):
            yield f"another pod has {name}", np.ones(around.size, np.bool_)
    for driver in dict.fromkeys(each.driver for each in rules.attached):
        yield f"no more volumes of {driver} can be attached", _full_of(around, driver, rules)
    for rule in rules.apart:
        domains = around.domains(rule.key)
        there = by_domain(domains, around.members(rule.group)) > 0
        yield f"apart from {rule.group} by {rule.key}", where(domains, there)
    for key, nodes in around.keepers(rules):
        domains = around.domains(key)
        there = by_domain(domains, nodes) > 0
        yield f"kept away by pods there, by {key}", where(domains, there)
    if rules.near is not None:
        yield f"not beside {rules.near.group}", ~_near(around, rules, rules.near)
    if rules.devices:
        yield "its devices are taken", ~_has_devices(around, rules)
    for spread in rules.spread:
        yield f"uneven over {spread.key}", ~_even(around, pod_set, spread, rules.spread)


def may_be(around: Around, pod_set: PodSetSpec) -> Nodes:
    """Return the nodes on which another pod of the set may be."""
    closed = np.zeros(around.size, np.bool_)
    for _, nodes in kept_from(around, pod_set):
        closed |= nodes
    return ~closed


def _has_devices(around: Around, rules: PodRules) -> Nodes:
    found = np.zeros(around.size, np.bool_)
    pods = Counter(slot for slot, others in around.beside if others.devices == rules.devices)
    for of in rules.devices:
        slot = around.state.slot_of.get(of.node)
        if slot is not None:
            found[slot] = frees(around.state, of, pods[slot] + 1)
    return found


def devices_at(pod_set: PodSetSpec, node: str) -> FreeableDevices | None:
    """Return when the node has the devices that the set's pods claim; None = counts decide."""
    rules = pod_set.rules
    if rules is None or not rules.devices:
        return None
    return next((of for of in rules.devices if of.node == node), FreeableDevices(node, ()))


def frees(
    state: ClusterState, of: FreeableDevices, pods: int, gone: Collection[PodKey] = ()
) -> bool:
    """Whether the node has the claimed devices for this many pods of the set.

    It has if all pods of one of the sets in `steps` hold no place, or are in `gone`.
    """
    if pods > len(of.steps):
        return False
    return any(
        all(pod in gone or state.booking(pod) is None for pod in pods_of)
        for pods_of in of.steps[pods - 1]
    )


def _ports_taken(around: Around, ports: tuple[HostPort, ...]) -> Nodes:
    taken = np.zeros(around.size, np.bool_)
    slot_of = around.state.slot_of
    for port in ports:
        held = around.company.ports.get((port.port, port.protocol), {})
        for node, addresses in held.items():
            if node in slot_of and any(_meet(port.address, address) for address in addresses):
                taken[slot_of[node]] = True
        for slot, rules in around.beside:
            for other in rules.ports:
                same = (other.port, other.protocol) == (port.port, port.protocol)
                if same and _meet(port.address, other.address):
                    taken[slot] = True
    return taken


def _full_of(around: Around, driver: str, rules: PodRules) -> Nodes:
    """Return the nodes to which not all volumes of the driver can be attached."""
    wanted = {each.volume for each in rules.attached if each.driver == driver}
    count = np.full(around.size, len(wanted), np.int64)
    for slot, there in around.volumes(driver).items():
        new = len(wanted - there)
        # A pod whose volumes are all attached adds none, even on a node beyond its limit.
        count[slot] = len(there) + new if new else 0
    limits = around.company.limits(driver, around.facts)
    full: Nodes = (limits >= 0) & (count > limits)
    return full


def _meet(one: str, other: str) -> bool:
    return one == other or one in EVERY_ADDRESS or other in EVERY_ADDRESS


def _near(around: Around, rules: PodRules, near: Near) -> Nodes:
    """Return the nodes that have all the labels, and a pod of the group by each of them.

    If no pod of the group exists yet, its first pod may be on any node with all the labels.
    """
    members = around.members(near.group)
    labelled = np.ones(around.size, np.bool_)
    beside = np.ones(around.size, np.bool_)
    anywhere = False
    for key in near.keys:
        domains = around.domains(key)
        there = by_domain(domains, members) > 0
        anywhere = anywhere or bool(there.any())
        labelled &= domains.of >= 0
        beside &= where(domains, there)
    if not anywhere and near.group in rules.groups:
        return labelled
    return labelled & beside


def _even(around: Around, pod_set: PodSetSpec, spread: Spread, all_of: tuple[Spread, ...]) -> Nodes:
    assert pod_set.rules is not None
    domains = around.domains(spread.key)
    counted = _counted(around, pod_set, spread, tuple(each.key for each in all_of))
    by_value = by_domain(domains, around.members(spread.group) * counted)
    values = by_domain(domains, counted.astype(np.int64)) > 0
    enough = int(values.sum()) >= spread.min_domains
    least = int(by_value[values].min()) if enough and values.any() else 0
    more = int(spread.group in pod_set.rules.groups)
    fits = by_value + more - least <= spread.max_skew
    return where(domains, fits)


def _counted(around: Around, pod_set: PodSetSpec, spread: Spread, keys: tuple[str, ...]) -> Nodes:
    """Return the nodes that count for a spread constraint.

    They have all the labels and, depending on the constraint's policies, are open to the pod.
    """
    rules = counted_nodes(pod_set, spread.by_affinity)
    question = (keys, rules, spread.by_taints)
    known = around.company.remembered(question)
    if known is not None:
        return known
    found = np.array(
        [
            node is not None
            and all(key in node.labels for key in keys)
            and lets_in(node, node.taints if spread.by_taints else (), rules, False, False)
            for node in around.facts
        ],
        np.bool_,
    )
    around.company.note(question, found)
    return found


# --- wishes ---------------------------------------------------------------------------------------
def has_wishes(rules: PodRules) -> bool:
    """Whether the pods prefer some nodes to others."""
    return bool(rules.evenly or rules.wishes or rules.node_wishes)


def liking(around: Around, pod_set: PodSetSpec, among: Nodes) -> Scores:
    """Score how well each node suits the pods' preferences, scaled over the nodes `among`."""
    rules = pod_set.rules
    total = np.zeros(around.size)
    if rules is None:
        return total
    if rules.node_wishes:
        total += _scaled(_node_wishes(around, rules), among, from_zero=True)
    if rules.wishes:
        score = np.zeros(around.size)
        for wish in rules.wishes:
            domains = around.domains(wish.key)
            score += score_of(domains, by_domain(domains, around.members(wish.group)), 0) * (
                wish.weight
            )
        total += _scaled(score, among, from_zero=False)
    if rules.evenly:
        score = np.zeros(around.size)
        for spread in rules.evenly:
            domains = around.domains(spread.key)
            keys = tuple(each.key for each in rules.evenly)
            counted = _counted(around, pod_set, spread, keys)
            pods = by_domain(domains, around.members(spread.group) * counted)
            # A node without the label scores worst.
            score -= score_of(domains, pods, int(pods.max(initial=0)) + 1)
        total += _scaled(score, among, from_zero=False)
    return total


def _node_wishes(around: Around, rules: PodRules) -> Scores:
    return np.array(
        [
            0.0
            if node is None
            else float(sum(w.weight for w in rules.node_wishes if matches(node, (w.term,))))
            for node in around.facts
        ]
    )


def _scaled(score: Scores, among: Nodes, *, from_zero: bool) -> Scores:
    """Scale scores so that the worst (or, `from_zero`, a score of 0) is 0 and the best is FULL."""
    some = score[among]
    if not some.size:
        return score * 0.0
    low = 0.0 if from_zero else float(some.min())
    width = float(some.max()) - low
    return (score - low) * (FULL / width) if width > 0 else score * 0.0


# --- of one pool ----------------------------------------------------------------------------------
def mask_of_nodes(nodes: Nodes, slots: Ints) -> int:
    """Convert nodes by slot to a bit set of node numbers in the pool with these slots."""
    return int.from_bytes(np.packbits(nodes[slots], bitorder="little").tobytes(), "little")
