"""Place the pods of one pod set in one pool: groups first, then nodes inside (paper 3.4.2)."""

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.index_layout import Domains, Ints
from scheduling.engine.placement.plan import JobShape, NetworkWish
from scheduling.engine.placement.request import HYPER
from scheduling.engine.placement.strategies.by_name import Strategy
from scheduling.engine.placement.strategies.spread import pick as pick_spread
from scheduling.engine.placement.topology import balanced, fewest, tightest
from scheduling.engine.placement.view import PoolView
from scheduling.engine.types import JobKind, JobRequest


def fill(view: PoolView, index: int, job: JobRequest, plan: JobShape, want: int, least: int) -> int:
    """Place up to `want` pods, at least `least` or none; return how many.

    In E-Spread (paper 3.3.4), inference pods smaller than a node are first spread over the
    inference zone; the rest is packed outside. All other pods stay outside the zone while there is
    room.
    """
    how, wish = plan.how, plan.wishes[index]
    zone = view.layout.zone & view.base
    outside = view.base & ~zone
    if not how.zones or not zone:
        done = _fill_groups(view, index, job, wish, how, want, least)
    elif how.name == "e-spread" and _small_inference(view, job, want):
        view.scope(zone)
        in_zone = Strategy("spread", pick_spread)
        done = _fill_groups(view, index, job, wish, in_zone, want, 0)
        view.scope(outside)
        if done < want:
            done += _fill_groups(view, index, job, wish, how, want - done, 0)
    else:
        view.scope(outside)
        done = _fill_groups(view, index, job, wish, how, want, want if job.gang else 0)
        view.scope(view.layout.everything)
        if done < want:
            done += _fill_groups(view, index, job, wish, how, want - done, max(least - done, 0))
    if done < least:
        view.undo()
        return 0
    return done


def _small_inference(view: PoolView, job: JobRequest, want: int) -> bool:
    if job.kind is not JobKind.INFERENCE or view.gpus >= view.pool.top:
        return False
    return not (job.gang and want * view.gpus > view.pool.top)


def _fill_groups(
    view: PoolView,
    index: int,
    job: JobRequest,
    wish: NetworkWish,
    how: Strategy,
    want: int,
    least: int,
) -> int:
    """Choose groups by the pod set's topology wish, then nodes inside them."""
    if wish.required is not None:
        _keep_to_required(view, index, job, wish)
    plain = wish.plain
    if want == 1 or (plain and not how.packs and not least):
        return _nodes(view, index, how, want)
    together = want * view.gpus
    if how.packs and view.gpus and not view.share and together <= view.pool.top:
        number = -1 if wish.balance is not None else view.consolidated(together, want)
        if number >= 0:
            return view.place(index, number, want)
    at, pods = view.capacity()
    total = view.room(at, pods)
    if total < max(least, 1):
        return 0
    count = min(want, total)
    if plain and not how.packs:
        return _nodes(view, index, how, count)
    if wish.balance is not None and not _slices_part(view, wish, count, at, pods):
        return _balanced(view, index, how, count, wish, at, pods)
    if wish.required is not None and wish.slice_size:
        return _slices(view, index, how, count, least, wish, at, pods)
    return _domain(view, index, how, count, least, wish, at, pods)


def _keep_to_required(view: PoolView, index: int, job: JobRequest, wish: NetworkWish) -> None:
    """Allow only nodes with a known group; if the set already has pods, only their group."""
    assert wish.required is not None
    domains = domains_at(view, wish.required)
    view.mask &= domains.known
    if wish.slice_size:
        return
    if view.taken:
        view.mask &= domains.masks[int(domains.of[view.taken[0][0]])]
        return
    for (pod_set, _), booking in sorted(view.state.held_by(job.id).items()):
        slot = view.state.slot_of.get(booking.placement.node)
        if pod_set != index or slot is None:
            continue
        key = group_key(view.state, slot, wish.required)
        group = domains.id_of.get(key, -1)
        view.mask &= domains.masks[group] if group >= 0 else 0
        return


def group_key(state: ClusterState, slot: int, level: int) -> str:
    """Return the name of a node's group at a level; "" if it is in none."""
    model = state.index.model_of[slot]
    if model is None:
        return ""
    layout = state.index.pools[model].layout
    domains = layout.hyper if level == HYPER else layout.levels[level]
    group = int(domains.of[state.index.number_of[slot]])
    return domains.keys[group] if group >= 0 else ""


def domains_at(view: PoolView, level: int) -> Domains:
    return view.layout.hyper if level == HYPER else view.layout.levels[level]


def _levels_to_try(how: Strategy, wish: NetworkWish, depth: int) -> list[int]:
    """Return the levels at which to look for one group that holds all pods, narrowest first.

    A strategy that packs starts at the narrowest level; others only try the level of the wish.
    """
    widest = wish.required if wish.required is not None else wish.preferred
    if widest is None:
        return list(range(depth))
    if widest == HYPER or not how.packs:
        return [widest]
    return list(range(widest + 1))


def _domain(
    view: PoolView,
    index: int,
    how: Strategy,
    count: int,
    least: int,
    wish: NetworkWish,
    at: Ints,
    pods: Ints,
) -> int:
    """Place the pods in the tightest group that holds them all, at the narrowest level possible.

    If no group does, use the largest group of the required level; without a required level, the
    fewest groups of the preferred level (by default the leaves).
    """
    for level in _levels_to_try(how, wish, len(view.layout.levels)):
        group = tightest(view.in_groups(at, pods, level), count)
        if group >= 0:
            return _inside(view, index, how, count, level, group, at, pods)
    if wish.required is not None:
        held = view.in_groups(at, pods, wish.required)
        most = int(held.max(initial=0))
        if most < max(least, 1):
            return 0
        group = tightest(held, most)
        return _inside(view, index, how, most, wish.required, group, at, pods)
    level = wish.preferred or 0
    done = 0
    in_groups = view.in_groups(at, pods, level)
    if int(in_groups.sum()) < count:  # some nodes belong to no hyper-node
        level, in_groups = 0, view.in_groups(at, pods, 0)
    for group, part in fewest(in_groups, count):
        done += _inside(view, index, how, part, level, group, at, pods)
    return done + _rest(view, index, how, count - done)


def _rest(view: PoolView, index: int, how: Strategy, count: int) -> int:
    """Place the pods that a preferred level left over, in the fewest leaves.

    Some nodes are in no hyper-node, and several hyper-nodes may share a leaf with a pod limit.
    """
    if not count:
        return 0
    at, pods = view.capacity()
    done = 0
    for group, part in fewest(view.in_groups(at, pods, 0), min(count, view.room(at, pods))):
        done += _inside(view, index, how, part, 0, group, at, pods)
    return done


def _inside(
    view: PoolView,
    index: int,
    how: Strategy,
    count: int,
    level: int,
    group: int,
    at: Ints,
    pods: Ints,
) -> int:
    """Place `count` pods in one group, in the fewest leaves if the strategy packs."""
    allowed = view.mask
    nodes = domains_at(view, level).masks[group]
    done = 0
    if how.packs and level != 0:
        inside = domains_at(view, level).of[at] == group
        leaves = view.layout.levels[0].masks
        for leaf, part in fewest(view.in_groups(at[inside], pods[inside], 0), count):
            view.scope(leaves[leaf] & nodes & allowed, one_leaf=True)
            done += _nodes(view, index, how, part)
    else:
        view.scope(nodes & allowed, one_leaf=level == 0)
        done = _nodes(view, index, how, count)
    view.scope(allowed)
    return done


def _balanced(
    view: PoolView, index: int, how: Strategy, count: int, wish: NetworkWish, at: Ints, pods: Ints
) -> int:
    """Divide the pods as evenly as possible over the groups of the balance level.

    With a required level, they stay inside one of its groups.
    """
    assert wish.balance is not None
    if wish.required is not None:
        held = view.in_groups(at, pods, wish.required)
        count = min(count, int(held.max(initial=0)))
        group = tightest(held, count)
        required = domains_at(view, wish.required)
        inside = required.of[at] == group
        at, pods = at[inside], pods[inside]
        view.mask &= required.masks[group]  # a balanced group may be wider
    done = 0
    for group, part in balanced(view.in_groups(at, pods, wish.balance), count):
        done += _inside(view, index, how, part, wish.balance, group, at, pods)
    return done + _rest(view, index, how, count - done)


def _slices_part(view: PoolView, wish: NetworkWish, count: int, at: Ints, pods: Ints) -> bool:
    """Whether slices must go to several groups, because no group holds them all."""
    if wish.required is None or not wish.slice_size:
        return False
    return int(view.in_groups(at, pods, wish.required).max(initial=0)) < count


def _slices(
    view: PoolView,
    index: int,
    how: Strategy,
    count: int,
    least: int,
    wish: NetworkWish,
    at: Ints,
    pods: Ints,
) -> int:
    """Place slices of `slice_size` pods, each whole inside the tightest group that holds it."""
    assert wish.required is not None
    size = wish.slice_size
    room = view.in_groups(at, pods, wish.required)
    given: dict[int, int] = {}
    for _ in range(count // size):
        group = tightest(room, size)
        if group < 0:
            break
        room[group] -= size
        given[group] = given.get(group, 0) + size
    if sum(given.values()) < max(least, 1):
        return 0
    done = 0
    for group in sorted(given):
        done += _inside(view, index, how, given[group], wish.required, group, at, pods)
    return done


def _nodes(view: PoolView, index: int, how: Strategy, count: int) -> int:
    """Place pods on the nodes that the strategy picks, among the nodes in scope."""
    left = count
    while left:
        number, pods = how.pick(view, left)
        if number < 0:
            break
        done = view.place(index, number, min(pods, left))
        if not done:
            # CPU, memory and the like sufficed, but the NICs available with these GPUs did not.
            view.close(1 << number)
        left -= done
    return count - left
