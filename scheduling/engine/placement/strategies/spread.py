"""Spread: put replicas on different nodes and leaves, the emptiest first (paper 3.3.4)."""

from scheduling.engine.placement.view import PoolView


class Tiers:
    """Nodes by how many pods of the job they hold, and by how many pods their leaf holds."""

    def __init__(self, view: PoolView) -> None:
        self.view = view
        everything = view.layout.everything
        self.nodes = [everything]
        self.leaves = [everything]
        masks = view.layout.levels[0].masks
        for number, pods in view.pods_at.items():
            self._move(self.nodes, 1 << number, 0, pods)
        for leaf, pods in view.pods_in_leaf.items():
            self._move(self.leaves, masks[leaf], 0, pods)

    def add(self, number: int) -> None:
        """Count one more pod of the job on this node."""
        view, bit = self.view, 1 << number
        leaf = view.layout.leaf_of[number]
        at, in_leaf = view.pods_at.get(number, 0), view.pods_in_leaf.get(leaf, 0)
        self._move(self.nodes, bit, at, at + 1)
        self._move(self.leaves, view.layout.levels[0].masks[leaf], in_leaf, in_leaf + 1)

    @staticmethod
    def _move(tiers: list[int], nodes: int, source: int, target: int) -> None:
        while len(tiers) <= target:
            tiers.append(0)
        tiers[source] &= ~nodes
        tiers[target] |= nodes


def pick(view: PoolView, left: int) -> tuple[int, int]:  # noqa: ARG001 - one signature for all
    """Return (node number or -1, pods to place there).

    Prefer the fewest pods of the job on the node, then the fewest in its leaf, then the most free
    GPUs, then the first in topology order.
    """
    if not isinstance(view.tiers, Tiers):
        view.tiers = Tiers(view)
    for nodes in view.tiers.nodes:
        for leaves in view.tiers.leaves:
            among = nodes & leaves & view.mask
            if not among:
                continue
            number = view.emptiest(among)
            if number >= 0:
                view.tiers.add(number)
                return number, 1
    return -1, 0
