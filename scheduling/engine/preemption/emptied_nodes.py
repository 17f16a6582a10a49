"""Nodes without the jobs that may go, as the pods of a waiting job would find them."""

from collections import Counter
from collections.abc import Collection, Mapping

import numpy as np

from scheduling.engine.admission.candidates import Candidate
from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.index import PoolIndex
from scheduling.engine.cluster.index_layout import Ints
from scheduling.engine.placement.fit import share_milli
from scheduling.engine.placement.pods import domains_at
from scheduling.engine.placement.request import level_number
from scheduling.engine.placement.view import PoolView, numbers
from scheduling.engine.running.holdings import Freed
from scheduling.engine.types import MILLI, PodSetSpec


class Emptied:
    """What is free plus what is `freed`.

    Each pod set is looked at alone, without NICs and extended resources: more seems to fit than
    really does, never less. `avoid`: nodes not to use.
    """

    def __init__(self, cluster: ClusterState, candidate: Candidate, freed: Freed) -> None:
        self._cluster = cluster
        self._job, self._counts = candidate.job, candidate.counts
        self._avoid = candidate.avoid
        self._freed = freed

    def suffice(self) -> bool:
        """Return whether each pod set of a gang finds room.

        Of a job that is no gang, whatever fits is placed, so room for any pod is enough.
        """
        asked = zip(self._job.pod_sets, self._counts, strict=True)
        sets = [(s, count) for s, count in asked if count]
        if self._job.gang:
            return all(self._hold(s, count) for s, count in sets)
        return any(self._hold(s, 1) for s, _ in sets)

    def least(self, weight: Mapping[str, int]) -> Collection[str]:
        """Return nodes that hold the pods, those of the least weight per pod first.

        Of a job that is no gang, as many pods as fit; of a gang, no nodes if not all pods fit.
        `weight`: of each node; 0 if the node is not named.
        """
        found: dict[str, None] = {}
        for s, count in zip(self._job.pod_sets, self._counts, strict=True):
            if not (s.gpus and count):
                continue
            chosen, left = self._cheapest(s, count, weight, found)
            if left > 0 and self._job.gang:
                return ()
            found.update(dict.fromkeys(chosen))
        return found

    def _cheapest(
        self, s: PodSetSpec, count: int, weight: Mapping[str, int], taken: Collection[str]
    ) -> tuple[list[str], int]:
        """Return nodes for `count` pods of the set, and how many of these pods they do not hold."""
        view = self._view(s)
        if view is None:
            return [], count
        at, pods = self._capacity(view)
        names = [self._cluster.names[slot] for slot in view.layout.slot_array[at].tolist()]
        level, size = self._together(s, count)
        of = np.zeros_like(at)
        if level:
            of = domains_at(view, level_number(level, self._cluster.levels)).of[at]
        leaves = view.layout.levels[0].of[at]
        ways = zip(names, pods.tolist(), of.tolist(), leaves.tolist(), strict=True)
        held, in_leaf = Counter[int](), Counter[int]()
        chosen: dict[int, list[str]] = {}
        for _, name, fits, group, leaf in sorted((weight.get(w[0], 0) // w[1], *w) for w in ways):
            if count <= 0:
                break
            more = min(fits, (s.max_per_leaf or fits) - in_leaf[leaf])
            if group < 0 or more <= 0 or name in taken:
                continue
            chosen.setdefault(group, []).append(name)
            count += held[group] // size * size
            held[group] += more
            in_leaf[leaf] += more * (s.max_per_leaf is not None)
            count -= held[group] // size * size
        return [
            name for group, mine in chosen.items() if held[group] >= size for name in mine
        ], count

    def _together(self, s: PodSetSpec, count: int) -> tuple[str, int]:
        """Return the level whose groups hold pods together, and how many; "", 1: anywhere."""
        if self._job.required_level:
            return self._job.required_level, count
        if s.required_level:
            return s.required_level, s.slice_size or count
        return "", 1

    def _view(self, s: PodSetSpec) -> PoolView | None:
        """Return the nodes where pods of the set may be; None if there are none."""
        pool = self._cluster.index.pools.get(s.gpu_models[0])
        sizes = () if pool is None else pool.layout.memory_sizes
        shares = [milli for size, _ in sizes if (milli := share_milli(size, s))]
        if pool is None or not shares:
            return None
        return PoolView(self._cluster, pool, s, min(shares), self._nodes(pool, s))

    def _hold(self, s: PodSetSpec, count: int) -> bool:
        if not s.gpus:
            return True  # it may be on any node, of any GPU model
        view = self._view(s)
        if view is None:
            return False
        at, pods = self._capacity(view)
        level, size = self._together(s, count)
        if not level:
            return view.room(at, pods) >= count
        groups = view.in_groups(at, pods, level_number(level, self._cluster.levels))
        return int((groups // size * size).sum()) >= count

    def _nodes(self, pool: PoolIndex, s: PodSetSpec) -> int:
        """Return the nodes where pods of the set may be, whether anything is free there or not."""
        cluster, usable = self._cluster, 0
        for nodes in pool.bits:
            usable |= nodes
        mask = usable & cluster.index.admitted(cluster, pool, s)
        for name in self._avoid:
            slot = cluster.slot_of.get(name)
            if slot is not None and cluster.index.model_of[slot] == pool.layout.model:
                mask &= ~(1 << cluster.index.number_of[slot])
        return mask

    def _capacity(self, view: PoolView) -> tuple[Ints, Ints]:
        """Return the numbers of nodes that would hold pods of the set, and how many pods each.

        The number of pods is never too low.
        """
        cluster, s, freed = self._cluster, view.pod_set, self._freed
        at = numbers(view.mask, view.layout.size)
        slots = view.layout.slot_array[at]
        gpus = np.frombuffer(cluster.free, np.int64)[slots] + freed.gpus[slots]
        if view.share:
            pods = gpus * (MILLI // view.milli) + self._on_shared(slots, view.milli)
        else:
            pods = (gpus + self._on_shared(slots, MILLI)) // s.gpus
        for left, more, each in (
            (cluster.pods, freed.pods, 1),
            (cluster.cpu, freed.cpu, s.cpu_milli),
            (cluster.memory, freed.memory, s.memory_mib),
        ):
            if each:
                left_there = np.frombuffer(left, np.int64)[slots] + more[slots]
                pods = np.minimum(pods, left_there // each)
        if s.max_per_node is not None:
            pods = np.minimum(pods, s.max_per_node)
        some = pods > 0
        return at[some], pods[some]

    def _on_shared(self, slots: Ints, milli: int) -> Ints:
        """Count for each node how many parts of `milli` fit on its GPUs that are held in shares.

        What a GPU has left beyond whole milli-GPU counts as one milli more.
        """
        partial, shares = self._cluster.partial, self._freed.shares
        found = np.zeros(len(partial), np.int64)
        for slot in shares if milli == MILLI else slots.tolist():
            left = dict(partial[slot])
            for device in self._cluster.remainders.get(slot, {}):
                left[device] = left.get(device, 0) + 1
            for device, more in shares.get(slot, {}).items():
                left[device] = left.get(device, 0) + more
            found[slot] = sum(part // milli for part in left.values())
        return found[slots]
