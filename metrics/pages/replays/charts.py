"""Figures of a replay's result."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from metrics.pages.charts import WAIT_TICKS
from metrics.pages.figures import DASHES, LINES, Figure, axis, figure, line
from metrics.replays.results import STEPS
from tenants.templatetags.ui import duration

Result = Mapping[str, Any]

# Name, prefix in the result, colour, dash.
RUNS = (
    ("recorded", "recorded", LINES[5], DASHES[2]),
    ("as it was", "baseline", LINES[0], DASHES[0]),
    ("with the change", "changed", LINES[1], DASHES[1]),
)
SIMULATED = RUNS[1:]


def allocation(result: Result) -> Figure:
    """Draw GPUs allocated over the period in both runs and as recorded, with GFR below."""
    series: Mapping[str, Any] = result["series"]
    at = [
        f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M:%S}" for text in series["at"]
    ]
    gfr = {
        key: [None if v is None else 100 * v for v in series[f"{key}_gfr"]]
        for _, key, _, _ in SIMULATED
    }
    lines = [
        line(
            name,
            at,
            series[f"{key}_gpus"],
            colour=colour,
            dash=dash,
            hover=f"%{{y:,.1f}} GPUs<extra>{name}</extra>",
        )
        for name, key, colour, dash in RUNS
    ]
    below = [
        line(
            name,
            at,
            gfr[key],
            colour=colour,
            dash=dash,
            hover=f"GFR %{{y:.1f}} %<extra>{name}</extra>",
            yaxis="y2",
            showlegend=False,
        )
        for name, key, colour, dash in SIMULATED
    ]
    means = [_mean(series[f"{key}_gpus"]) for _, key, _, _ in SIMULATED]
    return figure(
        [*lines, *below],
        summary=(
            f"{means[1]:,.1f} GPUs allocated on average with the change, {means[0]:,.1f} as it was."
            if None not in means
            else "The period is too short for a chart."
        ),
        columns=["Time, UTC", *(f"GPUs, {name}" for name, *_ in RUNS), "GFR %, as it was",
                 "GFR %, with the change"],
        rows=[
            list(row)
            for row in zip(
                at, *(series[f"{key}_gpus"] for _, key, _, _ in RUNS), *gfr.values(), strict=True
            )
        ],
        xaxis=axis("UTC", type="date", anchor="y2"),
        yaxis=axis("GPUs", domain=[0.42, 1], rangemode="tozero", nticks=5),
        yaxis2=axis("GFR %", domain=[0, 0.32], rangemode="tozero", nticks=4),
    )  # fmt: skip


def waits(result: Result) -> Figure:
    """Draw the share of jobs started within a time, in both runs and as recorded."""
    found: Mapping[str, list[float]] = result["started_within_s"]
    longest = max((seconds for run in found.values() for seconds in run), default=0.0)
    end = max(10.0, longest)
    lines = []
    for name, key, colour, dash in RUNS:
        shares = [100 * step / STEPS for step in range(1, len(found[key]) + 1)]
        lines.append(
            line(
                name,
                [1.0, *(max(1.0, seconds) for seconds in found[key]), end],
                [0.0, *shares, shares[-1] if shares else 0.0],
                colour=colour,
                dash=dash,
                hover=f"%{{y:.0f}} % within %{{x:.0f}} s<extra>{name}</extra>",
            )
        )
    medians = [_within(found[key], 50) for _, key, _, _ in SIMULATED]
    return figure(
        lines,
        summary=f"Half of the jobs start within {medians[1]} with the change, {medians[0]} as it "
        "was.",
        columns=["Share of jobs %", *(f"Started within, s, {name}" for name, *_ in RUNS)],
        rows=[
            [share, *(_at(found[key], share) for _, key, _, _ in RUNS)]
            for share in (10, 25, 50, 75, 90, 95, 99)
        ],
        xaxis=axis("wait", type="log", **WAIT_TICKS),
        yaxis=axis("% started", range=[0, 102]),
    )


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _at(found: list[float], share: int) -> float | None:
    return found[share * STEPS // 100 - 1] if len(found) >= share * STEPS // 100 else None


def _within(found: list[float], share: int) -> str:
    seconds = _at(found, share)
    return "no known time" if seconds is None else duration(seconds)


FIGURES: dict[str, Callable[[Mapping[str, Any]], Figure]] = {
    "allocation": allocation,
    "waits": waits,
}
