"""The nodes of a cluster as one scheduler sees them: all facts, and which nodes are its own."""

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
    """All nodes of the cluster, and which of them belong to this scope.

    - `mine`: nodes whose rows name this scope. The engine places pods only on these. Other nodes
      reach it as neighbours, once `rules_speak` was called.
    - `strange`: own nodes whose home is another scope.
    - `unclaimed`: nodes at home here without a known row.
    - `dirty`: own nodes with facts that their rows do not have yet.
    - `gone`: own nodes whose rows are to be deleted.
    """

    def __init__(self, scope: str, shards: Sequence[Shard], out: Outbox) -> None:
        self.facts: dict[str, NodeFacts] = {}
        self._told: dict[str, NodeFacts] = {}  # as the cluster reported them
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
        self._neighbours: dict[str, Node] | None = None  # as told; None = nothing to tell yet
        self._out = out
        self._touched: set[str] = set()  # nodes whose books changed since the last write
        self._written: dict[str, NodeHeld] = {}  # what pods hold of nodes, as last written

    # --- observations -------------------------------------------------------------------------
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
        """Tell the engine the nodes of other scopes from now on: pod rules count the pods there."""
        if self._neighbours is None:
            self._neighbours = {}
            for name in sorted(self.facts.keys() - self.mine):
                self._tell_neighbour(name)

    def _tell_neighbour(self, name: str) -> None:
        """Tell the engine what pod rules need of a node outside the scope; None = inside."""
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
        """Note how many volumes can be attached, by drivers that report a limit."""
        self._attach_limits.pop(name, None)
        if limits:
            self._attach_limits[name] = limits
        self._count_again(name)

    def cordoned(self, cordons: Mapping[str, Cordon]) -> None:
        """Keep new pods off exactly these nodes, as operators want it."""
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
        """Note what device drivers report of a node: GPUs, and how many devices of each kind."""
        before = self._devices.pop(name, None)
        if gpus.devices or amounts:
            self._devices[name] = gpus, amounts
        if name in self.facts and before != self._devices.get(name):
            self.facts[name] = self._counted(self._told[name])
            if name in self.mine:
                self._tell(name)

    def _with_devices(self, facts: NodeFacts) -> NodeFacts:
        """Return the facts with what drivers report.

        GPUs that a device plugin advertises are the same devices, so they are not counted twice.
        """
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
        """Note the rules of all pods on the node and of those not Kant's; only rows use them."""
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
        """Forget a node that left the API; it stays in `mine` until no pod holds anything on it."""
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
        """Yield all nodes of the cluster, except those at home here that have no row yet.

        The engine of this scope has yet to hear of these.
        """
        for name, facts in self.facts.items():
            if name in self.mine or self.home(name) != self._scope:
                yield facts.node

    def home(self, name: str) -> str:
        return home_of(self.facts[name].node, self._shards)

    def known(self, name: str) -> Node:
        """Return the node as the cluster last reported it; without any facts if it is gone."""
        facts = self.facts.get(name)
        return facts.node if facts else Node(name)

    def told(self, name: str) -> Node:
        """Return the node like `known`, without what device drivers and operators say of it.

        It has no GPUs if a driver reports them and no device plugin serves them.
        """
        facts = self._told.get(name)
        if facts is None:
            return Node(name)
        by_driver = name in self._devices and self._devices[name][0].devices
        return facts.unplugged if by_driver and facts.unplugged is not None else facts.node

    # --- rows -----------------------------------------------------------------------------------
    def follow(self, cluster: ClusterState) -> None:
        """Subscribe to every node whose books change.

        Much code frees and takes capacity, and not all of it reports that; only the books see it
        all.
        """
        cluster.node_followers.append(self._touched)
        cluster.fact_followers.append(self._touched)

    def changed(self, cluster: ClusterState) -> list[NodeFacts]:
        """Return own nodes that differ from the last answer.

        A caller that fails to write them starts over with all nodes. A node that the engine does
        not know yet comes once it does.
        """
        looked, changed = self.dirty | self._touched, set[str]()
        for name in looked & self.mine & self.facts.keys():
            held = held_on(cluster, name)
            if held is not None and (name in self.dirty or held != self._written.get(name)):
                self._written[name] = held
                changed.add(name)
        self.dirty -= changed
        self._touched.clear()
        return [self._with_keepers(self.facts[name]) for name in sorted(changed)]

    # --- own nodes ------------------------------------------------------------------------------
    def arrived(self, names: Iterable[str]) -> None:
        """Note that the rows of these nodes now name this scope."""
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
        """Close exactly these own nodes for new pods, and open all others again."""
        before, self._closed = self._closed, frozenset(names)
        for name in sorted(before ^ self._closed):
            if name in self.mine and name in self.facts:
                self._tell(name)

    def deleted(self, names: Iterable[str]) -> None:
        """Note that the rows of these nodes are deleted."""
        self.mine.difference_update(names)
        self.strange.difference_update(names)
        self.gone.difference_update(names)

    def look_for_unclaimed(self) -> None:
        """Claim again the nodes at home here: a previous owner may have deleted their rows."""
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
