"""Charts of use: allocation over time, waits, placement. They turn data into figures and query
nothing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import log10
from typing import Any

from metrics.definitions import JobWaits, PlacementQuality, ratio, size_range
from metrics.pages.figures import INK, LINES, Figure, axis, bars, figure, line, marks
from scheduling.engine.verdict import counted
from tenants.templatetags.ui import duration, short_model

# For a logarithmic axis of seconds.
WAIT_TICKS: dict[str, Any] = {
    "tickvals": [1, 10, 60, 600, 3600, 36000, 86400],
    "ticktext": ["1 s", "10 s", "1 min", "10 min", "1 h", "10 h", "1 d"],
}


@dataclass(frozen=True, slots=True)
class UsePoint:
    """One instant of a pool: GPUs (not milli-GPU) allocated and available; GFR in 0..1, or None."""

    at: datetime
    allocated: float
    available: float
    gfr: float | None


def allocation(points: Sequence[UsePoint]) -> Figure:
    """Draw allocated GPUs below the line of available ones, with GFR in a smaller chart
    underneath."""
    at = [f"{p.at.astimezone(UTC):%Y-%m-%d %H:%M:%S}" for p in points]
    last = points[-1] if points else None
    gar = ratio(last.allocated, last.available) if last else None
    summary = (
        f"{last.allocated:g} of {last.available:g} GPUs allocated"
        + (f" ({100 * gar:.1f} %)." if gar is not None else ".")
        if last
        else "Nothing has been recorded in this window yet."
    )
    return figure(
        [
            line(
                "allocated",
                at,
                [p.allocated for p in points],
                colour=LINES[0],
                hover="%{y:,} GPUs<extra>allocated</extra>",
                fill="tozeroy",
                fillcolor="var(--chart-1-soft)",
            ),
            line(
                "available",
                at,
                [p.available for p in points],
                colour=LINES[5],
                hover="%{y:,} GPUs<extra>available</extra>",
                dash="dash",
                width=1.5,
            ),
            line(
                "GFR",
                at,
                [None if p.gfr is None else 100 * p.gfr for p in points],
                colour=LINES[1],
                hover="%{y:.1f} %<extra>GFR</extra>",
                yaxis="y2",
            ),
        ],
        summary=summary,
        columns=["Time, UTC", "Allocated GPUs", "Available GPUs", "GFR %"],
        rows=[
            [time, p.allocated, p.available, None if p.gfr is None else 100 * p.gfr]
            for time, p in zip(at, points, strict=True)
        ],
        xaxis=axis("UTC", type="date", anchor="y2"),
        yaxis=axis("GPUs", domain=[0.42, 1], rangemode="tozero", nticks=5),
        yaxis2=axis("GFR %", domain=[0, 0.32], rangemode="tozero", nticks=4),
    )


def gpu_hours(days: Mapping[str, Mapping[str, float]], unit: str) -> Figure:
    """Draw the GPU-hours of each day (or month, as `unit` says), stacked by GPU model.

    `days`: {day: {GPU model: GPU-hours}}, with every day of the period. When there are more models
    than colours, the smallest are drawn as one.
    """
    totals: Counter[str] = Counter()
    for amounts in days.values():
        totals.update(amounts)
    models = [model for model, _ in totals.most_common()]
    if len(models) > len(LINES):
        models = models[: len(LINES) - 1]
    series = {m: [amounts.get(m, 0.0) for amounts in days.values()] for m in models}
    if len(models) < len(totals):
        shown = [sum(hours) for hours in zip(*series.values(), strict=True)]
        whole = [sum(amounts.values()) for amounts in days.values()]
        series["others"] = [w - s for w, s in zip(whole, shown, strict=True)]
    most = max(days, key=lambda day: sum(days[day].values()), default="")
    return figure(
        [
            bars(
                list(days),
                hours,
                hover="%{y:,.1f} GPU-hours<extra>" + model + "</extra>",
                name=short_model(model),
                marker={"color": colour},
            )
            for colour, (model, hours) in zip(LINES, series.items(), strict=False)
        ],
        summary=(
            f"{totals.total():,.1f} GPU-hours; the busiest {unit} is {most} with "
            f"{sum(days[most].values()):,.1f}."
            if totals.total()
            else "No GPU was allocated in this period."
        ),
        columns=[unit.capitalize(), *series],
        rows=[[day, *hours] for day, *hours in zip(days, *series.values(), strict=True)],
        barmode="stack",
        xaxis=axis("", type="category", nticks=5, tickangle=0),
        yaxis=axis("GPU-hours", rangemode="tozero"),
        showlegend=True,
    )


def _jobs(count: int) -> str:
    return "1 job or single pod" if count == 1 else f"{count} jobs and single pods"


def _gpus_of(label: str) -> str:
    """Return a size class in words: "no GPU", "1 GPU", "8–15 GPUs"."""
    if label == "0":
        return "no GPU"
    return f"{size_range(label)} GPU{'s' if label != '1' else ''}"


def _wait_ticks(end: float) -> dict[str, Any]:
    """Return labels for a log axis of seconds up to `end`, which gets a label too."""
    at, text = WAIT_TICKS["tickvals"], WAIT_TICKS["ticktext"]
    kept = [(t, words) for t, words in zip(at, text, strict=True) if t <= end / 2]
    kept.append((end, duration(end)))
    return {"tickvals": [t for t, _ in kept], "ticktext": [words for _, words in kept]}


def waits(found: Mapping[str, JobWaits]) -> Figure:
    """Draw JWTD: a strip per size class on a log axis of time.

    It goes from when 10 % of the jobs have their places to 90 % (thin), and from 25 % to 75 %
    (thick), with a mark at the median. If too few have started, it ends with the last start and
    continues as a dotted line to the longest wait. The table also has the waits until the first
    start.
    """
    curves = {size: of_size.in_all for size, of_size in found.items()}
    shown = {_gpus_of(k): c for k, c in curves.items() if k != "all" or len(curves) == 1}
    everyone = curves.get("all")
    begin, end = 1.0, max([10.0, *(c.longest for c in curves.values())])

    def strip(name: str, low: float, high: float, width: float) -> Any:
        known = {
            label: (first, curve.times[-1].item() if last is None else last)
            for label, curve in shown.items()
            if (first := curve.quantile(low)) is not None
            for last in [curve.quantile(high)]
        }
        return across(name, known, colour=LINES[0], width=width)

    def across(name: str, spans: Mapping[str, tuple[float, float]], **look: Any) -> Any:
        """One trace with a line per class, separated by `None`."""
        x = [at for ends in spans.values() for at in (*(max(begin, e) for e in ends), None)]
        y = [of for label in spans for of in (label, label, None)]
        hover = "%{x:.0f} s<extra>" + name + "</extra>"
        return line(name, x, y, shape="linear", hover=hover, connectgaps=False, **look)

    half = {label: at for label, c in shown.items() if (at := c.quantile(0.5)) is not None}
    still = {label: c for label, c in shown.items() if c.waiting}
    open_ended = {
        label: (c.times[-1].item() if c.times.size else begin, c.longest)
        for label, c in still.items()
    }
    traces = [
        across("not all have started", open_ended, colour=LINES[5], dash="dot", width=1.5),
        strip("10–90 %", 0.1, 0.9, 3),
        strip("25–75 %", 0.25, 0.75, 11),
        marks(
            "half have started",
            [max(begin, at) for at in half.values()],
            list(half),
            hover="half within %{x:.0f} s<extra>%{y}</extra>",
            symbol="diamond",
            size=11,
            color="var(--chart-surface)",
            line={"width": 2, "color": INK},
        ),
        marks(
            "longest that waits",
            [max(begin, c.longest) for c in still.values()],
            list(still),
            hover="%{customdata} not started, the longest wait %{x:.0f} s<extra>%{y}</extra>",
            customdata=[c.waiting for c in still.values()],
            symbol="triangle-right-open",
            size=10,
            color=LINES[1],
        ),
    ]
    waiting = everyone.waiting if everyone else 0
    median = everyone.quantile(0.5) if everyone else None
    return figure(
        traces,
        summary=(
            "No job was submitted in this window."
            if everyone is None
            else f"{_jobs(everyone.jobs)}, {waiting} not started"
            + (f"; half start within {max(1, round(median))} s." if median is not None else ".")
        ),
        columns=[
            "Size, GPUs",
            "Jobs",
            "Waiting",
            "Mean s",
            "Median s",
            "p90 s",
            "p99 s",
            "Longest s",
            "First start, mean s",
            "First start, median s",
        ],
        rows=[
            [
                size_range(k),
                of_size.in_all.jobs,
                of_size.in_all.waiting,
                of_size.in_all.mean,
                *(of_size.in_all.quantile(q) for q in (0.5, 0.9, 0.99)),
                of_size.in_all.longest,
                of_size.first_start.mean,
                of_size.first_start.quantile(0.5),
            ]
            for k, of_size in found.items()
        ],
        # Plotly hides the label of `end` if the axis stops there.
        xaxis=axis("wait", type="log", range=[-0.05, log10(end) + 0.25], **_wait_ticks(end)),
        yaxis=axis(
            "",
            type="category",
            autorange="reversed",
            showgrid=False,
            categoryorder="array",
            categoryarray=list(shown),
        ),
    )


def placement(rows: Sequence[PlacementQuality]) -> Figure:
    """Draw JTTED: nodes and NodeNetGroups used over the fewest possible, as a mark per size class.
    No line joins the marks, because nothing lies between two classes."""
    sizes = [f"{size_range(r.size)}<br>{counted(r.jobs, 'gang', 'gangs')}" for r in rows]
    parts = (
        ("nodes", [r.node_deviation for r in rows], LINES[0], "circle"),
        ("groups", [r.group_deviation for r in rows], LINES[1], "diamond-open"),
    )
    jobs = sum(r.jobs for r in rows)
    summary = "No gang was placed in this window."
    if jobs:
        mean_nodes = sum(r.jobs * r.node_deviation for r in rows) / jobs
        mean_groups = sum(r.jobs * r.group_deviation for r in rows) / jobs
        summary = (
            f"{counted(jobs, 'gang', 'gangs')}: {mean_nodes:.2f} times the fewest nodes, "
            f"{mean_groups:.2f} times the fewest groups; 1 is ideal."
        )
    return figure(
        [
            marks(
                name,
                sizes,
                values,
                hover="%{customdata} GPUs: %{y:.2f} times the fewest " + name + "<extra></extra>",
                customdata=[size_range(r.size) for r in rows],
                color=colour,
                size=11,
                symbol=symbol,
            )
            for name, values, colour, symbol in parts
        ],
        summary=summary,
        columns=["Size, GPUs", "Gangs", "Nodes / fewest", "Groups / fewest"],
        rows=[[size_range(r.size), r.jobs, r.node_deviation, r.group_deviation] for r in rows],
        # Size classes are names: as numbers, 1 and 2–7 would not fit on one axis.
        xaxis=axis("gang size, GPUs", type="category"),
        yaxis=axis(
            "times the fewest",
            range=[
                0.95,
                1.05 * max([1.15, *(max(r.node_deviation, r.group_deviation) for r in rows)]),
            ],
        ),
    )
