"""Charts of the nodes as they are now: where GPUs are free, and what fits there."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from metrics.definitions import NodeUse
from metrics.pages.figures import FULL, LINES, Figure, axis, bars, figure, heat_map, line, marks

IDLE, OUT_OF_SERVICE = "var(--chart-idle)", "var(--chart-out)"
NO_LEAF, IDLE_NODES = "no leaf", "idle"
RAMP = tuple(f"var(--chart-part-{i})" for i in range(1, 8))


def _bands(top: int) -> list[range]:
    """Return bands of the free GPUs of partly used nodes, 1 to `top` - 1: one per number up to the
    size of a server, otherwise seven distinguishable ones."""
    numbers = top - 1
    count = numbers if top <= 16 else len(RAMP)
    edges = [1 + i * numbers // count for i in range(count + 1)] if count else []
    return [range(low, high) for low, high in pairwise(edges)]


def _name(band: range) -> str:
    return str(band[0]) if len(band) == 1 else f"{band[0]}–{band[-1]}"


def _ramp(steps: int) -> list[str]:
    """Return colours for this many bands, spread over the seven steps of the ramp."""
    return [RAMP[i * len(RAMP) // steps] for i in range(steps)]


def _labels(leaves: Sequence[str]) -> tuple[list[str], str]:
    """Return the labels below the columns of leaves, and their common prefix.

    A leaf's unique key includes its spine; the label is only its last part, the name on the rack.
    The prefix up to the numbers, if all share it, is shown once.
    """
    racks = [name.rpartition("/")[2] for name in leaves]
    begins = {rack.rstrip("0123456789") for rack in racks if rack != NO_LEAF}
    [shared] = begins if len(begins) == 1 and begins.isdisjoint(racks) else [""]
    return [rack if rack == NO_LEAF else rack.removeprefix(shared) for rack in racks], shared


def leaf_map(nodes: Sequence[NodeUse]) -> Figure:
    """Draw a heat map with a column per leaf: nodes sorted by free GPUs, leaves by wholly free
    nodes.

    There are three kinds of colour: full is neutral, partly used is an orange ramp (so the orange
    area is GFR), idle is teal. Nodes out of service are at the bottom in a colour of their own.
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
        leaves.setdefault(n.leaf or NO_LEAF, []).append(value)
    columns = sorted(
        leaves.items(), key=lambda item: (-item[1].count(top), -sum(map(abs, item[1])), item[0])
    )
    height = max((len(v) for v in leaves.values()), default=0)
    cells = [sorted(values, reverse=True) for _, values in columns]
    free = [[col[row] if row < len(col) else None for col in cells] for row in range(height)]
    bands = _bands(top)
    band_of: dict[int | None, int | None] = {None: None, -1: -1, 0: 0, top: len(bands) + 1}
    band_of |= {value: at for at, band in enumerate(bands, 1) for value in band}
    colours = [OUT_OF_SERVICE, FULL, *_ramp(len(bands)), IDLE]
    steps = len(colours)
    scale = [
        [edge, colour] for i, colour in enumerate(colours) for edge in (i / steps, (i + 1) / steps)
    ]
    labels, shared = _labels([name for name, _ in columns])
    idle = sum(col.count(top) for col in cells)
    partly = sum(1 for col in cells for v in col if 0 < v < top)
    return figure(
        [
            heat_map(
                [name for name, _ in columns],
                [[band_of[value] for value in row] for row in free],
                customdata=free,
                xgap=1 if len(columns) <= 120 else 0,
                ygap=1 if height <= 40 else 0,
                colorscale=scale,
                zmin=-1.5,
                zmax=len(bands) + 1.5,
                hoverongaps=False,
                hovertemplate="%{x}<br>%{customdata} GPUs free<extra></extra>",
                colorbar={
                    "title": {"text": "free"},
                    "tickvals": list(range(-1, len(bands) + 2)),
                    "ticktext": ["out", "full", *map(_name, bands), "idle"],
                    "thickness": 14,
                    "outlinewidth": 0,
                },
            )
        ],
        summary=(
            f"{len(columns)} leaf groups, {len(nodes)} nodes: {idle} idle, {partly} partly used."
        ),
        columns=["Leaf", "Nodes", "Idle", "Partly used", "Full", "Out of service"],
        rows=[
            [name, len(v), v.count(top), sum(0 < x < top for x in v), v.count(0), v.count(-1)]
            for name, v in columns
        ],
        xaxis=axis(
            f"leaf groups{f' {shared}…' if shared else ''}, the freest first",
            type="category",
            showticklabels=len(columns) <= 40,
            tickvals=[name for name, _ in columns],
            ticktext=labels,
            tickangle=0 if max(map(len, labels), default=0) <= 5 else None,
        ),
        yaxis=axis(
            "nodes, the freest on top",
            autorange="reversed",
            showgrid=False,
            zeroline=False,
            showticklabels=False,
            ticks="",
        ),
    )


def stranded(nodes: Sequence[NodeUse]) -> Figure:
    """Draw bars of free GPUs by how free their node is, each labelled with its number of nodes.

    Idle nodes have a bar of their own, because with mixed node sizes their free GPUs differ.
    """
    usable = [n for n in nodes if n.schedulable and n.healthy]
    idle = [n.free for n in usable if n.allocated_milli == 0 and n.healthy == n.gpus]
    partly = [n.free for n in usable if n.allocated_milli or n.healthy < n.gpus]
    top = max((n.gpus for n in nodes), default=1)
    bands = _bands(top)
    counts = [*(sum(n in band for n in partly) for band in bands), len(idle)]
    gpus = [*(sum(n for n in partly if n in band) for band in bands), sum(idle)]
    labels = [*map(_name, bands), IDLE_NODES]
    free = sum(gpus)
    texts = [f"{n} node{'s' if n > 1 else ''}" if n else "" for n in counts]

    def panel(of: slice, colours: list[str], **axes: str) -> Any:
        return bars(
            labels[of],
            gpus[of],
            hover="%{y} GPUs on nodes with %{x} free<extra></extra>",
            text=texts[of],
            textposition="outside",
            textangle=0,
            cliponaxis=False,
            marker={"color": colours},
            **axes,
        )

    partly_used, of_idle = slice(0, -1), slice(-1, None)
    return figure(
        [
            panel(partly_used, _ramp(len(bands))),
            panel(of_idle, [IDLE], xaxis="x2", yaxis="y2"),
        ],
        summary=f"{free} GPUs are free, {free - sum(idle)} of them on partly used nodes.",
        columns=["Free GPUs on the node", "Nodes", "Free GPUs"],
        rows=[list(row) for row in zip(labels, counts, gpus, strict=True)],
        uniformtext={"mode": "show", "minsize": 11},
        # Idle nodes have their own axis: next to their many GPUs the other bars would vanish.
        showlegend=False,
        xaxis=axis("free GPUs on the node", type="category", domain=[0, 0.76]),
        yaxis=axis("free GPUs", rangemode="tozero"),
        xaxis2=axis("", type="category", domain=[0.86, 1], anchor="y2"),
        yaxis2=axis("", rangemode="tozero", anchor="x2"),
    )


def _spread(sizes: Sequence[int]) -> list[int]:
    """Return the ascending sizes whose labels do not overlap on a log axis."""
    shown: list[int] = []
    for size in sizes:
        if not shown or size >= 1.5 * shown[-1]:
            shown.append(size)
    return shown


def gang_curve(curve: Mapping[int, tuple[int, int]], pending: Sequence[int] = ()) -> Figure:
    """Draw how many gangs of each size fit, anywhere and inside one leaf, on log axes.

    `pending`: the sizes of waiting jobs in GPUs, marked below the curve. A log axis has no zero, so
    a line ends where nothing fits.
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
            line(
                name,
                [s for s, _ in fits],
                [n for _, n in fits],
                colour=colour,
                hover="%{y} gangs of %{x} GPUs<extra>" + name + "</extra>",
                dash=dash,
                mode="lines+markers",
            )
        )
    if pending:
        waiting = sorted(set(pending))
        lines.append(
            marks(
                "waiting jobs",
                waiting,
                [1] * len(waiting),
                hover="jobs of %{x} GPUs wait<extra></extra>",
                symbol="triangle-up",
                size=10,
                color=LINES[3],
            )
        )
    largest = max((s for s in sizes if curve[s][0]), default=0)
    in_leaf = max((s for s in sizes if curve[s][1]), default=0)
    return figure(
        lines,
        summary=f"Gangs of up to {largest} GPUs fit, up to {in_leaf} inside one leaf.",
        columns=["Gang size, GPUs", "Fit anywhere", "Fit inside one leaf"],
        rows=[[s, *curve[s]] for s in sizes],
        xaxis=axis("gang size, GPUs", type="log", tickvals=ticks, ticktext=[str(s) for s in ticks]),
        yaxis=axis("gangs that fit", type="log", dtick=1),
    )
