"""Alerts: one definition, from which the Prometheus rules and the table in
docs/operating/watching.md are generated."""

from enum import StrEnum
from typing import Any

from msgspec import Struct


class Severity(StrEnum):
    CRITICAL = "critical"  # pods are not placed
    WARNING = "warning"


class Alert(Struct, frozen=True, kw_only=True):
    """`expr`, in PromQL, must hold for `minutes` before the alert fires. `told`: its summary for
    people. `remedy`: what an operator should check first."""

    name: str
    told: str
    expr: str
    minutes: int
    severity: Severity
    remedy: str


ALERTS = (
    Alert(
        name="KantDecidesNothing",
        told="nothing is decided",
        expr="max by (cluster) (kant_scheduler_up) == 0",
        minutes=1,
        severity=Severity.CRITICAL,
        remedy="The operations page says since when; see that the pods of the scheduler run.",
    ),
    Alert(
        name="KantUnseen",
        told="its metrics are missing",
        expr="absent(kant_scheduler_up)",
        minutes=5,
        severity=Severity.CRITICAL,
        remedy="No web process answers Prometheus, its token has ended, or no cluster is "
        "registered.",
    ),
    Alert(
        name="KantBackgroundWorkWaits",
        told="background work waits",
        expr="min(kant_redis_up) == 0",
        minutes=1,
        severity=Severity.WARNING,
        remedy="Redis does not take what Kant writes; the log of each process says why.",
    ),
    Alert(
        name="KantDecidesSlowly",
        told="decisions come slowly",
        expr="histogram_quantile(0.95, max by (cluster, scope, le) "
        "(rate(kant_scheduler_pass_seconds_bucket[5m]))) > 1",
        minutes=5,
        severity=Severity.WARNING,
        remedy="Compare the phases of passes; give the scheduler a core, or shards.",
    ),
    Alert(
        name="KantDatabaseSlow",
        told="the database is what is slow",
        expr='max by (cluster, scope) (rate(kant_scheduler_phase_seconds_total{phase="write"}[5m]))'
        " > 0.5",
        minutes=5,
        severity=Severity.WARNING,
        remedy="Half of the time of the scheduler is spent in PostgreSQL: look at its disk and "
        "its connections.",
    ),
    Alert(
        name="KantAnswersWrong",
        told="the scheduler was wrong",
        expr="max by (cluster, scope) (increase(kant_scheduler_answers_wrong_total[1h])) > 0",
        minutes=0,
        severity=Severity.WARNING,
        remedy="An error of Kant: report the line “wrong answer remembered” of its log.",
    ),
    Alert(
        name="KantQueueForgotten",
        told="a queue is forgotten",
        expr='max by (tenant, queue) (min_over_time(kant_queue_state{state="held"}[1d])) == 1',
        minutes=0,
        severity=Severity.WARNING,
        remedy="It has been held for a day: release it, or close it with a reason.",
    ),
    Alert(
        name="KantRefusedByKubernetes",
        told="Kubernetes refuses",
        expr="max by (cluster, effect, result) "
        '(rate(kant_kubernetes_effects_total{result=~"refused|failed"}[5m])) > 0',
        minutes=5,
        severity=Severity.WARNING,
        remedy="The events of the jobs say what the API server answered; apply "
        "scheduling/kube/rbac.yaml again after an upgrade.",
    ),
)


def prometheus_rules() -> dict[str, Any]:
    """Return the `spec` of a PrometheusRule, which is also a valid Prometheus rule file."""
    rules = [
        {
            "alert": each.name,
            "expr": each.expr,
            "for": f"{each.minutes}m",
            "labels": {"severity": each.severity.value},
            "annotations": {"summary": f"Kant: {each.told}", "description": each.remedy},
        }
        for each in ALERTS
    ]
    return {"groups": [{"name": "kant", "rules": rules}]}
