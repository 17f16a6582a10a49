"""Grafana dashboards: one definition of boards and panels, from which their JSON is generated.

All web processes report the same values, so panels show the maximum over them.
"""

import json
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from metrics.prometheus.alerts import ALERTS

WIDTH, HEIGHT = 24, 8  # of Grafana's grid, and of a row of panels
SOURCE = {"type": "prometheus", "uid": "${source}"}
SCHEMA_VERSION = 39  # of Grafana 10; newer versions migrate older boards


class Panel(Struct, frozen=True, kw_only=True):
    """`queries`: {name of the line: PromQL}. `unit`: one of Grafana's. `kind`: "timeseries", "stat"
    or "table". `columns`: its width, out of 24. `most`: the end of its axis."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    columns: int = 12
    most: float | None = None
    stacked: bool = False


class Board(Struct, frozen=True, kw_only=True):
    """`uid`: part of its address; at most 40 characters. `variables`: labels to select by, each
    with a metric that has them."""

    uid: str
    title: str
    variables: dict[str, str]
    panels: tuple[Panel, ...]


OF = '{cluster=~"$cluster"}'
POOL = '{cluster=~"$cluster",gpu_type=~"$gpu_type"}'
TENANT = '{tenant=~"$tenant"}'


def _quantiles(histogram: str, labels: str, within: str) -> dict[str, str]:
    """Return queries for the median and the 95th percentile of a histogram, by these labels."""
    called = " ".join(f"{{{{{label}}}}}" for label in labels.split(", "))
    rates = f"max by ({labels}, le) (rate({histogram}_bucket{OF}[{within}]))"
    return {f"{part:.0%} {called}": f"histogram_quantile({part}, {rates})" for part in (0.5, 0.95)}


FLEET = Board(
    uid="kant-fleet",
    title="Kant: GPUs",
    variables={"cluster": "kant_gpus", "gpu_type": "kant_gpus"},
    panels=(
        Panel(
            title="Allocated (GAR)",
            queries={
                "{{cluster}} {{gpu_type}}": "max by (cluster, gpu_type) "
                f"(kant_gpu_allocation_ratio{POOL})"
            },
            unit="percentunit",
            most=1.0,
        ),
        Panel(
            title="Fragmented nodes (GFR)",
            queries={
                "{{cluster}} {{gpu_type}}": "max by (cluster, gpu_type) "
                f"(kant_gpu_node_fragmentation_ratio{POOL})"
            },
            unit="percentunit",
            most=1.0,
        ),
        Panel(
            title="GPUs by state",
            queries={
                "{{state}}": f"sum by (state) (max by (cluster, gpu_type, state) (kant_gpus{POOL}))"
            },
        ),
        Panel(
            title="Largest gang that fits now, GPUs",
            queries={
                "{{cluster}} {{gpu_type}}, {{scope}}": "max by (cluster, gpu_type, scope) "
                f"(kant_largest_gang_gpus{POOL})"
            },
        ),
        Panel(
            title="Nodes by free GPUs",
            queries={
                "{{free}} free": "sum by (free) (max by (cluster, gpu_type, free) "
                f"(kant_nodes_by_free_gpus{POOL}))"
            },
            stacked=True,
        ),
        Panel(
            title="Occupied over an hour (SOR)",
            queries={
                "{{cluster}} {{gpu_type}}": "max by (cluster, gpu_type) "
                f"(rate(kant_allocated_gpu_seconds_total{POOL}[1h])) / max by (cluster, gpu_type) "
                f"(rate(kant_available_gpu_seconds_total{POOL}[1h]))"
            },
            unit="percentunit",
            most=1.0,
        ),
        Panel(
            title="Nodes used / fewest possible (JTTED)",
            queries={
                "{{gpu_type}} {{size_class}}": "max by (gpu_type, size_class) "
                f"(kant_job_node_deviation_ratio{POOL})"
            },
        ),
        Panel(
            title="Net groups used / fewest possible",
            queries={
                "{{gpu_type}} {{size_class}}": "max by (gpu_type, size_class) "
                f"(kant_job_group_deviation_ratio{POOL})"
            },
        ),
    ),
)

QUEUES = Board(
    uid="kant-queues",
    title="Kant: queues, quotas and waits",
    variables={"cluster": "kant_pending_jobs", "tenant": "kant_quota_gpus"},
    panels=(
        Panel(
            title="Waiting jobs by reason",
            queries={
                "{{reason}}": "sum by (reason) (max by (cluster, tenant, reason) "
                '(kant_pending_jobs{cluster=~"$cluster",tenant=~"$tenant"}))'
            },
            stacked=True,
        ),
        Panel(
            title="GPUs that waiting jobs ask for",
            queries={
                "{{tenant}}": "sum by (tenant) (max by (cluster, tenant, reason) "
                '(kant_pending_gpus{cluster=~"$cluster",tenant=~"$tenant"}))'
            },
            stacked=True,
        ),
        Panel(
            title="Wait, half and 95 % of the jobs",
            queries=_quantiles("kant_job_wait_seconds", "cluster, gpu_type, size_class", "1h"),
            unit="s",
        ),
        Panel(
            title="To the first start, half and 95 % of the jobs",
            queries=_quantiles(
                "kant_job_first_start_seconds", "cluster, gpu_type, size_class", "1h"
            ),
            unit="s",
        ),
        Panel(
            title="Quota and its use, GPUs",
            queries={
                "{{tenant}} {{gpu_type}}, {{kind}}": "max by (tenant, gpu_type, kind) "
                f"(kant_quota_gpus{TENANT})"
            },
        ),
        Panel(
            title="Lent, GPUs",
            queries={
                "{{lender}} to {{borrower}}, {{gpu_type}}": "max by (borrower, lender, gpu_type) "
                "(kant_quota_loan_gpus)"
            },
        ),
        Panel(
            title="Jobs of queues by stage",
            queries={
                "{{tenant}}/{{queue}}, {{stage}}": "max by (tenant, queue, stage) "
                f"(kant_queue_jobs{TENANT}) > 0"
            },
        ),
        Panel(
            title="GPUs of queues: held, asked, most",
            queries={
                "{{tenant}}/{{queue}} holds": "sum by (tenant, queue) "
                f"(max by (tenant, queue, gpu_type) (kant_queue_held_gpus{TENANT})) > 0",
                "{{tenant}}/{{queue}} asks": "max by (tenant, queue) "
                f"(kant_queue_asked_gpus{TENANT}) > 0",
                "{{tenant}}/{{queue}} {{gpu_type}} most": "max by (tenant, queue, gpu_type) "
                f"(kant_queue_max_gpus{TENANT})",
            },
        ),
        Panel(
            title="Oldest wait",
            queries={
                "{{tenant}}/{{queue}}": "max by (tenant, queue) "
                f"(kant_queue_oldest_wait_seconds{TENANT}) > 0"
            },
            unit="s",
        ),
        Panel(
            title="Estimates of starts that held, 30 days",
            queries={
                "{{gpus}} GPUs by {{basis}}": "max by (gpus, basis) (kant_start_estimates_held) / "
                "max by (gpus, basis) (kant_start_estimates)"
            },
            unit="percentunit",
            most=1.0,
        ),
    ),
)

SCHEDULER = Board(
    uid="kant-scheduler",
    title="Kant: the scheduler itself",
    variables={"cluster": "kant_scheduler_up"},
    panels=(
        Panel(
            title="Decides",
            queries={"{{cluster}}": f"max by (cluster) (kant_scheduler_up{OF})"},
            kind="stat",
            columns=6,
        ),
        Panel(
            title="Redis takes what Kant writes",
            queries={"Redis": "min(kant_redis_up)"},
            kind="stat",
            columns=6,
        ),
        Panel(
            title="Alerts",
            queries={
                "{{alertname}}": 'ALERTS{alertname=~"'
                + "|".join(each.name for each in ALERTS)
                + '",alertstate="firing"}'
            },
            kind="stat",
        ),
        Panel(
            title="A pass, half and 95 % of them",
            queries=_quantiles("kant_scheduler_pass_seconds", "cluster, scope", "5m"),
            unit="s",
        ),
        Panel(
            title="Where passes are, part of the time",
            queries={
                "{{cluster}} {{scope}} {{phase}}": "max by (cluster, scope, phase) "
                f"(rate(kant_scheduler_phase_seconds_total{OF}[5m]))"
            },
            unit="percentunit",
        ),
        Panel(
            title="Starts a second",
            queries={
                "{{cluster}} {{scope}}": "max by (cluster, scope) "
                f"(rate(kant_scheduler_starts_total{OF}[5m]))"
            },
            unit="ops",
        ),
        Panel(
            title="Work of cycles a second",
            queries={
                name: f"sum(max by (cluster, scope) (rate(kant_scheduler_{metric}_total{OF}[5m])))"
                for name, metric in (
                    ("walks", "walks"),
                    ("classes asked", "classes_asked"),
                    ("classes remembered", "classes_remembered"),
                    ("attempts", "attempts"),
                    ("preemption plans", "preemption_plans"),
                    ("answers checked", "answers_checked"),
                    ("answers wrong", "answers_wrong"),
                )
            },
            unit="ops",
        ),
        Panel(
            title="What was asked of Kubernetes, by how it ended",
            queries={
                "{{effect}} {{result}}": "sum by (effect, result) (max by (cluster, scope, effect, "
                f"result) (rate(kant_kubernetes_effects_total{OF}[5m])))"
            },
            unit="ops",
        ),
        Panel(
            title="Events of jobs a second",
            queries={
                "{{event}}": "sum by (event) (max by (cluster, event) "
                f"(rate(kant_job_events_total{OF}[5m])))"
            },
            unit="ops",
        ),
        Panel(
            title="Estimates of starts: how old, and their CPU time",
            queries={
                "{{cluster}}, age": f"time() - max by (cluster) (kant_forecast_as_of_seconds{OF})",
                "{{cluster}}, CPU": f"max by (cluster) (kant_forecast_cpu_seconds{OF})",
            },
            unit="s",
        ),
    ),
)

BOARDS = (FLEET, QUEUES, SCHEDULER)


def grafana(board: Board) -> dict[str, Any]:
    """Return the board as Grafana imports it, or reads it from a file."""
    return {
        "uid": board.uid,
        "title": board.title,
        "tags": ["kant"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": list(_variables(board))},
        "annotations": {"list": []},
        "panels": [_panel(number, panel, at) for number, panel, at in _laid_out(board)],
    }


def text_of(board: Board) -> str:
    """Return its JSON with one panel per line, so that diffs are readable."""
    document = grafana(board)
    panels = ",\n".join(json.dumps(panel) for panel in document.pop("panels"))
    return f'{json.dumps(document)[:-1]},\n"panels": [\n{panels}\n]}}\n'


def _variables(board: Board) -> Iterator[dict[str, Any]]:
    yield {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}
    for label, metric in board.variables.items():
        yield {
            "name": label,
            "label": label.replace("_", " ").capitalize(),
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": f"label_values({metric}, {label})", "refId": label},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


def _laid_out(board: Board) -> Iterator[tuple[int, Panel, dict[str, int]]]:
    """Yield each panel with its number and its position, left to right and top to bottom."""
    x = y = 0
    for number, panel in enumerate(board.panels, 1):
        if x + panel.columns > WIDTH:
            x, y = 0, y + HEIGHT
        yield number, panel, {"x": x, "y": y, "w": panel.columns, "h": HEIGHT}
        x += panel.columns


def _panel(number: int, panel: Panel, at: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        defaults["custom"] = {"fillOpacity": 20 if panel.stacked else 0, "stacking": stacking}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": expr, "legendFormat": called, "range": True}
            for place, (called, expr) in enumerate(panel.queries.items())
        ],
    }
