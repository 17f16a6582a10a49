"""The figures of a finished run: the five metrics with their distributions, from the run's columns.

Pure: the same `metrics.definitions` as the live recorder, over exact integrals.
"""

import gc
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrics import definitions
from scheduling.engine.types import JobKind, Node, Policy, QueueingPolicy
from scheduling.policy.document import DEFAULT
from scheduling.simulator.observe import STATE_NAMES, PoolBook
from scheduling.simulator.run import RunOutcome

# By name: the paper's own settings, the plain baseline, and the policy of a cluster without one of
# its own. All other names are QUEUEING+STRATEGY.
PRESETS: dict[str, str | Policy] = {
    "kant": "backfill+e-binpack",
    "native": "best-effort-fifo+native",
    "default": DEFAULT,
}


def policy_of(text: str, strategies: Sequence[str]) -> Policy:
    """Return a policy by its name in PRESETS or as QUEUEING+STRATEGY; raise ValueError."""
    preset = PRESETS.get(text, text)
    if isinstance(preset, Policy):
        return preset
    queueing, _, strategy = preset.partition("+")
    known = [q.value for q in QueueingPolicy]
    if queueing not in known or strategy not in strategies:
        raise ValueError(
            f"{text!r} is no policy; write {', '.join(PRESETS)} or QUEUEING+STRATEGY with "
            f"QUEUEING one of {', '.join(known)} and STRATEGY one of {', '.join(strategies)}"
        )
    return Policy(queueing=QueueingPolicy(queueing), strategies=dict.fromkeys(JobKind, strategy))


@contextmanager
def no_collection() -> Iterator[None]:
    """Switch garbage collection off: a run creates no reference cycles, and looking for them takes
    a tenth of its time."""
    before = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def summary(
    outcome: RunOutcome,
    nodes: Sequence[Node],
    *,
    warm_up_until: float = 0.0,
    left_out: Collection[str] = (),
) -> dict[str, Any]:
    """Return all figures of a run.

    Jobs submitted during the warm-up are left out of `jobs`, states, waits and JTTED; jobs that
    could never run, and `left_out`, of waits and JTTED. Events after the warm-up count for every
    job: of the `jobs_present`, those not over by its end, `preempted_jobs` were preempted.

    Waits are in seconds, GPU time in GPU-hours. A gang's wait counts once, other jobs' waits pod by
    pod. The wait of a job or pod without a place is censored at its end, or at the end of the run.
    """
    observer = outcome.observer
    jobs = observer.jobs
    counted = [i for i in range(len(jobs)) if jobs.submitted[i] >= warm_up_until]
    silent = outcome.never.keys() | left_out
    rows = [i for i in counted if jobs.ids[i] not in silent]
    return {
        "partial": outcome.partial,
        "simulated_s": outcome.ended_at - outcome.observer.start,
        "events": outcome.events,
        "cycles": outcome.cycles,
        "jobs": len(counted),
        "states": _states(outcome, counted),
        "never_runnable": len(outcome.never),
        "pools": {model: _pool(book) for model, book in sorted(outcome.pools.items())},
        "tenants": _tenants(outcome, rows),
        "waits": _waits(outcome, rows),
        "jtted": _jtted(outcome, rows, nodes),
        "jobs_present": sum(1 for ended in jobs.ended if not ended < warm_up_until),
        "preempted_jobs": len(observer.preempted),
        "preemptions": observer.preemptions,
        "moves": observer.moves,
        "requeues": observer.requeues,
        "lost_gpu_hours": sum(book.lost_milli_s for book in outcome.pools.values()) / 3.6e6,
    }


def _finite(values: Sequence[float]) -> list[float]:
    return [v for v in values if not math.isnan(v)]


def _median(values: Sequence[float]) -> float | None:
    known = _finite(values)
    return median(known) if known else None


def _pool(book: PoolBook) -> dict[str, Any]:
    series = book.series
    return {
        "gar_mean": definitions.ratio(book.milli_s, book.offered_s),
        "gar_median": _median(series.gar),
        "sor": definitions.ratio(book.milli_s, book.offered_s),
        "sor_median": _median(series.sor),
        "gfr_mean": definitions.ratio(book.fragmented_s, book.nodes_s),
        "gfr_median": _median(series.gfr),
        "idle_nodes_median": _median(series.idle_nodes),
        "gpu_hours": book.milli_s / 3.6e6,
    }


def _states(outcome: RunOutcome, rows: Sequence[int]) -> dict[str, int]:
    counts = dict.fromkeys(STATE_NAMES, 0)
    for i in rows:
        counts[STATE_NAMES[outcome.observer.jobs.state[i]]] += 1
    return counts


def job_waits(outcome: RunOutcome, rows: Collection[int]) -> definitions.JobWaits:
    """Return JWTD of the jobs of these rows: a gang counts once, other jobs pod by pod."""
    waited, placed, first, started = _waits_of(outcome, rows)
    return definitions.JobWaits(
        definitions.wait_curve(waited, placed), definitions.wait_curve(first, started)
    )


def _waits_of(outcome: RunOutcome, rows: Collection[int]) -> tuple[NDArray[Any], ...]:
    """Return the columns of `definitions.Wait`; the entries of each job are adjacent, in the order
    of `rows`."""
    jobs = outcome.observer.jobs
    waits = jobs.waits
    every = np.frombuffer(jobs.unit, np.int64) if len(jobs) else np.empty(0, np.int64)
    counts = np.diff(np.append(every, len(waits)))
    at = np.fromiter(rows, np.int64, len(rows))
    units = np.repeat(every[at] - np.cumsum(counts[at]) + counts[at], counts[at])
    units += np.arange(len(units))
    row = np.repeat(at, counts[at])

    def column(values: Any, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.frombuffer(values, float)[chosen] if len(chosen) else np.empty(0)

    ended, submitted = column(jobs.ended, row), column(jobs.submitted, row)
    first, since = column(waits.first, units), column(waits.since, units)
    until = np.where(np.isnan(ended), outcome.ended_at, ended)
    placed, started = np.isnan(since), ~np.isnan(first)
    so_far = np.where(placed, 0.0, until - since)
    waited = column(waits.waited, units) + np.maximum(so_far, 0.0)
    to_first = np.where(started, first, until) - submitted
    return waited, placed, np.maximum(to_first, 0.0), started


def waited_s(outcome: RunOutcome) -> list[float]:
    """Return how long each job waited in total until all its pods had their places (its longest
    wait); NaN for a job that still waits, or waited in vain."""
    jobs = outcome.observer.jobs
    waited, placed, _, _ = _waits_of(outcome, range(len(jobs)))
    known = np.where(placed, waited, np.nan)
    return np.maximum.reduceat(known, jobs.unit).tolist() if len(jobs) else []


def _waits(outcome: RunOutcome, rows: Sequence[int]) -> dict[str, dict[str, Any]]:
    by_size: dict[str, list[int]] = defaultdict(list)
    for i in rows:
        by_size[definitions.size_class(outcome.observer.jobs.milli[i])].append(i)
    found = {
        label: job_waits(outcome, by_size[label]).row()
        for label in definitions.SIZE_LABELS
        if label in by_size
    }
    return found | {"all": job_waits(outcome, rows).row()} if rows else found


def _tenants(outcome: RunOutcome, rows: Sequence[int]) -> dict[str, dict[str, Any]]:
    by_tenant: dict[str, list[int]] = defaultdict(list)
    for i in rows:
        by_tenant[outcome.observer.jobs.tenants[i]].append(i)
    held: Mapping[str, float] = outcome.observer.tenant_milli_s
    return {
        tenant: {
            "gpu_hours": held.get(tenant, 0.0) / 3.6e6,
            **job_waits(outcome, members).row(),
        }
        for tenant, members in sorted(by_tenant.items())
    }


def _jtted(
    outcome: RunOutcome, rows: Sequence[int], nodes: Sequence[Node]
) -> dict[str, dict[str, float]]:
    """Return mean deviations from the true minimum by size class, of placed jobs with GPUs."""
    jobs = outcome.observer.jobs
    per_node: dict[str, int] = defaultdict(int)
    groups: dict[tuple[str, str], int] = defaultdict(int)
    for node in nodes:
        per_node[node.gpu_model] = max(per_node[node.gpu_model], len(node.devices))
        groups[node.gpu_model, node.topology[0] or node.name] += 1
    largest: dict[str, int] = defaultdict(lambda: 1)
    for (model, _), count in groups.items():
        largest[model] = max(largest[model], count)
    alike = Counter(
        (jobs.models[i], jobs.milli[i], jobs.nodes[i], jobs.groups[i])
        for i in rows
        if jobs.nodes[i] and jobs.milli[i] and not math.isnan(jobs.started[i])
    )
    sums: dict[str, tuple[int, float, float]] = defaultdict(lambda: (0, 0.0, 0.0))
    for (model, milli, on_nodes, in_groups), count in sorted(alike.items()):
        label = definitions.size_class(milli)
        fewest = definitions.fewest_nodes(-(-milli // 1000), per_node[model] or 1)
        fewest_groups = definitions.fewest_groups(fewest, largest[model])
        found, by_nodes, by_groups = sums[label]
        by_nodes += count * definitions.deviation(on_nodes, fewest)
        by_groups += count * definitions.deviation(in_groups, fewest_groups)
        sums[label] = found + count, by_nodes, by_groups
    return {
        label: {"jobs": found, "nodes": by_nodes / found, "groups": by_groups / found}
        for label in definitions.SIZE_LABELS
        if label in sums
        for found, by_nodes, by_groups in [sums[label]]
    }
