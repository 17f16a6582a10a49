"""One pod set's view of one pool while its pods are being placed.

Strategies ask the view for the next node. It knows which nodes are allowed, what each pod needs
and where the job already holds pods. It takes the resources of each placed pod immediately, so the
next question sees what is left.
"""

from typing import Final

import numpy as np

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.index import PoolIndex
from scheduling.engine.cluster.index_layout import Ints
from scheduling.engine.cluster.lifetimes import LEFT_FREE_S, growth, mean_left
from scheduling.engine.placement.fit import (
    devices_on,
    nics_on,
    opened_by_memory,
    pods_of_rest,
    rest_fits,
    share_beyond,
    shares_by_memory,
)
from scheduling.engine.placement.request import HYPER
from scheduling.engine.types import MILLI, PodPlacement, PodSetSpec


def numbers(mask: int, size: int) -> Ints:
    """Return the node numbers in a bit set, ascending."""
    raw = np.frombuffer(mask.to_bytes((size + 7) >> 3, "little"), np.uint8)
    # `nonzero` is several times faster on booleans than on bytes.
    return np.unpackbits(raw, bitorder="little").view(np.bool_).nonzero()[0]


def first(mask: int) -> int:
    """Return the smallest node number in a non-empty bit set."""
    return (mask ^ (mask - 1)).bit_length() - 1  # mask & -mask passes over a long set twice as much


# How many nodes per free count to compare by how long their pods will stay.
LOOKED_AT: Final = 8
# Scan large bit sets in parts of this many bits: each step costs as much as the integer is long.
PART: Final = 1024
PART_MASK = (1 << PART) - 1


class PoolView:
    """The nodes of a pool, as one pod set may use them.

    `mask`: nodes allowed now; `base`: the same without the current `scope`. `gpus`, `milli`: what
    each pod takes. `own`: nodes that hold pods of the job; `pods_at`, `pods_in_leaf`: how many they
    hold. `taken`: what `place` took, with node numbers. `declared_s`: run time of the job in
    seconds, None = not known.
    """

    def __init__(
        self,
        state: ClusterState,
        pool: PoolIndex,
        pod_set: PodSetSpec,
        milli: int,
        mask: int,
        declared_s: float | None = None,
    ) -> None:
        self.state = state
        self.pool = pool
        self.layout = pool.layout
        self.pod_set = pod_set
        self.gpus = pod_set.gpus
        self.milli = milli
        self.declared_s = declared_s
        self.mask = mask
        self.base = mask
        self.one_leaf = False
        self.tiers: object = None
        self.share = milli < MILLI
        self.own = 0
        self.pods_at: dict[int, int] = {}
        self.pods_in_leaf: dict[int, int] = {}
        self.set_at: dict[int, int] = {}
        self.set_in_leaf: dict[int, int] = {}
        self.taken: list[tuple[int, PodPlacement]] = []

    # --- what the job holds -------------------------------------------------------------------
    def note(self, number: int, same_set: bool) -> None:
        """Note a pod of the job on a node; this may close the node or leaf by a replica limit."""
        self.own |= 1 << number
        self.pods_at[number] = self.pods_at.get(number, 0) + 1
        limit = self.pod_set.max_per_node
        if same_set and limit is not None:
            self.set_at[number] = held = self.set_at.get(number, 0) + 1
            if held >= limit:
                self.close(1 << number)
        self.note_leaf(self.layout.leaf_of[number], same_set)

    def note_leaf(self, leaf: int, same_set: bool) -> None:
        """Note a pod of the job in a leaf, possibly on a node of another pool."""
        self.pods_in_leaf[leaf] = self.pods_in_leaf.get(leaf, 0) + 1
        limit = self.pod_set.max_per_leaf
        if same_set and limit is not None:
            self.set_in_leaf[leaf] = held = self.set_in_leaf.get(leaf, 0) + 1
            if held >= limit:
                self.close(self.layout.levels[0].masks[leaf])

    def close(self, nodes: int) -> None:
        """Allow no more pods of the set on these nodes."""
        self.mask &= ~nodes
        self.base &= ~nodes

    def scope(self, nodes: int, one_leaf: bool = False) -> None:
        """Restrict the search to these nodes; `one_leaf`: they are all in one leaf."""
        self.mask = self.base & nodes
        self.one_leaf = one_leaf

    def limit_at(self, number: int) -> int:
        """Return how many pods of the set its replica limits still allow on an allowed node."""
        limit, leaf_limit = self.pod_set.max_per_node, self.pod_set.max_per_leaf
        allowed = 1 << 30
        if limit is not None:
            allowed = limit - self.set_at.get(number, 0)
        if leaf_limit is not None:
            leaf = self.layout.leaf_of[number]
            allowed = min(allowed, leaf_limit - self.set_in_leaf.get(leaf, 0))
        return allowed

    # --- questions ----------------------------------------------------------------------------
    def fits(self, number: int, pods: int = 1) -> bool:
        """Whether the node has everything but GPUs for this many more pods."""
        if pods > 1 and self.limit_at(number) < pods:
            return False
        return rest_fits(self.state, self.layout.slots[number], self.pod_set, pods)

    def fullest(self, gpus: int, pods: int = 1, among: int = -1) -> int:
        """Return the first fitting node with the fewest free GPUs, at least `gpus`; -1 if none."""
        bits, mask = self.pool.bits, self.mask & among
        for free in range(gpus, len(bits)):
            number = self._first_that_fits(bits[free] & mask, pods)
            if number >= 0:
                return number
        return -1

    def _first_that_fits(self, found: int, pods: int = 1) -> int:
        """Return the smallest of these node numbers that `fits` the pods; -1 if none does."""
        if not found:
            return -1
        number = first(found)
        if self.fits(number, pods):
            return number
        low = number + 1
        found >>= low
        while found:
            part = found & PART_MASK
            while part:
                lowest = part & -part
                number = low + lowest.bit_length() - 1
                if self.fits(number, pods):
                    return number
                part ^= lowest
            found >>= PART
            low += PART
        return -1

    def emptiest(self, among: int = -1) -> int:
        """Return the first node with the most free GPUs that fits one pod; -1 if none does."""
        bits, mask = self.pool.bits, self.mask & among
        for free in range(len(bits) - 1, self.gpus - 1, -1):
            number = self._first_that_fits(bits[free] & mask)
            if number >= 0:
                return number
        return self.tightest_share(among) if self.share else -1

    def tightest_share(self, among: int = -1) -> int:
        """Return the node whose largest free part of a used GPU holds the share most tightly.

        -1 if no partly used GPU has room for it.
        """
        keys, mask = self.pool.share_keys >> self.milli, self.mask & among
        while keys:
            key = self.milli + first(keys)
            found = self.pool.shares[key] & mask
            while found:
                number = first(found)
                if self.fits(number) and (key > self.milli or self.holds_share(number)):
                    return number
                found &= found - 1
            keys &= keys - 1
        return -1

    def holds_share(self, number: int) -> bool:
        """Whether a share that fits a partly used GPU in whole GPU-milli fits there exactly.

        A share by memory may need a little more than its whole GPU-milli.
        """
        if not self.pod_set.gpu_memory_mib:
            return True
        return bool(opened_by_memory(self.state, self.layout.slots[number], self.pod_set))

    def consolidated(self, gpus: int, pods: int) -> int:
        """Return the best node for this many GPUs of small pods; -1 if none fits.

        If the job declares its run time, this is the node from `joined`. Otherwise it is the
        fullest node; among equally full nodes, one in the leaf with the most small pods.
        """
        if self.declared_s is not None and gpus and not self.share:
            number = self.joined(gpus, pods, self.declared_s)
            if number >= 0:
                return number
        if self.one_leaf:
            return self.fullest(gpus, pods)
        pool, mask = self.pool, self.mask
        for free in range(gpus, len(pool.bits)):
            found = pool.bits[free] & mask
            if not found:
                continue
            if mask == self.layout.everything:
                number = self._by_leaf(free, pods)
            else:
                number = self._by_fill(found, pods)
            if number >= 0:
                return number
        return -1

    def joined(self, gpus: int, pods: int, declared_s: float) -> int:
        """Return the partly used node whose expected partly used time grows least; -1 if none fits.

        See lifetimes.py. Of the nodes with equally many free GPUs, it compares the first LOOKED_AT
        that fit, skipping idle ones. Ties go to the fullest node, then to the first.
        """
        state, slots, bits = self.state, self.layout.slots, self.pool.bits
        mean_s = mean_left(declared_s, 0.0)
        best, least = -1, 0.0
        for free in range(gpus, self.pool.top):  # with all of its GPUs free a node is idle
            left = free - gpus
            if best >= 0 and least <= LEFT_FREE_S * left:
                break
            found, part, low, looked = bits[free] & self.mask, 0, -PART, 0
            while (found or part) and looked < LOOKED_AT:
                if not part:
                    part, found, low = found & PART_MASK, found >> PART, low + PART
                    continue
                lowest = part & -part
                part ^= lowest
                number = low + lowest.bit_length() - 1
                if not self.fits(number, pods):
                    continue
                looked += 1
                slot = slots[number]
                if not state.allocated[slot]:
                    continue
                cost = growth(mean_s, state.outlook(slot), left)
                if best < 0 or cost < least:
                    best, least = number, cost
        return best

    def _by_leaf(self, free: int, pods: int) -> int:
        """Return the first fitting node with `free` GPUs, from the leaf with most small pods on."""
        pool, layout = self.pool, self.layout
        pool.file_leaves()
        fills, nodes = pool.fills[free], pool.bits[free]
        while fills:
            fill = fills.bit_length() - 1
            fills ^= 1 << fill
            leaves = pool.by_fill[free][fill]
            while leaves:
                leaf = first(leaves)
                leaves &= leaves - 1
                low = layout.leaf_low[leaf]
                inside = nodes >> low & ((1 << layout.leaf_size[leaf]) - 1)
                while inside:
                    if self.fits(low + first(inside), pods):
                        return low + first(inside)
                    inside &= inside - 1
        return -1

    def _by_fill(self, found: int, pods: int) -> int:
        """Like `_by_leaf`, but scan the nodes `found`, which selectors or limits left over."""
        at = numbers(found, self.layout.size)
        fill = np.frombuffer(self.pool.leaf_fill, np.int64)[self.layout.levels[0].of[at]]
        number = int(at[fill.argmax()])
        if self.fits(number, pods):
            return number
        for candidate in at[np.argsort(-fill, kind="stable")].tolist():
            if self.fits(candidate, pods):
                return int(candidate)
        return -1

    def capacity(self, among: int = -1) -> tuple[Ints, Ints]:
        """Return the numbers of nodes that fit at least one more pod, and how many each fits.

        Both are arrays of equal length; node numbers ascend.
        """
        pool, state, pod_set = self.pool, self.state, self.pod_set
        found = 0
        for free in range(self.gpus, len(pool.bits)):
            found |= pool.bits[free]
        if self.share:
            for key, nodes in pool.shares.items():
                if key >= self.milli:
                    found |= nodes
        at = numbers(found & self.mask & among, self.layout.size)
        slots = self.layout.slot_array[at]
        pods = np.frombuffer(state.pods, np.int64)[slots]
        if self.share:
            pods = np.minimum(pods, np.array([self._shares_on(s) for s in slots.tolist()], int))
        elif self.gpus:
            pods = np.minimum(pods, np.frombuffer(state.free, np.int64)[slots] // self.gpus)
        if pod_set.cpu_milli:
            cpu = np.frombuffer(state.cpu, np.int64)[slots]
            pods = np.minimum(pods, cpu // pod_set.cpu_milli)
        if pod_set.memory_mib:
            memory = np.frombuffer(state.memory, np.int64)[slots]
            pods = np.minimum(pods, memory // pod_set.memory_mib)
        if pod_set.nics or pod_set.extended:
            rest = [pods_of_rest(state, slot, pod_set) for slot in slots.tolist()]
            pods = np.minimum(pods, np.array(rest, np.int64))
        if pod_set.max_per_node is not None:
            limits = [pod_set.max_per_node - self.set_at.get(n, 0) for n in at.tolist()]
            pods = np.minimum(pods, np.array(limits, np.int64))
        some = pods > 0
        return at[some], pods[some]

    def _shares_on(self, slot: int) -> int:
        """Return how many pods with this share fit on a node's partly used and free GPUs."""
        if self.pod_set.gpu_memory_mib:
            return shares_by_memory(self.state, slot, self.pod_set)
        partly = sum(left // self.milli for left in self.state.partial[slot].values())
        return partly + self.state.free[slot] * (MILLI // self.milli)

    def room(self, at: Ints, pods: Ints) -> int:
        """Return how many pods these nodes hold together, within the replica limits per leaf."""
        if self.pod_set.max_per_leaf is not None:
            pods = self.in_groups(at, pods, 0)
        return int(pods.sum())

    def in_groups(self, at: Ints, pods: Ints, level: int) -> Ints:
        """Return how many pods each group of a level holds, within the replica limits per leaf.

        The array is indexed by group id.
        """
        domains = self.layout.levels[level] if level >= 0 else self.layout.hyper
        of, size = domains.of[at], len(domains.keys)
        if level == HYPER:  # at every other level, each node is in a group
            known = of >= 0
            of, at, pods = of[known], at[known], pods[known]
        if self.pod_set.max_per_leaf is not None:
            leaves = self.layout.levels[0].of[at]
            pairs, which = np.unique(of * self.layout.size + leaves, return_inverse=True)
            of, leaves = pairs // self.layout.size, pairs % self.layout.size
            held = [self.set_in_leaf.get(leaf, 0) for leaf in leaves.tolist()]
            limits = self.pod_set.max_per_leaf - np.array(held, np.int64)
            pods = np.minimum(_sums(which, pods, len(pairs)), np.maximum(limits, 0))
        return _sums(of, pods, size)

    # --- taking -------------------------------------------------------------------------------
    def place(self, index: int, number: int, pods: int) -> int:
        """Take the resources of up to this many pods on a node; return how many fitted.

        Ordinals (-1 in `taken`) are assigned once all pods of the set have places.
        """
        state, slot = self.state, self.layout.slots[number]
        name = state.names[slot]
        beyond = 0
        if self.pod_set.gpu_memory_mib:
            node = state.facts[slot]
            assert node is not None
            beyond = share_beyond(node.gpu_memory_mib, self.pod_set)
        if self.pod_set.max_per_node is not None or self.pod_set.max_per_leaf is not None:
            pods = min(pods, self.limit_at(number))
        for done in range(pods):
            devices = devices_on(state, slot, self.pod_set, self.milli)
            if devices is None or (done and not rest_fits(state, slot, self.pod_set)):
                return done
            nics = nics_on(state, slot, self.pod_set, devices)
            if nics is None:
                return done
            p = PodPlacement(index, -1, name, devices, self.milli, nics, beyond)
            state.take(slot, p, self.pod_set)
            self.taken.append((number, p))
            self.note(number, True)
        return pods

    def undo(self) -> None:
        """Give back what `place` took; the view must not be used afterwards."""
        for number, p in reversed(self.taken):
            self.state.give_back(self.layout.slots[number], p, self.pod_set)
        self.taken.clear()


def _sums(groups: Ints, amounts: Ints, size: int) -> Ints:
    return np.bincount(groups, weights=amounts, minlength=size).astype(np.int64)
