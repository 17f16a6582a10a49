"""paper-incremental: CPU of incremental updates against copying the cluster, with 1,000 nodes.

The paper's incremental snapshot halves a cycle's CPU. The figures come from several runs of
`manage.py bench incremental`.
"""

from argparse import ArgumentParser
from collections.abc import Iterator
from statistics import fmean
from typing import Any

from metrics.benches import incremental
from metrics.experiments.comparison import paired_by_seed, summarised
from metrics.experiments.intervals import half_width
from metrics.experiments.study import Progress, Runner, Study, StudyError

QUICK_REPEATS = 2
BASELINE = "copying"
# For each variant, the CPU of a cycle and of taking in changes, by the names in the bench's
# figures.
SIDES = {
    BASELINE: {"cycle_us": "copying_cycle_us", "update_us": "deepcopy_us"},
    "incremental": {"cycle_us": "cycle_us", "update_us": "deltas_100_us"},
}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=5, help="measurements (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_REPEATS} measurements")


def run(options: dict[str, Any], progress: Progress, _: Runner) -> dict[str, Any]:
    """Take the measurements one by one, alone in this process, because they measure CPU."""
    repeats = QUICK_REPEATS if options["quick"] else options["repeats"]
    if repeats < 1:
        raise StudyError(f"--repeats must be at least 1, not {repeats}")
    found: list[dict[str, float]] = []
    partial = False
    progress(0, repeats)
    try:
        for done in range(repeats):
            found.append(incremental.run())
            progress(done + 1, repeats)
    except KeyboardInterrupt:
        partial = True
    figures = {key: [one[key] for one in found] for key in (found[0] if found else ())}
    ratio = fmean(figures["cycle_cpu_ratio"]) if found else None
    sides = {name: _by_repeat(found, keys) for name, keys in SIDES.items()}
    return {
        "experiment": STUDY.name,
        "partial": partial,
        "repeats": len(found),
        "baseline": BASELINE,
        "summary": {n: summarised(list(of.values())) for n, of in sides.items() if of},
        "paired": {
            n: paired_by_seed(of, sides[BASELINE]) for n, of in sides.items() if n != BASELINE
        },
        "figures": {key: fmean(values) for key, values in figures.items()},
        "half": {key: half_width(values) for key, values in figures.items()},
        "bars": [
            {
                "claim": "CPU of an incremental cycle over a copying one (paper: half)",
                "value": ratio,
                "limit": "≤ 0.5",
                "holds": None if ratio is None else ratio <= 0.5,
            }
        ],
    }


def _by_repeat(found: list[dict[str, float]], keys: dict[str, str]) -> dict[int, dict[str, float]]:
    return {n: {name: one[key] for name, key in keys.items()} for n, one in enumerate(found)}


def lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield the means with half of their 95 % intervals."""
    for key, value in document["figures"].items():
        half = document["half"][key]
        yield f"{key:24} {value:12,.4g}" + ("" if half is None else f" ± {half:,.3g}")


STUDY = Study(
    name="paper-incremental",
    help="CPU of incremental updates against copying, 1,000 nodes",
    add_arguments=add_arguments,
    run=run,
    lines=lines,
)
