"""The nodes of a cluster as one scheduler sees them: the facts of all, and which are its own."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.deltas import NeighbourChanged, NodeChanged, NodeRemoved
from scheduling.engine.shards.division import home_of
from scheduling.engine.shards.lending import closed
from scheduling.engine.types import Node, Shard
from scheduling.kube.seam import KeepsAway, NodeFacts, Sourced
from scheduling.session.devices.inventory import NodeGpus
from scheduling.session.held import NodeHeld, held_on
from scheduling.session.memory.live import Outbox
from scheduling.session.memory.orders import Cordon, with_cordon

Keepers = tuple[KeepsAway, ...]


class Nodes:
    """`mine` are the nodes whose rows name this scope: the engine places pods on these and no
    others. Of the others it hears as neighbours, once `rules_speak` of pods.

    `strange` are those of them that belong to another scope. `unclaimed` are at home here and
    have no row that is known; `dirty` are own nodes with facts that their rows do not have yet,
    `gone` those whose rows are to be deleted.
    """

    def __init__(self, scope: str, shards: Sequence[Shard], out: Outbox) -> None:
        self.facts: dict[str, NodeFacts] = {}
        self._told: dict[str, NodeFacts] = {}  # as the cluster told them
        self._cordons: Mapping[str, Cordon] = {}
        self._devices: dict[str, tuple[NodeGpus, Mapping[str, int]]] = {}
        self._attach_limits: dict[str, Mapping[str, int]] = {}
        self._keepers: dict[str, tuple[Keepers, Keepers]] = {}
        self.mine: set[str] = set()
        self.strange: set[str] = set()
        self.unclaimed: set[str] = set()
        self.dirty: set[str] = set()
        self.gone: set[str] = set()
        self._scope = scope
        self._shards = shards
        self._closed: frozenset[str] = frozenset()
        self._neighbours: dict[str, Node] | None = None  # as told; None while nothing is to be
        self._out = out
        self._touched: set[str] = set()  # nodes whose books changed since rows were written
        self._written: dict[str, NodeHeld] = {}  # what pods hold of nodes, as was written last

    # --- the cluster told ---------------------------------------------------------------------
    def seen(self, facts: NodeFacts) -> None:
        name = facts.node.name
        self._told[name] = facts
        self.facts[name] = self._counted(facts)
        self.gone.discard(name)
        if name in self.mine:
            self._tell(name)
            return
        if self.home(name) == self._scope:
            self.unclaimed.add(name)
        self._tell_neighbour(name)

    # --- other scopes ---------------------------------------------------------------------------
    def rules_speak(self) -> None:
        """Rules speak of pods: who is on the nodes of other scopes counts from now on."""
        if self._neighbours is None:
            self._neighbours = {}
            for name in sorted(self.facts.keys() - self.mine):
                self._tell_neighbour(name)

    def _tell_neighbour(self, name: str) -> None:
        """What pods count by of a node that is not the scope's, None of one that is."""
        if self._neighbours is None:
            return
        told = None
        if name in self.facts and name not in self.mine:
            node = self.facts[name].node
            told = Node(name, labels=node.labels, taints=node.taints, schedulable=False)
        if told == self._neighbours.get(name):
            return
        if told is None:
            del self._neighbours[name]
        else:
            self._neighbours[name] = told
        self._out.deltas.append(NeighbourChanged(name, told))

    def limits_seen(self, name: str, limits: Mapping[str, int]) -> None:
        """How many volumes can be attached, of drivers that say so."""
        self._attach_limits.pop(name, None)
        if limits:
            self._attach_limits[name] = limits
        self._count_again(name)

    def cordoned(self, cordons: Mapping[str, Cordon]) -> None:
        """These nodes take no new pods by the wish of operators, and no others."""
        before, self._cordons = self._cordons, cordons
        for name in sorted(before.keys() | cordons.keys()):
            if before.get(name) != cordons.get(name):
                self._count_again(name)

    def _count_again(self, name: str) -> None:
        if name in self._told:
            self.facts[name] = self._counted(self._told[name])
            if name in self.mine:
                self._tell(name)

    def _counted(self, facts: NodeFacts) -> NodeFacts:
        cordon = self._cordons.get(facts.node.name)
        return with_cordon(self._with_limits(self._with_devices(facts)), cordon)

    def devices_seen(self, name: str, gpus: NodeGpus, amounts: Mapping[str, int]) -> None:
        """What drivers of devices tell of a node: GPUs, and how many devices of each kind."""
        before = self._devices.pop(name, None)
        if gpus.devices or amounts:
            self._devices[name] = gpus, amounts
        if name in self.facts and before != self._devices.get(name):
            self.facts[name] = self._counted(self._told[name])
            if name in self.mine:
                self._tell(name)

    def _with_devices(self, facts: NodeFacts) -> NodeFacts:
        """Where a device plugin advertises GPUs, they are those of the driver."""
        if facts.node.name not in self._devices:
            return facts
        gpus, amounts = self._devices[facts.node.name]
        node, sources = facts.node, dict(facts.facts)
        if gpus.devices and facts.unplugged is not None:
            node = facts.unplugged
            sources.pop("unnamed_unhealthy_gpus", None)
            sources.pop("gpu_resource", None)
        if gpus.devices and not node.devices and not node.gpu_parts:
            by_label = sources.get("gpu_model") if node.gpu_model else None
            model = node.gpu_model or gpus.model
            node = replace(
                node,
                gpu_model=model,
                devices=gpus.devices,
                gpu_resource=gpus.resource,
                gives_shares=gpus.shares,
            )
            sources |= {
                "gpu_model": by_label or Sourced(gpus.model, "ResourceSlice: productName"),
                "gpus": Sourced(len(gpus.devices), "ResourceSlice"),
                "healthy_gpus": Sourced(node.healthy_gpus, "ResourceSlice: taints"),
            }
        if amounts:
            node = replace(node, extended={**node.extended, **amounts})
        return msgspec.structs.replace(facts, node=node, facts=sources)

    def keepers_seen(self, name: str, all_of_them: Keepers, others: Keepers) -> None:
        """Pods there, and those of them that are not Kant's, have these rules; only rows tell of
        it."""
        self._keepers.pop(name, None)
        if all_of_them:
            self._keepers[name] = all_of_them, others
        if name in self.facts:
            self.dirty.add(name)

    def _with_keepers(self, facts: NodeFacts) -> NodeFacts:
        if facts.node.name not in self._keepers:
            return facts
        all_of_them, others = self._keepers[facts.node.name]
        return msgspec.structs.replace(facts, keepers=all_of_them, other_keepers=others)

    def _with_limits(self, facts: NodeFacts) -> NodeFacts:
        limits = self._attach_limits.get(facts.node.name, {})
        if facts.node.attach_limits == limits:
            return facts
        return msgspec.structs.replace(facts, node=replace(facts.node, attach_limits=limits))

    def vanished(self, name: str) -> None:
        """The API has the node no longer. It stays here until no pod holds anything on it."""
        self.facts.pop(name, None)
        self._told.pop(name, None)
        self.unclaimed.discard(name)
        self.dirty.discard(name)
        self._written.pop(name, None)
        self._tell_neighbour(name)
        if name in self.mine:
            self.gone.add(name)
            self._out.deltas.append(NodeRemoved(name))

    def there(self) -> Iterable[Node]:
        """All nodes of the cluster but those of which the engine of their scope is yet to hear, as
        they have no row."""
        for name, facts in self.facts.items():
            if name in self.mine or self.home(name) != self._scope:
                yield facts.node

    def home(self, name: str) -> str:
        return home_of(self.facts[name].node, self._shards)

    def known(self, name: str) -> Node:
        """The node as the cluster told it last; without any facts when it is gone."""
        facts = self.facts.get(name)
        return facts.node if facts else Node(name)

    def told(self, name: str) -> Node:
        """As `known`, without what drivers of devices and operators say of it: with no GPUs, where
        a driver tells of them and no device plugin gives them."""
        facts = self._told.get(name)
        if facts is None:
            return Node(name)
        by_driver = name in self._devices and self._devices[name][0].devices
        return facts.unplugged if by_driver and facts.unplugged is not None else facts.node

    # --- rows -----------------------------------------------------------------------------------
    def follow(self, cluster: ClusterState) -> None:
        """Hear of every node whose books change. Much frees and takes places, and of some of it
        nobody is told: only the books themselves know."""
        cluster.node_followers.append(self._touched)
        cluster.fact_followers.append(self._touched)

    def changed(self, cluster: ClusterState) -> list[NodeFacts]:
        """Own nodes that differ from what was answered last; whoever fails to write them begins
        anew, with all nodes. What the engine has not heard of yet comes when it has."""
        looked, changed = self.dirty | self._touched, set[str]()
        for name in looked & self.mine & self.facts.keys():
            held = held_on(cluster, name)
            if held is not None and (name in self.dirty or held != self._written.get(name)):
                self._written[name] = held
                changed.add(name)
        self.dirty -= changed
        self._touched.clear()
        return [self._with_keepers(self.facts[name]) for name in sorted(changed)]

    # --- what is own ----------------------------------------------------------------------------
    def arrived(self, names: Iterable[str]) -> None:
        """Rows of these nodes name this scope now."""
        for name in sorted(names):
            self.mine.add(name)
            self.unclaimed.discard(name)
            self._tell_neighbour(name)
            if name in self.facts:
                self._tell(name)
            else:
                self.gone.add(name)

    def leave(self, names: Iterable[str]) -> None:
        """Forget nodes that are about to be given away; nothing is placed on them from here on."""
        for name in sorted(names):
            self.mine.discard(name)
            self.strange.discard(name)
            self.dirty.discard(name)
            self._written.pop(name, None)
            self._out.deltas.append(NodeRemoved(name))
            self._tell_neighbour(name)

    def close(self, names: Iterable[str]) -> None:
        """Let nothing more be placed on these own nodes, and on all others again."""
        before, self._closed = self._closed, frozenset(names)
        for name in sorted(before ^ self._closed):
            if name in self.mine and name in self.facts:
                self._tell(name)

    def deleted(self, names: Iterable[str]) -> None:
        """Their rows are deleted."""
        self.mine.difference_update(names)
        self.strange.difference_update(names)
        self.gone.difference_update(names)

    def look_for_unclaimed(self) -> None:
        """Claim again what is at home here: whoever had it may have deleted its row meanwhile."""
        self.unclaimed.update(
            name for name in self.facts if name not in self.mine and self.home(name) == self._scope
        )

    def _tell(self, name: str) -> None:
        node = self.facts[name].node
        self.dirty.add(name)
        if self.home(name) == self._scope:
            self.strange.discard(name)
        else:
            self.strange.add(name)
        self._out.deltas.append(NodeChanged(closed(node) if name in self._closed else node))
