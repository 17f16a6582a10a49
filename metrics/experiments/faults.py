"""faults: goodput of 8,000 GPUs under the three published fault rates, with and without hot
spares and whole-gang fast requeue.

Goodput is GPU time held less GPU time lost, of what is available: every interruption loses the
work since the last checkpoint (half-hourly here) and the restart (10 min). Jobs of 256 GPUs and
more may start on the spare nodes. With fast requeue a gang that lost a node goes whole to the
front of its priority at once; without, it waits in its old place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from metrics.experiments.comparison import Bar, Comparison
from metrics.experiments.runs import Figures, Task, policy, simulate
from metrics.inputs import fleet_of
from scheduling.simulator import workload
from scheduling.simulator.model import Settings
from scheduling.simulator.nodes import engine_nodes, faults_of

RATES = {"good": 2.3, "base": 6.5, "stress": 22.0}
SPARES = 8
SLOW = Settings(checkpoint_s=1800.0, restart_s=600.0, fault_first=False)
FAST = replace(SLOW, fault_first=True)
CASES = {
    "neither": (0, SLOW),
    "fast requeue": (0, FAST),
    "spares": (SPARES, SLOW),
    "both": (SPARES, FAST),
}


def faulty(task: Task) -> Figures:
    fleet = fleet_of(task.fleet)
    nodes = engine_nodes(fleet)
    model = nodes[0].gpu_model
    made = workload.generate(
        task.variant, gpus=fleet.gpus, gpu_model=model, seed=task.seed, hours=task.hours
    )
    arrivals = (
        replace(a, job=replace(a.job, uses_spares=a.job.gpu_milli >= workload.LARGE * 1000))
        for a in made
    )
    tenants, quotas = workload.tenants_of(fleet.gpus, model)
    faults = faults_of(
        nodes, per_1000_node_days=task.fault_rate, seed=task.seed, days=task.hours / 24
    )
    found = simulate(task, nodes, arrivals, tenants=tenants, quotas=quotas, faults=faults)
    return {**found, "faults": len(faults)}


def tasks(options: dict[str, Any]) -> Sequence[Task]:
    return [
        Task(
            run=faulty,
            scenario=f"{rate} ({per_1000:g} per 1,000 node-days)",
            name=name,
            policy=policy(
                "best-effort-fifo",
                "e-binpack",
                spare_nodes={"H100": spares} if spares else {},
            ),
            seed=0,
            hours=options["hours"],
            warm_up_h=options["warm_up_h"],
            settings=settings,
            fault_rate=per_1000,
        )
        for rate, per_1000 in RATES.items()
        for name, (spares, settings) in CASES.items()
    ]


def bars(scenarios: Mapping[str, dict[str, Any]]) -> list[Bar]:  # noqa: ARG001 - one signature
    return []


STUDY = Comparison(
    name="faults",
    help="goodput under three fault rates, with and without hot spares",
    tasks=tasks,
    bars=bars,
    seeds="1-5",
    hours=336.0,
    columns=("sor_net", "requeued_jobs", "faults"),
).study()
