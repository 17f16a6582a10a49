"""Files of a finished run: tables as CSV (and Parquet), the document as JSON, a report as HTML.

Every figure of the document can be recomputed from the tables (docs/traces.md).
"""

import csv
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from metrics.simulate.inputs import InputError
from metrics.simulate.report import Figure, Report
from scheduling.engine.types import held_milli
from scheduling.simulator.journal import RunJournal
from scheduling.simulator.observe import STATE_NAMES
from scheduling.simulator.run import RunOutcome
from tenants.web.csv_files import plain_cell

JOB_COLUMNS = (
    "id", "tenant", "gpu_model", "gpus", "priority", "submitted_s", "started_s", "ended_s",
    "state", "preemptions", "moves", "requeues", "nodes", "groups", "lost_gpu_hours",
    "gang", "pods", "never_runnable",
)  # fmt: skip
SAMPLE_COLUMNS = ("at_s", "gpu_model", "gar", "sor", "gfr", "idle_nodes")
PLACEMENT_COLUMNS = (
    "job", "pod_set", "ordinal", "node", "devices", "gpu_milli", "begin_s", "end_s", "lost",
)  # fmt: skip
NODE_COLUMNS = ("at_s", "node", "gpu_model", "group", "gpus", "healthy_gpus", "schedulable")
LOSS_COLUMNS = ("job", "node", "gpu_milli", "begin_s", "end_s")
EVENT_COLUMNS = ("at_s", "job", "event")

Row = Sequence[float | str | None]


def check_parquet() -> None:
    """Raise InputError if Parquet cannot be written."""
    if find_spec("pyarrow") is None:
        raise InputError(
            "--parquet needs the package pyarrow: pip install -r requirements-parquet.txt"
        )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)


def write_results(
    folder: Path,
    outcome: RunOutcome,
    journal: RunJournal,
    document: dict[str, Any],
    text: list[str],
    *,
    parquet: bool = False,
) -> None:
    """Write the tables as CSV (with `parquet` also as Parquet), summary.json, and report.html with
    `text` as its table.

    Raises OSError and leaves no partial file: each file is written under a temporary name and
    renamed when complete.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "jobs": (JOB_COLUMNS, _jobs(outcome)),
        "samples": (SAMPLE_COLUMNS, _samples(outcome)),
        "placements": (PLACEMENT_COLUMNS, _placements(outcome, journal)),
        "nodes": (NODE_COLUMNS, _nodes(journal)),
        "losses": (LOSS_COLUMNS, _losses(outcome, journal)),
        "events": (EVENT_COLUMNS, _events(outcome, journal)),
    }
    for name, (columns, found) in tables.items():
        rows = list(found)
        with _whole(folder / f"{name}.csv") as partial, _text(partial) as out:
            writer = csv.writer(out)
            writer.writerow(columns)
            writer.writerows(map(plain_cell, row) for row in rows)
        if parquet:
            with _whole(folder / f"{name}.parquet") as partial:
                _write_parquet(partial, columns, rows)
    with _whole(folder / "summary.json") as partial, _text(partial) as out:
        json.dump(document, out, indent=1, allow_nan=False)
    with _whole(folder / "report.html") as partial, _text(partial) as out:
        out.write(report(outcome, document, text).html())


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to it, which replaces it when everything is written."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _text(path: Path) -> IO[str]:
    return path.open("w", newline="", encoding="utf-8")


def _write_parquet(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    import pyarrow
    from pyarrow import parquet

    values = zip(*rows, strict=True) if rows else ((),) * len(columns)
    table = {name: list(found) for name, found in zip(columns, values, strict=True)}
    parquet.write_table(pyarrow.table(table), path)


def _jobs(outcome: RunOutcome) -> Iterator[Row]:
    jobs = outcome.observer.jobs
    for i in range(len(jobs)):
        yield (
            jobs.ids[i],
            jobs.tenants[i],
            jobs.models[i],
            jobs.milli[i] / 1000,
            jobs.priority[i],
            _number(jobs.submitted[i]),
            _number(jobs.started[i]),
            _number(jobs.ended[i]),
            STATE_NAMES[jobs.state[i]],
            jobs.preemptions[i],
            jobs.moves[i],
            jobs.requeues[i],
            jobs.nodes[i],
            jobs.groups[i],
            _rounded(jobs.lost_milli_s[i] / 3.6e6),
            jobs.gang[i],
            jobs.pods[i],
            int(jobs.ids[i] in outcome.never),
        )


def _samples(outcome: RunOutcome) -> Iterator[Row]:
    for model, pool in sorted(outcome.pools.items()):
        series = pool.series
        for i, at in enumerate(series.at):
            values = (series.gar[i], series.sor[i], series.gfr[i], series.idle_nodes[i])
            yield (at, model, *(_rounded(v) for v in values))


def _placements(outcome: RunOutcome, journal: RunJournal) -> Iterator[Row]:
    ids = outcome.observer.jobs.ids
    for stay in journal.stays:
        p = stay.place
        devices = " ".join(map(str, p.devices))
        until = _number(stay.end)
        where = (p.pod_set, p.ordinal, p.node, devices, held_milli(p))
        yield (ids[stay.row], *where, stay.begin, until, int(stay.lost))


def _nodes(journal: RunJournal) -> Iterator[Row]:
    for at, node in journal.nodes:
        group = node.topology[0] or node.name
        counts = (len(node.devices), node.healthy_gpus, int(node.schedulable))
        yield (at, node.name, node.gpu_model, group, *counts)


def _losses(outcome: RunOutcome, journal: RunJournal) -> Iterator[Row]:
    ids = outcome.observer.jobs.ids
    for row, p, begin, end in journal.losses:
        yield (ids[row], p.node, held_milli(p), begin, end)


def _events(outcome: RunOutcome, journal: RunJournal) -> Iterator[Row]:
    ids = outcome.observer.jobs.ids
    for at, row, event in journal.events:
        yield (at, ids[row], event)


def report(outcome: RunOutcome, document: dict[str, Any], text: list[str]) -> Report:
    """Return a report that works offline, with the series of every pool and the waits by size."""
    import plotly.graph_objects as go  # heavy: imported only where a figure is made

    figures = [
        Figure(
            f"{model}: GAR, SOR and GFR over the run",
            [
                go.Scatter(
                    mode="lines",
                    name=name.upper(),
                    x=[round(at / 3600, 3) for at in pool.series.at],
                    y=[
                        None if math.isnan(v) else round(100 * v, 3)
                        for v in getattr(pool.series, name)
                    ],
                )
                for name in ("gar", "sor", "gfr")
            ],
            {
                "xaxis": {"title": {"text": "hours"}},
                "yaxis": {"title": {"text": "%"}, "rangemode": "tozero"},
            },
        )
        for model, pool in sorted(outcome.pools.items())
    ]
    sizes = [size for size in document["waits"] if size != "all"]
    waits = [
        go.Bar(
            name=name,
            x=sizes,
            # A logarithmic axis cannot show jobs that did not wait.
            y=[document["waits"][size][key] or None for size in sizes],
        )
        for key, name in (("mean_s", "mean"), ("p50_s", "median"), ("p90_s", "90 %"))
    ]
    layout = {
        "barmode": "group",
        "xaxis": {"title": {"text": "GPUs"}, "type": "category"},
        "yaxis": {"title": {"text": "s"}, "type": "log"},
    }
    figures.append(Figure("Waits by size of job", waits, layout))
    return Report(
        title=f"{document['source']} on {document['fleet']} under {document['policy']}",
        note="PARTIAL: the run was interrupted." if document["partial"] else "",
        text=text,
        figures=figures,
    )
