"""Plotly figures as plain dicts: data in, figure out, no queries.

Colours are names of CSS custom properties ("--chart-1"); static/js/charts.js resolves them, so
that one figure serves the light and the dark theme. Every figure has `meta.summary`, a sentence
for the caption, and `meta.table` {"columns", "rows"} with the same data for readers of tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from metrics.definitions import NodeUse, WaitCurve, ratio
from scheduling.engine.verdict import counted

Figure = dict[str, Any]

IDLE, FULL, OUT_OF_SERVICE = "--chart-idle", "--chart-full", "--chart-out"
RAMP = tuple(f"--chart-part-{i}" for i in range(1, 8))
LINES = tuple(f"--chart-{i}" for i in range(1, 7))
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def _figure(
    data: list[dict[str, Any]],
    *,
    summary: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    **layout: Any,
) -> Figure:
    base = {
        "margin": {"l": 56, "r": 12, "t": 8, "b": 44},
        "showlegend": len(data) > 1,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hovermode": "closest",
        "meta": {"summary": summary, "table": {"columns": list(columns), "rows": list(rows)}},
    }
    return {"data": data, "layout": {**base, **layout}}


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, "automargin": True, **more}


def _ramp(levels: int) -> list[str]:
    """Colours of 1..levels-1 free GPUs, spread over the seven steps of the ramp."""
    steps = max(1, levels - 1)
    return [RAMP[min(len(RAMP) - 1, i * len(RAMP) // steps)] for i in range(steps)]


def leaf_map(nodes: Sequence[NodeUse]) -> Figure:
    """Heat map: a column per leaf, its nodes sorted by free GPUs, leaves by whole free nodes.

    Three kinds of colour: full is neutral, partly used is the orange ramp (so the orange area is
    GFR), idle is teal; nodes out of service stand at the bottom in their own colour.
    """
    top = max((n.gpus for n in nodes), default=1)
    leaves: dict[str, list[int]] = {}
    for n in nodes:
        if not n.schedulable or n.healthy == 0:
            value = -1
        elif n.allocated_milli == 0 and n.healthy == n.gpus:
            value = top
        else:
            value = min(n.free, top - 1)
        leaves.setdefault(n.leaf or "no leaf", []).append(value)
    columns = sorted(
        leaves.items(), key=lambda item: (-item[1].count(top), -sum(map(abs, item[1])), item[0])
    )
    height = max((len(v) for v in leaves.values()), default=0)
    cells = [sorted(values, reverse=True) for _, values in columns]
    z = [[col[row] if row < len(col) else None for col in cells] for row in range(height)]
    colours = [OUT_OF_SERVICE, FULL, *_ramp(top), IDLE]
    steps = len(colours)
    scale = [
        [edge, colour] for i, colour in enumerate(colours) for edge in (i / steps, (i + 1) / steps)
    ]
    idle = sum(col.count(top) for col in cells)
    partly = sum(1 for col in cells for v in col if 0 < v < top)
    return _figure(
        [
            {
                "type": "heatmap",
                "z": z,
                "x": [name for name, _ in columns],
                "xgap": 1 if len(columns) <= 120 else 0,
                "ygap": 1 if height <= 40 else 0,
                "colorscale": scale,
                "zmin": -1.5,
                "zmax": top + 0.5,
                "hoverongaps": False,
                "hovertemplate": "%{x}<br>%{z} GPUs free<extra></extra>",
                "colorbar": {
                    "title": {"text": "free"},
                    "tickvals": [-1, 0, *range(1, top), top],
                    "ticktext": ["out", "full", *map(str, range(1, top)), "idle"],
                    "thickness": 14,
                    "outlinewidth": 0,
                },
            }
        ],
        summary=(
            f"{len(columns)} leaf groups, {len(nodes)} nodes: {idle} idle, {partly} partly used."
        ),
        columns=["Leaf", "Nodes", "Idle", "Partly used", "Full", "Out of service"],
        rows=[
            [name, len(v), v.count(top), sum(0 < x < top for x in v), v.count(0), v.count(-1)]
            for name, v in columns
        ],
        xaxis=_axis(
            "leaf groups",
            type="category",
            showticklabels=len(columns) <= 24,
            tickvals=[name for name, _ in columns],
            # A unique key names its spine too; the last part is what stands on the rack.
            ticktext=[name.rpartition("/")[2] for name, _ in columns],
        ),
        yaxis=_axis("nodes", autorange="reversed", showgrid=False, zeroline=False),
    )


def stranded(nodes: Sequence[NodeUse]) -> Figure:
    """Bars of free GPUs by how free their node is; the label of a bar is its number of nodes.

    Idle nodes have a bar of their own: in a mix of node sizes their free GPUs differ.
    """
    usable = [n for n in nodes if n.schedulable and n.healthy]
    idle = [n.free for n in usable if n.allocated_milli == 0 and n.healthy == n.gpus]
    partly = [n.free for n in usable if n.allocated_milli or n.healthy < n.gpus]
    top = max((n.gpus for n in nodes), default=1)
    sizes = list(range(1, top))
    counts = [*(partly.count(k) for k in sizes), len(idle)]
    gpus = [*(k * partly.count(k) for k in sizes), sum(idle)]
    labels = [*map(str, sizes), "idle"]
    free = sum(gpus)
    return _figure(
        [
            {
                "type": "bar",
                "x": labels,
                "y": gpus,
                "text": [f"{n} node{'s' if n > 1 else ''}" if n else "" for n in counts],
                "textposition": "outside",
                "textangle": 0,
                "cliponaxis": False,
                "marker": {"color": [*_ramp(top), IDLE] if top > 1 else [IDLE]},
                "hovertemplate": "%{y} GPUs on nodes with %{x} free<extra></extra>",
            }
        ],
        summary=f"{free} GPUs are free, {free - sum(idle)} of them on partly used nodes.",
        columns=["Free GPUs on the node", "Nodes", "Free GPUs"],
        rows=[list(row) for row in zip(labels, counts, gpus, strict=True)],
        uniformtext={"mode": "show", "minsize": 11},
        xaxis=_axis("free GPUs on the node", type="category"),
        yaxis=_axis("free GPUs", rangemode="tozero"),
    )


def _spread(sizes: Sequence[int]) -> list[int]:
    """Those of ascending sizes whose labels do not touch each other on a log axis."""
    shown: list[int] = []
    for size in sizes:
        if not shown or size >= 1.5 * shown[-1]:
            shown.append(size)
    return shown


def gang_curve(curve: Mapping[int, tuple[int, int]], pending: Sequence[int] = ()) -> Figure:
    """How many gangs of each size fit now, anywhere and inside one leaf, on log axes.

    `pending`: sizes in GPUs of waiting jobs, marked under the curve. Zero cannot stand on a log
    axis, so a line ends where nothing fits.
    """
    sizes = sorted(curve)
    ticks = _spread(sizes)
    lines = []
    for name, which, colour, dash in (
        ("anywhere", 0, LINES[0], "solid"),
        ("inside one leaf", 1, LINES[1], "dash"),
    ):
        fits = [(s, curve[s][which]) for s in sizes if curve[s][which] > 0]
        lines.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "x": [s for s, _ in fits],
                "y": [n for _, n in fits],
                "line": {"shape": "hv", "color": colour, "dash": dash, "width": 2},
                "hovertemplate": "%{y} gangs of %{x} GPUs<extra>" + name + "</extra>",
            }
        )
    if pending:
        marks = sorted(set(pending))
        lines.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "waiting jobs",
                "x": marks,
                "y": [1] * len(marks),
                "marker": {"symbol": "triangle-up", "size": 10, "color": LINES[3]},
                "hovertemplate": "jobs of %{x} GPUs wait<extra></extra>",
            }
        )
    largest = max((s for s in sizes if curve[s][0]), default=0)
    in_leaf = max((s for s in sizes if curve[s][1]), default=0)
    return _figure(
        lines,
        summary=f"Gangs of up to {largest} GPUs fit now, up to {in_leaf} inside one leaf.",
        columns=["Gang size, GPUs", "Fit anywhere", "Fit inside one leaf"],
        rows=[[s, *curve[s]] for s in sizes],
        xaxis=_axis(
            "gang size, GPUs", type="log", tickvals=ticks, ticktext=[str(s) for s in ticks]
        ),
        yaxis=_axis("gangs that fit", type="log", dtick=1),
    )


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
    return _figure(
        [
            {
                "type": "scatter",
                "mode": "lines",
                "name": "allocated",
                "x": at,
                "y": [p.allocated for p in points],
                "fill": "tozeroy",
                "fillcolor": "--chart-1-soft",
                "line": {"color": LINES[0], "width": 2, "shape": "hv"},
                "hovertemplate": "%{y:,} GPUs<extra>allocated</extra>",
            },
            {
                "type": "scatter",
                "mode": "lines",
                "name": "available",
                "x": at,
                "y": [p.available for p in points],
                "line": {"color": LINES[5], "width": 1.5, "dash": "dash", "shape": "hv"},
                "hovertemplate": "%{y:,} GPUs<extra>available</extra>",
            },
            {
                "type": "scatter",
                "mode": "lines",
                "name": "GFR",
                "x": at,
                "y": [None if p.gfr is None else 100 * p.gfr for p in points],
                "yaxis": "y2",
                "line": {"color": LINES[1], "width": 2, "shape": "hv"},
                "hovertemplate": "%{y:.1f} %<extra>GFR</extra>",
            },
        ],
        summary=summary,
        columns=["Time, UTC", "Allocated GPUs", "Available GPUs", "GFR %"],
        rows=[
            [time, p.allocated, p.available, None if p.gfr is None else 100 * p.gfr]
            for time, p in zip(at, points, strict=True)
        ],
        xaxis=_axis("UTC", type="date", anchor="y2"),
        yaxis=_axis("GPUs", domain=[0.36, 1], rangemode="tozero"),
        yaxis2=_axis("GFR %", domain=[0, 0.24], rangemode="tozero"),
    )


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """Use of one tenant's quota of one GPU model, in GPUs. `lent` is out of its idle part."""

    tenant: str
    guaranteed: float
    own: float
    borrowed: float
    lent: float


def quota_bars(rows: Sequence[QuotaUse]) -> Figure:
    """Per tenant: own use, lent out, idle, borrowed beyond the guaranteed marker."""
    tenants = [r.tenant for r in rows]
    parts = (
        ("used, own", [r.own for r in rows], LINES[0], ""),
        ("lent out", [r.lent for r in rows], "--chart-lent", "/"),
        ("idle", [max(0.0, r.guaranteed - r.own - r.lent) for r in rows], FULL, ""),
        ("borrowed", [r.borrowed for r in rows], LINES[1], "x"),
    )
    bars: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": tenants,
            "x": values,
            "customdata": tenants,
            "marker": {"color": colour, "pattern": {"shape": shape, "fillmode": "replace"}},
            "hovertemplate": "%{customdata}: %{x:,} GPUs " + name + "<extra></extra>",
        }
        for name, values, colour, shape in parts
    ]
    bars.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "guaranteed",
            "y": tenants,
            "x": [r.guaranteed for r in rows],
            "customdata": tenants,
            "marker": {
                "symbol": "line-ns",
                "size": 16,
                "line": {"width": 3, "color": "--bs-body-color"},
            },
            "hovertemplate": "%{customdata}: %{x:,} GPUs guaranteed<extra></extra>",
        }
    )
    borrowers = sum(1 for r in rows if r.borrowed > 0)
    return _figure(
        bars,
        summary=f"{counted(len(rows), 'tenant', 'tenants')}, {borrowers} of them borrow.",
        columns=["Tenant", "Guaranteed", "Own use", "Lent out", "Borrowed"],
        rows=[[r.tenant, r.guaranteed, r.own, r.lent, r.borrowed] for r in rows],
        barmode="stack",
        xaxis=_axis("GPUs", rangemode="tozero"),
        yaxis=_axis(
            "",
            type="category",
            autorange="reversed",
            tickvals=tenants,
            ticktext=[_short(name) for name in tenants],
        ),
    )


def _short(name: str) -> str:
    """A name that leaves room for its bar on a telephone; its end tells it from its like."""
    return name if len(name) <= 16 else f"{name[:9]}…{name[-6:]}"


def _jobs(count: int) -> str:
    return "1 job or single pod" if count == 1 else f"{count} jobs and single pods"


def waits(curves: Mapping[str, WaitCurve]) -> Figure:
    """JWTD: share of jobs started within a time, one line per size class, time on a log axis.

    At most six classes can be told apart by colour and dash; more are merged by the caller.
    """
    shown = {k: c for k, c in curves.items() if k != "all"} or dict(curves)
    # Every line spans the chart: nobody has started at its beginning, nobody more after the last.
    longest = max((c.times[-1].item() for c in shown.values() if c.times.size), default=0.0)
    begin, end = 1.0, max(10.0, longest)
    lines = []
    for i, (label, curve) in enumerate(shown.items()):
        times = [max(begin, t) for t in curve.times.tolist()]
        shares = [100 * s for s in curve.started.tolist()]
        lines.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"{label} GPU{'s' if label != '1' else ''}",
                "x": [begin, *times, end],
                "y": [0.0, *shares, shares[-1] if shares else 0.0],
                "line": {
                    "shape": "hv",
                    "width": 2,
                    "color": LINES[i % len(LINES)],
                    "dash": DASHES[(i // len(LINES) + i) % len(DASHES)],
                },
                "hovertemplate": "%{y:.0f} % within %{x:.0f} s<extra>" + label + "</extra>",
            }
        )
    everyone = curves.get("all")
    waiting = everyone.waiting if everyone else 0
    median = everyone.quantile(0.5) if everyone else None
    return _figure(
        lines,
        summary=(
            "No job was submitted in this window."
            if everyone is None
            else f"{_jobs(everyone.jobs)}, {waiting} not started"
            + (f"; half start within {max(1, round(median))} s." if median is not None else ".")
        ),
        columns=["Size, GPUs", "Jobs", "Not started", "Mean s", "Median s", "p90 s", "p99 s"],
        rows=[
            [k, c.jobs, c.waiting, c.mean, *(c.quantile(q) for q in (0.5, 0.9, 0.99))]
            for k, c in curves.items()
        ],
        xaxis=_axis(
            "wait",
            type="log",
            tickvals=[1, 10, 60, 600, 3600, 36000, 86400],
            ticktext=["1 s", "10 s", "1 min", "10 min", "1 h", "10 h", "1 d"],
        ),
        yaxis=_axis("% started", range=[0, 102]),
        showlegend=True,
    )
