"""Files of a finished run: jobs and samples as CSV, the document as JSON, a report as HTML."""

import csv
import json
import math
from pathlib import Path
from typing import Any

from metrics.report import Figure, Report
from scheduling.simulator.observe import STATE_NAMES
from scheduling.simulator.run import Outcome

JOB_COLUMNS = (
    "id", "tenant", "gpu_model", "gpus", "priority", "submitted_s", "started_s", "ended_s",
    "state", "preemptions", "moves", "requeues", "nodes", "groups", "lost_gpu_hours",
)  # fmt: skip
SAMPLE_COLUMNS = ("at_s", "gpu_model", "gar", "sor", "gfr", "idle_nodes")


def _number(value: float) -> float | str:
    return "" if math.isnan(value) else round(value, 6)


def write_results(
    folder: Path, outcome: Outcome, document: dict[str, Any], text: list[str]
) -> None:
    """Write jobs.csv, samples.csv, summary.json and report.html with `text` as its table; raises
    OSError, leaving no partial file.

    Each file is written beside its place and renamed when it is whole.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in (
        ("jobs.csv", lambda out: _jobs(out, outcome)),
        ("samples.csv", lambda out: _samples(out, outcome)),
        ("summary.json", lambda out: json.dump(document, out, indent=1, allow_nan=False)),
        ("report.html", lambda out: out.write(report(outcome, document, text).html())),
    ):
        partial = folder / f"{name}.partial"
        try:
            with partial.open("w", newline="", encoding="utf-8") as out:
                write(out)
            partial.replace(folder / name)
        finally:
            partial.unlink(missing_ok=True)


def _jobs(out: Any, outcome: Outcome) -> None:
    writer = csv.writer(out)
    writer.writerow(JOB_COLUMNS)
    jobs = outcome.observer.jobs
    for i in range(len(jobs)):
        writer.writerow(
            (
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
                _number(jobs.lost_milli_s[i] / 3.6e6),
            )
        )


def _samples(out: Any, outcome: Outcome) -> None:
    writer = csv.writer(out)
    writer.writerow(SAMPLE_COLUMNS)
    for model, pool in sorted(outcome.pools.items()):
        series = pool.series
        for i, at in enumerate(series.at):
            values = (series.gar[i], series.sor[i], series.gfr[i], series.idle_nodes[i])
            writer.writerow((at, model, *(_number(v) for v in values)))


def report(outcome: Outcome, document: dict[str, Any], text: list[str]) -> Report:
    """The series of every pool and the waits by size, offline."""
    figures = [
        Figure(
            f"{model}: GAR, SOR and GFR over the run",
            [
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": name.upper(),
                    "x": [round(at / 3600, 3) for at in pool.series.at],
                    "y": [
                        None if math.isnan(v) else round(100 * v, 3)
                        for v in getattr(pool.series, name)
                    ],
                }
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
        {
            "type": "bar",
            "name": name,
            "x": sizes,
            # A logarithmic axis has no place for jobs that did not wait.
            "y": [document["waits"][size][key] or None for size in sizes],
        }
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
