"""Ctrl-C and SIGTERM during a command: it stops and outputs the results so far."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether somebody asked to stop."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        return self.asked


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """While inside, SIGTERM raises KeyboardInterrupt, as Ctrl-C does."""
    with _handling(signal.default_int_handler, signal.SIGTERM):
        yield


@contextmanager
def asked_to_stop() -> Iterator[Stop]:
    """While inside, the first Ctrl-C or SIGTERM sets `asked`; the second raises
    KeyboardInterrupt."""
    stop = Stop()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            signal.default_int_handler(number, frame)
        stop.asked = True

    with _handling(ask, signal.SIGINT, signal.SIGTERM):
        yield stop


@contextmanager
def _handling(handler: object, *numbers: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals and may set handlers
        return
    before = {number: signal.signal(number, handler) for number in numbers}  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
