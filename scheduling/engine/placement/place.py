"""Place one job on a statement: a gang whole or not at all, other jobs pod by pod."""

from dataclasses import dataclass

from scheduling.engine.cluster import ClusterState
from scheduling.engine.constraints import admits
from scheduling.engine.placement.fit import devices_on, nics_on, rest_fits, share_milli
from scheduling.engine.placement.request import misconfigured
from scheduling.engine.statement import Statement
from scheduling.engine.types import JobRequest, PodPlacement, PodSet

STRATEGIES = ("binpack",)


@dataclass(frozen=True, slots=True)
class PlacementFailure:
    """Nothing was placed. `pod_set` is the one that did not fit; `misconfigured` says why no
    cluster could ever take the job as it is written."""

    pod_set: int
    misconfigured: str = ""
    avoid: frozenset[str] = frozenset()


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
    gang gets what fits. On failure the statement is unchanged. `avoid`: nodes not to use.
    """
    strategy = job.strategy or strategy
    wrong = misconfigured(job, strategy, STRATEGIES, statement.state.levels)
    if wrong:
        return PlacementFailure(0, wrong)
    mark = statement.checkpoint()
    placed: list[PodPlacement] = []
    held = statement.state.held_by(job.id)
    for index, pod_set in enumerate(job.pod_sets):
        missing = [o for o in range(pod_set.count) if (index, o) not in held]
        wanted = missing if counts is None else missing[: counts[index]]
        made = 0
        for ordinal in wanted:
            p = _best(statement.state, pod_set, index, ordinal, avoid)
            if p is None:
                break
            statement.allocate(job, p)
            placed.append(p)
            made += 1
        least = pod_set.count if pod_set.min_count is None else pod_set.min_count
        if job.gang and pod_set.count - len(missing) + made < least:
            statement.rollback(mark)
            return PlacementFailure(index, avoid=avoid)
    if not placed:
        return PlacementFailure(0, avoid=avoid)
    return tuple(placed)


def _best(
    state: ClusterState, pod_set: PodSet, index: int, ordinal: int, avoid: frozenset[str]
) -> PodPlacement | None:
    """The fullest node that fits, in the first GPU model that has one; ties: smallest name."""
    for model in pod_set.gpu_models or ("", *state.gpu_models()):
        found: tuple[tuple[int, str], PodPlacement] | None = None
        for slot, node in enumerate(state.facts):
            if node is None or node.gpu_model != model or not state.usable[slot]:
                continue
            if node.name in avoid or not admits(node, pod_set):
                continue
            milli = share_milli(node, pod_set)
            if not milli or not rest_fits(state, slot, pod_set):
                continue
            devices = devices_on(state, slot, pod_set, milli)
            if devices is None:
                continue
            nics = nics_on(state, slot, pod_set, devices)
            if nics is None:
                continue
            key = (state.free[slot] * 1000 + sum(state.partial[slot].values()), node.name)
            if found is None or key < found[0]:
                found = key, PodPlacement(index, ordinal, node.name, devices, milli, nics)
        if found is not None:
            return found[1]
    return None
