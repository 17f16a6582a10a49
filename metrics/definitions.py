"""The five metrics of the Kant paper (section 4) as pure functions.

The live recorder and the simulator call the same functions. GPU amounts are milli-GPU, times are
seconds. Nothing here reads a clock or a database. Edges are settled in docs/metrics.md.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scheduling.engine.types import whole_milli

MILLI = 1000
# Lower bounds of the size classes in GPUs, the last of which is open (2048+). Before them comes
# that of jobs without GPUs.
SIZE_CLASSES = (1, 2, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_LOWER_MILLI = tuple(lower * MILLI for lower in SIZE_CLASSES)
SIZE_LABELS = ("0", "1", "2–7", "8", "16", "32", "64", "128", "256", "512", "1024", "2048+")


def size_class(gpu_milli: int) -> str:
    """The size class of a job by all its GPUs; fractions below one GPU belong to "1", "0" is that
    of jobs without GPUs.

    A size between two powers of two belongs to the lower class (96 GPUs -> "64").
    """
    if 0 < gpu_milli < MILLI:
        return SIZE_LABELS[1]
    return SIZE_LABELS[bisect_right(_LOWER_MILLI, gpu_milli)]


def size_range(label: str) -> str:
    """What people read for a size class: "16–31" for "16". What is not named by one size stays."""
    return f"{label}–{2 * int(label) - 1}" if label.isdigit() and int(label) > 1 else label


@dataclass(frozen=True, slots=True)
class NodeUse:
    """How much of one GPU node is in use at an instant.

    `gpus` installed, `healthy` of them working, `free` working and wholly unallocated;
    `allocated_milli` over all devices. `leaf` is the unique key of its node net group.
    """

    gpu_model: str
    gpus: int
    healthy: int
    free: int
    allocated_milli: float
    schedulable: bool
    leaf: str


@dataclass(frozen=True, slots=True)
class PoolUse:
    """One pool at an instant; all an operator needs to judge GAR and GFR.

    `excluded_milli`: GPUs left out of `available_milli` (cordoned, unhealthy and unallocated).
    `free_by_node`: {free GPUs on a node: number of nodes}. The largest gangs are in GPUs of
    whole free nodes, or the largest free count of one node when no node is whole.
    """

    available_milli: int
    allocated_milli: int
    excluded_milli: int
    nodes: int
    fragmented: int
    free_by_node: dict[int, int]
    largest_gang_leaf: int
    largest_gang_any: int

    @property
    def gar(self) -> float | None:
        """GPU allocation ratio at this instant; None without available GPUs."""
        return ratio(self.allocated_milli, self.available_milli)

    @property
    def gfr(self) -> float | None:
        """GPU node fragmentation ratio at this instant; None without nodes."""
        return ratio(self.fragmented, self.nodes)


def ratio(part: float, whole: float) -> float | None:
    """part / whole, None where the whole is nothing."""
    return part / whole if whole > 0 else None


def pool_use(nodes: Iterable[NodeUse]) -> PoolUse:
    """GAR and GFR facts of a set of nodes (a pool, or a whole cluster).

    Available = working GPUs of schedulable nodes, plus what is allocated although its node was
    cordoned or its GPU went bad: work that still holds a GPU must never push GAR above 1.
    """
    installed = count = fragmented = 0
    available: float = 0
    allocated: float = 0
    free_by_node: dict[int, int] = {}
    whole_by_leaf: dict[str, int] = {}
    partial_best = whole = 0
    for node in nodes:
        installed += node.gpus * MILLI
        allocated += node.allocated_milli
        usable = node.healthy * MILLI if node.schedulable else 0
        available += max(usable, node.allocated_milli)
        if usable == 0:
            continue
        count += 1
        fragmented += 0 < node.allocated_milli < usable
        free_by_node[node.free] = free_by_node.get(node.free, 0) + 1
        if node.allocated_milli == 0 and node.healthy == node.gpus:
            whole += node.gpus
            whole_by_leaf[node.leaf] = whole_by_leaf.get(node.leaf, 0) + node.gpus
        partial_best = max(partial_best, node.free)
    return PoolUse(
        available_milli=whole_milli(available),
        allocated_milli=whole_milli(allocated),
        excluded_milli=max(0, installed - whole_milli(available)),
        nodes=count,
        fragmented=fragmented,
        free_by_node=dict(sorted(free_by_node.items())),
        largest_gang_leaf=max(partial_best, max(whole_by_leaf.values(), default=0)),
        largest_gang_any=max(partial_best, whole),
    )


def gang_curve(nodes: Iterable[NodeUse]) -> dict[int, tuple[int, int]]:
    """How many gangs of each size fit now: {GPUs: (anywhere, inside one leaf each)}.

    A gang runs on one GPU model, so the models are counted apart and summed. Sizes below the
    largest node count places on nodes; larger ones take whole free nodes. The sizes are doubled
    until nothing fits, and among them stand the largest gangs of each model.
    """
    by_model: dict[str, list[NodeUse]] = {}
    for node in nodes:
        if node.schedulable and node.healthy:
            by_model.setdefault(node.gpu_model, []).append(node)
    pools = list(by_model.values())
    sizes = sorted({size for pool in pools for size in _gang_sizes(pool)})
    curve = dict.fromkeys(sizes, (0, 0))
    for pool in pools:
        per_node, by_leaf = max(n.gpus for n in pool), _whole_by_leaf(pool)
        for size, (anywhere, in_leaf) in curve.items():
            if size < per_node:
                inside = everywhere = sum(n.free // size for n in pool)
            else:
                everywhere = sum(by_leaf.values()) // size
                inside = sum(gpus // size for gpus in by_leaf.values())
            curve[size] = (anywhere + everywhere, in_leaf + inside)
    return curve


def _gang_sizes(pool: Sequence[NodeUse]) -> set[int]:
    per_node = max(n.gpus for n in pool)
    use = pool_use(pool)
    sizes = {use.largest_gang_any, use.largest_gang_leaf} - {0}
    size = 1
    while size < per_node:
        sizes.add(size)
        size *= 2
    size = per_node
    while size <= use.largest_gang_any:
        sizes.add(size)
        size *= 2
    return sizes | {size}


def _whole_by_leaf(pool: Sequence[NodeUse]) -> dict[str, int]:
    """GPUs of the wholly free nodes among usable ones, leaf by leaf."""
    by_leaf: dict[str, int] = {}
    for n in pool:
        if n.allocated_milli == 0 and n.healthy == n.gpus:
            by_leaf[n.leaf] = by_leaf.get(n.leaf, 0) + n.gpus
    return by_leaf


# --- SOR ----------------------------------------------------------------------------------------
def held_milli_seconds(
    milli: NDArray[np.int64] | NDArray[np.float64],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    window: tuple[float, float],
) -> float:
    """Exact GPU-milli-seconds held inside a window by allocations [start, end) (paper 4.2).

    `end` may be +inf for what still runs. A gang's pods carry the instant at which the last that
    it needs was bound, or a later one of their own.
    """
    overlap = np.minimum(end, window[1]) - np.maximum(start, window[0])
    return float(np.dot(milli, np.maximum(overlap, 0.0)))


@dataclass(slots=True)
class StepIntegral:
    """Exact integral of a step function: `change` at each instant its value changes."""

    at: float
    value: float = 0.0
    area: float = 0.0

    def change(self, at: float, value: float) -> None:
        """Raises ValueError when time goes backwards."""
        if at < self.at:
            raise ValueError(f"time goes backwards: {at} after {self.at}")
        self.area += self.value * (at - self.at)
        self.at, self.value = at, value


# --- JWTD ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class WaitCurve:
    """Share of jobs started within a time, with the still-waiting as censored (Kaplan–Meier).

    `times` ascending seconds, `started` the share in 0..1 at and after each of them. `mean` is
    the restricted mean: exact when nobody waits any more, a lower bound otherwise. `longest` is
    the longest wait in seconds, of those who started and those who have not.
    """

    times: NDArray[np.float64]
    started: NDArray[np.float64]
    jobs: int
    waiting: int
    mean: float | None
    longest: float

    def quantile(self, share: float) -> float | None:
        """Seconds within which `share` of the jobs start; None if the curve never gets there."""
        reached = np.flatnonzero(self.started >= share - 1e-12)
        return float(self.times[reached[0]]) if len(reached) else None

    def row(self) -> dict[str, int | float | None]:
        """One row of the JWTD table; times in seconds."""
        return {
            "jobs": self.jobs,
            "waiting": self.waiting,
            "mean_s": self.mean,
            "p50_s": self.quantile(0.5),
            "p90_s": self.quantile(0.9),
            "p99_s": self.quantile(0.99),
        }


def wait_curve(waits: ArrayLike, observed: ArrayLike) -> WaitCurve:
    """Kaplan–Meier estimate of the waiting-time distribution (paper 4.4; metrics.md).

    `waits[i]` is the time to the start where `observed[i]`, else the time waited so far.
    """
    times = np.asarray(waits, dtype=np.float64)
    seen = np.asarray(observed, dtype=bool)
    if times.shape != seen.shape:
        raise ValueError(f"{times.size} waits but {seen.size} marks of observation")
    if times.size == 0:
        return WaitCurve(np.empty(0), np.empty(0), 0, 0, None, 0.0)
    order = np.lexsort((~seen, times))
    times, seen = times[order], seen[order]
    steps, first = np.unique(times, return_index=True)
    starts = np.add.reduceat(seen.astype(np.int64), first)
    at_risk = times.size - first
    survival = np.cumprod(1.0 - starts / at_risk, dtype=np.float64)
    before = np.concatenate(([1.0], survival[:-1]))
    widths = np.diff(np.concatenate(([0.0], steps)))
    keep = starts > 0
    return WaitCurve(
        times=steps[keep],
        started=1.0 - survival[keep],
        jobs=int(times.size),
        waiting=int((~seen).sum()),
        mean=float(np.dot(before, widths)),
        longest=float(steps[-1]),
    )


@dataclass(frozen=True, slots=True)
class JobWaits:
    """JWTD of some jobs: `in_all` is all the time they waited, `first_start` that until they
    started for the first time. Neither contains time in which they had their places."""

    in_all: WaitCurve
    first_start: WaitCurve

    def row(self) -> dict[str, Any]:
        """One row of the JWTD table: waiting in all, and beside it until the first start."""
        return {**self.in_all.row(), "first_start": self.first_start.row()}


class Wait(NamedTuple):
    """How long one job, or one pod, waited, in seconds. `waited`: in all, so far where it is not
    `placed` now. `first_start`: until it started for the first time, all of it where it never
    `started`."""

    waited: float
    placed: bool
    first_start: float
    started: bool


def job_waits(waits: Collection[Wait]) -> JobWaits:
    """Both curves of these waits."""
    waited, placed, first, started = zip(*waits, strict=True) if waits else ((), (), (), ())
    return JobWaits(wait_curve(waited, placed), wait_curve(first, started))


def wait_of(
    submitted: float, held: Iterable[tuple[float, float]], until: float, *, done: bool
) -> Wait:
    """The wait of a job or pod that held its places from `held[i][0]` to `held[i][1]`, in order of
    the beginnings; spans may overlap, +inf: still held. What begins after `until` is left out.

    `done`: after the last of the spans it waits no more, though they end before `until`.
    """
    waited, since, first = 0.0, submitted, None
    for begin, end in held:
        if begin > until:
            break
        first = begin if first is None else first
        waited += max(0.0, begin - since)
        since = max(since, end)
    if first is None:
        waited = max(0.0, until - submitted)
        return Wait(waited, False, waited, False)
    placed = done or since >= until
    if not placed:
        waited += until - since
    return Wait(waited, placed, max(0.0, first - submitted), True)


# --- JTTED --------------------------------------------------------------------------------------
def fewest_nodes(gpus: int, gpus_per_node: int) -> int:
    """The least number of nodes a job of so many GPUs can stand on."""
    return max(1, math.ceil(gpus / gpus_per_node))


def fewest_groups(nodes: int, nodes_per_group: int) -> int:
    """The least number of node net groups so many nodes can come from."""
    return max(1, math.ceil(nodes / nodes_per_group))


@dataclass(frozen=True, slots=True)
class PlacementQuality:
    """JTTED of one size class: mean nodes and groups used over the fewest possible."""

    size: str
    jobs: int
    node_deviation: float
    group_deviation: float


def deviation(used: int, fewest: int) -> float:
    """JTTED deviation: what a job uses / the fewest possible; 1.0 is ideal (paper 4.5)."""
    if fewest < 1 or used < 1:
        raise ValueError(f"a placed job uses at least one of at least one, not {used} of {fewest}")
    return used / fewest
