"""The process that computes replays, one at a time.

It is a child of the worker: a run takes a whole core and much memory for minutes, and must be
stoppable at any instant.
"""

import logging
import os
import resource
import threading
import time

from django.db import connection
from django.utils import timezone

from metrics.models import Replay
from metrics.replays import services
from metrics.replays.results import result_of
from metrics.replays.runs import ReplayError, Tell
from scheduling.services.common.child import NICE, WorkerChild, is_gone

log = logging.getLogger(__name__)

MOST_S = 1800.0  # of CPU time per replay: at its low priority it may wait long for the CPU
MOST_BYTES = 2 << 30
LOOK_S = 1.0

_child = WorkerChild("carry_out_replays")


# --- in the worker --------------------------------------------------------------------------------
def start_if_wanted() -> None:
    """Start the process if a replay waits and none runs; it computes all that wait."""
    # Checked even while our own child lives: another worker's child may have died.
    if services.is_wanted(timezone.now()) and not _child.lives:
        _child.start()


# --- in the process -------------------------------------------------------------------------------
def limit() -> None:
    """Limit what this process takes from others."""
    os.nice(NICE)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = MOST_BYTES if hard == resource.RLIM_INFINITY else min(MOST_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def carry_out_all(parent: int | None) -> None:
    """Compute replays until none waits; stop when the parent is gone."""
    while not is_gone(parent) and (replay := services.take_next()) is not None:
        with _Watch(replay, parent) as watch:
            carry_out(replay, watch)


def carry_out(replay: Replay, tell: Tell) -> None:
    """Compute one replay and store its result."""
    try:
        services.finish(replay, result_of(replay, replay.started_at or timezone.now(), tell))
    except ReplayError as error:
        services.fail(replay, str(error))
    except MemoryError:
        services.fail(
            replay, f"It needs more than {MOST_BYTES >> 30} GiB of memory. Choose a shorter period."
        )
    except Exception:
        log.exception("replay %s failed", replay.pk)
        services.fail(
            replay,
            "Kant failed; the log of the worker says why. Please report it to Kant's developers.",
        )


class _Watch:
    """Reports once a second that the replay is running, and ends the process at once when the
    replay was cancelled, takes too long, or the parent is gone."""

    def __init__(self, replay: Replay, parent: int | None) -> None:
        self._replay, self._parent = replay, parent
        self._progress = 0.0
        self._over = threading.Event()
        self._deadline = time.process_time() + MOST_S
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)

    def __call__(self, progress: float) -> None:
        self._progress = progress

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        try:
            while not self._over.wait(LOOK_S):
                if is_gone(self._parent):
                    self._leave(services.LOST)
                if time.process_time() > self._deadline:
                    self._leave(
                        f"It took more than {MOST_S / 60:.0f} minutes of CPU time. Choose a "
                        "shorter period."
                    )
                if not services.is_alive(self._replay, self._progress) and not self._over.is_set():
                    os._exit(0)
        except Exception:
            # The database is down: the result could not be stored either.
            log.exception("replay %s is given up", self._replay.pk)
            os._exit(1)
        finally:
            connection.close()

    def _leave(self, message: str) -> None:
        services.fail(self._replay, message)
        os._exit(1)
