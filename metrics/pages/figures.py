"""What all charts share: traces and figures of Plotly, their axes, one template for both themes.

Colours are CSS custom properties ("var(--chart-1)"); static/js/charts.js puts in what they are, so
that one figure serves the light and the dark theme. Every figure has `meta.summary`, a sentence
for the caption, and `meta.table` {"columns", "rows"} with the same data for readers of tables, and
where its rows lead to pages "links" to them (`linked`).
Plotly refuses a property that it does not have, or a value that it cannot draw. It is imported
where a figure is made, for it is heavy.
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
    """A line in steps, unless `shape` says otherwise; `hover` is what is told of a point, `more` is
    Plotly's."""
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
    """Points that stand alone."""
    import plotly.graph_objects as go

    kind = {"mode": "markers", "name": name, "x": x, "y": y, "hovertemplate": hover}
    return go.Scatter(**kind, customdata=customdata, marker=marker)


def bars(x: Sequence[Any], y: Sequence[Any], *, hover: str, **more: Any) -> "go.Bar":
    import plotly.graph_objects as go

    return go.Bar(x=x, y=y, hovertemplate=hover, **more)


def heat_map(x: Sequence[Any], z: Sequence[Sequence[Any]], **more: Any) -> "go.Heatmap":
    """Rows of values, a column for each of `x`."""
    import plotly.graph_objects as go

    return go.Heatmap(x=x, z=z, **more)


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with its title; `more` is Plotly's."""
    return {"title": {"text": title}, **more}


@cache
def template() -> "go.layout.Template":
    """How every chart on a page looks."""
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
    """A figure as JSON; `columns` and `rows` are the same as a table, `layout` is Plotly's. Raises
    ValueError for what Plotly would not draw."""
    import plotly.graph_objects as go

    base = {
        "template": template(),
        "showlegend": len(traces) > 1,
        "meta": {"summary": summary, "table": {"columns": list(columns), "rows": list(rows)}},
    }
    drawn: Figure = go.Figure(data=list(traces), layout={**base, **layout}).to_plotly_json()
    return drawn


def linked(drawn: Figure, address: Callable[[Any], str]) -> Figure:
    """The figure with a page behind each row of its table, by the first cell of the row, and so
    behind what stands at that place of the x axis."""
    table = drawn["layout"]["meta"]["table"]
    table["links"] = [address(row[0]) for row in table["rows"]]
    return drawn
