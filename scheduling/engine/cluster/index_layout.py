"""The order of a pool's nodes and its topology domains; changes only with the nodes themselves.

A pool is all nodes of one GPU model (paper 3.4.1). Its nodes are numbered by topology, widest level
first, then by hyper-node, then by name. So the domains of every level are runs of consecutive
numbers, neighbours in number are neighbours in the network, and "the first" breaks ties
deterministically. A set of nodes is one integer; bit i = node number i.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from scheduling.engine.types import Node

Ints = NDArray[np.int64]


class Domains:
    """The groups of one level: `keys`, the group `of` each node (-1 = none), bit-set `masks`."""

    def __init__(self, key_of_node: Sequence[str]) -> None:
        ids: dict[str, int] = {}
        self.of = np.fromiter(
            (ids.setdefault(key, len(ids)) if key else -1 for key in key_of_node),
            np.int64,
            len(key_of_node),
        )
        self.id_of = ids
        self.keys = tuple(ids)
        self.masks = [0] * len(ids)
        for number, group in enumerate(self.of.tolist()):
            if group >= 0:
                self.masks[group] |= 1 << number
        self.known = 0
        for mask in self.masks:
            self.known |= mask


class Layout:
    """One pool: `slots` by node number, `levels` narrowest first, hyper-nodes, inference zone."""

    def __init__(self, model: str, members: Sequence[tuple[int, Node, tuple[str, ...]]]) -> None:
        self.model = model
        self.size = len(members)
        self.everything = (1 << self.size) - 1
        self.slots = [slot for slot, _, _ in members]
        self.slot_array = np.array(self.slots, np.int64)
        depth = len(members[0][2])
        self.levels = [Domains([path[at] for _, _, path in members]) for at in range(depth)]
        self.hyper = Domains([node.hyper_node for _, node, _ in members])
        self.leaf_of: list[int] = self.levels[0].of.tolist()
        sizes = np.bincount(self.levels[0].of)
        self.leaf_size: list[int] = sizes.tolist()
        self.leaf_low: list[int] = (np.cumsum(sizes) - sizes).tolist()
        self.zone = 0
        by_memory: dict[int, int] = {}
        for number, (_, node, _) in enumerate(members):
            if node.zone:
                self.zone |= 1 << number
            memory = node.gpu_memory_mib
            by_memory[memory] = by_memory.get(memory, 0) | 1 << number
        # (GPU memory in MiB, nodes that have it), smallest memory first.
        self.memory_sizes = sorted(by_memory.items())


def paths_of(nodes: Iterable[Node], depth: int) -> dict[str, tuple[str, ...]]:
    """Return the topology path of each node by name, narrowest level first.

    Each group has one parent: the one given by its first node (by name) that has the label. If a
    level is unknown, the narrower group stands in for it; a node of unknown leaf is its own leaf.
    So nodes only count as near if they are known to be.
    """
    ordered = sorted(nodes, key=lambda n: n.name)
    # "=" keeps these keys apart from label values, which never start with it.
    paths = {n.name: [_declared(n, 0) or "=" + n.name] for n in ordered}
    for at in range(1, depth):
        parents: dict[str, str] = {}
        for node in ordered:
            if parent := _declared(node, at):
                parents.setdefault(paths[node.name][-1], parent)
        for path in paths.values():
            path.append(parents.get(path[-1], path[-1]))
    return {name: tuple(path) for name, path in paths.items()}


def _declared(node: Node, at: int) -> str:
    return node.topology[at] if at < len(node.topology) else ""


def layouts(slots: Iterable[tuple[int, Node]], depth: int) -> dict[str, Layout]:
    """Return the layout of every pool, by GPU model."""
    members = list(slots)
    paths = paths_of((node for _, node in members), depth)
    pools: dict[str, list[tuple[int, Node, tuple[str, ...]]]] = {}
    for slot, node in members:
        pools.setdefault(node.gpu_model, []).append((slot, node, paths[node.name]))
    for pool in pools.values():
        pool.sort(key=lambda m: (m[2][::-1], m[1].hyper_node, m[1].name))
    return {model: Layout(model, pools[model]) for model in sorted(pools)}
