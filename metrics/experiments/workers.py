"""The runs of a study as Celery tasks, on the workers of a real deployment."""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from celery import current_app
from celery.exceptions import TimeoutError
from celery.result import AsyncResult
from django.conf import settings
from kombu.exceptions import ChannelError, OperationalError
from redis.exceptions import RedisError

from metrics.experiments.study import Progress, Runner, Study
from metrics.tasks import run_of_study

ANSWER_S = 3.0  # how long workers may take to say which queues they serve
ASKED = 5  # attempts; a busy machine may delay a worker for longer
POLL_S = 0.1
LOOK_S = 5.0  # seconds between checks whether an awaited run still exists
MISSED = 3  # checks; a run is briefly nowhere while a worker takes it


class WorkersFailed(Exception):
    """Workers deliver no result, whatever the study; the message says what would help."""


def over_workers(study: Study, options: Mapping[str, Any]) -> Runner:
    """Return a runner whose tasks are carried out by whichever worker is free.

    A task contains the study's name, its options and a number. The worker makes the same plan from
    them, so it needs the same version of Kant and, at the same path, the data that --data names.
    Raises WorkersFailed if there is no broker or nobody serves its queue.
    """
    own = study.own_options(options)
    _check_deployment()

    def runner(
        _run: Callable[[Any], Any], tasks: Sequence[Any], progress: Progress
    ) -> Iterator[tuple[Any, Any]]:
        progress(0, len(tasks))
        sent: list[AsyncResult[Any]] = []
        try:
            for number in range(len(tasks)):
                sent.append(run_of_study.delay(study.name, own, number))
            for number, result in enumerate(sent):
                yield tasks[number], _result(result, number)
                progress(number + 1, len(tasks))
        finally:
            left = [result.id for result in sent if not result.ready()]
            if left:
                current_app.control.revoke(left, terminate=True, signal=signal.SIGTERM.name)

    return runner


def _result(result: "AsyncResult[Any]", number: int) -> Any:
    """Wait as long as the run takes, provided that a worker has it or may take it."""
    missed = 0
    while missed < MISSED:
        try:
            return result.get(timeout=LOOK_S, interval=POLL_S)
        except TimeoutError:
            missed = 0 if result.ready() or _is_anywhere(result.id) else missed + 1
        except (OperationalError, RedisError) as error:
            raise WorkersFailed(f"--celery: the broker is gone ({error})") from None
        except Exception as error:  # whatever the run raised on the worker
            raise WorkersFailed(f"--celery: run {number} failed on its worker: {error!r}") from None
    raise WorkersFailed(
        f"--celery: run {number} is lost: no worker has it, and none takes it; look why one ended, "
        "and run the study again"
    )


def _is_anywhere(task: str) -> bool:
    """Return whether a worker has the task, or may still take it."""
    queue = settings.CELERY_TASK_DEFAULT_QUEUE
    try:
        asked = current_app.control.inspect(timeout=ANSWER_S)
        for told in (asked.active(), asked.reserved()):
            if any(task == known["id"] for some in (told or {}).values() for known in some):
                return True
        with current_app.connection_for_read() as connection:
            waiting = connection.default_channel.queue_declare(queue, passive=True).message_count
        return waiting > 0 and _serves(queue)
    except ChannelError:  # no queue, so nothing in it
        return False
    except (OperationalError, RedisError) as error:
        raise WorkersFailed(f"--celery: the broker is gone ({error})") from None


def _serves(queue: str) -> bool:
    """Return whether a worker says that it serves the queue."""
    told = current_app.control.inspect(timeout=ANSWER_S).active_queues() or {}
    return any(known["name"] == queue for queues in told.values() for known in queues)


def _check_deployment() -> None:
    if not settings.CELERY_RESULT_BACKEND or settings.CELERY_BROKER_URL.startswith("memory:"):
        raise WorkersFailed("--celery: there is no broker; set REDIS_URL to that of the deployment")
    queue = settings.CELERY_TASK_DEFAULT_QUEUE
    try:
        served = any(_serves(queue) for _ in range(ASKED))
    except (OperationalError, RedisError) as error:
        raise WorkersFailed(
            f"--celery: the broker {current_app.connection().as_uri()} does not answer ({error})"
        ) from None
    if not served:
        raise WorkersFailed(
            f"--celery: no worker serves the queue {queue}; start `celery -A kant worker "
            f"--queues {queue}`"
        )
