"""`manage.py bench simulate`: a month of a large cluster in the simulator, with metrics recorded.

The naive engine decides the same arrivals like schedulers without an index: at each event it copies
its cluster, takes the waiting jobs in order, and scans every node for every pod.
"""

import copy
import resource
import time
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple

from metrics.benches.naive import NaiveDevice, NaiveNode, give_back, naive_find, take
from metrics.simulate import results as simulation
from metrics.simulate.inputs import fleet_of
from scheduling import compiled
from scheduling.engine.placement.strategies.by_name import STRATEGIES
from scheduling.engine.types import MILLI, JobRequest, Node, PodPlacement
from scheduling.simulator import workload
from scheduling.simulator.loop import Simulation
from scheduling.simulator.model import Arrival, Settings
from scheduling.simulator.nodes import engine_nodes

HOURS, SEED = 720.0, 1
NODES, LARGE = 1_000, 12_500
DEFAULT = "best-effort-fifo+e-binpack"
NAIVE_JOBS = 20  # of the same month, for the naive engine
BUDGET_S = 18.0  # per run; an unfinished month is cut there and its time extrapolated


class Month(NamedTuple):
    """A run with its summary. `share` of the month was simulated within the budget."""

    wall_s: float
    cpu_s: float
    share: float
    jobs: int
    events: int


def run() -> dict[str, float]:
    """Return the figures named in the bars.

    `seconds`: a month on 8,000 GPUs with E-Binpack in the default order (best-effort FIFO),
    including the generation of the workload and the summary; `cpu_seconds`: the same in CPU time;
    `seconds_backfill`: under backfill with reservations. If `month_share` is below 1, the run was
    cut there and the time is extrapolated linearly; this is a lower bound, because the queue still
    grows. `peak_mb`: of the process up to then. `seconds_100k_gpus`: the same number of jobs on
    100,000 GPUs. `naive_cpu_over_kant`: CPU time of the naive engine, which is interpreted, over
    that of Kant's, both on the first arrivals of the month. `compiled`: 1 if Kant's engine is
    machine code.
    """
    nodes = engine_nodes(fleet_of(f"{NODES}x8"))
    base = month(nodes, workload.Variant(), DEFAULT)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    first = list(islice(arrivals_of(nodes, workload.Variant()), NAIVE_JOBS))
    ratio = naive_seconds(nodes, first) / kant_seconds(nodes, first)
    fixed = workload.Variant(jobs_a_day=workload.REFERENCE_JOBS_A_DAY)
    large = month(engine_nodes(fleet_of(f"{LARGE}x8")), fixed, DEFAULT)
    backfill = month(nodes, workload.Variant(), "kant", budget_s=BUDGET_S / 3)
    return {
        "seconds": base.wall_s / base.share,
        "cpu_seconds": base.cpu_s / base.share,
        "month_share": base.share,
        "seconds_backfill": backfill.wall_s / backfill.share,
        "share_backfill": backfill.share,
        "peak_mb": peak,
        "naive_cpu_over_kant": ratio,
        "compiled": float(compiled.in_use()),
        "seconds_100k_gpus": large.wall_s / large.share,
        "share_100k_gpus": large.share,
        "jobs": base.jobs,
        "events": base.events,
        "events_per_second": base.events / base.wall_s,
    }


def arrivals_of(nodes: Sequence[Node], variant: workload.Variant) -> Iterator[Arrival]:
    gpus, model = sum(len(n.devices) for n in nodes), nodes[0].gpu_model
    return workload.generate(variant, gpus=gpus, gpu_model=model, seed=SEED, hours=HOURS)


def month(
    nodes: tuple[Node, ...], variant: workload.Variant, policy: str, budget_s: float = BUDGET_S
) -> Month:
    """Simulate as much of a month as the budget allows."""
    gpus = sum(len(n.devices) for n in nodes)
    tenants, quotas = workload.tenants_of(gpus, nodes[0].gpu_model)
    with simulation.no_collection():
        wall, cpu = time.perf_counter(), time.process_time()
        deadline = wall + budget_s
        outcome = Simulation(
            nodes,
            arrivals_of(nodes, variant),
            policy=simulation.policy_of(policy, list(STRATEGIES)),
            tenants=tenants,
            quotas=quotas,
            settings=Settings(stop_s=HOURS * 3600),
        ).run(cancelled=lambda: time.perf_counter() > deadline)
        jobs = simulation.summary(outcome, nodes)["jobs"]
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    share = outcome.ended_at / (HOURS * 3600) if outcome.partial else 1.0
    return Month(wall, cpu, share, jobs, outcome.events)


def kant_seconds(nodes: tuple[Node, ...], arrivals: list[Arrival]) -> float:
    """Return the CPU seconds until the last arrival, including the first pass over all nodes."""
    gpus = sum(len(n.devices) for n in nodes)
    tenants, quotas = workload.tenants_of(gpus, nodes[0].gpu_model)
    simulated = Simulation(
        nodes,
        arrivals,
        policy=simulation.policy_of("best-effort-fifo+binpack", list(STRATEGIES)),
        tenants=tenants,
        quotas=quotas,
        settings=Settings(stop_s=arrivals[-1].submitted_at),
    )
    begin = time.process_time()
    simulated.run()
    return time.process_time() - begin


def naive_seconds(nodes: Sequence[Node], arrivals: list[Arrival]) -> float:
    """Return the CPU seconds of the naive engine on the same arrivals, and the ends of what it
    starts."""
    live = {
        n.name: NaiveNode(
            n.name,
            n,
            [NaiveDevice(d.index) for d in n.devices],
            n.cpu_milli,
            n.memory_mib,
            n.max_pods,
            len(n.devices),
        )
        for n in nodes
    }
    waiting: list[Arrival] = []
    ends: list[tuple[float, str, JobRequest, tuple[PodPlacement, ...]]] = []
    begin = time.process_time()
    for arrival in arrivals:
        while ends and ends[0][0] <= arrival.submitted_at:
            at, _, job, places = heappop(ends)
            for p in places:
                give_back(live[p.node], job)
            naive_cycle(live, waiting, ends, at)
        waiting.append(arrival)
        naive_cycle(live, waiting, ends, arrival.submitted_at)
    return time.process_time() - begin


def naive_cycle(
    live: dict[str, NaiveNode],
    waiting: list[Arrival],
    ends: list[tuple[float, str, JobRequest, tuple[PodPlacement, ...]]],
    now: float,
) -> None:
    """Start what fits on a copy of the cluster, by priority, then by waiting time."""
    snapshot = list(copy.deepcopy(live).values())
    waiting.sort(key=lambda a: (-a.job.priority, a.submitted_at))
    for arrival in tuple(waiting):
        job = arrival.job
        places = naive_place(snapshot, job)
        if places is None:
            continue
        waiting.remove(arrival)
        for p in places:
            take(live[p.node], job, p)
        heappush(ends, (now + arrival.duration_s, job.id, job, places))


def naive_place(snapshot: list[NaiveNode], job: JobRequest) -> tuple[PodPlacement, ...] | None:
    """Place all pods of a job on the copy, or none."""
    taken: list[tuple[NaiveNode, PodPlacement]] = []
    for number, pod_set in enumerate(job.pod_sets):
        for ordinal in range(pod_set.count):
            node = naive_find(snapshot, pod_set)
            if node is None:
                for used, _ in reversed(taken):
                    give_back(used, job)
                return None
            free = [d.index for d in node.devices if d.milli_free == MILLI][: pod_set.gpus]
            p = PodPlacement(number, ordinal, node.name, tuple(free), MILLI)
            take(node, job, p)
            taken.append((node, p))
    return tuple(p for _, p in taken)
