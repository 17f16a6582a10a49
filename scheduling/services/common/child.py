"""A process that a worker starts where there is work for it: `manage.py COMMAND --parent PID`."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

from django.conf import settings

LOOK_S = 1.0
PUTS_AWAY_S = 3.0  # a child that is between two steps has so long to end by itself
_PDEATHSIG = 1  # of prctl(2)
_LIBRARY = ctypes.CDLL(None)  # looked up before a fork, after which little may be done
NICE = 10  # whoever answers people goes first


class WorkerChild:
    """At most one at a time of a worker's own."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def lives(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        command = [sys.executable, str(settings.BASE_DIR / "manage.py"), self._command]
        # A session of its own: Ctrl-C reaches Kant alone, with which the child then ends.
        self._process = subprocess.Popen(
            [*command, "--parent", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )


def is_gone(parent: int | None) -> bool:
    """Asked in the child: whether who started it has ended. None: nobody did."""
    return parent is not None and os.getppid() != parent


def ends_with(parent: int) -> None:
    """In a child that the main thread of `parent` forked: the kernel ends it when that is gone,
    however it went. (Where there is no prctl the child looks for itself, between its steps.)"""
    if sys.platform == "linux":
        _LIBRARY.prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # gone before the kernel was asked
        os._exit(1)


def watch(parent: int | None) -> None:
    """In a child that any thread of a worker started, which may end before the worker does: end
    within a moment of the worker, in the middle of whatever is done."""

    def look() -> None:
        while not is_gone(parent):
            time.sleep(LOOK_S)
        time.sleep(PUTS_AWAY_S)
        os._exit(1)

    threading.Thread(target=look, name="parent", daemon=True).start()
