"""One simulated run of a study, in a process of its own: takes a task, returns plain figures."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from metrics import definitions
from metrics.simulate import results as simulation
from metrics.simulate.inputs import fleet_of
from scheduling.engine.types import (
    JobKind,
    Node,
    Policy,
    PreemptionKind,
    QueueingPolicy,
    QuotaSpec,
    TenantSpec,
)
from scheduling.simulator import workload
from scheduling.simulator.faults import faults_of
from scheduling.simulator.loop import Simulation
from scheduling.simulator.model import Arrival, Settings
from scheduling.simulator.nodes import engine_nodes
from scheduling.simulator.run import RunOutcome
from scheduling.simulator.workload import HOUR

# Figures by size class; all other figures of a run are plain numbers.
BY_SIZE = ("wait_mean_s", "first_start_mean_s", "jtted_nodes", "jtted_groups")

Figures = dict[str, Any]


def policy(
    queueing: str,
    strategy: str,
    *,
    preemption: tuple[PreemptionKind, ...] = (),
    **more: Any,
) -> Policy:
    """Return a policy for a study, with one strategy for every kind of job."""
    return Policy(
        queueing=QueueingPolicy(queueing),
        strategies=dict.fromkeys(JobKind, strategy),
        preemption=preemption,
        **more,
    )


@dataclass(frozen=True, slots=True)
class Task:
    """One run: `policy` under a name, on the workload of `scenario` drawn with `seed`.

    `run` is a module-level function that carries it out; `more` is understood only by it.
    """

    run: Callable[["Task"], Figures]
    scenario: str
    name: str
    policy: Policy
    seed: int
    hours: float
    warm_up_h: float
    fleet: str = "1000x8"
    variant: workload.Variant = field(default_factory=workload.Variant)
    settings: Settings = field(default_factory=Settings)
    fault_rate: float = 0.0
    more: Mapping[str, Any] = field(default_factory=dict, hash=False)


def carry_out(task: Task) -> Figures:
    """Run a task; called in the processes of the pool."""
    return task.run(task)


def training(task: Task) -> Figures:
    """Run the calibrated training workload on a fleet of one GPU model."""
    fleet = fleet_of(task.fleet)
    nodes = engine_nodes(fleet)
    arrivals = drawn(task, fleet.gpus, nodes[0])
    tenants, quotas = workload.tenants_of(fleet.gpus, nodes[0].gpu_model)
    faults = faults_of(nodes, per_1000_node_days=task.fault_rate, seed=task.seed)
    return simulate(task, nodes, arrivals, tenants=tenants, quotas=quotas, faults=faults)


def drawn(task: Task, gpus: int, like: Node) -> Iterator[Arrival]:
    """Return the task's workload for this many GPUs, on nodes `like` this one."""
    return workload.generate(
        task.variant,
        gpus=gpus,
        gpu_model=like.gpu_model,
        seed=task.seed,
        hours=task.hours,
        gpus_per_node=len(like.devices),
    )


def simulate(
    task: Task,
    nodes: Sequence[Node],
    arrivals: Iterable[Arrival],
    *,
    simulation_type: type[Simulation] = Simulation,
    **more: Any,
) -> Figures:
    """Run to the task's end and return the figures."""
    shares = workload.StreamShares()
    run = simulation_type(
        nodes,
        shares.watch(iter(arrivals)),
        policy=task.policy,
        settings=replace(task.settings, warm_up_s=task.warm_up_h * HOUR, stop_s=task.hours * HOUR),
        **more,
    )
    cpu = time.process_time()
    with simulation.no_collection():
        outcome = run.run()
    cpu = time.process_time() - cpu
    gpus = sum(len(n.devices) for n in nodes)
    return {
        **figures(outcome, nodes, warm_up_until=task.warm_up_h * HOUR),
        "offered_load": shares.figures(gpus, task.hours).get("load"),
        "cpu_seconds": cpu,
        **(run.figures() if isinstance(run, Watching) else {}),
    }


def unlimited(
    arrivals: Iterable[Arrival], nodes: Sequence[Node]
) -> tuple[tuple[TenantSpec, ...], tuple[QuotaSpec, ...]]:
    """Return the tenants of these jobs, each with a quota of all GPUs of the nodes (of one model),
    so that only the cluster limits what they hold."""
    names = sorted({arrival.job.tenant for arrival in arrivals})
    model, gpus = nodes[0].gpu_model, sum(len(node.devices) for node in nodes)
    quotas = tuple(QuotaSpec(name, model, 1000 * gpus) for name in names)
    return tuple(TenantSpec(name) for name in names), quotas


class Watching(Simulation):
    """A simulation that records more than its observer does."""

    def figures(self) -> Figures:
        """Return what it has recorded, after the run."""
        raise NotImplementedError


def figures(outcome: RunOutcome, nodes: Sequence[Node], *, warm_up_until: float) -> Figures:
    """Return the figures of a study from a finished run; None where the divisor is 0.

    GAR, SOR and GFR are those of the pool with the most GPUs. `sor_net` is SOR minus the GPU time
    lost to preemption, moves and faults; `lost_share` is that lost time over the held time.
    """
    found = simulation.summary(outcome, nodes, warm_up_until=warm_up_until)
    model = max(outcome.pools, key=lambda m: outcome.pools[m].offered_s)
    pool, book = found["pools"][model], outcome.pools[model]
    waits = found["waits"]
    return {
        "gar_mean": pool["gar_mean"],
        "gar_median": pool["gar_median"],
        "sor_mean": pool["sor"],
        "sor_median": pool["sor_median"],
        "sor_net": definitions.ratio(book.milli_s - book.lost_milli_s, book.offered_s),
        "gfr_mean": pool["gfr_mean"],
        "idle_nodes_mean": _mean(book.series.idle_nodes),
        "wait_mean_s": {size: row["mean_s"] for size, row in waits.items()},
        "first_start_mean_s": {size: row["first_start"]["mean_s"] for size, row in waits.items()},
        "jtted_nodes": {size: row["nodes"] for size, row in found["jtted"].items()},
        "jtted_groups": {size: row["groups"] for size, row in found["jtted"].items()},
        "jobs": found["jobs"],
        "waiting_jobs": waits["all"]["waiting"] if "all" in waits else 0,
        "preempted_jobs": found["preempted_jobs"],
        "preempted_share": definitions.ratio(found["preempted_jobs"], found["jobs_present"]),
        "requeues": found["requeues"],
        "lost_gpu_hours": found["lost_gpu_hours"],
        "lost_share": definitions.ratio(book.lost_milli_s, book.milli_s),
        "events": found["events"],
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
