"""Celery tasks of the recorder, the replays, the forecasts, and the runs of a study."""

from typing import Any

from celery import shared_task
from django.utils import timezone

from metrics import services
from metrics.gpu_use import fold
from metrics.replays import process
from scheduling.models import Cluster
from scheduling.services.clusters import plan_orders
from scheduling.services.forecasts import process as forecasts


@shared_task
def record_samples() -> None:
    for cluster in Cluster.objects.filter(is_active=True):
        services.record_sample(cluster, timezone.now())


@shared_task
def thin_samples() -> None:
    services.thin_samples(timezone.now())


@shared_task
def prune() -> None:
    services.prune(timezone.now())


@shared_task
def read_gpu_use() -> None:
    fold.read_gpu_use(timezone.now())


@shared_task
def carry_out_replays() -> None:
    process.start_if_wanted()


@shared_task
def carry_out_plans() -> None:
    """Free the whole nodes whose planned time has come."""
    plan_orders.carry_out_plans()
    plan_orders.forget_old_plans()


@shared_task
def keep_forecasts() -> None:
    forecasts.start_if_wanted()


# A run takes minutes; it is repeated when its worker process was killed.
@shared_task(ignore_result=False, acks_late=True, reject_on_worker_lost=True)
def run_of_study(name: str, options: dict[str, Any], number: int) -> Any:
    """Return the result of task `number` of a study with these options."""
    # The studies load much that no other process needs.
    from metrics.experiments.registry import STUDIES

    plan = STUDIES[name].plan
    if plan is None:
        raise ValueError(f"study {name} has no runs for workers")
    run, tasks = plan(options)
    return run(tasks[number])
