"""The process that forecasts, and moves waiting jobs to other clusters: a child of the worker,
because runs ahead take a core for seconds."""

import logging
import os
import time

from django.db import Error, connection
from django.utils import timezone

from scheduling.services.cluster_choice import moves
from scheduling.services.common.child import NICE, WorkerChild, is_gone
from scheduling.services.forecasts.forecaster import Forecaster, is_wanted, let_go

log = logging.getLogger(__name__)

LOOK_S = 1.0
IDLE_S = 60.0  # after which, without a job that waits, the process ends

_child = WorkerChild("keep_forecasts")


def start_if_wanted() -> None:
    """Start the process where jobs wait and none forecasts for them, or may go elsewhere."""
    if not _child.lives and (is_wanted(timezone.now()) or moves.is_wanted(timezone.now())):
        _child.start()


def keep(parent: int | None) -> None:
    """Forecast until no job waits any more, or the parent is gone."""
    os.nice(NICE)
    forecaster, mover, wanted_at = Forecaster(), moves.Mover(), time.monotonic()
    while not is_gone(parent) and time.monotonic() < wanted_at + IDLE_S:
        try:
            waiting, moving = forecaster.turn(), mover.turn()
            if waiting or moving:
                wanted_at = time.monotonic()
        except Error:
            # What was told stays, with its time; the next turn connects anew.
            log.exception("the database does not answer the forecaster")
            connection.close()
        time.sleep(LOOK_S)
    let_go(forecaster.holder)
