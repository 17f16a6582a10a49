"""The process that forecasts: a child of the worker, because runs ahead take a core for seconds."""

import logging
import os
import subprocess
import sys
import time

from django.conf import settings
from django.db import Error, connection
from django.utils import timezone

from scheduling.services.forecasts.forecaster import Forecaster, is_wanted, let_go

log = logging.getLogger(__name__)

LOOK_S = 1.0
IDLE_S = 60.0  # after which, without a job that waits, the process ends
NICE = 10  # whoever answers people goes first

_child: subprocess.Popen[bytes] | None = None


def start_if_wanted() -> None:
    """Start the process where jobs wait and none forecasts for them."""
    global _child
    if _child is not None and _child.poll() is None:
        return
    _child = None
    if is_wanted(timezone.now()):
        command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "keep_forecasts"]
        # A session of its own: Ctrl-C reaches Kant alone, with which the child then ends.
        _child = subprocess.Popen(
            [*command, "--parent", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )


def keep(parent: int | None) -> None:
    """Forecast until no job waits any more, or the parent is gone."""
    os.nice(NICE)
    forecaster, wanted_at = Forecaster(), time.monotonic()
    while (parent is None or os.getppid() == parent) and time.monotonic() < wanted_at + IDLE_S:
        try:
            if forecaster.turn():
                wanted_at = time.monotonic()
        except Error:
            # What was told stays, with its time; the next turn connects anew.
            log.exception("the database does not answer the forecaster")
            connection.close()
        time.sleep(LOOK_S)
    let_go(forecaster.holder)
