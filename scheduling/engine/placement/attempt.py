"""Find places for all pods of one job: pod set by pod set, pools by preference."""

from collections.abc import Iterable, Sequence

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.index import PoolIndex
from scheduling.engine.placement.fit import rest_fits, share_milli
from scheduling.engine.placement.joint import MAX_EFFORT, Joint, JointPodSet, Share
from scheduling.engine.placement.mixtures import Effort
from scheduling.engine.placement.plan import JobShape
from scheduling.engine.placement.pod_rules import Around, mask_of_nodes, may_be
from scheduling.engine.placement.pods import domains_at, fill, group_key
from scheduling.engine.placement.request import HYPER, level_number, shares_leaves
from scheduling.engine.placement.ruled import fill_by_rules
from scheduling.engine.placement.strategies.by_name import compares
from scheduling.engine.placement.strategies.gradient import best
from scheduling.engine.placement.view import PoolView
from scheduling.engine.types import JobRequest, PodRules, PodSetSpec

# How many groups to try for a job that must lie in one group where its pod sets may compete.
MAX_GROUPS_TRIED = 64

# The group that all pod sets of a job must share: level (HYPER: hyper-nodes) and name.
Within = tuple[int, str]
# The number of a pod set, and the view through which its pods were placed.
Part = tuple[int, PoolView]


class Attempt:
    """One attempt to place a job.

    `want`: missing pods by pod set; `least`: the fewest that will do. After a failure, `gave_up`:
    places may exist all the same; `short`: what fits of a gang (as in `PlacementFailure`).
    """

    def __init__(
        self, state: ClusterState, job: JobRequest, plan: JobShape, avoid: frozenset[str]
    ) -> None:
        self.state, self.job, self.plan, self.how, self.avoid = state, job, plan, plan.how, avoid
        self.held = state.held_by(job.id)
        self.want, self.least = plan.want, plan.least
        self.ruled = plan.ruled
        self.gave_up = bool(plan.ruled)
        self.short: tuple[int, int] | None = None
        if self.held:
            self._count_held()

    def _count_held(self) -> None:
        """Subtract the pods that already hold a place from `want` and `least`."""
        want, least = [], []
        for index, pod_set in enumerate(self.job.pod_sets):
            has = sum(1 for at, _ in self.held if at == index)
            # A pod set that was made smaller holds more pods until the surplus is gone.
            missing = min(self.plan.want[index], max(pod_set.count - has, 0))
            want.append(missing - missing % max(pod_set.slice_size, 1))
            least.append(max(self.plan.least[index] - has, 0))
        self.want, self.least = tuple(want), tuple(least)

    def run(self) -> list[Part] | int:
        """Return what was taken, by pod set, or the pod set that did not fit (nothing is taken)."""
        for index, least in enumerate(self.least):
            if least > self.want[index]:
                return index
        found = self._by_turns()
        if isinstance(found, int) and self._may_be_missed():
            return self._jointly() or found
        return found

    def _by_turns(self) -> list[Part] | int:
        """Place pod set after pod set, following the strategy."""
        if self.job.required_level:
            return self._in_one_group(self.job.required_level)
        near = self.job.preferred_level
        if not near and self.ruled and self.how.packs and self._stays_in_groups():
            near = self.state.levels[-1]
        if near:
            found = self._in_one_group(near)
            if not isinstance(found, int):
                return found
        return self._together(None)

    def _stays_in_groups(self) -> bool:
        """Whether the rules of a gang's pods let them lie close together in the network.

        A strategy that packs keeps gangs without rules together in any case.
        """
        rules = [s.rules for s in self.job.pod_sets if s.rules is not None]
        wide = any(r.spread or r.evenly or r.wishes or r.near for r in rules)
        return self.job.gang and sum(self.want) > 1 and not wide

    def _together(self, within: Within | None) -> list[Part] | int:
        """Place all pod sets; if they compete, first the least of each set and then more."""
        parts = self._sets(self.want, self.least, within)
        if isinstance(parts, int) and len(self.want) > 1 and 0 < sum(self.least) < sum(self.want):
            parts = self._sets(self.least, self.least, within)
            if not isinstance(parts, int):
                placed = [
                    sum(len(v.taken) for i, v in parts if i == index)
                    for index in range(len(self.want))
                ]
                parts += self._more(tuple(placed), parts, within)
        return parts

    def _sets(
        self, want: tuple[int, ...], least: tuple[int, ...], within: Within | None
    ) -> list[Part] | int:
        """Place pod sets one after the other, the one with the least choice first."""
        parts: list[Part] = []
        for index in self.plan.order:
            found = self._set(index, want[index], least[index], parts, within)
            if found is None:
                for _, view in reversed(parts):
                    view.undo()
                return index
            parts += found
        if not parts:
            return next((index for index in self.plan.order if want[index]), 0)
        return parts

    def _may_be_missed(self) -> bool:
        """Whether placing pod sets in turn may miss places for a gang.

        That is possible if the sets compete, or if the search looks at their nodes part by part.
        """
        sets = [s for s, least in zip(self.job.pod_sets, self.least, strict=True) if least]
        if not self.job.gang or self.held or not sets or self.ruled:
            return False
        by_parts = any(
            s.gpu_memory_mib or (s.anywhere and s.required_level) or shares_leaves(s) for s in sets
        )
        return len(sets) > 1 or by_parts or self.how.name == "e-spread"

    def _jointly(self) -> list[Part] | None:
        """Search places for all pod sets together, for all wanted pods or else for the least."""
        effort = Effort(MAX_EFFORT)
        groups: list[Within | None] = [None]
        if self.job.required_level:
            level = level_number(self.job.required_level, self.state.levels)
            groups = [(level, key) for key in self._groups_with_room(level)]
        for target in dict.fromkeys((self.want, self.least)):
            for within in groups:
                search = Joint(self.state, self.job, effort)
                found = search.find(self._asked(target, within))
                parts = None if found is None else self._taken(found, within)
                if parts is not None:
                    return parts + self._more(target, parts, within)
                self.gave_up |= search.gave_up or found is not None
                self.short = search.short if target == self.least else None
        return None

    def _asked(self, target: tuple[int, ...], within: Within | None) -> list[JointPodSet]:
        return [
            JointPodSet(index, s, pods, self.plan.wishes[index], tuple(self._pools(index, within)))
            for index, (s, pods) in enumerate(zip(self.job.pod_sets, target, strict=True))
            if pods
        ]

    def _taken(self, found: list[Share], within: Within | None) -> list[Part] | None:
        """Take the places found; None, with nothing taken, if NICs or shares do not work out."""
        parts: list[Part] = []
        sets = self.job.pod_sets
        for index, pool, pods in sorted(found, key=lambda f: _hardest_first(sets[f[0]])):
            mask = group_nodes(pool, within) if within is not None else pool.layout.everything
            view = self._view(index, pool, sets[index].gpu_milli, mask, parts)
            parts.append((index, view))
            for number, count in sorted(pods.items()):
                slot = pool.layout.slots[number]
                node = self.state.facts[slot]
                assert node is not None
                view.milli = share_milli(node.gpu_memory_mib, sets[index])
                fits = rest_fits(self.state, slot, sets[index], count)
                if not fits or view.place(index, number, count) < count:
                    for _, taken in reversed(parts):
                        taken.undo()
                    return None
        return parts

    def _more(
        self, placed: tuple[int, ...], parts: list[Part], within: Within | None
    ) -> list[Part]:
        """Place what is still wanted of each set, in the pools and groups where its pods are."""
        found: list[Part] = []
        for index, pods in enumerate(placed):
            more = self.want[index] - pods
            for _, view in [part for part in parts if part[0] == index]:
                if more <= 0:
                    break
                only = view.pool, self._group_of(index, view)
                done = self._pool_by_pool(index, more, [*parts, *found], within, only)
                more -= sum(len(view.taken) for _, view in done)
                found += done
        return found

    def _group_of(self, index: int, view: PoolView) -> int:
        """Return the nodes of the group that all pods of the set must share with its first pod.

        These are all nodes if the pods need not share a group.
        """
        wish = self.plan.wishes[index]
        if wish.required is None or wish.slice_size:
            return view.layout.everything
        domains = domains_at(view, wish.required)
        return domains.masks[int(domains.of[view.taken[0][0]])]

    def _set(
        self, index: int, want: int, least: int, parts: list[Part], within: Within | None
    ) -> list[Part] | None:
        """Place one pod set; None if `least` pods do not fit.

        The set of a gang goes to one pool, the first that holds all wanted pods, or else the
        least. Other pods go pool by pool, as do a gang's pods without GPUs if no pool holds all.
        """
        if want <= 0:
            return []
        if not least:
            return self._pool_by_pool(index, want, parts, within)
        for target in (want, least) if least < want else (want,):
            for pool, milli, mask in self._pools(index, within):
                view = self._view(index, pool, milli, mask, parts)
                if self._fill(view, index, want, target, parts):
                    return [(index, view)]
                for inside in self._insides(index, pool, mask) if index in self.ruled else ():
                    view = self._view(index, pool, milli, inside, parts)
                    if self._fill(view, index, want, target, parts):
                        return [(index, view)]
        if not self.job.pod_sets[index].anywhere:
            return None
        found = self._pool_by_pool(index, want, parts, within)
        if sum(len(view.taken) for _, view in found) >= least:
            return found
        for _, view in reversed(found):
            view.undo()
        return None

    def _fill(
        self, view: PoolView, index: int, want: int, least: int, parts: Sequence[Part]
    ) -> int:
        if index not in self.ruled:
            return fill(view, index, self.job, self.plan, want, least)
        around = Around(self.state, self._beside(parts))
        return fill_by_rules(view, index, self.job, self.plan, want, least, around)

    def _beside(self, parts: Sequence[Part]) -> Iterable[tuple[int, PodRules]]:
        """Yield the pods placed in this attempt that have rules or belong to groups, by slot."""
        for other, view in parts:
            rules = self.job.pod_sets[other].rules
            if rules is None:
                continue
            for number, _ in view.taken:
                yield view.layout.slots[number], rules

    def _insides(self, index: int, pool: PoolIndex, mask: int) -> Iterable[int]:
        """Yield subsets of the nodes to try for a set whose first pod restricts the others.

        There is one for each group or label value in which the first pod could be, largest first.
        """
        masks: list[int] = []
        wish, rules = self.plan.wishes[index], self.job.pod_sets[index].rules
        if wish.required is not None and not wish.slice_size:
            level = pool.layout.hyper if wish.required == HYPER else None
            masks += (level or pool.layout.levels[wish.required]).masks
        if rules is not None and rules.near is not None:
            domains = Around(self.state).domains(rules.near.keys[0])
            for value in range(domains.size):
                masks.append(mask_of_nodes(domains.of == value, pool.layout.slot_array))
        some = sorted([((m & mask).bit_count(), m & mask) for m in masks], reverse=True)
        for nodes, inside in some[:MAX_GROUPS_TRIED]:
            if nodes:
                yield inside

    def _pool_by_pool(
        self,
        index: int,
        want: int,
        parts: list[Part],
        within: Within | None,
        only: tuple[PoolIndex, int] | None = None,
    ) -> list[Part]:
        """Place what fits of `want` pods; `only`: a pool and the nodes of it to which to keep."""
        found: list[Part] = []
        for pool, milli, mask in self._pools(index, within):
            if only is not None and pool is not only[0]:
                continue
            inside = mask if only is None else mask & only[1]
            view = self._view(index, pool, milli, inside, [*parts, *found])
            done = self._fill(view, index, want, 0, [*parts, *found])
            if done:
                found.append((index, view))
                want -= done
            if not want or (done and self.job.pod_sets[index].required_level):
                break
        return found

    def _pools(self, index: int, within: Within | None) -> list[tuple[PoolIndex, int, int]]:
        """Return the pools in the set's order of preference: index, GPU-milli per device, nodes."""
        state, pod_set = self.state, self.job.pod_sets[index]
        pools = state.index.pools
        found: list[tuple[PoolIndex, int, int]] = []
        for model in self._models(index):
            pool = pools.get(model)
            if pool is None:
                continue
            mask = state.index.admitted(state, pool, pod_set)
            if within is not None:
                mask &= group_nodes(pool, within)
            for name in self.avoid:
                slot = state.slot_of.get(name)
                if slot is not None and state.index.model_of[slot] == model:
                    mask &= ~(1 << state.index.number_of[slot])
            if pod_set.rules is not None and index not in self.ruled:
                mask &= mask_of_nodes(may_be(Around(state), pod_set), pool.layout.slot_array)
            if not pod_set.gpu_memory_mib:
                found.append((pool, pod_set.gpu_milli, mask))
                continue
            for size, nodes in pool.layout.memory_sizes:
                milli = share_milli(size, pod_set)
                if milli:
                    found.append((pool, milli, mask & nodes))
        if len(found) > 1 and compares(state, self.how, pod_set):
            found.sort(key=lambda way: -best(PoolView(state, way[0], pod_set, way[1], way[2]))[1])
        return found

    def _view(
        self, index: int, pool: PoolIndex, milli: int, mask: int, parts: Sequence[Part]
    ) -> PoolView:
        job = self.job
        if parts and job.pod_sets[index].rules is not None and index not in self.ruled:
            may = may_be(Around(self.state, self._beside(parts)), job.pod_sets[index])
            mask &= mask_of_nodes(may, pool.layout.slot_array)
        view = PoolView(self.state, pool, job.pod_sets[index], milli, mask, job.declared_s)
        places = self.state.index
        for (pod_set, _), booking in self.held.items():
            slot = self.state.slot_of.get(booking.placement.node)
            model = None if slot is None else places.model_of[slot]
            if slot is not None and model is not None:
                _note(view, places.pools[model], places.number_of[slot], pod_set == index)
        for other, part in parts:
            for number, _ in part.taken:
                _note(view, part.pool, number, other == index)
        return view

    def _in_one_group(self, name: str) -> list[Part] | int:
        """Place all pod sets in one group of the named level, tightest group first.

        A strategy that packs tries the groups of narrower levels before.
        """
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
        """Return the groups in which each pod set alone would fit, tightest first, then by name."""
        room: dict[str, int] | None = None
        for index, want in enumerate(self.want):
            least = max(self.least[index], 1)
            if want <= 0:
                continue
            # For shares by memory, `_pools` lists a pool once per size of GPU memory.
            by_pool: dict[PoolIndex, dict[str, int]] = {}
            for pool, milli, mask in self._pools(index, None):
                view = self._view(index, pool, milli, mask, ())
                held = view.in_groups(*view.capacity(), level)
                keys, here = domains_at(view, level).keys, by_pool.setdefault(pool, {})
                for group in held.nonzero()[0].tolist():
                    here[keys[group]] = here.get(keys[group], 0) + int(held[group])
            best: dict[str, int] = {}
            anywhere = self.job.pod_sets[index].anywhere
            for here in by_pool.values():
                for key, pods in here.items():
                    has = best.get(key, 0)
                    best[key] = has + pods if anywhere else max(has, pods)
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
        """Return the groups of the level in which the job already has pods."""
        slots = (self.state.slot_of.get(b.placement.node) for b in self.held.values())
        keys = {group_key(self.state, slot, level) for slot in slots if slot is not None}
        return keys - {""}

    def _models(self, index: int) -> Iterable[str]:
        """Return GPU models in the set's order of preference.

        The set of a gang stays with the model it already holds, unless it needs no GPUs.
        """
        if self.held and self.job.gang and not self.job.pod_sets[index].anywhere:
            for (pod_set, _), booking in sorted(self.held.items()):
                slot = self.state.slot_of.get(booking.placement.node)
                model = None if slot is None else self.state.index.model_of[slot]
                if pod_set == index and model is not None:
                    return (model,)
        return self.job.pod_sets[index].gpu_models or self.state.index.pools


def group_nodes(pool: PoolIndex, within: Within) -> int:
    """Return the nodes of a pool in the named group."""
    level, key = within
    domains = pool.layout.hyper if level == HYPER else pool.layout.levels[level]
    group = domains.id_of.get(key)
    return 0 if group is None else domains.masks[group]


def _hardest_first(s: PodSetSpec) -> tuple[bool, int]:
    """Return a sort key: whole GPUs, then shares; larger ones first leave room for smaller ones."""
    return s.is_share, -max(s.gpu_milli, s.gpu_memory_mib)


def _note(view: PoolView, pool: PoolIndex, number: int, same_set: bool) -> None:
    """Tell the view about a pod of the job; for a pod in another pool only its leaf matters."""
    if pool is view.pool:
        view.note(number, same_set)
        return
    leaf = pool.layout.levels[0].keys[pool.layout.leaf_of[number]]
    here = view.layout.levels[0].id_of.get(leaf)
    if here is not None:
        view.note_leaf(here, same_set)
