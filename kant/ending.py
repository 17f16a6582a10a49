"""The end of a process: politely where that is quick, and within a bound whatever it is at."""

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

WITHIN_S = 3.5  # of the five that a process has, for all that it does politely
KERNEL_S = 1.3  # later it is ended by SIGALRM
CODE = 128 + signal.SIGTERM


class Ending:
    """A thread that ends the process when it was told to end and does not: a request computes, a
    query or a cluster is waited for, a lock is held. `takes_along`: each kills a child that it does
    not come to end."""

    def __init__(self) -> None:
        self.takes_along: list[Callable[[], object]] = []
        self._begun = threading.Event()
        self._thread: threading.Thread | None = None

    def on(self, *signals: int) -> None:
        """From one of these signals on the process has WITHIN_S. What handles them now goes on
        doing so. Outside the main thread, and where nothing handles them, there is nothing to do.
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
        """Start the thread, if it does not run."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._bound, name="ending", daemon=True)
            self._thread.start()

    def begin(self) -> None:
        """The process is told to end. Signal handlers call this, so it takes no lock that the
        interrupted code may hold."""
        if not self._begun.is_set():
            self._begun.set()
            # While Python takes itself apart no thread of it runs; the kernel ends it all the same.
            signal.setitimer(signal.ITIMER_REAL, WITHIN_S + KERNEL_S)

    def _bound(self) -> None:
        self._begun.wait()
        time.sleep(WITHIN_S)
        end_now(self.takes_along)


def end_now(takes_along: Iterable[Callable[[], object]]) -> None:
    """End the process and the workers that it made, with a word on what it was at."""
    me = threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    at = [
        f"{names.get(ident, ident)} at {frame.f_code.co_filename}:{frame.f_lineno}"
        for ident, frame in sys._current_frames().items()
        if ident != me
    ]
    # Not by a logger, whose lock may be held.
    text = f"Kant: not all has ended within {WITHIN_S} s, so the process does: {'; '.join(at)}\n"
    os.write(2, text.encode(errors="replace"))
    for child in billiard.active_children():
        os.kill(child.pid, signal.SIGKILL)
    for kill in takes_along:
        with suppress(ProcessLookupError):
            kill()
    os._exit(CODE)


ending = Ending()
