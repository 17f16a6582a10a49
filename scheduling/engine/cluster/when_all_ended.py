"""The cluster as it would be if all of Kant's pods had ended.

The nodes are as they are, with the pods of others on them. out_of_service.py asks whether a job
could start there. A `mended` variant has all nodes healthy and completely empty;
competing_pod_sets.py uses it.
"""

from collections.abc import Iterable, Mapping

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.constraints import in_order
from scheduling.engine.native import mypyc_attr
from scheduling.engine.types import Node

# How many changes to remember; at this number the list starts again.
MAX_CHANGES = 4096


@mypyc_attr(allow_interpreted_subclasses=True)  # a rehearsal copies it
class Cleared:
    """A copy of the cluster without Kant's pods, made at first use.

    It follows the nodes and the pods of others. `changes`: how often any of them changed since.
    `mended`: in the copy, all nodes are healthy and open, with no pods of others.
    """

    def __init__(self, cluster: ClusterState, *, mended: bool = False) -> None:
        self._true = cluster
        self._mended = mended
        self._world: ClusterState | None = None
        self._changed: set[str] = set()
        # Nodes that are closed only while others run there, as they will be after that.
        self._opening: Mapping[str, Node] = {}
        self._log: list[str] = []  # the nodes of the last `changes`
        self.changes = 0

    def twin(self, cluster: ClusterState) -> "Cleared":
        """Return an independent copy of this, which follows a copy of the cluster."""
        twin = Cleared(cluster, mended=self._mended)
        twin._opening, twin._log, twin.changes = self._opening, self._log.copy(), self.changes
        if self._world is not None:
            twin._world = self._world.copy()
            twin._world.times = self._world.times.copy()
            twin._changed = self._changed.copy()
            cluster.fact_followers.append(twin._changed)
        return twin

    def world(self) -> ClusterState:
        """Return the copy, up to date. Callers must roll back whatever they try on it."""
        true, world = self._true, self._world
        if world is None:
            world = ClusterState(true.levels) if self._mended else true.without_pods()
            self._world = world
            true.fact_followers.append(self._changed)
            self._changed.update(true.names if self._mended else self._opening)
        if self._changed:
            for name in sorted(self._changed):
                self._follow(world, name)
            self._changed.clear()
        world.now = true.now
        return world

    def open(self, nodes: Mapping[str, Node]) -> None:
        """Set the nodes that are closed only while others run there, as they will be after that."""
        if self._world is not None:
            before, now = self._opening, nodes
            self._changed.update(n for n in {*before, *now} if before.get(n) != now.get(n))
        self._opening = dict(nodes)

    def unchanged(self, nodes: Iterable[str], since: int) -> bool:
        """Whether none of these nodes has changed since `changes` was `since`."""
        missed = self.changes - since
        if not missed:
            return True
        return missed <= len(self._log) and set(self._log[-missed:]).isdisjoint(nodes)

    def _follow(self, world: ClusterState, name: str) -> None:
        if self._mended:
            node = self._true.node(name)
            if node is not None:
                world.upsert_node(in_order(node))
            else:
                world.remove_node(name)
        else:
            world.take_facts(self._true, name)
        if name in self._opening:
            world.upsert_node(self._opening[name])
        if len(self._log) >= MAX_CHANGES:
            self._log.clear()
        self._log.append(name)
        self.changes += 1
