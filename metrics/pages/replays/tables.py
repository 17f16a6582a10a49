"""A replay's result for readers: the values of both runs and their difference."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metrics.definitions import size_range
from tenants.templatetags.ui import duration, percent

MOST_TENANTS = 50

Row = Mapping[str, Any]
Text = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Pair:
    """A value in the baseline and with the change. `difference`: "" if there is none to show.
    `tone`: good or bad; "" = neither."""

    before: str
    after: str
    difference: str = ""
    tone: str = ""

    @property
    def same(self) -> bool:
        return self.before == self.after


@dataclass(frozen=True, slots=True)
class ReplayLine:
    """A row: its name and meaning, the recorded value, and the values of both runs."""

    name: str
    meaning: str
    recorded: str
    pair: Pair


@dataclass(frozen=True, slots=True)
class WaitLine:
    """The waits of a size class or tenant; `recorded`: the mean."""

    name: str
    jobs: int
    recorded: str
    mean: Pair
    median: Pair
    p90: Pair
    waiting: Pair
    gpu_hours: Pair | None = None


@dataclass(frozen=True, slots=True)
class QualityLine:
    size: str
    jobs: Pair
    nodes: Pair
    groups: Pair


# --- values in words ------------------------------------------------------------------------------
def points(value: float) -> str:
    return f"{100 * value:.1f} points"


def count(value: float) -> str:
    return f"{value:,.0f}"


def hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.2g}"


def times(value: float) -> str:
    return f"{value:.2f}"


def pair(
    before: float | None,
    after: float | None,
    text: Text,
    *,
    better: int,
    apart: Text | None = None,
) -> Pair:
    """Format both values with `text` and their difference with `apart`. `better`: 1 if more is
    better, -1 if less is, 0 if neither."""
    was, would_be = ("–" if value is None else text(value) for value in (before, after))
    if before is None or after is None or was == would_be:
        return Pair(was, would_be)
    more = after > before
    tone = ("good" if more == (better > 0) else "bad") if better else ""
    sign = "+" if more else "−"
    return Pair(was, would_be, f"{sign}{(apart or text)(abs(after - before))}", tone)


# --- tables ---------------------------------------------------------------------------------------
def totals(result: Row) -> list[ReplayLine]:
    """Return the figures of the runs as a whole."""
    real, before, after = result["recorded"], result["baseline"], result["changed"]
    waits = [_of(one["jwtd"], "size", "all") for one in (real, before, after)]
    # Results of older versions lack it.
    first_starts = [row.get("first_start", {}) for row in waits]

    def line(
        name: str,
        meaning: str,
        key: str,
        text: Text,
        better: int,
        *,
        of: Sequence[Row] = (real, before, after),
        apart: Text | None = None,
    ) -> ReplayLine:
        known = of[0].get(key)
        both = pair(of[1].get(key), of[2].get(key), text, better=better, apart=apart)
        return ReplayLine(name, meaning, "–" if known is None else text(known), both)

    return [
        line("GAR", "GPUs allocated / available, median", "gar", percent, 1, apart=points),
        line("SOR", "GPU-hours allocated / available", "sor", percent, 1, apart=points),
        line("GFR", "partly used nodes / nodes, mean", "gfr", percent, -1, apart=points),
        line("Mean wait", "total; waiting jobs count up to now", "mean_s", duration, -1, of=waits),
        line("First start", "mean", "mean_s", duration, -1, of=first_starts),
        line("Median wait", "half of the jobs wait no longer", "p50_s", duration, -1, of=waits),
        line("90 % wait", "nine of ten wait no longer", "p90_s", duration, -1, of=waits),
        line("Waiting", "jobs and pods without a place at the end", "waiting", count, -1, of=waits),
        line("Preempted jobs", "made room for others", "preempted_jobs", count, -1),
        line("Lost GPU-hours", "work that preemption cost", "lost_gpu_hours", hours, -1),
        line("Replicas moved", "to free whole nodes", "moves", count, 0),
        line("Can never run", "too large for nodes or quota", "never_runnable", count, -1),
        line("GPU-hours allocated", "by all jobs", "gpu_hours", hours, 1),
        line("Of unknown length", "GPU-hours of such jobs", "unknown_gpu_hours", hours, 0),
        line("GPUs", "working and in service", "gpus", count, 0),
    ]


def mean_waits(before: Sequence[Row], after: Sequence[Row]) -> Pair:
    """Compare the mean waits of all jobs, given the waits of both runs."""
    was, would_be = (_of(rows, "size", "all").get("mean_s") for rows in (before, after))
    return pair(was, would_be, duration, better=-1)


@dataclass(frozen=True, slots=True)
class PoolLine:
    gpu_type: str
    gpus: Pair
    gar: Pair
    sor: Pair
    gfr: Pair


def pools(result: Row) -> list[PoolLine]:
    """Return a line per GPU model, if there are several."""
    before, after = result["baseline"]["pools"], result["changed"]["pools"]
    names = list(dict.fromkeys(row["gpu_type"] for row in (*before, *after)))
    found = []
    for name in names if len(names) > 1 else ():
        a, b = (_of(rows, "gpu_type", name) for rows in (before, after))
        gar, sor, gfr = (
            pair(a.get(key), b.get(key), percent, better=better, apart=points)
            for key, better in (("gar", 1), ("sor", 1), ("gfr", -1))
        )
        gpus = pair(a.get("gpus"), b.get("gpus"), count, better=0)
        found.append(PoolLine(name, gpus, gar, sor, gfr))
    return found


def waits_by_size(result: Row) -> list[WaitLine]:
    return _waits(result, "jwtd", "size", size_range)


def waits_by_tenant(result: Row) -> list[WaitLine]:
    """Return lines of the tenants that hold the most, most first."""
    lines = _waits(result, "tenants", "tenant", str)
    held = {row["tenant"]: row["gpu_hours"] for row in result["changed"]["tenants"]}
    return sorted(lines, key=lambda line: (-held.get(line.name, 0.0), line.name))[:MOST_TENANTS]


def unknown_share(result: Row) -> float:
    """Return by how much the share of GPU-hours of jobs with unknown run times is higher in the
    changed run than in the baseline."""
    before, after = (
        run["unknown_gpu_hours"] / run["gpu_hours"] if run["gpu_hours"] else 0.0
        for run in (result["baseline"], result["changed"])
    )
    return float(max(0.0, after - before))


def _waits(result: Row, table: str, key: str, write: Callable[[str], str]) -> list[WaitLine]:
    real, before, after = (result[run][table] for run in ("recorded", "baseline", "changed"))
    found = []
    for row in before:
        known, other = _of(real, key, row[key]), _of(after, key, row[key])
        mean = known.get("mean_s")
        hours_ = pair(row.get("gpu_hours"), other.get("gpu_hours"), hours, better=1)
        found.append(
            WaitLine(
                name="All" if row[key] == "all" else write(row[key]),
                jobs=row["jobs"],
                recorded=duration(mean),
                mean=pair(row["mean_s"], other.get("mean_s"), duration, better=-1),
                median=pair(row["p50_s"], other.get("p50_s"), duration, better=-1),
                p90=pair(row["p90_s"], other.get("p90_s"), duration, better=-1),
                waiting=pair(row["waiting"], other.get("waiting"), count, better=-1),
                gpu_hours=hours_ if "gpu_hours" in row else None,
            )
        )
    return found


def quality(result: Row) -> list[QualityLine]:
    """Return JTTED by size class."""
    before, after = result["baseline"]["jtted"], result["changed"]["jtted"]
    sizes = list(dict.fromkeys(row["size"] for row in (*before, *after)))
    found = []
    for size in sizes:
        a, b = (_of(rows, "size", size) for rows in (before, after))
        jobs, nodes, groups = (
            pair(a.get(key), b.get(key), text, better=better)
            for key, text, better in (
                ("jobs", count, 0),
                ("node_deviation", times, -1),
                ("group_deviation", times, -1),
            )
        )
        found.append(QualityLine(size_range(size), jobs, nodes, groups))
    return found


def _of(rows: Sequence[Row], key: str, value: str) -> Row:
    return next((row for row in rows if row[key] == value), {})
