"""faults: goodput of 8,000 GPUs under the three published fault rates, with and without hot spares
and fast requeueing of whole gangs.

The load is 1.3, because only in a full cluster does a job that lost a node wait for another one.
Goodput (`sor_net`) is GPU time held minus GPU time lost, over the available: every interruption
loses the work since the last checkpoint (every half hour here) and the restart (10 min). Jobs of
256 GPUs and more may start on the spare nodes; `restart_wait_s` is the mean time that those which
lost a node waited for their next start. With fast requeue, a gang that lost a node goes as a whole
to the front of its priority at once; without, it waits in its old place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from statistics import fmean
from typing import Any

from metrics.experiments.comparison import Bar, Comparison, at_least, at_most, over
from metrics.experiments.runs import Figures, Task, Watching, policy, simulate
from metrics.simulate.inputs import fleet_of
from scheduling.engine.decisions import CycleResult
from scheduling.simulator import workload
from scheduling.simulator.faults import faults_of
from scheduling.simulator.model import Settings
from scheduling.simulator.nodes import engine_nodes

FLEET, QUICK_FLEET, LOAD = "1000x8", "250x8", 1.3
RATES = {"good": 2.3, "base": 6.5, "stress": 22.0}
SPARES = 8  # per 1,000 nodes
SLOW = Settings(checkpoint_s=1800.0, restart_s=600.0, fault_first=False)
FAST = replace(SLOW, fault_first=True)
CASES = {
    "neither": (0, SLOW),
    "fast requeue": (0, FAST),
    "spares": (SPARES, SLOW),
    "both": (SPARES, FAST),
}
LARGE_MILLI = workload.LARGE * 1000


class Restarts(Watching):
    """Measures how long large jobs that lost a node wait until they are placed again."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._since: dict[str, float] = {}
        self._waits: list[float] = []

    def _carry_out(self, result: CycleResult, now: float) -> None:
        for job_id, *_ in result.lost:
            run = self.jobs.get(job_id)
            if run is not None and run.arrival.job.gpu_milli >= LARGE_MILLI:
                self._since[job_id] = now
        for part in result.started:
            since = self._since.pop(part.job_id, None)
            if since is not None:
                self._waits.append(now - since)
        super()._carry_out(result, now)

    def figures(self) -> Figures:
        # A job that still waits has waited at least until now.
        waits = self._waits + [
            self.now - since for job_id, since in self._since.items() if job_id in self.jobs
        ]
        return {
            "restart_wait_s": fmean(waits) if waits else None,
            "restarts_of_large": len(waits),
        }


def faulty(task: Task) -> Figures:
    fleet = fleet_of(task.fleet)
    nodes = engine_nodes(fleet)
    model = nodes[0].gpu_model
    made = workload.generate(
        task.variant, gpus=fleet.gpus, gpu_model=model, seed=task.seed, hours=task.hours
    )
    arrivals = (
        replace(a, job=replace(a.job, uses_spares=a.job.gpu_milli >= LARGE_MILLI)) for a in made
    )
    tenants, quotas = workload.tenants_of(fleet.gpus, model)
    drawn = faults_of(nodes, per_1000_node_days=task.fault_rate, seed=task.seed)
    faults = list(takewhile(lambda fault: fault.at < task.hours * workload.HOUR, drawn))
    found = simulate(
        task, nodes, arrivals, simulation_type=Restarts, tenants=tenants, quotas=quotas,
        faults=faults,
    )  # fmt: skip
    return {**found, "faults": len(faults)}


def tasks(options: dict[str, Any]) -> Sequence[Task]:
    fleet = QUICK_FLEET if options["quick"] else FLEET
    size = int(fleet.partition("x")[0])
    return [
        Task(
            run=faulty,
            scenario=f"{rate} ({per_1000:g} per 1,000 node-days)",
            name=name,
            policy=policy(
                "best-effort-fifo",
                "e-binpack",
                spare_nodes={"H100": spares * size // 1000} if spares else {},
            ),
            seed=0,
            hours=options["hours"],
            warm_up_h=options["warm_up_h"],
            variant=workload.Variant(load=LOAD),
            fleet=fleet,
            settings=settings,
            fault_rate=per_1000,
        )
        for rate, per_1000 in RATES.items()
        for name, (spares, settings) in CASES.items()
    ]


def bars(scenarios: Mapping[str, dict[str, Any]]) -> list[Bar]:
    found = []
    for scenario, of in scenarios.items():
        summary = of["summary"]
        both, neither = summary["both"], summary["neither"]
        ratio = over(both["restart_wait_s"], neither["restart_wait_s"])
        lost = over(both["sor_net"], neither["sor_net"])
        found += [
            at_most(f"restart of large jobs, both over neither, {scenario}", ratio, 0.5),
            at_least(f"goodput, both over neither, {scenario}", lost, 1.0 - SPARES / 1000),
        ]
    return found


STUDY = Comparison(
    name="faults",
    help="goodput under three fault rates, with and without hot spares",
    tasks=tasks,
    bars=bars,
    seeds="1-5",
    hours=336.0,
    quick_hours=48.0,
    columns=("sor_mean", "sor_net", "restart_wait_s", "restarts_of_large", "faults"),
).study()
