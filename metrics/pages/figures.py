"""What all charts share: Plotly traces and figures, their axes, and one template for both themes.

Colours are CSS custom properties ("var(--chart-1)"). static/js/charts.js replaces them by their
values, so one figure serves the light and the dark theme. Every figure has `meta.summary`, a
sentence for the caption, and `meta.table` {"columns", "rows"} with the same data for readers of
tables, plus "links" if its rows lead to pages (`linked`).

Plotly rejects unknown properties and values that it cannot draw. It is imported where a figure is
made, because it is heavy.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go

Figure = dict[str, Any]

FULL = "var(--chart-full)"
LINES = tuple(f"var(--chart-{i})" for i in range(1, 7))
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
GRID, INK, INK_SOFT = "var(--chart-grid)", "var(--chart-ink)", "var(--chart-ink-soft)"
_CLEAR = "rgba(0,0,0,0)"


def line(
    name: str,
    x: Sequence[Any],
    y: Sequence[Any],
    *,
    colour: str,
    hover: str,
    dash: str = "solid",
    width: float = 2,
    shape: str = "hv",
    **more: Any,
) -> "go.Scatter":
    """Return a line, drawn in steps by default; `hover` is the text for a point, `more` goes to
    Plotly."""
    import plotly.graph_objects as go

    look = {"color": colour, "width": width, "dash": dash, "shape": shape}
    kind = {"mode": "lines", "name": name, "x": x, "y": y, "line": look, "hovertemplate": hover}
    return go.Scatter(**{**kind, **more})


def marks(
    name: str,
    x: Sequence[Any],
    y: Sequence[Any],
    *,
    hover: str,
    customdata: Sequence[Any] | None = None,
    **marker: Any,
) -> "go.Scatter":
    """Return separate points."""
    import plotly.graph_objects as go

    kind = {"mode": "markers", "name": name, "x": x, "y": y, "hovertemplate": hover}
    return go.Scatter(**kind, customdata=customdata, marker=marker)


def bars(x: Sequence[Any], y: Sequence[Any], *, hover: str, **more: Any) -> "go.Bar":
    import plotly.graph_objects as go

    return go.Bar(x=x, y=y, hovertemplate=hover, **more)


def heat_map(x: Sequence[Any], z: Sequence[Sequence[Any]], **more: Any) -> "go.Heatmap":
    """Return a heat map with rows of values and a column for each of `x`."""
    import plotly.graph_objects as go

    return go.Heatmap(x=x, z=z, **more)


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with its title; `more` goes to Plotly."""
    return {"title": {"text": title}, **more}


@cache
def template() -> "go.layout.Template":
    """The look of every chart on a page."""
    import plotly.graph_objects as go

    of_axes = {
        "automargin": True,
        "gridcolor": GRID,
        "zerolinecolor": GRID,
        "linecolor": GRID,
        "tickfont": {"size": 11},
        "title": {"standoff": 8, "font": {"size": 11.5, "color": INK_SOFT}},
    }
    legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"}
    layout = {
        "paper_bgcolor": _CLEAR,
        "plot_bgcolor": _CLEAR,
        "margin": {"l": 56, "r": 12, "t": 8, "b": 44},
        "dragmode": False,
        "hovermode": "closest",
        "font": {"size": 11.5, "color": INK_SOFT},
        "legend": {**legend, "font": {"size": 11.5}},
        "hoverlabel": {
            "bgcolor": "var(--chart-surface)",
            "bordercolor": GRID,
            "font": {"size": 12, "color": INK},
        },
        "xaxis": of_axes,
        "yaxis": of_axes,
    }
    return go.layout.Template(layout=layout)


def figure(
    traces: Sequence[Any],
    *,
    summary: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    **layout: Any,
) -> Figure:
    """Return a figure as JSON. `columns` and `rows` are its data as a table; `layout` goes to
    Plotly. Raises ValueError for what Plotly would not draw."""
    import plotly.graph_objects as go

    base = {
        "template": template(),
        "showlegend": len(traces) > 1,
        "meta": {"summary": summary, "table": {"columns": list(columns), "rows": list(rows)}},
    }
    drawn: Figure = go.Figure(data=list(traces), layout={**base, **layout}).to_plotly_json()
    return drawn


def linked(drawn: Figure, address: Callable[[Any], str]) -> Figure:
    """Add a link to each row of the figure's table, made from the row's first cell, and thereby to
    the same position on the x axis."""
    table = drawn["layout"]["meta"]["table"]
    table["links"] = [address(row[0]) for row in table["rows"]]
    return drawn
