"""A report as one HTML file that opens offline: it contains plotly and all data."""

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.conf import settings

PLOTLY = "vendor/plotly-cartesian.min.js"
COLOURS = ("#1f6feb", "#d9730d", "#0f8b8d", "#8250df", "#b3261e", "#6b7280")

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem;
  color: #1f2328; background: #fff }}
pre {{ overflow-x: auto; background: #f6f8fa; padding: 1rem; font-size: 12px }}
.note {{ background: #fff3cd; padding: .5rem 1rem }}
figure {{ margin: 2rem 0 }} figcaption {{ font-weight: 600 }} .chart {{ height: 380px }}
</style></head><body>
<h1>{title}</h1>
{note}
{charts}
<h2>Figures</h2>
<pre>{text}</pre>
<script>{plotly}</script>
<script>
const figures = {figures};
figures.forEach((figure, i) => Plotly.newPlot(
  "chart-" + i, figure.data, figure.layout, {{responsive: true, displaylogo: false}}));
</script>
</body></html>
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One chart: Plotly traces and axes, and the sentence above it."""

    caption: str
    traces: Sequence[Any]
    layout: Mapping[str, Any]

    def drawn(self) -> dict[str, Any]:
        """Return its JSON; raise ValueError for what Plotly would not draw."""
        import plotly.graph_objects as go

        template = {"layout": {"colorway": list(COLOURS)}}
        layout = {"template": template, **self.layout}
        found: dict[str, Any] = go.Figure(list(self.traces), layout).to_plotly_json()
        return found


@dataclass(frozen=True, slots=True)
class Report:
    """A report: a prominent note, charts, and the table as text."""

    title: str
    note: str
    text: Sequence[str]
    figures: Sequence[Figure]

    def html(self) -> str:
        """Return the whole page; raise OSError when the vendored plotly cannot be read."""
        return _PAGE.format(
            title=html.escape(self.title),
            note=f'<p class="note">{html.escape(self.note)}</p>' if self.note else "",
            charts="".join(
                f"<figure><figcaption>{html.escape(f.caption)}</figcaption>"
                f'<div class="chart" id="chart-{i}"></div></figure>'
                for i, f in enumerate(self.figures)
            ),
            text=html.escape("\n".join(self.text)),
            plotly=_plotly(),
            # A script ends at "</", even inside quotes.
            figures=json.dumps([f.drawn() for f in self.figures], allow_nan=False).replace(
                "</", "<\\/"
            ),
        )


@lru_cache(maxsize=1)
def _plotly() -> str:
    return (settings.SHARED_DIR / "static" / PLOTLY).read_text(encoding="utf-8")


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write text files, each under a temporary name and renamed when complete; raise OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in files.items():
        partial = folder / f"{name}.partial"
        try:
            partial.write_text(body, encoding="utf-8")
            partial.replace(folder / name)
        finally:
            partial.unlink(missing_ok=True)
