"""eta: how true the start that Kant tells a waiting job is, and how wide its band.

A recorded trace (--data names one, or a folder, as for `walltime`) or the calibrated workload runs
through the simulator. At instants that are spread over its submissions, after the first 500 jobs
have ended, the forecaster is shown what a scheduler would be told at a start then, and tells a band
for every job that waits; what it has learned until then is all that it knows. Where no band is of
use it may tell from when on the job may start. When the run is over all that is held against the
starts. Run times are declared exactly, at twice what they are, or not at all. Beside it stand: the
same runs ahead by the true distribution of each job's run time (of all jobs of its size in the
whole trace, also later ones), the moving average of the last waits of its size, and the start by
declared limits of one run ahead without arrivals, as Slurm's backfill plans it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from metrics.experiments.comparison import Bar, Comparison, at_least, at_most
from metrics.experiments.eta_looks import WARM, Looking, LookPlan, spread
from metrics.experiments.runs import Figures, Task, drawn, policy, simulate, unlimited
from metrics.experiments.walltime import PER_NODE, nodes_for, paths_of, trace_of
from scheduling.simulator.forecast.likeness import size_of
from scheduling.simulator.model import Arrival
from scheduling.simulator.nodes import engine_nodes, sized
from scheduling.simulator.workload import HOUR, Variant

EXACT, DOUBLE, NONE = "declared exactly", "declared twice", "not declared"
FACTORS: Mapping[str, float | None] = {EXACT: 1.0, DOUBLE: 2.0, NONE: None}
POLICIES = {EXACT: ("backfill",), DOUBLE: ("backfill",), NONE: ("best-effort-fifo", "strict-fifo")}
RUNS, LOOKS, LEAST_JOBS = 12, 60, 2 * WARM
CALIBRATED, CALIBRATED_NODES, CALIBRATED_LOAD = "calibrated workload", 32, 1.0
CALIBRATED_HOURS, QUICK_LOOKS = 720.0, 15
HELD = (0.75, 0.85)  # shares of starts in the band


def looked(task: Task) -> Figures:
    """One run with looks at those who wait in it."""
    nodes = engine_nodes(sized(task.fleet))
    factor = task.more["factor"]
    recorded = _recorded(task)
    arrivals = [_declaring(a, factor) for a in recorded]
    tenants, quotas = unlimited(arrivals, nodes)
    by_size: dict[int, list[float]] = {}
    for a in arrivals:
        by_size.setdefault(size_of(a.job.gpu_milli), []).append(a.duration_s)
    plan = LookPlan(
        every=max(1, (len(arrivals) - WARM) // task.more["looks"]),
        runs=RUNS,
        seed=1000 * task.seed,
        used=1 / factor if factor else 1.0,
        by_size={size: spread(times) for size, times in by_size.items()},
        tenants=tenants,
        quotas=quotas,
    )
    return simulate(task, nodes, arrivals, simulation_type=Looking, plan=plan)


def _declaring(arrival: Arrival, factor: float | None) -> Arrival:
    told = None if factor is None else max(1.0, factor * arrival.duration_s)
    return replace(arrival, job=replace(arrival.job, declared_s=told))


def _recorded(task: Task) -> Sequence[Arrival]:
    path = task.more["path"]
    if path is not None:
        return [a for a in trace_of(path) if a.submitted_at < task.hours * HOUR]
    nodes = engine_nodes(sized(task.fleet))
    return list(drawn(task, PER_NODE * len(nodes), nodes[0]))


def tasks(options: dict[str, Any]) -> Sequence[Task]:
    made = _calibrated(options) if options["data"] is None else []
    for path in paths_of(None if options["data"] is None else Path(options["data"])):
        arrivals = [a for a in trace_of(path) if a.submitted_at < options["hours"] * HOUR]
        if options["data"] is None and len(arrivals) < LEAST_JOBS:
            continue
        span = max(HOUR, arrivals[-1].submitted_at)
        nodes = nodes_for(arrivals, span, path)
        made += _of(
            f"{path.name}, {len(arrivals):,} jobs on {nodes} nodes", f"{nodes}x{PER_NODE}",
            span / HOUR, options, path,
        )  # fmt: skip
    return made


def _calibrated(options: dict[str, Any]) -> list[Task]:
    title = f"{CALIBRATED}, {CALIBRATED_NODES} nodes, load {CALIBRATED_LOAD:g}"
    hours = min(options["hours"], CALIBRATED_HOURS)
    return _of(title, f"{CALIBRATED_NODES}x{PER_NODE}", hours, options, None)


def _of(
    title: str, fleet: str, hours: float, options: dict[str, Any], path: Path | None
) -> list[Task]:
    return [
        Task(
            run=looked,
            scenario=title,
            name=f"{mode}, {queueing}",
            policy=policy(queueing, "e-binpack"),
            seed=0,
            hours=hours,
            warm_up_h=0.0,
            fleet=fleet,
            variant=Variant(load=CALIBRATED_LOAD),
            more={
                "path": path,
                "factor": FACTORS[mode],
                "looks": QUICK_LOOKS if options["quick"] else LOOKS,
            },
        )
        for mode, of in POLICIES.items()
        for queueing in of
    ]


def bars(scenarios: Mapping[str, dict[str, Any]]) -> list[Bar]:
    found = []
    for title, scenario in scenarios.items():
        for name, row in scenario["summary"].items():
            of = f"{name}: {title}"
            found.append(at_least(f"looks with an estimate, {of}", row["told"], 0.95))
            if name.startswith(EXACT):
                claim = f"middle within 20 % of the wait that remained, {of}"
                found.append(at_least(claim, row["near"], 0.85))
                continue
            found.append(_between(f"starts in the band, {of}", row["held"]))
            claim = f"width over that of who knows all distributions, {of}"
            found.append(at_most(claim, row["width_ratio"], 2.0))
    return found


def _between(claim: str, value: float | None) -> Bar:
    low, high = HELD
    holds = None if value is None else low <= value <= high
    return Bar(claim, value, f"{low:g} to {high:g}", holds)


STUDY = Comparison(
    name="eta",
    help="starts told to waiting jobs: how many, how true, how wide, beside other ways to tell",
    tasks=tasks,
    bars=bars,
    seeds="1",
    hours=100_000.0,
    quick_hours=1500.0,
    reads_data=True,
    warms_up=False,
    columns=(
        "looks", "told", "earliest", "earliest_held", "near", "held", "held_raw", "width_s",
        "oracle_width_s", "oracle_held", "width_ratio", "near_average", "near_slurm",
        "cpu_per_look_s", "most_waiting",
    ),
).study()  # fmt: skip
