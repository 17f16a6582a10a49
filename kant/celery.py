"""The Celery application: its queues, its schedule, and what makes a worker a scheduler.

Every scheduler process hears every tick and doorbell (a broadcast), because only the one that leads
a cluster can act on it.
"""

import os
import signal
from typing import Any

from celery import Celery, bootsteps, signals
from celery.worker import WorkController
from django.conf import settings
from kombu import Exchange, Queue
from kombu.common import Broadcast

from kant.ending import ending
from kant.redis.broker import TICK

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kant.settings")

SCHED = "sched"

app = Celery("kant")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


class Cycles(bootsteps.StartStopStep):
    """Runs the scheduler's cycles in a worker that listens to ticks and doorbells.

    They run as long as the worker lives, whatever happens to its connection to the broker.
    """

    def include_if(self, worker: WorkController) -> bool:
        listens_to = worker.app.amqp.queues.consume_from.values()
        return any(queue.exchange.name == SCHED for queue in listens_to)

    def create(self, _worker: WorkController) -> object:
        # Django has to be set up before its models can be imported.
        from scheduling.services.scheduler.loop import loop

        return loop


app.steps["worker"].add(Cycles)


@signals.worker_ready.connect
@signals.worker_init.connect
def _worker_starts(**_: object) -> None:
    ending.watch()


@signals.worker_shutting_down.connect
def _worker_ends(**_: object) -> None:
    ending.begin()


@signals.beat_init.connect
def _beat_starts(**_: object) -> None:
    ending.on(signal.SIGTERM)


@app.on_after_configure.connect
def _queues_and_schedule(sender: Celery, **_: object) -> None:
    # Without acknowledgement: after a missed message the next tick follows soon. If Redis goes away
    # while a message awaits its acknowledgement, kombu fails to reconnect and the worker ends.
    broadcast = Broadcast(SCHED, routing_key=SCHED, no_ack=True)
    sender.conf.task_queues = (Queue("work"), broadcast)
    # A process that only sends must know that the exchange is a broadcast, and its key: otherwise,
    # on Redis, the message would go into one queue, or nowhere.
    route = {
        "queue": SCHED,
        "exchange": SCHED,
        "routing_key": SCHED,
        "declare": [Exchange(SCHED, "fanout")],
    }
    sender.conf.task_routes = {"scheduling.tasks.*": route}
    sender.conf.beat_schedule = {
        "cycle": _every(settings.KANT_CYCLE_SECONDS, TICK),
        "sample": _every(settings.KANT_SAMPLE_SECONDS, "metrics.tasks.record_samples"),
        "thin": {"task": "metrics.tasks.thin_samples", "schedule": 3600.0},
        "prune": _every(60.0, "metrics.tasks.prune"),
        "gpu-use": _every(60.0, "metrics.tasks.read_gpu_use"),
        "replays": _every(10.0, "metrics.tasks.carry_out_replays"),
        "forecasts": _every(5.0, "metrics.tasks.keep_forecasts"),
        "forget": {"task": "tenants.tasks.forget_old_keys", "schedule": 3600.0},
        "tokens": {"task": "tenants.tasks.forget_ended_tokens", "schedule": 3600.0},
        "orders": _every(5.0, "tenants.tasks.carry_out_orders"),
        "plans": _every(5.0, "metrics.tasks.carry_out_plans"),
        "webhooks": _every(2.0, "webhooks.tasks.collect"),
        "webhook-deliveries": _every(2.0, "webhooks.tasks.send"),
        "webhook-prune": _every(600.0, "webhooks.tasks.forget_old_deliveries"),
        "happened": _every(60.0, "tenants.tasks.tell_what_happened"),
        "drafts": {"task": "tenants.tasks.forget_old_drafts", "schedule": 3600.0},
        "sign-out": {"task": "tenants.tasks.forget_old_sessions", "schedule": 3600.0},
    }


def _every(seconds: float, task: str) -> dict[str, Any]:
    """Return a schedule entry.

    A message that has waited a whole period is dropped: the next one follows.
    """
    return {"task": task, "schedule": seconds, "options": {"expires": seconds}}
