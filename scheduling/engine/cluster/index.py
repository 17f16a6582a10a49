"""The free-capacity index: the nodes of a pool by what they have free, constant time per change.

The index is a function of the columns (columns.py), so tests can compare it with a rebuild;
`refresh` updates it after every change of a slot. Sets of nodes and of leaf groups are integers
(index_layout.py): "and", "or" and "the first" on 12,500 nodes take a fraction of a microsecond,
whatever selectors and taints leave of them.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from scheduling.engine.cluster.constraints import lets_in
from scheduling.engine.cluster.index_layout import Layout, layouts
from scheduling.engine.types import MILLI, Node, NodeRules, PodSetSpec

if TYPE_CHECKING:
    from scheduling.engine.cluster.columns import Columns

# What decides which nodes admit a pod: its node rules, whether it needs a share of a GPU, and
# whether it must avoid nodes with GPUs.
Constraint = tuple[NodeRules, bool, bool]
MAX_CONSTRAINTS = 256


class PoolIndex:
    """The index of one pool.

    `bits[f]`: usable nodes with f whole GPUs free. `shares[r]`: usable nodes whose largest free
    part of a used GPU is r milli; `share_keys`: the r in use. `by_fill[f][l]`: leaf groups that
    have a node of `bits[f]` and hold l GPUs of small pods (less than a node); `fills[f]`: the l in
    use; `filed[leaf]`: the l and the set of f under which a leaf is filed there. `file_leaves`
    brings these three up to date. The other fields are counts by node number and by leaf.
    """

    __slots__ = (
        "bits",
        "by_fill",
        "constraints",
        "count",
        "filed",
        "fills",
        "free_at",
        "gradient",
        "layout",
        "leaf_fill",
        "leaf_milli",
        "share_at",
        "share_keys",
        "shares",
        "small_at",
        "top",
        "touched",
        "unfiled",
    )

    def __init__(self, layout: Layout, top: int) -> None:
        self.layout = layout
        self.top = top
        leaves = len(layout.leaf_size)
        self.bits = [0] * (top + 1)
        self.shares: dict[int, int] = {}
        self.share_keys = 0
        self.by_fill: list[dict[int, int]] = [{} for _ in range(top + 1)]
        self.fills = [0] * (top + 1)
        self.filed = [(0, 0)] * leaves
        self.unfiled: set[int] = set()
        self.count = [array("i", bytes(4 * leaves)) for _ in range(top + 1)]
        self.leaf_milli = array("q", bytes(8 * leaves))
        self.leaf_fill = array("q", bytes(8 * leaves))
        self.free_at = array("h", b"\xff\xff" * layout.size)
        self.share_at = array("h", bytes(2 * layout.size))
        self.small_at = array("i", bytes(4 * layout.size))
        self.constraints: dict[Constraint, int] = {}
        # The follower of the pool's nodes, and the nodes that changed since it last looked.
        self.gradient: object = None
        self.touched: set[int] = set()

    def refresh(self, number: int, free: int, share: int, small: int) -> None:
        """Update a node of the pool.

        `free`: whole GPUs free, -1 = not usable. `share`: the most GPU-milli left on one of its
        partly used GPUs. `small`: GPU-milli that small pods hold.
        """
        if self.gradient is not None:
            self.touched.add(number)
        if free != self.free_at[number]:
            self._move(number, free)
        if share != self.share_at[number]:
            self._move_share(number, share)
        if small != self.small_at[number]:
            self._fill(self.layout.leaf_of[number], small - self.small_at[number])
            self.small_at[number] = small

    def _move(self, number: int, free: int) -> None:
        bit = 1 << number
        leaf = self.layout.leaf_of[number]
        before = self.free_at[number]
        if before >= 0:
            self.bits[before] ^= bit
            self.count[before][leaf] -= 1
        if free >= 0:
            self.bits[free] ^= bit
            self.count[free][leaf] += 1
        self.free_at[number] = free
        self.unfiled.add(leaf)

    def file_leaves(self) -> None:
        """Bring `by_fill` up to date; it is read far less often than leaves change."""
        for leaf in self.unfiled:
            fill, old = self.filed[leaf]
            for free in range(self.top + 1):
                if old >> free & 1:
                    self._toggle(free, fill, leaf)
            fill, has = self.leaf_fill[leaf], 0
            for free, count in enumerate(self.count):
                if count[leaf]:
                    has |= 1 << free
                    self._toggle(free, fill, leaf)
            self.filed[leaf] = fill, has
        self.unfiled.clear()

    def _toggle(self, free: int, fill: int, leaf: int) -> None:
        """Add the leaf to, or remove it from, the groups of this free count and fill."""
        groups = self.by_fill[free]
        left = groups.get(fill, 0) ^ (1 << leaf)
        if left:
            groups[fill] = left
            self.fills[free] |= 1 << fill
        else:
            del groups[fill]
            self.fills[free] ^= 1 << fill

    def _move_share(self, number: int, share: int) -> None:
        bit = 1 << number
        for key in (self.share_at[number], share):
            if key:
                left = self.shares.get(key, 0) ^ bit
                if left:
                    self.shares[key] = left
                    self.share_keys |= 1 << key
                else:
                    del self.shares[key]
                    self.share_keys ^= 1 << key
        self.share_at[number] = share

    def _fill(self, leaf: int, milli: int) -> None:
        self.leaf_milli[leaf] += milli
        fill = -(-self.leaf_milli[leaf] // MILLI)
        if fill != self.leaf_fill[leaf]:
            self.leaf_fill[leaf] = fill
            self.unfiled.add(leaf)

    def copy(self) -> PoolIndex:
        twin = PoolIndex(self.layout, self.top)
        twin.share_keys = self.share_keys
        twin.bits, twin.fills = self.bits.copy(), self.fills.copy()
        twin.shares, twin.constraints = self.shares.copy(), self.constraints.copy()
        twin.by_fill = [groups.copy() for groups in self.by_fill]
        twin.filed, twin.unfiled = self.filed.copy(), self.unfiled.copy()
        twin.count = [count[:] for count in self.count]
        for name in ("leaf_milli", "leaf_fill", "free_at", "share_at", "small_at"):
            setattr(twin, name, getattr(self, name)[:])
        return twin


class CapacityIndex:
    """The pools of a cluster by GPU model, and the position of each slot in them."""

    def __init__(
        self, pools: dict[str, PoolIndex], model_of: list[str | None], number_of: list[int]
    ) -> None:
        self.pools, self.model_of, self.number_of = pools, model_of, number_of
        # The data of the strategy `fragmentation` on all pools.
        self.gradient: object = None

    def refresh(self, state: Columns, slot: int) -> None:
        """Update the index from the columns of a slot."""
        model = self.model_of[slot]
        if model is None:
            return
        pool = self.pools[model]
        partial = state.partial[slot]
        if state.usable[slot]:
            share = max(partial.values()) if partial else 0
            pool.refresh(self.number_of[slot], state.free[slot], share, state.small[slot])
        else:
            pool.refresh(self.number_of[slot], -1, 0, state.small[slot])

    def facts_changed(self, state: Columns, slot: int) -> None:
        """Update the remembered constraints after changed labels, taints or shares of a node."""
        model, node = self.model_of[slot], state.facts[slot]
        if model is None or node is None:
            return
        pool = self.pools[model]
        bit = 1 << self.number_of[slot]
        for key, mask in pool.constraints.items():
            pool.constraints[key] = mask | bit if _admits(node, key) else mask & ~bit

    def admitted(self, state: Columns, pool: PoolIndex, pod_set: PodSetSpec) -> int:
        """Return the nodes of the pool that admit the pod set (constraints.py)."""
        key = (pod_set.nodes, pod_set.is_share, pod_set.avoids_gpus)
        mask = pool.constraints.get(key)
        if mask is None:
            mask = 0
            for number, slot in enumerate(pool.layout.slots):
                node = state.facts[slot]
                if node is not None and _admits(node, key):
                    mask |= 1 << number
            if len(pool.constraints) >= MAX_CONSTRAINTS:
                pool.constraints.clear()
            pool.constraints[key] = mask
        return mask

    def copy(self) -> CapacityIndex:
        pools = {model: pool.copy() for model, pool in self.pools.items()}
        return CapacityIndex(pools, self.model_of, self.number_of)


def index_of(state: Columns) -> CapacityIndex:
    """Build the index of these columns from scratch."""
    known = ((slot, node) for slot, node in enumerate(state.facts) if node is not None)
    index = CapacityIndex({}, [None] * len(state.facts), [-1] * len(state.facts))
    for model, layout in layouts(known, len(state.levels)).items():
        index.pools[model] = PoolIndex(layout, max(state.total[slot] for slot in layout.slots))
        for number, slot in enumerate(layout.slots):
            index.model_of[slot] = model
            index.number_of[slot] = number
    for slot in range(len(state.facts)):
        index.refresh(state, slot)
    return index


def _admits(node: Node, key: Constraint) -> bool:
    return lets_in(node, node.taints, *key)
