"""Charts of a study that compares policies, made from its document."""

from typing import Any

from metrics.simulate.report import Figure

RATIOS = {
    "gar_median": "GAR, median",
    "sor_median": "SOR, median",
    "sor_net": "SOR less lost",
    "gfr_mean": "GFR, mean",
}
BY_SIZE = {
    "wait_mean_s": ("mean wait by size of job", "s", "log"),
    "first_start_mean_s": ("mean time to the first start by size of job", "s", "log"),
    "jtted_nodes": ("nodes used over the fewest possible, by size of job", "", "linear"),
    "jtted_groups": ("groups used over the fewest possible, by size of job", "", "linear"),
}


def figures(document: dict[str, Any]) -> list[Figure]:
    """Draw shares with their 95 % intervals, and the distributions by size, for each scenario."""
    found = []
    for name, scenario in document.get("scenarios", {}).items():
        summary = scenario["summary"]
        found.append(_shares(name, summary))
        for key, (caption, unit, scale) in BY_SIZE.items():
            if any(row.get(key) for row in summary.values()):
                found.append(_by_size(f"{name}: {caption}", summary, key, unit, scale))
    return found


def _shares(scenario: str, summary: dict[str, Any]) -> Figure:
    import plotly.graph_objects as go  # heavy: imported only where a figure is made

    # A single seed has no interval; plotly would draw one of zero width.
    known = any(row["half"].get(key) is not None for row in summary.values() for key in RATIOS)
    data = [
        go.Bar(
            name=policy,
            x=list(RATIOS.values()),
            y=[_percent(row.get(key)) for key in RATIOS],
            error_y={
                "type": "data",
                "visible": known,
                "array": [_percent(row["half"].get(key)) or 0 for key in RATIOS],
            },
        )
        for policy, row in summary.items()
    ]
    layout = {"barmode": "group", "yaxis": {"title": {"text": "%"}, "rangemode": "tozero"}}
    caption = f"{scenario}: shares" + (", with 95 % intervals" if known else "")
    return Figure(caption, data, layout)


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _by_size(caption: str, summary: dict[str, Any], key: str, unit: str, scale: str) -> Figure:
    import plotly.graph_objects as go

    data = [
        go.Bar(
            name=policy,
            x=list(row[key]),
            y=[None if scale == "log" and not y else y for y in row[key].values()],
        )
        for policy, row in summary.items()
    ]
    layout = {
        "barmode": "group",
        "xaxis": {"title": {"text": "GPUs"}, "type": "category"},
        "yaxis": {"title": {"text": unit}, "type": scale},
    }
    return Figure(caption, data, layout)
