"""fairness: a lender gets its GPUs back.

Two tenants own half of an 800-GPU cluster each. The borrower asks for more than everything from the
start; the lender is idle, then suddenly asks for its whole half. With reclaim it has it within T
(the minimum run time of a borrower's job, plus a minute); without, it waits for the borrower's jobs
to end.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numpy.random import PCG64, Generator

from metrics.experiments.comparison import Bar, Comparison, at_least, at_most, over
from metrics.experiments.runs import Figures, Task, Watching, policy, simulate
from metrics.simulate.inputs import fleet_of
from scheduling.engine.types import JobRequest, PodSetSpec, PreemptionKind, QuotaSpec, TenantSpec
from scheduling.simulator.model import Arrival
from scheduling.simulator.nodes import engine_nodes
from scheduling.simulator.workload import HOUR

FLEET, GPUS = "100x8", 800
BORROWER, LENDER = "borrower", "lender"
JOB_GPUS, MEAN_S = 8, 6 * HOUR
MIN_RUNTIME_S = 60.0
T_S = MIN_RUNTIME_S + 60.0


class _Returned(Watching):
    """Reads from the finished run how soon the lender got its half."""

    def figures(self) -> Figures:
        jobs = self.observer.jobs
        mine = [i for i in range(len(jobs)) if jobs.tenants[i] == LENDER]
        burst = min(jobs.submitted[i] for i in mine)
        first = [i for i in mine if jobs.submitted[i] == burst]
        # A job that has not started (NaN) has waited until the end of the run.
        waits = [
            (jobs.started[i] if jobs.started[i] == jobs.started[i] else self.now) - burst
            for i in first
        ]
        held = self.observer.tenant_milli_s
        return {
            "returned_after_s": max(waits),
            "lender_gpu_hours": held.get(LENDER, 0.0) / 3.6e6,
            "borrower_gpu_hours": held.get(BORROWER, 0.0) / 3.6e6,
        }


def demand(task: Task, gpu_model: str) -> Iterator[Arrival]:
    """Yield 1.5 × the cluster for the borrower throughout, and half of it for the lender from the
    middle on."""
    rng = Generator(PCG64(task.seed))
    middle, end = task.hours / 2 * HOUR, task.hours * HOUR
    rate = 1.5 * GPUS / JOB_GPUS / MEAN_S
    found = [(at, BORROWER) for at in _times(rng, rate, end)] + [(0.0, BORROWER)] * (
        GPUS // JOB_GPUS
    )
    found += [(middle, LENDER)] * (GPUS // 2 // JOB_GPUS)
    found += [(at, LENDER) for at in _times(rng, rate / 3, end) if at > middle]
    pods = (PodSetSpec("main", 1, JOB_GPUS, (gpu_model,)),)
    for number, (at, tenant) in enumerate(sorted(found)):
        length = max(10 * MIN_RUNTIME_S, float(rng.exponential(MEAN_S)))
        yield Arrival(JobRequest(f"j{number:05}", tenant, at, pods), length)


def _times(rng: Generator, rate: float, end: float) -> Iterator[float]:
    at = float(rng.exponential(1 / rate))
    while at < end:
        yield at
        at += float(rng.exponential(1 / rate))


def lending(task: Task) -> Figures:
    nodes = engine_nodes(fleet_of(task.fleet))
    model = nodes[0].gpu_model
    return simulate(
        task,
        nodes,
        demand(task, model),
        simulation_type=_Returned,
        tenants=(TenantSpec(BORROWER), TenantSpec(LENDER)),
        quotas=tuple(QuotaSpec(name, model, 1000 * GPUS // 2) for name in (BORROWER, LENDER)),
    )


def tasks(options: dict[str, Any]) -> Sequence[Task]:
    return [
        Task(
            run=lending,
            scenario="lender returns",
            name=name,
            policy=policy(
                "best-effort-fifo", "e-binpack", preemption=kinds, min_runtime_s=MIN_RUNTIME_S
            ),
            seed=0,
            hours=options["hours"],
            warm_up_h=0.0,
            fleet=FLEET,
        )
        for name, kinds in (("no reclamation", ()), ("reclamation", (PreemptionKind.RECLAIM,)))
    ]


def bars(scenarios: Mapping[str, dict[str, Any]]) -> list[Bar]:
    summary = scenarios["lender returns"]["summary"]
    with_it, without = summary["reclamation"], summary["no reclamation"]
    return [
        at_most("the lender has its half back after, s", with_it["returned_after_s"], T_S),
        at_least(
            "GAR with reclamation over without",
            over(with_it["gar_mean"], without["gar_mean"]),
            0.99,
        ),
    ]


STUDY = Comparison(
    name="fairness",
    help="two tenants with unequal demand: a lender gets its GPUs back within T",
    tasks=tasks,
    bars=bars,
    hours=96.0,
    warms_up=False,
    columns=("returned_after_s", "lender_gpu_hours", "borrower_gpu_hours"),
).study()
