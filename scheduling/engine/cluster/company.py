"""Where the pods are that rules are about: by group, by rule, by host port, by volume.

It is kept together with the bookings, for placement (`placement/pod_rules.py`). Pods that have no
rules, and that no rule is about, are not in it.
"""

import numpy as np
from numpy.typing import NDArray

from scheduling.engine.cluster.index_layout import Ints
from scheduling.engine.types import Apart, Node, PodRules

Counts = dict[str, int]  # pods by node, or, on one node, by address or volume
MAX_QUESTIONS = 256


class LabelDomains:
    """The values of one node label: their numbers `of` slots (-1 = none) and their count `size`."""

    def __init__(self, key: str, facts: list[Node | None]) -> None:
        numbers: dict[str, int] = {}
        of: list[int] = []
        for node in facts:
            value = None if node is None else node.labels.get(key)
            of.append(-1 if value is None else numbers.setdefault(value, len(numbers)))
        self.of: Ints = np.array(of, np.int64)
        self.size = len(numbers)


class Company:
    """Counts of the pods that rules are about.

    `version` grows with each change. `neighbours`: nodes of other scopes (None = one that is gone);
    pods there count by the labels of their node. By node: `members`, the pods of each group;
    `keepers`, the pods with each `apart` rule; `sole`, the pods that have a thing that only one pod
    may have. `ports`: by (number, protocol), node and address. `volumes`: by driver, node and
    volume.
    """

    def __init__(self) -> None:
        self.version = 0
        self.neighbours: list[Node | None] = []
        self._neighbour_at: dict[str, int] = {}
        self.members: dict[str, Counts] = {}
        self.keepers: dict[Apart, Counts] = {}
        self.sole: dict[str, Counts] = {}
        self.ports: dict[tuple[int, str], dict[str, dict[str, int]]] = {}
        self.volumes: dict[str, dict[str, dict[str, int]]] = {}
        self._limits: dict[str, Ints] = {}
        self._domains: dict[str, LabelDomains] = {}
        self._nodes: dict[tuple[object, ...], NDArray[np.bool_]] = {}

    def count(self, node: str, rules: PodRules, sign: int) -> None:
        """Count a pod that comes to a node (+1) or leaves it (-1)."""
        self.version += 1
        for group in rules.groups:
            _change(self.members.setdefault(group, {}), node, sign)
        for rule in rules.apart:
            _change(self.keepers.setdefault(rule, {}), node, sign)
        for port in rules.ports:
            at = self.ports.setdefault((port.port, port.protocol), {})
            _change_at(at, node, port.address, sign)
        for name in rules.sole:
            _change(self.sole.setdefault(name, {}), node, sign)
        for driver, volume in rules.attached:
            _change_at(self.volumes.setdefault(driver, {}), node, volume, sign)
        if sign < 0:
            self._drop_empty(rules)

    def _drop_empty(self, rules: PodRules) -> None:
        for group in rules.groups:
            if not self.members.get(group, True):
                del self.members[group]
        for rule in rules.apart:
            if not self.keepers.get(rule, True):
                del self.keepers[rule]
        for name in rules.sole:
            if not self.sole.get(name, True):
                del self.sole[name]

    def neighbour_is(self, name: str, node: Node | None) -> bool:
        """Note a node of another scope, None = it no longer is one; return whether that is new."""
        at = self._neighbour_at.get(name)
        before = None if at is None else self.neighbours[at]
        if before == node:
            return False
        if at is None:
            self._neighbour_at[name] = len(self.neighbours)
            self.neighbours.append(node)
        else:
            self.neighbours[at] = node
        self.version += 1
        self.nodes_change()
        return True

    def neighbour_at(self, name: str) -> int | None:
        """Return the index of the neighbour with this name; None if there is none."""
        at = self._neighbour_at.get(name)
        return None if at is None or self.neighbours[at] is None else at

    def of_nodes(self) -> "Company":
        """Return a new company with the same neighbours and no pods."""
        twin = Company()
        twin.neighbours, twin._neighbour_at = list(self.neighbours), dict(self._neighbour_at)
        return twin

    def nodes_change(self) -> None:
        """Forget everything that was derived from the facts of nodes."""
        if self._domains or self._nodes or self._limits:
            self._domains, self._nodes, self._limits = {}, {}, {}

    def domains(self, key: str, facts: list[Node | None]) -> LabelDomains:
        """Return the values of a label on these nodes."""
        found = self._domains.get(key)
        if found is None:
            found = self._domains[key] = LabelDomains(key, facts)
        return found

    def limits(self, driver: str, facts: list[Node | None]) -> Ints:
        """Return how many volumes of the driver can be attached to each node; -1 = no limit."""
        found = self._limits.get(driver)
        if found is None:
            given = [-1 if n is None else n.attach_limits.get(driver, -1) for n in facts]
            found = self._limits[driver] = np.array(given, np.int64)
        return found

    def remembered(self, question: tuple[object, ...]) -> NDArray[np.bool_] | None:
        """Return the nodes noted for this question, by slot; None if none, or if nodes changed."""
        return self._nodes.get(question)

    def note(self, question: tuple[object, ...], nodes: NDArray[np.bool_]) -> None:
        if len(self._nodes) >= MAX_QUESTIONS:
            self._nodes = {}
        self._nodes[question] = nodes

    def __copy__(self) -> "Company":
        twin = self.of_nodes()
        twin.members = {group: dict(nodes) for group, nodes in self.members.items()}
        twin.keepers = {rule: dict(nodes) for rule, nodes in self.keepers.items()}
        twin.sole = {name: dict(nodes) for name, nodes in self.sole.items()}
        twin.ports = {
            port: {node: dict(held) for node, held in nodes.items()}
            for port, nodes in self.ports.items()
        }
        twin.volumes = {
            driver: {node: dict(held) for node, held in nodes.items()}
            for driver, nodes in self.volumes.items()
        }
        return twin


def _change(nodes: Counts, node: str, sign: int) -> None:
    left = nodes.get(node, 0) + sign
    if left:
        nodes[node] = left
    else:
        nodes.pop(node, None)


def _change_at(nodes: dict[str, Counts], node: str, name: str, sign: int) -> None:
    held = nodes.setdefault(node, {})
    _change(held, name, sign)
    if not held:
        del nodes[node]
