"""Charts of use: allocation over time, quotas, waits. Data in, figure out, no queries."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from metrics.definitions import JobWaits, PlacementQuality, ratio, size_range
from metrics.pages.figures import DASHES, FULL, LINES, Figure, axis, bars, figure, line, marks
from scheduling.engine.verdict import counted

# Of a logarithmic axis of seconds.
WAIT_TICKS: dict[str, Any] = {
    "tickvals": [1, 10, 60, 600, 3600, 36000, 86400],
    "ticktext": ["1 s", "10 s", "1 min", "10 min", "1 h", "10 h", "1 d"],
}

MOST_BARS = 16  # of tenants, whose names stand beside them


@dataclass(frozen=True, slots=True)
class UsePoint:
    """One instant of a pool: GPUs (not milli) allocated and available, GFR in 0..1 or None."""

    at: datetime
    allocated: float
    available: float
    gfr: float | None


def allocation(points: Sequence[UsePoint]) -> Figure:
    """Allocated GPUs under the line of what is available, with GFR as a small multiple below."""
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
        yaxis=axis("GPUs", domain=[0.36, 1], rangemode="tozero"),
        yaxis2=axis("GFR %", domain=[0, 0.24], rangemode="tozero"),
    )


@dataclass(frozen=True, slots=True)
class QuotaBar:
    """Use of one tenant's quota of one GPU model, in GPUs. `lent` is out of its idle part."""

    tenant: str
    guaranteed: float
    own: float
    borrowed: float
    lent: float


def quota_bars(rows: Sequence[QuotaBar]) -> Figure:
    """Per tenant: own use, lent out, idle, borrowed beyond the guaranteed marker; of many tenants
    the bars of those with the most, and a table of all."""
    by_size = sorted(rows, key=lambda r: max(r.guaranteed, r.own + r.borrowed), reverse=True)
    largest = {r.tenant for r in by_size[:MOST_BARS]}
    drawn = [r for r in rows if r.tenant in largest]
    tenants = [r.tenant for r in drawn]
    parts = (
        ("used, own", [r.own for r in drawn], LINES[0], ""),
        ("lent out", [r.lent for r in drawn], "var(--chart-lent)", "/"),
        ("idle", [max(0.0, r.guaranteed - r.own - r.lent) for r in drawn], FULL, ""),
        ("borrowed", [r.borrowed for r in drawn], LINES[1], "x"),
    )
    used = [
        bars(
            values,
            tenants,
            hover="%{customdata}: %{x:,} GPUs " + name + "<extra></extra>",
            name=name,
            orientation="h",
            customdata=tenants,
            marker={"color": colour, "pattern": {"shape": shape, "fillmode": "replace"}},
        )
        for name, values, colour, shape in parts
    ]
    guaranteed = marks(
        "guaranteed",
        [r.guaranteed for r in drawn],
        tenants,
        hover="%{customdata}: %{x:,} GPUs guaranteed<extra></extra>",
        customdata=tenants,
        symbol="line-ns",
        size=16,
        line={"width": 3, "color": "var(--bs-body-color)"},
    )
    borrowers = sum(1 for r in rows if r.borrowed > 0)
    summary = f"{counted(len(rows), 'tenant', 'tenants')}, {borrowers} of them borrow."
    if len(drawn) < len(rows):
        summary += f" Drawn are the {len(drawn)} with the most GPUs; the table has all."
    return figure(
        [*used, guaranteed],
        summary=summary,
        columns=["Tenant", "Guaranteed", "Own use", "Lent out", "Borrowed"],
        rows=[[r.tenant, r.guaranteed, r.own, r.lent, r.borrowed] for r in rows],
        barmode="stack",
        xaxis=axis("GPUs", rangemode="tozero"),
        yaxis=axis(
            "",
            type="category",
            autorange="reversed",
            tickvals=tenants,
            ticktext=[_short(name) for name in tenants],
        ),
    )


def gpu_hours(days: Mapping[str, Mapping[str, float]], unit: str) -> Figure:
    """GPU-hours of each day (or month, as `unit` says), stacked by GPU model.

    `days`: {day: {GPU model: GPU-hours}}, every day of the period. Models beyond what colours tell
    apart are one.
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
                name=model,
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


def _short(name: str) -> str:
    """A name that leaves room for its bar on a telephone; its end tells it from its like."""
    return name if len(name) <= 16 else f"{name[:9]}…{name[-6:]}"


def _jobs(count: int) -> str:
    return "1 job or single pod" if count == 1 else f"{count} jobs and single pods"


def _gpus_of(label: str) -> str:
    """A size class in words: "no GPU", "1 GPU", "8–15 GPUs"."""
    if label == "0":
        return "no GPU"
    return f"{size_range(label)} GPU{'s' if label != '1' else ''}"


def waits(found: Mapping[str, JobWaits]) -> Figure:
    """JWTD: share of jobs that have their places after waiting for a time in all, one line per size
    class, time on a log axis; in the table beside it until the first start.

    At most six classes can be told apart by colour and dash; more are merged by the caller.
    """
    curves = {size: of_size.in_all for size, of_size in found.items()}
    shown = {k: c for k, c in curves.items() if k != "all"} or curves
    # Every line spans the chart: nobody has started at its beginning, nobody more after the last.
    longest = max((c.times[-1].item() for c in shown.values() if c.times.size), default=0.0)
    begin, end = 1.0, max(10.0, longest)
    lines = []
    for i, (label, curve) in enumerate(shown.items()):
        times = [max(begin, t) for t in curve.times.tolist()]
        shares = [100 * s for s in curve.started.tolist()]
        lines.append(
            line(
                _gpus_of(label),
                [begin, *times, end],
                [0.0, *shares, shares[-1] if shares else 0.0],
                colour=LINES[i % len(LINES)],
                hover="%{y:.0f} % within %{x:.0f} s<extra>" + label + "</extra>",
                dash=DASHES[(i // len(LINES) + i) % len(DASHES)],
            )
        )
    everyone = curves.get("all")
    waiting = everyone.waiting if everyone else 0
    median = everyone.quantile(0.5) if everyone else None
    return figure(
        lines,
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
                of_size.first_start.mean,
                of_size.first_start.quantile(0.5),
            ]
            for k, of_size in found.items()
        ],
        xaxis=axis(
            "wait",
            type="log",
            **WAIT_TICKS,
        ),
        yaxis=axis("% started", range=[0, 102]),
        showlegend=True,
    )


def placement(rows: Sequence[PlacementQuality]) -> Figure:
    """JTTED: nodes and node net groups used over the fewest possible, by size class."""
    sizes = [size_range(r.size) for r in rows]
    parts = (
        ("nodes", [r.node_deviation for r in rows], LINES[0], "circle"),
        ("groups", [r.group_deviation for r in rows], LINES[1], "diamond"),
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
            line(
                name,
                sizes,
                values,
                colour=colour,
                hover="%{x} GPUs: %{y:.2f} times the fewest "
                + name
                + "<extra>%{customdata} gangs</extra>",
                dash=dash,
                shape="linear",
                mode="lines+markers",
                customdata=[r.jobs for r in rows],
                marker={"color": colour, "size": 9, "symbol": symbol},
            )
            for (name, values, colour, symbol), dash in zip(parts, DASHES, strict=False)
        ],
        summary=summary,
        columns=["Size, GPUs", "Gangs", "Nodes / fewest", "Groups / fewest"],
        rows=[
            [size, r.jobs, r.node_deviation, r.group_deviation]
            for size, r in zip(sizes, rows, strict=True)
        ],
        # A size class is a name: as a number, 1 and 2–7 would not stand on one axis.
        xaxis=axis("gang size, GPUs", type="category"),
        yaxis=axis(
            "times the fewest",
            range=[
                0.95,
                1.05 * max([1.15, *(max(r.node_deviation, r.group_deviation) for r in rows)]),
            ],
        ),
    )
