"""Place one job on a statement: a gang whole or not at all, any other job pod by pod."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from scheduling.engine.native import copied_by_fields
from scheduling.engine.placement.attempt import Attempt, Part
from scheduling.engine.placement.plan import JobShape, NetworkWish, prepare
from scheduling.engine.placement.pods import domains_at
from scheduling.engine.placement.view import PoolView
from scheduling.engine.statement import Statement
from scheduling.engine.types import JobRequest, PodPlacement


@dataclass(frozen=True, slots=True)
class PlacementFailure:
    """Nothing was placed.

    `pod_set`: the pod set that did not fit. `misconfigured`: why no cluster could ever run the job
    as it is written; "" = it could. `avoid`: the nodes that were not to be used. `gave_up`: the
    search may have missed places. `short`, for gangs: (pod set, how many of its pods fit beside all
    other pod sets); pod set -1 stands for all of them together.
    """

    pod_set: int
    misconfigured: str = ""
    avoid: frozenset[str] = frozenset()
    gave_up: bool = False
    short: tuple[int, int] | None = None


copied_by_fields(PlacementFailure)


def place_job(
    statement: Statement,
    job: JobRequest,
    *,
    strategy: str,
    counts: tuple[int, ...] | None = None,
    avoid: frozenset[str] = frozenset(),
) -> tuple[PodPlacement, ...] | PlacementFailure:
    """Find places for the missing pods of `job` and allocate them on the statement.

    `counts`: at most this many pods of each pod set in this call (None: all missing pods).
    A gang gets at least `min_count` (or `count`) pods of every set or nothing; any other job gets
    what fits. Ordinals follow the topology, so neighbouring ranks are on neighbouring nodes.
    `avoid`: nodes not to use. On failure the statement is unchanged.
    """
    state = statement.state
    plan = prepare(job, strategy, counts, state.levels)
    if plan.wrong:
        return PlacementFailure(0, plan.wrong)
    fresh = not state.held_by(job.id)
    if fresh:
        known = state.infeasible.get((plan, avoid))
        if known is not None and known[0] == state.version:
            index, gave_up, short = known[1]
            return PlacementFailure(index, "", avoid, gave_up, short)
    attempt = Attempt(state, job, plan, avoid)
    parts = attempt.run()
    if isinstance(parts, int):
        if fresh:
            statement.remember_infeasible((plan, avoid), (parts, attempt.gave_up, attempt.short))
        return PlacementFailure(parts, "", avoid, attempt.gave_up, attempt.short)
    return _allocate(statement, job, plan, parts)


def _allocate(
    statement: Statement, job: JobRequest, plan: JobShape, parts: Sequence[Part]
) -> tuple[PodPlacement, ...]:
    """Assign ordinals to the places found, in topology order, and book them."""
    if len(parts) == 1 and len(parts[0][1].taken) == 1:
        index, view = parts[0]
        ((_, p),) = view.taken
        held = statement.state.held_by(job.id)
        ordinal = missing_ordinals(held, index, job.pod_sets[index].count)[0]
        only = PodPlacement(index, ordinal, *p[2:])
        statement.adopt(job, only)
        return (only,)
    by_set: dict[int, list[PodPlacement]] = {}
    for index, view in parts:
        view.taken.sort(key=itemgetter(0))
        by_set.setdefault(index, []).extend(p for _, p in view.taken)
    for index, wish in enumerate(plan.wishes):
        if wish.slice_size and index in by_set:
            by_set[index] = _by_group([v for i, v in parts if i == index], wish)
    held = statement.state.held_by(job.id)
    placed: list[PodPlacement] = []
    for index in sorted(by_set):
        missing = missing_ordinals(held, index, job.pod_sets[index].count)
        for p, ordinal in zip(by_set[index], missing, strict=False):
            whole = PodPlacement(index, ordinal, *p[2:])
            placed.append(whole)
    for p in placed:
        statement.adopt(job, p)
    return tuple(placed)


def _by_group(views: Sequence[PoolView], wish: NetworkWish) -> list[PodPlacement]:
    """Order the pods of slices group by group; nodes of a group may have scattered numbers."""
    groups: dict[str, list[PodPlacement]] = {}
    for view in views:
        assert wish.required is not None
        domains = domains_at(view, wish.required)
        for number, p in view.taken:
            groups.setdefault(domains.keys[int(domains.of[number])], []).append(p)
    return [p for pods in groups.values() for p in pods]


def missing_ordinals(held: Mapping[tuple[int, int], object], index: int, count: int) -> list[int]:
    """Return the ordinals of a pod set that hold no place, ascending."""
    if not held:
        return list(range(count))
    return [ordinal for ordinal in range(count) if (index, ordinal) not in held]
