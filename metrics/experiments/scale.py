"""scale: the cost of a decision as the cluster grows from 1,000 to 12,500 nodes of 8 GPUs.

Every size runs once with the same 4,400 jobs a day (cost of the cluster), and once with as many as
make load 0.92 (cost of cluster and jobs together).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from metrics.experiments.comparison import Bar, Comparison, at_most, ratio_of
from metrics.experiments.runs import Figures, Task, policy, training
from scheduling.simulator.workload import REFERENCE_JOBS_A_DAY, Variant

SIZES = (1000, 2000, 4000, 8000, 12500)
SAME, GROWING = "4,400 jobs a day", "load 0.92"


def timed(task: Task) -> Figures:
    """Run it, and add its CPU time per event."""
    found = training(task)
    return {**found, "cpu_us_per_event": 1e6 * found["cpu_seconds"] / max(1, found["events"])}


def tasks(options: dict[str, Any]) -> Sequence[Task]:
    return [
        Task(
            run=timed,
            scenario=scenario,
            name=f"{nodes} nodes",
            policy=policy("best-effort-fifo", "e-binpack"),
            seed=0,
            hours=options["hours"],
            warm_up_h=options["warm_up_h"],
            fleet=f"{nodes}x8",
            variant=variant,
        )
        for scenario, variant in (
            (SAME, Variant(jobs_a_day=REFERENCE_JOBS_A_DAY)),
            (GROWING, Variant()),
        )
        for nodes in SIZES
    ]


def bars(scenarios: Mapping[str, dict[str, Any]]) -> list[Bar]:
    found = []
    for name, scenario in scenarios.items():
        ratio = ratio_of(scenario["paired"][f"{SIZES[-1]} nodes"]["cpu_us_per_event"])
        claim = f"CPU an event, {SIZES[-1]} nodes over {SIZES[0]}, {name}"
        found.append(at_most(claim, ratio, 2.0))
    return found


STUDY = Comparison(
    name="scale",
    help="cost of a decision as the cluster grows, 1,000 to 12,500 nodes",
    tasks=tasks,
    bars=bars,
    seeds="1-2",
    hours=48.0,
    quick_hours=3.0,
    columns=("cpu_seconds", "cpu_us_per_event", "events"),
).study()
