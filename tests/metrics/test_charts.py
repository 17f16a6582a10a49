"""Figures carry the data they are drawn from, a caption and a table."""

import json
import re
from datetime import UTC, datetime

import plotly.graph_objects as go
import pytest

from metrics import definitions
from metrics.pages import charts
from metrics.pages.figures import LINES, axis, figure, line, template
from metrics.pages.nodes import charts as node_charts
from metrics.pages.replays.charts import FIGURES as replays

N = definitions.NodeUse


def nodes():
    return [
        N("H", 8, 8, 8, 0, True, "a"),
        N("H", 8, 8, 3, 5000, True, "a"),
        N("H", 8, 8, 0, 8000, True, "b"),
        N("H", 8, 8, 8, 0, False, "b"),
    ]


def waits_of(curves):
    return {size: definitions.JobWaits(curve, curve) for size, curve in curves.items()}


def test_leaf_map_sorts_leaves_by_whole_free_nodes_and_marks_what_is_out():
    figure = node_charts.leaf_map(nodes())
    trace = figure["data"][0]
    assert trace["x"] == ["a", "b"]
    assert trace["z"] == [[8, 0], [3, -1]]
    assert figure["layout"]["meta"]["table"]["rows"] == [["a", 2, 1, 1, 0, 0], ["b", 2, 0, 0, 1, 1]]


@pytest.mark.parametrize("per_node", [1, 2, 4, 8, 16, 56, 256])
def test_the_colour_scale_covers_every_number_of_gpus(per_node):
    trace = node_charts.leaf_map([N("H", per_node, per_node, per_node, 0, True, "a")])["data"][0]
    scale, labels = trace["colorscale"], trace["colorbar"]["ticktext"]
    assert len(labels) == len(scale) / 2 == min(per_node + 2, 18 if per_node <= 16 else 10)
    assert trace["zmax"] - trace["zmin"] == len(labels)
    assert scale[0][0] == 0.0
    assert scale[-1] == [1.0, node_charts.IDLE]
    edges = [edge for edge, _ in scale]
    assert edges == sorted(edges)


def test_nodes_of_many_slices_are_drawn_in_bands_of_free_ones():
    slices = [
        N("S", 56, 56, free, (56 - free) * 1000, True, leaf)
        for leaf, free in (("a", 56), ("a", 1), ("b", 7), ("b", 8), ("b", 55), ("b", 0))
    ]
    trace = node_charts.leaf_map(slices)["data"][0]
    assert trace["z"] == [[8, 7], [1, 2], [None, 1], [None, 0]]
    assert trace["customdata"] == [[56, 55], [1, 8], [None, 7], [None, 0]]
    assert trace["colorbar"]["ticktext"][2:4] == ["1–7", "8–15"]
    bars = node_charts.stranded(slices)
    [data, idle] = bars["data"]
    assert (data["x"][0], data["x"][6:], idle["x"]) == ("1–7", ["48–55"], ["idle"])
    assert (data["y"], idle["y"]) == ([8, 8, 0, 0, 0, 0, 55], [56])
    assert data["text"][:2] == ["2 nodes", "1 node"]


def test_no_nodes_is_an_empty_map_not_an_error():
    assert node_charts.leaf_map([])["data"][0]["z"] == []


def test_stranded_names_what_is_not_on_whole_nodes():
    figure = node_charts.stranded(
        [
            N("H", 8, 8, 0, 8000, True, "a"),
            N("H", 8, 8, 3, 5000, True, "a"),
            N("H", 8, 8, 3, 4500, True, "b"),
            N("H", 8, 8, 8, 0, True, "b"),
            N("L", 4, 4, 4, 0, True, "c"),
            N("L", 4, 4, 4, 0, False, "c"),
        ]
    )
    assert (
        figure["layout"]["meta"]["summary"] == "18 GPUs are free, 6 of them on partly used nodes."
    )
    assert figure["data"][1]["x"] == ["idle"]
    assert figure["data"][1]["text"] == ["2 nodes"]
    # They get an axis of their own: beside 600 idle GPUs, three GPUs in pieces would make no
    # visible bar.
    assert [trace.get("yaxis", "y") for trace in figure["data"]] == ["y", "y2"]


def test_gang_curve_leaves_out_what_a_log_axis_cannot_show():
    figure = node_charts.gang_curve(definitions.gang_curve(nodes()), pending=[64, 64])
    anywhere = figure["data"][0]
    assert anywhere["x"] == [1, 2, 4, 8]
    assert min(anywhere["y"]) == 1
    assert figure["data"][2]["x"] == [64]


def test_gang_curve_names_the_largest_gang_and_keeps_its_labels_apart():
    curve = {1: (40, 40), 8: (5, 5), 24: (1, 1), 32: (1, 0), 40: (1, 0), 64: (0, 0)}
    layout = node_charts.gang_curve(curve)["layout"]
    assert layout["meta"]["summary"] == "Gangs of up to 40 GPUs fit, up to 24 inside one leaf."
    assert layout["xaxis"]["tickvals"] == [1, 8, 24, 40, 64]


def test_allocation_without_samples_says_so():
    assert "Nothing has been recorded" in charts.allocation([])["layout"]["meta"]["summary"]
    point = charts.UsePoint(datetime(2026, 1, 1, 2, 3, 4, 5, tzinfo=UTC), 6, 8, None)
    layout = charts.allocation([point])["layout"]
    assert layout["meta"]["summary"] == "6 of 8 GPUs allocated (75.0 %)."
    assert layout["meta"]["table"]["columns"][0] == "Time, UTC"
    assert layout["meta"]["table"]["rows"][0][0] == "2026-01-01 02:03:04"
    assert layout["xaxis"]["title"]["text"] == "UTC"


@pytest.mark.parametrize(
    ("leaves", "labels", "title"),
    [
        (["s-0/leaf-07", "s-1/leaf-12"], ["07", "12"], "leaf groups leaf-…, the freest first"),
        (["leaf-07", ""], ["07", "no leaf"], "leaf groups leaf-…, the freest first"),
        (["east-1", "west-2"], ["east-1", "west-2"], "leaf groups, the freest first"),
        (["rack", "rack2"], ["rack", "rack2"], "leaf groups, the freest first"),
        ([], [], "leaf groups, the freest first"),
    ],
)
def test_what_all_leaves_are_called_is_told_once(leaves, labels, title):
    drawn = node_charts.leaf_map([N("H", 8, 8, 8, 0, True, leaf) for leaf in leaves])["layout"]
    assert sorted(drawn["xaxis"]["ticktext"]) == labels
    assert drawn["xaxis"]["title"]["text"] == title


def test_placement_shows_what_gangs_use_over_the_fewest_possible():
    quality = definitions.PlacementQuality
    rows = [quality("8", 30, 1.0, 1.0), quality("64", 10, 1.2, 2.0)]
    figure = charts.placement(rows)
    assert [t["y"] for t in figure["data"]] == [[1.0, 1.2], [1.0, 2.0]]
    assert figure["data"][0]["x"] == ["8–15<br>30 gangs", "64–127<br>10 gangs"]
    assert {t["mode"] for t in figure["data"]} == {"markers"}  # nothing lies between two classes
    layout = figure["layout"]
    assert layout["meta"]["summary"] == (
        "40 gangs: 1.05 times the fewest nodes, 1.25 times the fewest groups; 1 is ideal."
    )
    assert layout["yaxis"]["range"][1] > 2
    none = charts.placement([])["layout"]["meta"]
    assert (none["summary"], none["table"]["rows"]) == ("No gang was placed in this window.", [])


def strips(curves):
    """Return {trace name of the wait chart: {size class: its ends, or its place}}."""
    found = {}
    for trace in charts.waits(waits_of(curves))["data"]:
        ends = found.setdefault(trace["name"], {})
        for x, y in zip(trace["x"], trace["y"], strict=True):
            if y is not None:
                ends.setdefault(y, []).append(x)
    return found


def test_waits_are_a_strip_of_quantiles_per_size_class():
    of_eight = definitions.wait_curve([10.0 * i for i in range(1, 11)], [True] * 10)
    of_one = definitions.wait_curve([0.0] * 4, [True] * 4)
    found = strips({"1": of_one, "8": of_eight, "all": of_eight})
    assert found["10–90 %"] == {"1 GPU": [1.0, 1.0], "8–15 GPUs": [10.0, 90.0]}
    assert found["25–75 %"] == {"1 GPU": [1.0, 1.0], "8–15 GPUs": [30.0, 80.0]}
    assert found["half have started"] == {"1 GPU": [1.0], "8–15 GPUs": [50.0]}
    assert found["not all have started"] == found["longest that waits"] == {}


def test_waits_go_on_to_the_longest_waiter_and_so_does_their_axis():
    curve = definitions.wait_curve([2, 4, 700, 3000], [True, True, False, False])
    never = definitions.wait_curve([9000], [False])
    found = strips({"8": curve, "64": never, "all": curve})
    assert found["25–75 %"] == {"8–15 GPUs": [2.0, 4.0]}  # three quarters have not started yet
    assert found["not all have started"] == {
        "8–15 GPUs": [4.0, 3000.0],
        "64–127 GPUs": [1.0, 9000.0],
    }
    assert found["longest that waits"] == {"8–15 GPUs": [3000.0], "64–127 GPUs": [9000.0]}
    layout = charts.waits(waits_of({"8": curve, "64": never, "all": curve}))["layout"]
    assert layout["meta"]["summary"].startswith("4 jobs and single pods, 2 not started; half")
    assert layout["xaxis"]["tickvals"][-1] == 9000
    assert layout["xaxis"]["ticktext"][-1] == "2 h 30 min"
    assert 10 ** layout["xaxis"]["range"][1] >= 9000
    assert layout["yaxis"]["categoryarray"] == ["8–15 GPUs", "64–127 GPUs"]


def test_sizes_are_told_in_words():
    curve = definitions.wait_curve([1.0], [True])
    found = strips(dict.fromkeys(("0", "1", "2–7", "8"), curve))
    assert list(found["half have started"]) == ["no GPU", "1 GPU", "2–7 GPUs", "8–15 GPUs"]
    nobody = charts.waits({})["layout"]["meta"]["summary"]
    assert nobody == "No job was submitted in this window."


def test_models_are_told_without_their_vendor():
    figure = charts.gpu_hours({"2030-01-01": {"NVIDIA-H100-80GB-HBM3": 1.0}}, "day")
    assert figure["data"][0]["name"] == "H100-80GB-HBM3"
    assert "NVIDIA-H100-80GB-HBM3" in figure["layout"]["meta"]["table"]["columns"]


def test_gpu_hours_of_more_models_than_colours_are_told_as_others():
    days = {"2030-01-01": {f"m{i}": 10.0 - i for i in range(8)}, "2030-01-02": {"m7": 1.0}}
    figure = charts.gpu_hours(days, "day")
    assert [s["name"] for s in figure["data"]] == ["m0", "m1", "m2", "m3", "m4", "others"]
    assert [s["y"] for s in figure["data"]][-2:] == [[6.0, 0.0], [12.0, 1.0]]
    assert len({s["marker"]["color"] for s in figure["data"]}) == 6
    meta = figure["layout"]["meta"]
    assert meta["summary"] == "53.0 GPU-hours; the busiest day is 2030-01-01 with 52.0."
    assert meta["table"]["rows"][1] == ["2030-01-02", 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]


def result():
    """Return a replay as the figures read it."""
    at = ["2026-01-01T00:00:00+00:00", "2026-01-01T01:00:00+00:00"]
    runs = ("recorded", "baseline", "changed")
    series = {"at": at, "baseline_gfr": [0.5, None], "changed_gfr": [0.25, 0.0]}
    series |= {f"{run}_gpus": [8.0, None] for run in runs}
    return {"series": series, "started_within_s": {run: [0.0, 5.0] for run in runs}}


POINTS = [charts.UsePoint(datetime(2026, 1, 1, tzinfo=UTC), 6, 8, gfr) for gfr in (None, 0.5)]
CURVE = definitions.wait_curve([1.0, 9.0], [True, False])
QUALITY = [definitions.PlacementQuality("8", 30, 1.0, 1.0)]
FIGURES = {
    "allocation": lambda: charts.allocation(POINTS),
    "GPU-hours": lambda: charts.gpu_hours({"2030-01-01": {"a": 1.0, "b": 2.0}}, "day"),
    "waits": lambda: charts.waits(waits_of({"8": CURVE, "all": CURVE})),
    "placement": lambda: charts.placement(QUALITY),
    "leaf map": lambda: node_charts.leaf_map(nodes()),
    "stranded": lambda: node_charts.stranded(nodes()),
    "gangs": lambda: node_charts.gang_curve(definitions.gang_curve(nodes()), pending=[64]),
    **{f"replay: {name}": lambda make=make: make(result()) for name, make in replays.items()},
}


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_is_one_that_plotly_draws_in_both_themes(name, settings):
    figure = FIGURES[name]()
    text = json.dumps(figure, allow_nan=False)
    assert go.Figure(figure).to_plotly_json() == figure  # Plotly raises on an unknown property
    assert figure["data"]
    assert figure["layout"]["meta"]["summary"].endswith(".")
    assert all(
        len(row) == len(figure["layout"]["meta"]["table"]["columns"])
        for row in figure["layout"]["meta"]["table"]["rows"]
    )
    assert figure["layout"]["template"] == template().to_plotly_json()
    style = (settings.BASE_DIR / "static" / "css" / "tokens.css").read_text()
    for colour in set(re.findall(r"var\((--[\w-]+)\)", text)):
        if colour.startswith("--chart-"):  # the others are Bootstrap's
            assert len(re.findall(rf"{colour}:", style)) == 2, colour  # light and dark


def test_what_plotly_does_not_know_is_refused_where_it_is_made():
    for wrong in ({"colour": "no colour"}, {"dashes": "dot"}, {"fill": "sideways"}):
        said = next(iter(wrong)) if "dashes" in wrong else next(iter(wrong.values()))
        with pytest.raises(ValueError, match=said):
            line("a", [1], [1], **{"colour": LINES[0], "hover": "", **wrong})
    with pytest.raises(ValueError, match="zaxis"):
        figure([], summary="", columns=[], rows=[], zaxis=axis("z"))
