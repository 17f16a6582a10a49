"""Defragmentation: move jobs, for a price, so that fewer nodes are partly used.

A move costs the work since the last known checkpoint of the job, or since its start. Moves reduce
the number of partly used nodes in two ways: the pods of a node go to free GPUs of others, or pods
of others fill all that is free on a node. The moves that cost least per partly used node fewer go
first. What earlier moves have cost a job counts on top, so that no job moves again and again.

The budget grows with the GPU time that jobs use. At most a fixed share of what is left is paid for
one node fewer, so the price adjusts itself to what the budget can bear.

Only jobs of one pod move, and replicas, one per job at a time, and only to a place that is free at
once. So no gang is broken, no service is interrupted, and no move has to wait.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from scheduling.engine.lifecycle.movable import (
    MoveSearch,
    MovingPod,
    PartlyUsed,
    is_replica,
    partly_used,
)
from scheduling.engine.preemption.cost import cost_of
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.state import SchedulerState

# The share of the remaining budget that may be paid for one partly used node fewer.
PAID = 1 / 16
# The most pods that together fill what is free on a node.
FILLERS = 3


class _Priced(NamedTuple):
    """A pod that may move away from `source`.

    `cost`: GPU-seconds of work that it loses by that. `price`: the cost plus what earlier moves
    have cost its job.
    """

    price: float
    order: tuple[str, int, int]  # (job, pod set, ordinal): breaks ties
    milli: int
    source: PartlyUsed
    pod: MovingPod
    cost: float


class _Choice(NamedTuple):
    """Pods that move together with their targets, and the price per partly used node fewer."""

    price: float
    moves: tuple[tuple[_Priced, str], ...]

    @property
    def cost(self) -> float:
        return sum([one.cost for one, _ in self.moves])


def may_move(record: JobRecord) -> bool:
    """Return whether moving one pod moves all that has to move."""
    return is_replica(record) or (record.job.gang and record.job.pods == 1)


def defragment(state: SchedulerState, search: MoveSearch, now: float) -> tuple[int, bool]:
    """Move jobs as far as the budget allows.

    Return how many were moved, and whether more may become possible by the passing of time alone.
    """
    policy, budget, cluster = state.policy, state.look.budget, state.cluster
    models = state.pools.models()
    used = sum([cluster.allocated_milli(model) for model in models])
    budget.pass_time(now, used, policy.defrag_loss)
    left, dear = policy.defrag_moves, False
    in_vain: set[tuple[str, str]] = set()
    while left > 0 and not search.is_over:
        most = budget.left_gpu_s * PAID
        choice = _cheapest(state, search, now, in_vain)
        if choice is None:
            break
        if choice.price > most or choice.cost > budget.left_gpu_s:
            dear = True
            break
        if len(choice.moves) > left:
            dear = True
            break
        for priced in _made(search, choice, in_vain):
            left -= 1
            budget.spend(priced.cost)
    return policy.defrag_moves - left, dear or left == 0


def _made(search: MoveSearch, choice: _Choice, in_vain: set[tuple[str, str]]) -> list[_Priced]:
    """Make the moves of a choice if each has a place of its own; return those that were made."""
    made: list[_Priced] = []
    for priced, target in choice.moves:
        if search.place(priced.pod, target) is None:
            in_vain.add((priced.order[0], target))
            return made
    for priced, target in choice.moves:
        place = search.place(priced.pod, target)
        if place is None:  # moves before it took what it needs
            in_vain.add((priced.order[0], target))
            break
        search.move(priced.pod, place, priced.cost)
        made.append(priced)
    return made


def _cheapest(
    state: SchedulerState, search: MoveSearch, now: float, in_vain: set[tuple[str, str]]
) -> _Choice | None:
    """Return the moves that cost least per partly used node fewer.

    Only GPU models with more partly used nodes than the policy tolerates count.
    """
    best: _Choice | None = None
    for _, (count, nodes) in sorted(partly_used(state).items()):
        if len(nodes) <= state.policy.defrag_above * count:
            continue
        for choice in _choices(_priced(search, nodes, now), nodes, in_vain):
            if best is None or choice.price < best.price:
                best = choice
    return best


def _priced(search: MoveSearch, nodes: Iterable[PartlyUsed], now: float) -> list[_Priced]:
    """Return the pods of these nodes that may move, the cheapest first."""
    found = []
    for node in nodes:
        for pod in search.on(node.name, may_move):
            record = pod.record
            since = record.placed_since(pod.where)
            lost = cost_of(pod.milli, since, record.checkpoint_at, now)
            cost = 0.0 if is_replica(record) else lost
            order = (record.job.id, *pod.where)
            found.append(_Priced(cost + record.lost_gpu_s, order, pod.milli, node, pod, cost))
    return sorted(found, key=lambda one: (one.price, one.order))


def _choices(
    pods: Sequence[_Priced], nodes: Sequence[PartlyUsed], in_vain: set[tuple[str, str]]
) -> Iterator[_Choice]:
    for node in sorted(nodes, key=lambda node: (node.free, node.name)):
        if (choice := _filled(node, pods, in_vain)) is not None:
            yield choice
    for node in sorted(nodes):
        if (choice := _emptied(node, pods, nodes, in_vain)) is not None:
            yield choice


def _filled(
    node: PartlyUsed, pods: Sequence[_Priced], in_vain: set[tuple[str, str]]
) -> _Choice | None:
    """Return the cheapest pods of other nodes that together fill what is free on this node."""
    best: dict[int, tuple[float, tuple[_Priced, ...]]] = {0: (0.0, ())}
    for one in pods:
        if one.source is node or one.milli > node.free or (one.order[0], node.name) in in_vain:
            continue
        for have, (price, chosen) in sorted(best.items(), reverse=True):
            then = have + one.milli
            if then > node.free or len(chosen) == FILLERS:
                continue
            if one.order[0] in [other.order[0] for other in chosen]:
                continue  # only one pod of a job moves at a time
            known = best.get(then)
            if known is None or price + one.price < known[0]:
                best[then] = (price + one.price, (*chosen, one))
    full = best.get(node.free)
    if full is None:
        return None
    price, chosen = full
    gone: dict[str, int] = {}
    for one in chosen:
        gone[one.source.name] = gone.get(one.source.name, 0) + one.milli
    emptied = {one.source.name for one in chosen if gone[one.source.name] == one.source.used}
    return _Choice(price / (1 + len(emptied)), tuple([(one, node.name) for one in chosen]))


def _emptied(
    node: PartlyUsed,
    pods: Sequence[_Priced],
    nodes: Sequence[PartlyUsed],
    in_vain: set[tuple[str, str]],
) -> _Choice | None:
    """Return moves of all pods of the node, each to the fullest other node with room for it."""
    mine = sorted([one for one in pods if one.source is node], key=lambda o: (-o.milli, o.order))
    if sum([one.milli for one in mine]) != node.used:
        return None
    if len({one.order[0] for one in mine}) < len(mine):
        return None  # only one pod of a job moves at a time
    free = {other.name: other.free for other in nodes if other is not node}
    moves, price = [], 0.0
    for one in mine:
        fits = [
            (room - one.milli, name)
            for name, room in free.items()
            if room >= one.milli and (one.order[0], name) not in in_vain
        ]
        if not fits:
            return None
        room, name = min(fits)
        free[name] = room
        price += one.price
        moves.append((one, name))
    fewer = 1 + sum([room == 0 for room in free.values()])
    return _Choice(price / fewer, tuple(moves))
