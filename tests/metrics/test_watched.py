"""Alerts and dashboards name only metrics and labels that Kant exports, in Grafana's layout."""

import json
import re

import pytest

from metrics.prometheus import exporter
from metrics.prometheus.alerts import ALERTS
from metrics.prometheus.dashboards import BOARDS, HEIGHT, WIDTH, grafana, text_of
from tests.guide import guide_text

pytestmark = pytest.mark.django_db
ENDS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
PROMETHEUS_OWN = {"le", "alertname", "alertstate"}


def exported():
    """Return {series name: labels} of all families, even those with nothing to count."""
    return {
        family.name + end: set(family._labelnames)
        for part in exporter._parts()
        for family in part.collect()
        for end in ENDS[family.type]
    }


def queries():
    """Yield (where, PromQL, labels in its legend) of all alerts and panels."""
    for alert in ALERTS:
        yield alert.name, alert.expr, set()
    for board in BOARDS:
        for panel in board.panels:
            for called, expr in panel.queries.items():
                yield f"{board.title}: {panel.title}", expr, set(re.findall(r"{{(\w+)}}", called))


def test_every_metric_and_label_is_one_that_kant_exports(settings):
    settings.REDIS_URL = settings.CELERY_BROKER_URL = "redis://localhost:1/0"
    known = exported()
    used = set()
    for where, expr, legend in queries():
        assert expr.count("(") == expr.count(")"), where
        named = set(re.findall(r"\bkant_\w+", expr))
        assert named <= known.keys(), where
        used |= named
        labels = set().union(*(known[name] for name in named)) | PROMETHEUS_OWN
        asked = {
            label for group in re.findall(r"by \((.*?)\)", expr) for label in group.split(", ")
        } | set(re.findall(r"[{,]\s*(\w+)(?:=~|=|!=|!~)\"", expr))
        assert asked <= labels, where
        # A legend would be empty if it named a label that the query aggregates away.
        assert legend <= asked, where
    # A family on no board is never seen: all must be shown, except histogram sums and counts, and
    # states.
    unseen = {name for name in known.keys() - used if not name.endswith(("_sum", "_count"))}
    assert unseen == set()


def test_variables_choose_by_labels_that_there_are():
    known = exported()
    for board in BOARDS:
        texts = " ".join(expr for panel in board.panels for expr in panel.queries.values())
        assert set(re.findall(r"\$(\w+)", texts)) == board.variables.keys()
        assert all(label in known[metric] for label, metric in board.variables.items())


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_a_board_is_read_as_grafana_reads_it(board):
    document = json.loads(text_of(board))
    assert document == grafana(board)
    assert re.fullmatch(r"[a-z-]{1,40}", document["uid"])
    panels = document["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, at["y"]) for x in range(at["x"], at["x"] + at["w"])}
        assert at["x"] + at["w"] <= WIDTH
        assert (at["h"], at["y"] % HEIGHT) == (HEIGHT, 0)
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] in {"timeseries", "stat"}
        assert panel["datasource"] == {"type": "prometheus", "uid": "${source}"}
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs)) > 0
    names = [variable["name"] for variable in document["templating"]["list"]]
    assert names[0] == "source"
    assert len(names) == len(set(names))


def test_the_guide_tells_of_each_alert_what_it_is():
    rows = re.findall(r"^\| (?:`(Kant\w+)`) \| (.*?) \| `(.*?)`(.*?) \|$", guide_text(), re.M)
    told = {name: (what, expr.replace("\\|", "|")) for name, what, expr, _ in rows}
    assert told == {each.name: (each.told, each.expr) for each in ALERTS}
    within = {name: int((re.findall(r"for (\d+)", rest) or [0])[0]) for name, *_, rest in rows}
    assert within == {each.name: each.minutes for each in ALERTS}
