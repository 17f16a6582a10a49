"""The end of a process: orderly if that is quick, and in any case within a time limit."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType
from typing import Any

import billiard

WITHIN_S = 3.5  # for an orderly end; of the five seconds that a process has
KERNEL_S = 1.3  # later SIGALRM ends it
CODE = 128 + signal.SIGTERM


class Ending:
    """A thread that ends the process if it was told to end but does not.

    It may be stuck in a computation, in a query, waiting for a cluster or for a lock.
    `takes_along`: functions that kill the children that it does not get to end itself.
    """

    def __init__(self) -> None:
        self.takes_along: list[Callable[[], object]] = []
        self._begun = threading.Event()
        self._thread: threading.Thread | None = None

    def on(self, *signals: int) -> None:
        """Give the process WITHIN_S from one of these signals on.

        Their current handlers stay active. Does nothing outside the main thread, and for signals
        without a handler.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in signals:
            handler = signal.getsignal(number)
            if not callable(handler):
                continue

            def begin(number: int, frame: FrameType | None, handler: Any = handler) -> None:
                self.begin()
                handler(number, frame)

            signal.signal(number, begin)
            self.watch()

    def watch(self) -> None:
        """Start the thread unless it already runs."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._bound, name="ending", daemon=True)
            self._thread.start()

    def begin(self) -> None:
        """Note that the process was told to end.

        Signal handlers call this, so it takes no lock that the interrupted code may hold.
        """
        if not self._begun.is_set():
            self._begun.set()
            # While the interpreter shuts down, none of its threads run; the kernel still ends the
            # process.
            signal.setitimer(signal.ITIMER_REAL, WITHIN_S + KERNEL_S)

    def _bound(self) -> None:
        self._begun.wait()
        time.sleep(WITHIN_S)
        end_now(self.takes_along)


def end_now(takes_along: Iterable[Callable[[], object]]) -> None:
    """End the process and its worker children, and print what it was doing."""
    me = threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    at = [
        f"{names.get(ident, ident)} at {frame.f_code.co_filename}:{frame.f_lineno}"
        for ident, frame in sys._current_frames().items()
        if ident != me
    ]
    # Do not use a logger: its lock may be held.
    text = f"Kant: not all has ended within {WITHIN_S} s, so the process does: {'; '.join(at)}\n"
    os.write(2, text.encode(errors="replace"))
    for child in billiard.active_children():
        os.kill(child.pid, signal.SIGKILL)
    for kill in takes_along:
        with suppress(ProcessLookupError):
            kill()
    os._exit(CODE)


ending = Ending()
