"""learned-backfill: backfill with learned run times, on recorded traces that declare none.

--data names a trace or a folder, as for `walltime`; by default the project's known traces with jobs
of 64 GPUs and more are used. The halves of a trace run separately: what is learned in one is
unknown in the other. The cluster is sized so that the half's GPU time is the stated load. The
baseline is best-effort FIFO.

Backfill runs as it was without learned run times (pools are closed to jobs behind an overdue head);
with them; with them, where an overdue head may preempt jobs that passed it; and with every run time
declared exactly, which shows what reservations can achieve on this trace at all. A reservation
counts as broken if the job starts later than it was ever told.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.conf import settings

from metrics import definitions
from metrics.experiments.comparison import Bar, Comparison, at_most, over
from metrics.experiments.runs import Figures, Task, policy
from metrics.experiments.walltime import (
    PER_NODE,
    nodes_for,
    paths_of,
    trace_of,
    watched,
)
from scheduling.engine.types import PreemptionKind
from scheduling.simulator.model import Arrival
from scheduling.simulator.nodes import engine_nodes, sized
from scheduling.simulator.workload import HOUR

KNOWN = ("cluster02.csv.xz", "cluster03.csv.xz", "cluster06.csv.xz")
HALVES = ("first half", "second half")
LARGE = tuple(label for label in definitions.SIZE_LABELS[6:])
BASE, CLOSING, LEARNED = "best-effort-fifo", "backfill, nothing known", "backfill, learned"
PREEMPTING, EXACT = "backfill, learned, preempts", "backfill, declared exactly"
MEAN, LARGEST = 1.1, 0.6  # of best-effort's


def recorded(task: Task) -> Figures:
    """Run one half of a trace under one policy."""
    arrivals = half_of(trace_of(task.more["path"]), task.more["half"], task.more["until_s"])
    if task.more["declared"]:
        arrivals = [_declared(a) for a in arrivals]
    nodes = engine_nodes(sized(task.fleet))
    found = watched(task, nodes, arrivals)
    waits = found["wait_mean_s"]
    sizes = Counter(definitions.size_class(a.job.gpu_milli) for a in arrivals)
    large = sum(sizes[label] for label in LARGE)
    return {
        **found,
        "mean_wait_s": waits.get("all"),
        "large_wait_s": over(sum(waits[n] * sizes[n] for n in LARGE if sizes[n]), large),
        "large_jobs": large,
    }


def _declared(arrival: Arrival) -> Arrival:
    return replace(arrival, job=replace(arrival.job, declared_s=max(1.0, arrival.duration_s)))


def half_of(trace: Sequence[Arrival], half: str, until_s: float) -> list[Arrival]:
    """Return the half's jobs, with times from their own beginning."""
    jobs = [a for a in trace if a.submitted_at < until_s]
    middle = len(jobs) // 2
    found = jobs[:middle] if half == HALVES[0] else jobs[middle:]
    begun = found[0].submitted_at if found else 0.0
    return [replace(a, job=replace(a.job, submitted_at=a.submitted_at - begun)) for a in found]


def tasks(options: dict[str, Any]) -> Sequence[Task]:
    made: list[Task] = []
    until_s = options["hours"] * HOUR
    for path in _paths(options["data"]):
        for half in HALVES:
            arrivals = half_of(trace_of(path), half, until_s)
            if not arrivals:
                continue
            span = max(HOUR, arrivals[-1].submitted_at)
            nodes = nodes_for(arrivals, span, path)
            title = f"{path.name}, {half}, {len(arrivals):,} jobs on {nodes} nodes"
            made += _of(title, nodes, {"path": path, "half": half, "until_s": until_s})
    return made


def _paths(data: str | None) -> list[Path]:
    if data is not None:
        return paths_of(Path(data))
    folder = settings.KANT_TRACES / "itp"
    return [folder / name for name in KNOWN if (folder / name).is_file()] or paths_of(None)


def _of(title: str, nodes: int, more: Mapping[str, Any]) -> list[Task]:
    overdue = {"preemption": (PreemptionKind.BACKFILL,)}
    plans: dict[str, tuple[str, dict[str, Any]]] = {
        BASE: ("best-effort-fifo", {}),
        CLOSING: ("backfill", {"learned_run_times": False}),
        LEARNED: ("backfill", {}),
        PREEMPTING: ("backfill", overdue),
        EXACT: ("backfill", {}),
    }
    return [
        Task(
            run=recorded,
            scenario=title,
            name=name,
            policy=policy(queueing, "e-binpack", **settled),
            seed=0,
            hours=100_000.0,  # until all have ended
            warm_up_h=0.0,
            fleet=f"{nodes}x{PER_NODE}",
            more={**more, "declared": name == EXACT},
        )
        for name, (queueing, settled) in plans.items()
    ]


def bars(scenarios: Mapping[str, dict[str, Any]]) -> list[Bar]:
    found = []
    for title, scenario in scenarios.items():
        summary = scenario["summary"]
        for figure, limit, of in (
            ("mean_wait_s", MEAN, "mean wait"),
            ("large_wait_s", LARGEST, "mean wait from 64 GPUs on"),
        ):
            base = summary[BASE][figure]
            bound = over(summary[EXACT][figure], base)
            claim = f"{of} over best-effort's, {title}"
            found.append(at_most(claim, over(summary[LEARNED][figure], base), limit, bound=bound))
    return found


STUDY = Comparison(
    name="learned-backfill",
    help="backfill by learned run times where nothing is declared, on recorded traces",
    tasks=tasks,
    bars=bars,
    seeds="1",
    hours=100_000.0,
    quick_hours=500.0,
    reads_data=True,
    warms_up=False,
    columns=(
        "mean_wait_s", "large_wait_s", "large_jobs", "reserved_jobs", "broken_reservations",
        "preempted_jobs", "lost_gpu_hours",
    ),
).study()  # fmt: skip
