"""What all charts share: a Plotly figure as a plain dict, its axes, its colours.

Colours are names of CSS custom properties ("--chart-1"); static/js/charts.js resolves them, so
that one figure serves the light and the dark theme. Every figure has `meta.summary`, a sentence
for the caption, and `meta.table` {"columns", "rows"} with the same data for readers of tables.
"""

from collections.abc import Sequence
from typing import Any

Figure = dict[str, Any]

FULL = "--chart-full"
LINES = tuple(f"--chart-{i}" for i in range(1, 7))
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def figure(
    data: list[dict[str, Any]],
    *,
    summary: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    **layout: Any,
) -> Figure:
    """A figure of `data`; `columns` and `rows` are the same as a table, `layout` is Plotly's."""
    base = {
        "margin": {"l": 56, "r": 12, "t": 8, "b": 44},
        "showlegend": len(data) > 1,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hovermode": "closest",
        "meta": {"summary": summary, "table": {"columns": list(columns), "rows": list(rows)}},
    }
    return {"data": data, "layout": {**base, **layout}}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with its title and room for its labels; `more` is Plotly's."""
    return {"title": {"text": title}, "automargin": True, **more}
