"""Whether a blocked job would fit if all that it may take were gone: a bound on every plan.

A plan is costly, and one that fails would be made again at every event. Why it fails is mostly
known without one: what those hold from whom nothing may be taken lies on too many nodes, no group
of the network has room for all pods, CPU or memory is short, or quota refuses whoever goes. The
bound looks at each pod set alone, and neither at NICs nor at extended resources: it lets plans be
made that fail, but keeps none from being made that would not.
"""

import math
from bisect import bisect_left

import numpy as np

from scheduling.engine.index import PoolIndex
from scheduling.engine.index_layout import Ints
from scheduling.engine.placement.fit import share_milli
from scheduling.engine.placement.request import level_number
from scheduling.engine.placement.view import View, numbers
from scheduling.engine.queueing.admission import Candidate
from scheduling.engine.queueing.claims import Claim
from scheduling.engine.queueing.holdings import Freed
from scheduling.engine.queueing.relief import allows_without
from scheduling.engine.queueing.state import SchedulerState
from scheduling.engine.types import MILLI, PodSet


def may_succeed_at(state: SchedulerState, claim: Claim, candidate: Candidate, now: float) -> float:
    """When a plan has to be tried if nothing happens: not before enough has been held for as long
    as it is sure to be; inf = never, `now` if that is so already."""
    if (enough_at := claim.enough_at(now)) > now:
        return enough_at
    exposures = {whose: state.exposed.of(whose, now) for whose in claim.groups}

    def fits(by: float) -> bool:
        taken = [(tenant, exposure.by(by)) for (tenant, _), exposure in exposures.items()]
        if not allows_without(state.book, candidate.job.tenant, claim.asked, taken):
            return False
        return _Room(state, claim, candidate, state.exposed.freed(claim.groups, by)).suffices()

    if fits(now):
        return now
    times = sorted({at for exposure in exposures.values() for at, _, _ in exposure.later})
    if not times or not fits(times[-1]):
        return math.inf
    return times[bisect_left(times, True, key=fits)]


class _Room:
    """What is free and what is given back, as the pods of a job see it."""

    def __init__(
        self, state: SchedulerState, claim: Claim, candidate: Candidate, freed: Freed
    ) -> None:
        self._cluster = state.cluster
        self._job, self._counts = candidate.job, candidate.counts
        self._avoid = claim.record.blamed
        self._freed = freed

    def suffices(self) -> bool:
        """Whether each pod set of a gang finds room, were it alone; of another job whatever fits
        is placed, so any pod does."""
        asked = zip(self._job.pod_sets, self._counts, strict=True)
        sets = [(s, count) for s, count in asked if count]
        if self._job.gang:
            return all(self._holds(s, count) for s, count in sets)
        return any(self._holds(s, 1) for s, _ in sets)

    def _holds(self, s: PodSet, count: int) -> bool:
        if not s.gpus:
            return True  # it may be on any node, of any GPU model
        cluster = self._cluster
        pool = cluster.index.pools.get(s.gpu_models[0])
        sizes = () if pool is None else pool.layout.memory_sizes
        shares = [milli for size, _ in sizes if (milli := share_milli(size, s))]
        if pool is None or not shares:
            return False
        view = View(cluster, pool, s, min(shares), self._nodes(pool, s))
        at, pods = self._capacity(view)
        if name := self._job.required_level:
            groups = view.in_groups(at, pods, level_number(name, cluster.levels))
            return int(groups.max(initial=0)) >= count
        if name := s.required_level:
            groups = view.in_groups(at, pods, level_number(name, cluster.levels))
            size = s.slice_size
            most = (groups // size * size).sum() if size else groups.max(initial=0)
            return int(most) >= count
        return view.room(at, pods) >= count

    def _nodes(self, pool: PoolIndex, s: PodSet) -> int:
        """The nodes where pods of the set may be, be anything free there or not."""
        cluster, usable = self._cluster, 0
        for nodes in pool.bits:
            usable |= nodes
        mask = usable & cluster.index.admitted(cluster, pool, s)
        for name in self._avoid:
            slot = cluster.slot_of.get(name)
            if slot is not None and cluster.index.model_of[slot] == pool.layout.model:
                mask &= ~(1 << cluster.index.number_of[slot])
        return mask

    def _capacity(self, view: View) -> tuple[Ints, Ints]:
        """Numbers of nodes that would hold pods of the set, and how many each: not fewer than it
        really would."""
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
        """How often there is so much room on the GPUs of each node that are held in shares."""
        partial, shares = self._cluster.partial, self._freed.shares
        found = np.zeros(len(partial), np.int64)
        for slot in shares if milli == MILLI else slots.tolist():
            left = dict(partial[slot])
            for device, more in shares.get(slot, {}).items():
                left[device] = left.get(device, 0) + more
            found[slot] = sum(part // milli for part in left.values())
        return found[slots]
