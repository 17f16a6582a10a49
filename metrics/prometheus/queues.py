"""Metrics of tenants' queues. Their labels are existing queues; a tenant has at most
`tenants.services.queues.change.MOST_QUEUES`."""

from collections.abc import Iterator

from django.utils import timezone
from prometheus_client.core import GaugeMetricFamily, Metric

from metrics.definitions import MILLI
from scheduling.queries.queues.stages import STAGES, counted
from tenants.models import Queue, QueueState

OF_QUEUE = ["tenant", "queue"]


def queue_families() -> Iterator[Metric]:
    """Yield jobs by stage, GPUs asked for, held and allowed, the longest wait, and the state of
    each queue."""
    jobs = GaugeMetricFamily(
        "kant_queue_jobs",
        "Jobs of a queue that are not over, by the stage of their way",
        labels=[*OF_QUEUE, "stage"],
    )
    asked = GaugeMetricFamily(
        "kant_queue_asked_gpus", "GPUs that waiting jobs of a queue ask for", labels=OF_QUEUE
    )
    held = GaugeMetricFamily(
        "kant_queue_held_gpus", "GPUs that jobs of a queue hold", labels=[*OF_QUEUE, "gpu_type"]
    )
    most = GaugeMetricFamily(
        "kant_queue_max_gpus",
        "Most GPUs that jobs of a queue may hold, where it has a limit",
        labels=[*OF_QUEUE, "gpu_type"],
    )
    oldest = GaugeMetricFamily(
        "kant_queue_oldest_wait_seconds",
        "Since when the oldest waiting job of a queue waits; 0 where none does",
        labels=OF_QUEUE,
    )
    state = GaugeMetricFamily(
        "kant_queue_state", "1 for the state that a queue is in", labels=[*OF_QUEUE, "state"]
    )
    at = timezone.now()
    for now in counted(Queue.objects.select_related("tenant")):
        queue = now.queue
        key = [queue.tenant.name, queue.name]
        for stage in STAGES:
            jobs.add_metric([*key, stage], now.stages[stage])
        jobs.add_metric([*key, "running"], now.running)
        asked.add_metric(key, now.asked_milli / MILLI)
        for model, milli in sorted(now.held.items()):
            held.add_metric([*key, model], milli / MILLI)
        for model, gpus in sorted(queue.max_gpus.items()):
            most.add_metric([*key, model], gpus)
        waits = (at - now.oldest).total_seconds() if now.oldest else 0.0
        oldest.add_metric(key, max(0.0, waits))
        for name in QueueState.values:
            state.add_metric([*key, name], int(queue.state == name))
    yield from (jobs, asked, held, most, oldest, state)
