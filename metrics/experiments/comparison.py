"""Studies that compare policies: every policy on the same seeds, with differences paired by
seed."""

from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from metrics.experiments.intervals import half_width, paired
from metrics.experiments.runs import BY_SIZE, Figures, Task, carry_out
from metrics.experiments.study import Progress, Runner, Study, StudyError, parse_seeds

QUICK_SEEDS, LONGEST_WARM_UP = 2, 168.0


@dataclass(frozen=True, slots=True)
class Bar:
    """A claim about a study: `value` against `limit`; `holds` None = nothing to check. `bound`: the
    best possible value when only the order of the queue, or only the work itself, is the limit, if
    known."""

    claim: str
    value: float | None
    limit: str
    holds: bool | None
    bound: float | None = None


def at_least(claim: str, value: float | None, limit: float, bound: float | None = None) -> Bar:
    return Bar(claim, value, f"≥ {limit:g}", None if value is None else value >= limit, bound)


def at_most(claim: str, value: float | None, limit: float, bound: float | None = None) -> Bar:
    return Bar(claim, value, f"≤ {limit:g}", None if value is None else value <= limit, bound)


def over(of: float | None, to: float | None) -> float | None:
    """Return the ratio of two figures; None if one is unknown or the divisor is 0."""
    return of / to if of is not None and to else None


def ratio_of(difference: Mapping[str, Any] | None) -> float | None:
    """Return the ratio of a paired difference; None if no seed has the figure on both sides."""
    return None if difference is None else difference["ratio"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A study that compares policies.

    `tasks` returns the runs of one seed for given hours and warm-up: scenario by scenario, the
    baseline of each first. `bars` receives the document's scenarios by name. `reads_data`: the
    study has the option --data. `columns`: additional figures for the table. `quick_hours`: the
    most that --quick simulates. `warms_up`: the first quarter is left out.
    """

    name: str
    help: str
    tasks: Callable[[dict[str, Any]], Sequence[Task]]
    bars: Callable[[Mapping[str, dict[str, Any]]], list[Bar]]
    seeds: str = "1-10"
    hours: float = 720.0
    reads_data: bool = False
    columns: tuple[str, ...] = ()
    quick_hours: float = 96.0
    warms_up: bool = True

    def study(self) -> Study:
        return Study(
            self.name, self.help, self._arguments, self._run, lines, self.reads_data, self._plan
        )

    def _arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--seeds", default=self.seeds, help="like 1-10 (default %(default)s)")
        warm_up = ", its first quarter (at most a week) is warm-up" if self.warms_up else ""
        parser.add_argument(
            "--hours", type=float, help=f"simulated time{warm_up} (default {self.hours:g})"
        )
        parser.add_argument(
            "--quick",
            action="store_true",
            help=f"{QUICK_SEEDS} seeds of at most {self.quick_hours:g} hours: a look, no evidence",
        )
        if self.reads_data:
            parser.add_argument("--data", type=Path, metavar="PATH", help="a trace, or a folder")

    def _read(self, options: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
        """Return the seeds, and the options with hours and warm-up; raise StudyError."""
        seeds = parse_seeds(options["seeds"])
        hours = self.hours if options["hours"] is None else options["hours"]
        if not 0 < hours <= 100_000:
            raise StudyError(f"--hours must be more than 0 and at most 100000, not {hours:g}")
        if options["quick"]:
            seeds = seeds[:QUICK_SEEDS]
            hours = min(hours, self.quick_hours)
        warm_up = min(hours / 4, LONGEST_WARM_UP) if self.warms_up else 0.0
        return seeds, {**options, "hours": hours, "warm_up_h": warm_up}

    def _plan(self, options: dict[str, Any]) -> tuple[Callable[[Task], Figures], list[Task]]:
        seeds, options = self._read(options)
        plan = self.tasks(options)
        return carry_out, [replace(task, seed=seed) for seed in seeds for task in plan]

    def _run(self, options: dict[str, Any], progress: Progress, runner: Runner) -> dict[str, Any]:
        seeds, _ = self._read(options)
        run, tasks = self._plan(options)
        plan = tasks[: len(tasks) // len(seeds)]
        found: dict[tuple[str, str], dict[int, Figures]] = {}
        partial = False
        try:
            for task, result in runner(run, tasks, progress):
                found.setdefault((task.scenario, task.name), {})[task.seed] = result
        except KeyboardInterrupt:
            partial = True
        scenarios = _scenarios(plan, found)
        first: dict[str, Any] = next(
            iter(scenarios.values()), {"baseline": None, "summary": {}, "paired": {}}
        )
        bars = self.bars(scenarios) if scenarios and not partial else []
        return {
            "experiment": self.name,
            "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "partial": partial,
            "quick": options["quick"],
            "seeds": [s for s in seeds if any(s in runs for runs in found.values())],
            "hours": max(task.hours for task in plan),
            "warm_up_hours": max(task.warm_up_h for task in plan),
            "columns": list(self.columns),
            **first,
            "scenarios": scenarios,
            "bars": [asdict(bar) for bar in bars],
        }


def _scenarios(
    plan: Sequence[Task], found: Mapping[tuple[str, str], Mapping[int, Figures]]
) -> dict[str, dict[str, Any]]:
    names: dict[str, list[str]] = {}
    for task in plan:
        if (task.scenario, task.name) in found:
            names.setdefault(task.scenario, []).append(task.name)
    scenarios = {}
    for scenario, policies in names.items():
        runs = {name: found[scenario, name] for name in policies}
        base = policies[0]
        scenarios[scenario] = {
            "baseline": base,
            "summary": {name: summarised(list(r.values())) for name, r in runs.items()},
            "paired": {name: paired_by_seed(runs[name], runs[base]) for name in policies[1:]},
        }
    return scenarios


def summarised(runs: Sequence[Figures]) -> Figures:
    """Return means over the seeds, with half widths of their 95 % intervals in `half` and the
    number of `seeds`."""
    means: Figures = {}
    half: Figures = {}
    for key in runs[0]:
        if key in BY_SIZE:
            sizes = dict.fromkeys(size for run in runs for size in run[key])
            values = {s: _known([run[key].get(s) for run in runs]) for s in sizes}
            means[key] = {s: fmean(v) for s, v in values.items() if v}
            half[key] = {s: half_width(v) for s, v in values.items() if v}
        else:
            known = _known([run[key] for run in runs])
            means[key] = fmean(known) if known else None
            half[key] = half_width(known)
    return {**means, "seeds": len(runs), "half": half}


def _known(values: Sequence[float | None]) -> list[float]:
    return [v for v in values if v is not None]


def paired_by_seed(variant: Mapping[int, Figures], base: Mapping[int, Figures]) -> dict[str, Any]:
    """Return every figure of a variant minus that of the baseline, over the seeds that both
    have."""
    seeds = [seed for seed in variant if seed in base]

    def compared(of: Callable[[Figures], float | None]) -> dict[str, Any] | None:
        pairs = [(of(variant[s]), of(base[s])) for s in seeds]
        known = [(v, b) for v, b in pairs if v is not None and b is not None]
        return paired([v for v, _ in known], [b for _, b in known]) if known else None

    result: dict[str, Any] = {}
    for key in variant[seeds[0]] if seeds else ():
        if key not in BY_SIZE:
            result[key] = compared(lambda run, key=key: run[key])  # type: ignore[misc]
            continue
        sizes = dict.fromkeys(size for s in seeds for size in variant[s][key])
        result[key] = {
            size: compared(lambda run, key=key, size=size: run[key].get(size))  # type: ignore[misc]
            for size in sizes
        }
    return result


# --- the table --------------------------------------------------------------------------------
PERCENT = ("gar_mean", "gar_median", "sor_mean", "sor_median", "sor_net", "gfr_mean",
           "preempted_share")  # fmt: skip
SHOWN = ("gar_mean", "gar_median", "sor_median", "gfr_mean", "jobs", "preempted_jobs",
         "lost_gpu_hours")  # fmt: skip


def cell(key: str, value: float | None) -> str:
    """Format a figure for people."""
    if value is None:
        return "–"
    if key in PERCENT:
        return f"{100 * value:.2f} %"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"


def lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield per scenario the figures of each policy, waits and JTTED by size, and paired
    differences."""
    yield (
        f"{document['experiment']}: seeds {', '.join(map(str, document['seeds']))}; "
        f"{document['hours']:g} h, the first {document['warm_up_hours']:g} h warm-up"
    )
    for name, scenario in document["scenarios"].items():
        yield ""
        yield name
        yield from _totals(scenario, (*SHOWN, *document["columns"]))
        for key, title in (
            ("wait_mean_s", "mean wait, s"),
            ("first_start_mean_s", "mean first start, s"),
            ("jtted_nodes", "nodes used / fewest"),
            ("jtted_groups", "groups used / fewest"),
        ):
            yield from _by_size(scenario["summary"], key, title)
        yield from _differences(scenario, (*SHOWN, *document["columns"]))
    if document["bars"]:
        yield ""
        yield "Bars"
    for bar in document["bars"]:
        mark = {True: "met", False: "MISSED", None: "unknown"}[bar["holds"]]
        value = "–" if bar["value"] is None else f"{bar['value']:.4g}"
        bound = bar.get("bound")
        beside = "" if bound is None else f"; bound {bound:.4g}"
        yield f"  {mark:8}{bar['claim']}: {value} ({bar['limit']}{beside})"
    if document["quick"]:
        yield "QUICK: few seeds and short runs, no evidence"


def _totals(scenario: dict[str, Any], keys: Sequence[str]) -> Iterator[str]:
    summary = scenario["summary"]
    width = max(len(p) for p in summary) + 2
    columns = {key: max(12, len(key) + 2) for key in (*keys, "seeds")}
    yield " " * width + "".join(f"{key:>{wide}}" for key, wide in columns.items())
    for policy, row in summary.items():
        cells = "".join(f"{cell(k, row.get(k)):>{wide}}" for k, wide in columns.items())
        yield f"{policy:{width}}{cells}"


def _by_size(summary: dict[str, Any], key: str, title: str) -> Iterator[str]:
    sizes = list(dict.fromkeys(s for row in summary.values() for s in row[key]))
    if not sizes:
        return
    width = max(len(title), *(len(p) for p in summary)) + 2
    yield f"{title:{width}}" + "".join(f"{size:>10}" for size in sizes)
    for policy, row in summary.items():
        cells = "".join(f"{cell(key, row[key].get(size)):>10}" for size in sizes)
        yield f"{policy:{width}}{cells}"


def _differences(scenario: dict[str, Any], keys: Sequence[str]) -> Iterator[str]:
    for policy, found in scenario["paired"].items():
        parts = []
        for key in keys:
            d = found.get(key)
            if d is None or d["low"] is None:
                continue
            scale, unit = (100, " points") if key in PERCENT else (1, "")
            parts.append(
                f"{key} {scale * d['mean']:+.4g}{unit} "
                f"[{scale * d['low']:+.4g}, {scale * d['high']:+.4g}]"
            )
        if parts:
            yield f"{policy} - {scenario['baseline']}, 95 %: " + "; ".join(parts)
