"""The cluster as it would be if all that runs had ended: the nodes as they are, pods of others on
them, and none of Kant's. Whether a job could start there is asked in out_of_service.py; and of the
nodes in order, with nothing at all on them, in competing_pod_sets.py."""

from collections.abc import Iterable, Mapping

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.constraints import in_order
from scheduling.engine.native import mypyc_attr
from scheduling.engine.types import Node

# Beyond so many changes the list of them begins anew.
MAX_CHANGES = 4096


@mypyc_attr(allow_interpreted_subclasses=True)  # a rehearsal copies it
class Cleared:
    """A copy of the cluster without pods of Kant, made when it is first asked for; it follows the
    nodes and the pods of others. `changes`: how often any of that changed since. `mended`: all
    nodes are in order there, and no pods of others on them."""

    def __init__(self, cluster: ClusterState, *, mended: bool = False) -> None:
        self._true = cluster
        self._mended = mended
        self._world: ClusterState | None = None
        self._changed: set[str] = set()
        # Nodes that are closed only while others run there, as they will be when these have ended.
        self._opening: Mapping[str, Node] = {}
        self._log: list[str] = []  # nodes that changed, the last of `changes`
        self.changes = 0

    def twin(self, cluster: ClusterState) -> "Cleared":
        """An independent one that knows the same, of a copy of its cluster."""
        twin = Cleared(cluster, mended=self._mended)
        twin._opening, twin._log, twin.changes = self._opening, self._log.copy(), self.changes
        if self._world is not None:
            twin._world = self._world.copy()
            twin._world.times = self._world.times.copy()
            twin._changed = self._changed.copy()
            cluster.fact_followers.append(twin._changed)
        return twin

    def world(self) -> ClusterState:
        """The copy, brought up to date. Whatever is tried on it is to be taken back."""
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
        """These nodes, and no others, are closed only while others run there: as they will be."""
        if self._world is not None:
            before, now = self._opening, nodes
            self._changed.update(n for n in {*before, *now} if before.get(n) != now.get(n))
        self._opening = dict(nodes)

    def unchanged(self, nodes: Iterable[str], since: int) -> bool:
        """Whether none of these nodes has changed since then."""
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
