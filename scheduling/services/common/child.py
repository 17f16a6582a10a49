"""A process that a worker starts when there is work for it: `manage.py COMMAND --parent PID`."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

from django.conf import settings

LOOK_S = 1.0
PUTS_AWAY_S = 3.0  # how long a child that is between two steps may take to end by itself
_PDEATHSIG = 1  # of prctl(2)
_LIBRARY = ctypes.CDLL(None)  # looked up before a fork, after which few calls are safe
NICE = 10  # processes that answer people go first


class WorkerChild:
    """A child process of a worker, at most one at a time."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def lives(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        command = [sys.executable, str(settings.BASE_DIR / "manage.py"), self._command]
        # A session of its own: Ctrl-C reaches only Kant, and the child ends with Kant.
        self._process = subprocess.Popen(
            [*command, "--parent", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )


def is_gone(parent: int | None) -> bool:
    """Whether the process that started this child has ended. None: nobody started it."""
    return parent is not None and os.getppid() != parent


def ends_with(parent: int) -> None:
    """In a child forked by the main thread of `parent`: have the kernel kill it when that ends.

    Without prctl, the child checks for itself between its steps.
    """
    if sys.platform == "linux":
        _LIBRARY.prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(1)


def watch(parent: int | None) -> None:
    """In a child that any thread of a worker started: end shortly after the worker, in mid-work.

    That thread may end before the worker does.
    """

    def look() -> None:
        while not is_gone(parent):
            time.sleep(LOOK_S)
        time.sleep(PUTS_AWAY_S)
        os._exit(1)

    threading.Thread(target=look, name="parent", daemon=True).start()
