"""walltime: declared run times; backfill with reservations against FIFO on a recorded trace.

--data names a trace (SWF or any other known format, also .gz and .xz) or a folder; of a folder it
takes the SWF files in it and below, or, if there are none, the traces directly in it. Jobs that
declare nothing get run times drawn by seed from the published distribution of declared times; a job
that runs longer than declared is ended at that time, as a scheduler would. The cluster is sized so
that the trace's total GPU time is the stated load; the load comes in bursts, as recorded. Without
--data the project's known traces are used. For comparison there is the same order when only the
number of free GPUs counts (easy.py).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.conf import settings
from numpy.random import PCG64, Generator

from metrics.experiments.bounds import easy
from metrics.experiments.comparison import Bar, Comparison, at_most, ratio_of
from metrics.experiments.runs import Figures, Task, Watching, policy, simulate, unlimited
from metrics.experiments.study import StudyError
from metrics.simulate.inputs import lines_of
from scheduling.engine.decisions import CycleResult
from scheduling.engine.types import Node
from scheduling.simulator import traces
from scheduling.simulator.model import Arrival
from scheduling.simulator.nodes import MAX_SIZE, engine_nodes, sized
from scheduling.simulator.workload import HOUR, declared_s
from scheduling.text_files import suffix_of

LOAD, PER_NODE, MODEL = 0.85, 8, "H100"
BOUND = "EASY, one machine"
KNOWN = ("cluster10.csv.xz", "cluster01.csv.xz", "cluster06.csv.xz")
SWF = ".swf"
SUFFIXES = (SWF, ".csv", ".jsonl")


class ReservationWatch(Watching):
    """Compares every reservation that was announced with the start of its job."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._promised: dict[str, float] = {}
        self.promises = self.broken = self.given_up = 0
        self.latest_s = 0.0

    def _carry_out(self, result: CycleResult, now: float) -> None:
        super()._carry_out(result, now)
        # A reservation also ends when its job starts, so look at the starts first.
        for part in result.started:
            promised = self._promised.pop(part.job_id, None)
            if promised is not None:
                self.promises += 1
                late = now - promised
                self.latest_s = max(self.latest_s, late)
                self.broken += late > 1e-6
        for reserved in result.reservations:
            if reserved.start_at is None:
                self.given_up += self._promised.pop(reserved.job_id, None) is not None
                continue
            first = self._promised.get(reserved.job_id, math.inf)
            self._promised[reserved.job_id] = min(first, reserved.start_at)

    def figures(self) -> Figures:
        return {
            "reserved_jobs": self.promises,
            "broken_reservations": self.broken,
            "given_up_reservations": self.given_up,
            "latest_start_s": self.latest_s,
        }


def watched(task: Task, nodes: Sequence[Node], arrivals: Sequence[Arrival]) -> Figures:
    """Run with the cluster as the tenants' only limit; include what became of the reservations."""
    tenants, quotas = unlimited(arrivals, nodes)
    return simulate(
        task, nodes, arrivals, simulation_type=ReservationWatch, tenants=tenants, quotas=quotas
    )


def recorded(task: Task) -> Figures:
    """Run one trace under one policy, with declared times drawn by the task's seed."""
    nodes = engine_nodes(sized(task.fleet))
    gpus = PER_NODE * len(nodes)
    arrivals = _declared(task)
    return _told(watched(task, nodes, arrivals), gpus)


def on_one_machine(task: Task) -> Figures:
    """Run the same arrivals when only the number of free GPUs counts."""
    found = easy.run(task, lambda task, *_: _declared(task))
    return _told(found, sized(task.fleet).gpus)


def _told(found: Figures, gpus: int) -> Figures:
    return {**found, "gpus": gpus, "mean_wait_s": found["wait_mean_s"].get("all")}


def _declared(task: Task) -> list[Arrival]:
    arrivals = trace_of(task.more["path"])
    draws = Generator(PCG64(task.seed)).random(len(arrivals)).tolist()
    return [_declaring(a, draw) for a, draw in zip(arrivals, draws, strict=True)]


def _declaring(arrival: Arrival, draw: float) -> Arrival:
    told = arrival.job.declared_s
    if told is not None:
        return replace(arrival, duration_s=min(arrival.duration_s, told))
    told = declared_s(arrival.duration_s, draw)
    return replace(arrival, job=replace(arrival.job, declared_s=told))


@lru_cache(maxsize=1)
def trace_of(path: Path) -> tuple[Arrival, ...]:
    """Return the jobs of a trace in order of time; raise StudyError."""
    try:
        rows = sorted(
            traces.jobs_of(lines_of(path), traces.BadRows(skip=False), ""),
            key=lambda job: job.submitted_at,
        )
        found = tuple(traces.arrivals(rows, gpu_models=(MODEL,), per_node=PER_NODE))
    except (traces.TraceFormatError, ValueError) as error:
        raise StudyError(f"--data {path}: {error}") from None
    if not found:
        raise StudyError(f"--data {path}: has no job that asks for a GPU")
    return found


def tasks(options: dict[str, Any]) -> Sequence[Task]:
    made = []
    for path in paths_of(None if options["data"] is None else Path(options["data"])):
        arrivals = [a for a in trace_of(path) if a.submitted_at < options["hours"] * HOUR]
        span = max(HOUR, arrivals[-1].submitted_at)
        nodes = nodes_for(arrivals, span, path)
        made += [
            Task(
                run=run,
                scenario=f"{path.name}, {len(arrivals):,} jobs on {nodes} nodes",
                name=name,
                policy=policy(queueing, "e-binpack"),
                seed=0,
                hours=span / HOUR,
                warm_up_h=0.0,
                fleet=f"{nodes}x{PER_NODE}",
                more={"path": path},
            )
            for name, queueing, run in (
                ("strict-fifo", "strict-fifo", recorded),
                ("backfill", "backfill", recorded),
                (BOUND, "backfill", on_one_machine),
            )
        ]
    return made


def nodes_for(arrivals: Sequence[Arrival], span: float, path: Path) -> int:
    """Return how many nodes make the GPU time of a trace of `span` seconds the stated load; raise
    StudyError if no fleet is that large."""
    milli_s = sum(a.job.gpu_milli * a.duration_s for a in arrivals)
    largest = max(a.job.gpu_milli for a in arrivals)
    nodes = math.ceil(max(milli_s / span / LOAD, largest) / 1000 / PER_NODE)
    if nodes > MAX_SIZE:
        raise StudyError(
            f"--data {path}: load {LOAD:g} takes {nodes:,} nodes of {PER_NODE} GPUs, a fleet "
            f"has at most {MAX_SIZE:,}; its largest job asks for {largest // 1000:,} GPUs"
        )
    return nodes


def paths_of(data: Path | None) -> list[Path]:
    """Return the traces that --data names, else the known ones; raise StudyError if there are
    none."""
    if data is not None and data.is_file():
        return [data]
    folder = settings.KANT_TRACES / "itp" if data is None else data
    if data is None:
        found = [folder / name for name in KNOWN if (folder / name).is_file()]
    elif folder.is_dir():
        found = sorted(p for p in folder.rglob("*") if p.is_file() and suffix_of(p) == SWF)
        found = found or sorted(p for p in folder.iterdir() if suffix_of(p) in SUFFIXES)
    else:
        raise StudyError(f"--data {data}: is no file and no folder")
    if not found:
        raise StudyError(
            f"{folder}: has no trace (a file of {', '.join(SUFFIXES)}, plain, .gz or .xz); name "
            "one by --data, or fetch microsoft/elasticflow-traces"
        )
    return found


def bars(scenarios: Mapping[str, dict[str, Any]]) -> list[Bar]:
    found = []
    for name, scenario in scenarios.items():
        gain, bound = (scenario["paired"][of]["mean_wait_s"] for of in ("backfill", BOUND))
        broken = scenario["summary"]["backfill"]["broken_reservations"]
        claim = f"mean wait over FIFO's, {name}"
        found.append(at_most(claim, ratio_of(gain), 0.6, bound=ratio_of(bound)))
        found.append(at_most(f"reserved starts broken, {name}", broken, 0))
    return found


STUDY = Comparison(
    name="walltime",
    help="declared run times: backfill with reservations against FIFO on recorded traces",
    tasks=tasks,
    bars=bars,
    seeds="1-3",
    hours=100_000.0,
    quick_hours=1000.0,  # in four days nobody waits on clusters this small
    reads_data=True,
    warms_up=False,
    columns=("mean_wait_s", "reserved_jobs", "broken_reservations", "given_up_reservations"),
).study()
