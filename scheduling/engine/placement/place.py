"""Place one job on a statement: a gang whole or not at all, other jobs pod by pod."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scheduling.engine.cluster import ClusterState
from scheduling.engine.index import PoolIndex
from scheduling.engine.placement.fit import share_milli
from scheduling.engine.placement.pods import domains_at, fill
from scheduling.engine.placement.request import HYPER, level_number, misconfigured
from scheduling.engine.placement.strategies import STRATEGIES, Strategy
from scheduling.engine.placement.view import View
from scheduling.engine.statement import Statement
from scheduling.engine.types import JobRequest, PodPlacement


@dataclass(frozen=True, slots=True)
class PlacementFailure:
    """Nothing was placed. `pod_set` is the one that did not fit; `misconfigured` says why no
    cluster could ever take the job as it is written."""

    pod_set: int
    misconfigured: str = ""
    avoid: frozenset[str] = frozenset()


# Groups tried for a job that has to lie in one of them, when its pod sets compete inside.
MAX_GROUPS_TRIED = 64

# The group that all pod sets of a job have to share: level (HYPER: hyper-nodes) and name.
Within = tuple[int, str]
# A pod set's number and the view its pods were placed through.
Part = tuple[int, View]


def place_job(
    statement: Statement,
    job: JobRequest,
    *,
    strategy: str,
    counts: tuple[int, ...] | None = None,
    avoid: frozenset[str] = frozenset(),
) -> tuple[PodPlacement, ...] | PlacementFailure:
    """Find places for the pods of `job` that hold none yet and allocate them on the statement.

    `counts`: at most this many pods of each pod set in this call (None: all that are missing).
    A gang gets at least `min_count` (or `count`) pods of every set or nothing; a job that is no
    gang gets what fits. Ordinals rise along the topology: neighbouring ranks, neighbouring nodes.
    On failure the statement is unchanged. `avoid`: nodes not to use.
    """
    state = statement.state
    wrong = misconfigured(job, job.strategy or strategy, tuple(STRATEGIES), state.levels)
    if wrong:
        return PlacementFailure(0, wrong)
    shape = None
    if not state.held_by(job.id):
        levels = (job.required_level, job.preferred_level)
        shape = (job.pod_sets, job.strategy or strategy, job.kind, job.gang, levels, counts, avoid)
        known = state.infeasible.get(shape)
        if known is not None and known[0] == state.version:
            return PlacementFailure(known[1], avoid=avoid)
    parts = _Attempt(state, job, STRATEGIES[job.strategy or strategy], counts, avoid).run()
    if isinstance(parts, int):
        if shape is not None:
            statement.remember_infeasible(shape, parts)
        return PlacementFailure(parts, avoid=avoid)
    return _allocate(statement, job, parts)


def _allocate(
    statement: Statement, job: JobRequest, parts: Sequence[Part]
) -> tuple[PodPlacement, ...]:
    """Give the places found their ordinals, in topology order, and book them."""
    by_set: dict[int, list[PodPlacement]] = {}
    for index, view in parts:
        view.taken.sort(key=_by_number)
        by_set.setdefault(index, []).extend(p for _, p in view.taken)
    held = statement.state.held_by(job.id)
    placed: list[PodPlacement] = []
    for index in sorted(by_set):
        missing = missing_ordinals(held, index, job.pod_sets[index].count)
        for p, ordinal in zip(by_set[index], missing, strict=False):
            whole = PodPlacement(index, ordinal, p.node, p.devices, p.milli, p.nics)
            placed.append(whole)
    for p in placed:
        statement.adopt(job, p)
    return tuple(placed)


def _by_number(taken: tuple[int, PodPlacement]) -> int:
    return taken[0]


def missing_ordinals(held: Mapping[tuple[int, int], object], index: int, count: int) -> list[int]:
    """Ordinals of a pod set that hold no place, ascending."""
    if not held:
        return list(range(count))
    return [ordinal for ordinal in range(count) if (index, ordinal) not in held]


class _Attempt:
    """One job, its pods still missing (`want`) and how many of them it cannot do without."""

    def __init__(
        self,
        state: ClusterState,
        job: JobRequest,
        how: Strategy,
        counts: tuple[int, ...] | None,
        avoid: frozenset[str],
    ) -> None:
        self.state, self.job, self.how, self.avoid = state, job, how, avoid
        self.held = state.held_by(job.id)
        self.want: list[int] = []
        self.least: list[int] = []
        for index, pod_set in enumerate(job.pod_sets):
            has = sum(1 for at, _ in self.held if at == index) if self.held else 0
            missing = pod_set.count - has
            want = missing if counts is None else min(missing, max(counts[index], 0))
            if pod_set.slice_size:
                want -= want % pod_set.slice_size
            least = pod_set.count if pod_set.min_count is None else pod_set.min_count
            self.want.append(want)
            self.least.append(max(least - has, 0) if job.gang else 0)

    def run(self) -> list[Part] | int:
        """What was taken, by pod set; or the pod set that did not fit, nothing being taken."""
        for index, least in enumerate(self.least):
            if least > self.want[index]:
                return index
        if self.job.required_level:
            return self._in_one_group(self.job.required_level)
        if self.job.preferred_level:
            found = self._in_one_group(self.job.preferred_level)
            if not isinstance(found, int):
                return found
        return self._together(None)

    def _together(self, within: Within | None) -> list[Part] | int:
        """All pod sets jointly; when they compete, each its least first and then more."""
        parts = self._sets(self.want, self.least, within)
        if isinstance(parts, int) and len(self.want) > 1 and 0 < sum(self.least) < sum(self.want):
            parts = self._sets(self.least, self.least, within)
            if not isinstance(parts, int):
                for index in range(len(self.want)):
                    more = self.want[index] - sum(len(v.taken) for i, v in parts if i == index)
                    parts += self._set(index, more, 0, parts, within) or []
        return parts

    def _sets(self, want: list[int], least: list[int], within: Within | None) -> list[Part] | int:
        """Pod sets one after the other, the one with the least choice first."""
        sets = self.job.pod_sets
        order = range(len(sets)) if len(sets) == 1 else sorted(range(len(sets)), key=self._choice)
        parts: list[Part] = []
        for index in order:
            found = self._set(index, want[index], least[index], parts, within)
            if found is None:
                for _, view in reversed(parts):
                    view.undo()
                return index
            parts += found
        if not parts:
            return next((index for index in order if want[index]), 0)
        return parts

    def _choice(self, index: int) -> tuple[bool, int, int, int]:
        pod_set = self.job.pod_sets[index]
        models = len(pod_set.gpu_models) or 1 << 30
        return not pod_set.required_level, models, -pod_set.gpus, index

    def _set(
        self, index: int, want: int, least: int, parts: list[Part], within: Within | None
    ) -> list[Part] | None:
        """One pod set: a gang's in one pool, the first that holds all it wants (else its least);
        other pods pool by pool. None when `least` do not fit."""
        if want <= 0:
            return []
        if not least:
            return self._pool_by_pool(index, want, parts, within)
        for target in (want, least) if least < want else (want,):
            for pool, milli, mask in self._pools(index, within):
                view = self._view(index, pool, milli, mask, parts)
                if fill(view, index, self.job, self.how, want, target):
                    return [(index, view)]
        return None

    def _pool_by_pool(
        self, index: int, want: int, parts: list[Part], within: Within | None
    ) -> list[Part]:
        found: list[Part] = []
        for pool, milli, mask in self._pools(index, within):
            view = self._view(index, pool, milli, mask, [*parts, *found])
            done = fill(view, index, self.job, self.how, want, 0)
            if done:
                found.append((index, view))
                want -= done
            if not want or (done and self.job.pod_sets[index].required_level):
                break
        return found

    def _pools(self, index: int, within: Within | None) -> Iterator[tuple[PoolIndex, int, int]]:
        """Pools in the order the pod set prefers: the index, GPU-milli per device, nodes."""
        state, pod_set = self.state, self.job.pod_sets[index]
        pools = state.index.pools
        for model in pod_set.gpu_models or pools:
            pool = pools.get(model)
            if pool is None:
                continue
            mask = state.index.admitted(state, pool, pod_set.node_selector, pod_set.tolerations)
            if within is not None:
                mask &= group_nodes(pool, within)
            for name in self.avoid:
                slot = state.slot_of.get(name)
                if slot is not None and state.index.model_of[slot] == model:
                    mask &= ~(1 << state.index.number_of[slot])
            if not pod_set.gpu_memory_mib:
                yield pool, pod_set.gpu_milli, mask
                continue
            for size, nodes in pool.layout.memory_sizes:
                milli = share_milli(size, pod_set)
                if milli:
                    yield pool, milli, mask & nodes

    def _view(
        self, index: int, pool: PoolIndex, milli: int, mask: int, parts: Sequence[Part]
    ) -> View:
        view = View(self.state, pool, self.job.pod_sets[index], milli, mask)
        places = self.state.index
        for (pod_set, _), booking in self.held.items():
            slot = self.state.slot_of.get(booking.placement.node)
            if slot is not None and places.model_of[slot] == pool.layout.model:
                view.note(places.number_of[slot], pod_set == index)
        for other, part in parts:
            if part.pool is pool:
                for number, _ in part.taken:
                    view.note(number, other == index)
        return view

    def _in_one_group(self, name: str) -> list[Part] | int:
        """All pod sets in one group of the named level or, if the strategy packs, of a narrower
        one; the groups with the least room to spare first."""
        widest = level_number(name, self.state.levels)
        packs = self.how.packs and widest != HYPER
        failed: list[Part] | int = 0
        for level in range(0 if packs else widest, widest + 1):
            for key in self._groups_with_room(level)[:MAX_GROUPS_TRIED]:
                failed = self._together((level, key))
                if not isinstance(failed, int):
                    return failed
        return failed

    def _groups_with_room(self, level: int) -> list[str]:
        """Groups where each pod set alone would fit, the tightest first, then by name."""
        room: dict[str, int] | None = None
        for index, want in enumerate(self.want):
            least = max(self.least[index], 1)
            if want <= 0:
                continue
            best: dict[str, int] = {}
            for pool, milli, mask in self._pools(index, None):
                view = self._view(index, pool, milli, mask, ())
                held = view.in_groups(*view.capacity(), level)
                keys = domains_at(view, level).keys
                for group in held.nonzero()[0].tolist():
                    best[keys[group]] = max(best.get(keys[group], 0), int(held[group]))
            fits = {key: pods for key, pods in best.items() if pods >= least}
            weight = max(self.job.pod_sets[index].gpus, 1)
            if room is None:
                room = {key: pods * weight for key, pods in fits.items()}
            else:
                room = {key: room[key] + pods * weight for key, pods in fits.items() if key in room}
        near = self._groups_held(level)
        found = room or {}
        return sorted((k for k in found if not near or k in near), key=lambda k: (found[k], k))

    def _groups_held(self, level: int) -> set[str]:
        """Groups of the level in which the job already has pods."""
        places = self.state.index
        held: set[str] = set()
        for booking in self.held.values():
            slot = self.state.slot_of.get(booking.placement.node)
            model = None if slot is None else places.model_of[slot]
            if slot is not None and model is not None:
                layout = places.pools[model].layout
                domains = layout.hyper if level == HYPER else layout.levels[level]
                group = int(domains.of[places.number_of[slot]])
                if group >= 0:
                    held.add(domains.keys[group])
        return held


def group_nodes(pool: PoolIndex, within: Within) -> int:
    """Nodes of a pool in the named group."""
    level, key = within
    domains = pool.layout.hyper if level == HYPER else pool.layout.levels[level]
    group = domains.id_of.get(key)
    return 0 if group is None else domains.masks[group]
