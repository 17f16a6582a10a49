"""The five metrics of the Kant paper (section 4) as pure functions.

The live recorder and the simulator call the same functions. GPU amounts are milli-GPU, times are
seconds. Nothing here reads a clock or a database. docs/metrics.md defines the edge cases.
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
# Lower bounds of the size classes in GPUs; the last one is open (2048+). Jobs without GPUs have a
# class of their own before these.
SIZE_CLASSES = (1, 2, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_LOWER_MILLI = tuple(lower * MILLI for lower in SIZE_CLASSES)
SIZE_LABELS = ("0", "1", "2–7", "8", "16", "32", "64", "128", "256", "512", "1024", "2048+")


def size_class(gpu_milli: int) -> str:
    """Return the size class of a job by its total GPUs.

    Fractions below one GPU belong to "1"; jobs without GPUs to "0". A size between two powers of
    two belongs to the lower class (96 GPUs -> "64").
    """
    if 0 < gpu_milli < MILLI:
        return SIZE_LABELS[1]
    return SIZE_LABELS[bisect_right(_LOWER_MILLI, gpu_milli)]


def size_range(label: str) -> str:
    """Return a size class as people read it: "16–31" for "16". Other labels stay as they are."""
    return f"{label}–{2 * int(label) - 1}" if label.isdigit() and int(label) > 1 else label


@dataclass(frozen=True, slots=True)
class NodeUse:
    """How much of one GPU node is in use at an instant.

    `gpus`: installed; `healthy`: working; `free`: working and wholly unallocated;
    `allocated_milli`: summed over all devices. `leaf` is the unique key of the node's NodeNetGroup.
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
    """One pool at an instant: everything needed to judge GAR and GFR.

    `excluded_milli`: GPUs left out of `available_milli` (cordoned or unhealthy, and unallocated).
    `free_by_node`: {free GPUs on a node: number of nodes}. The largest gangs count GPUs of wholly
    free nodes; when there is none, the largest free count of a single node.
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
    """Return part / whole; None where `whole` is not positive."""
    return part / whole if whole > 0 else None


def pool_use(nodes: Iterable[NodeUse]) -> PoolUse:
    """Return what GAR and GFR need to know of a set of nodes (a pool or a whole cluster).

    Available = working GPUs of schedulable nodes, plus allocated GPUs whose node was cordoned or
    that went bad. Without the latter, work that still holds such a GPU would push GAR above 1.
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
    """Return how many gangs of each size fit now: {GPUs: (anywhere, each inside one leaf)}.

    A gang runs on one GPU model, so each model is counted separately and the counts are summed.
    Sizes below the GPU count of the model's largest node share nodes; larger sizes take wholly free
    nodes. Sizes double until nothing fits; the largest gangs of each model are added.
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
    """Return the GPUs on wholly free nodes, by leaf; `pool` holds usable nodes only."""
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
    """Return the GPU-milli-seconds held inside a window by allocations [start, end) (paper 4.2).

    The result is exact. `end` may be +inf for pods that still run. A gang's pods all start at the
    instant when the last pod that the gang needs was bound; its later pods start at their own
    binding.
    """
    overlap = np.minimum(end, window[1]) - np.maximum(start, window[0])
    return float(np.dot(milli, np.maximum(overlap, 0.0)))


@dataclass(slots=True)
class StepIntegral:
    """Exact integral of a step function; call `change` whenever its value changes."""

    at: float
    value: float = 0.0
    area: float = 0.0

    def change(self, at: float, value: float) -> None:
        """Set a new value; raise ValueError when time goes backwards."""
        if at < self.at:
            raise ValueError(f"time goes backwards: {at} after {self.at}")
        self.area += self.value * (at - self.at)
        self.at, self.value = at, value


# --- JWTD ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class WaitCurve:
    """Share of jobs started within a time; jobs that still wait are censored (Kaplan–Meier).

    `times`: ascending seconds; `started`: the share in 0..1 at and after each of them. `mean` is
    the restricted mean: exact when no job waits any more, a lower bound otherwise. `longest` is the
    longest wait in seconds, of started and waiting jobs alike.
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
    """Estimate the waiting-time distribution after Kaplan–Meier (paper 4.4; docs/metrics.md).

    `waits[i]` is the time to the start where `observed[i]`, otherwise the time waited so far.
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
    """JWTD of some jobs: `in_all` is their total waiting time, `first_start` the time to their
    first start. Neither contains time during which a job held its places."""

    in_all: WaitCurve
    first_start: WaitCurve

    def row(self) -> dict[str, Any]:
        """One row of the JWTD table: the total wait, and under `first_start` the wait for the first
        start."""
        return {**self.in_all.row(), "first_start": self.first_start.row()}


class Wait(NamedTuple):
    """How long one job or one pod waited, in seconds.

    `waited`: total; the total so far when it is not `placed` now. `first_start`: until its first
    start; the same as `waited` when it never `started`.
    """

    waited: float
    placed: bool
    first_start: float
    started: bool


def job_waits(waits: Collection[Wait]) -> JobWaits:
    """Return both curves of these waits."""
    waited, placed, first, started = zip(*waits, strict=True) if waits else ((), (), (), ())
    return JobWaits(wait_curve(waited, placed), wait_curve(first, started))


def wait_of(
    submitted: float, held: Iterable[tuple[float, float]], until: float, *, done: bool
) -> Wait:
    """Return the wait of a job or pod that held its places from `held[i][0]` to `held[i][1]`.

    `held` is sorted by start; spans may overlap, and an end of +inf means still held. Spans that
    start after `until` are ignored. `done`: it does not wait after its last span, even if that ends
    before `until`.
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
    """Return the fewest nodes that can hold a job of this many GPUs."""
    return max(1, math.ceil(gpus / gpus_per_node))


def fewest_groups(nodes: int, nodes_per_group: int) -> int:
    """Return the fewest NodeNetGroups that can supply this many nodes."""
    return max(1, math.ceil(nodes / nodes_per_group))


@dataclass(frozen=True, slots=True)
class PlacementQuality:
    """JTTED of one size class: mean of nodes and of groups used, each over the fewest possible."""

    size: str
    jobs: int
    node_deviation: float
    group_deviation: float


def deviation(used: int, fewest: int) -> float:
    """Return used / fewest possible (JTTED); 1.0 is ideal (paper 4.5)."""
    if fewest < 1 or used < 1:
        raise ValueError(f"a placed job uses at least one of at least one, not {used} of {fewest}")
    return used / fewest
