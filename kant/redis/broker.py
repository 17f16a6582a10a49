"""Workers and beat outlast a broker that is away, full, read-only or loading.

By itself Celery retries only after a broken connection, gives up after a while, and logs each
attempt.
"""

import logging
import time
import warnings
from typing import Any

from celery.beat import PersistentScheduler, ScheduleEntry, SchedulingError
from celery.exceptions import CPendingDeprecationWarning
from celery.worker import consumer
from celery.worker.consumer.consumer import CONNECTION_RETRY
from celery.worker.state import maybe_shutdown
from kombu import Connection

from tenants.outage import Outage

log = logging.getLogger(__name__)

RETRY_S = 2.0
TICK = "scheduling.tasks.tick"
# Pauses between attempts to connect: the first, the increase, the longest.
PAUSES = {"interval_start": RETRY_S, "interval_step": 1.0, "interval_max": 10.0}


class Consumer(consumer.Consumer):
    """A consumer that listens whenever the broker allows.

    `broker_channel_error_retry` makes it retry.
    """

    class Blueprint(consumer.Consumer.Blueprint):
        # Workers here need not know of each other, and Gossip fails in an outage.
        default_steps = [
            step for step in consumer.Consumer.Blueprint.default_steps if "gossip" not in step
        ]

    def __init__(self, *args: Any, **options: Any) -> None:
        self._outage = Outage(log, "Redis", "this worker hears of nothing")
        super().__init__(*args, **options)

    def ensure_connected(self, conn: Connection) -> Connection:
        def failed(error: Exception, _interval: float) -> None:
            self._outage.began(error)

        found = conn.ensure_connection(failed, None, callback=maybe_shutdown, **PAUSES)
        self.first_connection_attempt = False
        return found

    def on_connection_error_before_connected(self, error: Exception) -> None:
        self._wait(error)

    def on_connection_error_after_connected(self, error: Exception) -> None:
        with warnings.catch_warnings():
            # About what Celery 6 will do with running tasks; repeated at every attempt.
            warnings.simplefilter("ignore", CPendingDeprecationWarning)
            super().on_connection_error_after_connected(error)
        self._wait(error)

    def on_ready(self) -> None:
        super().on_ready()
        self._outage.over()

    def _wait(self, error: Exception) -> None:
        self._outage.began(error)
        time.sleep(RETRY_S)


def _is_told_otherwise(record: logging.LogRecord) -> bool:
    """Whether Celery logs something that the outage message already covers.

    That is each retry, or that the broker left before it heard that a task was done (it will send
    the task again).
    """
    tries_again = isinstance(record.args, tuple) and CONNECTION_RETRY in record.args
    return tries_again or str(record.msg).startswith(("Couldn't ack", "Couldn't reject"))


for _name in ("celery.worker.consumer.consumer", "celery.worker.request"):
    logging.getLogger(_name).addFilter(lambda record: not _is_told_otherwise(record))


class BeatScheduler(PersistentScheduler):
    """A beat that sends again, when it is next due, what could not be sent."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._outage = Outage(log, "Redis", "ticks, samples and other background work wait")
        super().__init__(*args, **options)

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        try:
            self.apply_async(entry, producer=producer, advance=False)
        except SchedulingError as error:
            self._outage.began(error)
        else:
            # Even a Redis that can store nothing passes on a tick.
            if entry.task != TICK:
                self._outage.over()

    def _ensure_connected(self) -> Connection:
        def failed(error: Exception, _interval: float) -> None:
            self._outage.began(error)

        return self.connection.ensure_connection(failed, None, **PAUSES)
