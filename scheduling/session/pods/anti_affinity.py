"""Running pods that keep others out of their topology domain: where a pod may not go."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scheduling.engine.types import Node, NodeExpression, NodeTerm
from scheduling.kube.seam import KeepsAway, PodFacts
from scheduling.kube.translate.label_selectors import selects
from scheduling.session.memory.namespaces import NamespaceLabels

NAMED = 3  # pods that a note names


class _Keeper(NamedTuple):
    """A pod with rules, its name and its node."""

    name: str
    node: str
    rules: tuple[KeepsAway, ...]


class AntiAffinity:
    """The required anti-affinity of a cluster's pods, whoever bound them.

    `version`: differs after each change of where a pod may go. `changed`: nodes whose rules
    changed.
    """

    def __init__(self, spaces: NamespaceLabels) -> None:
        self.version = 0
        self.changed: set[str] = set()
        self._spaces = spaces
        self._keepers: dict[str, _Keeper] = {}  # by uid
        self._nodes: dict[KeepsAway, Counter[str]] = defaultdict(Counter)
        self._labels: dict[str, Mapping[str, str]] = {}  # by node

    # --- observations -------------------------------------------------------------------------
    def seen(self, facts: PodFacts) -> None:
        """Note a pod; its rules count while it is on a node and has not finished."""
        on_node = bool(facts.node) and not facts.finished
        rules = facts.keeps_away if on_node else ()
        known = self._keepers.get(facts.uid)
        if known is not None and (known.node, known.rules) != (facts.node, rules):
            self.gone(facts.uid)
            known = None
        if known is None and rules:
            self.keeps(facts.uid, f"{facts.namespace}/{facts.name}", facts.node, rules)

    def keeps(self, uid: str, name: str, node: str, rules: tuple[KeepsAway, ...]) -> None:
        """Note that a new pod (`name` is for people) keeps others away from this node."""
        self._keepers[uid] = _Keeper(name, node, rules)
        for rule in rules:
            self._nodes[rule][node] += 1
        self.changed.add(node)
        self.version += 1

    def gone(self, uid: str) -> None:
        keeper = self._keepers.pop(uid, None)
        if keeper is None:
            return
        for rule in keeper.rules:
            nodes = self._nodes[rule]
            nodes[keeper.node] -= 1
            if not nodes[keeper.node]:
                del nodes[keeper.node]
            if not nodes:
                del self._nodes[rule]
        self.changed.add(keeper.node)
        self.version += 1

    def node_seen(self, node: Node) -> None:
        before = self._labels.get(node.name)
        self._labels[node.name] = node.labels
        if before != node.labels and any(node.name in nodes for nodes in self._nodes.values()):
            self.version += 1

    def spaces_change(self) -> None:
        """Note that the labels of a namespace changed."""
        if any(rule.namespaces.labels for rule in self._nodes):
            self.version += 1

    # --- questions ----------------------------------------------------------------------------
    def __bool__(self) -> bool:
        return bool(self._nodes)

    def affinity(self, namespace: str, labels: Mapping[str, str]) -> tuple[NodeTerm, ...]:
        """Return the terms of which a node must match one for such a pod; () = any node will do.

        A node without the topology's label is in no domain, and open to all.
        """
        domains: dict[str, set[str]] = defaultdict(set)
        for rule in self._meant(namespace, labels):
            for node in self._nodes[rule]:
                value = self._labels.get(node, {}).get(rule.topology_key)
                if value is not None:
                    domains[rule.topology_key].add(value)
        if not domains:
            return ()
        closed = (
            NodeExpression(key, "NotIn", tuple(sorted(values))) for key, values in domains.items()
        )
        return (tuple(sorted(closed)),)

    def rules_on(self, node: str) -> tuple[KeepsAway, ...]:
        """Return the rules of all pods on a node."""
        return tuple(sorted((rule for rule, at in self._nodes.items() if node in at), key=str))

    def who(self, namespace: str, labels: Mapping[str, str]) -> list[str]:
        """Return the names of some pods that keep such a pod away."""
        meant = set(self._meant(namespace, labels))
        keepers = self._keepers.values()
        names = (k.name for k in keepers if not meant.isdisjoint(k.rules))
        return sorted(names)[:NAMED] if meant else []

    def _meant(self, namespace: str, labels: Mapping[str, str]) -> Sequence[KeepsAway]:
        return [
            rule
            for rule in self._nodes
            if self._spaces.are_meant(namespace, rule.namespaces) and selects(rule.selector, labels)
        ]
