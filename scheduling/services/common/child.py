"""A process that a worker starts where there is work for it: `manage.py COMMAND --parent PID`."""

import os
import subprocess
import sys

from django.conf import settings

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
