"""eta: how accurate the start times that Kant predicts for waiting jobs are, and how wide their
bands.

A recorded trace (--data names one, or a folder, as for `walltime`) or the calibrated workload runs
through the simulator. At instants spread over its submissions, once 500 jobs have ended, the
forecaster gets what a scheduler would get at a start then, plus what it has learned up to then, and
predicts a band for every waiting job. If no band is useful, it may predict from when on the job may
start. At the end all predictions are compared with the starts. Run times are declared exactly, at
twice their value, or not at all.

For comparison: the same simulated runs with the true distribution of each job's run time (of all
jobs of its size in the whole trace, including later ones); the moving average of the last waits of
its size; and the start in one run without further arrivals where jobs run to their declared limits,
as Slurm's backfill plans.
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
HELD = (0.75, 0.85)  # shares of starts within the band


def looked(task: Task) -> Figures:
    """Run once, with looks at the jobs that wait."""
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
        "looks", "told", "earliest", "earliest_held", "near", "held", "uncertain",
        "held_uncertain", "held_raw", "width_s", "oracle_width_s", "oracle_held", "width_ratio",
        "near_average", "near_slurm", "cpu_per_look_s", "most_waiting",
    ),
).study()  # fmt: skip
