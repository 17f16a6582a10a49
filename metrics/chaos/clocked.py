"""Celery with a clock that others set: `python -m metrics.chaos.clocked FILE celery-arguments`.

FILE holds how many seconds the clock is from the true one; it is read again all the time. What
Python and Django say the time is follows it, and so all that Kant decides by; monotonic clocks, and
what a C library asks the system, do not. (libfaketime sets these too, but 0.9.10 makes time.sleep
fail.)
"""

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

READ_S = 0.1


def shifted(true_time: Callable[[], float], file: Path) -> Callable[[], float]:
    """The clock that `file` sets. Raises ValueError where it holds no number."""
    read_at, offset = -READ_S, 0.0

    def now() -> float:
        nonlocal read_at, offset
        if (clock := time.monotonic()) - read_at >= READ_S:
            read_at, offset = clock, float(file.read_text())
        return true_time() + offset

    return now


def main() -> None:
    file = Path(sys.argv.pop(1))
    clock = shifted(time.time, file)
    # Before anybody else has got hold of the clock.
    time.time = clock
    from django.utils import timezone

    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    timezone.now = lambda: epoch + timedelta(seconds=clock())
    from celery.__main__ import main as celery

    celery()


if __name__ == "__main__":
    main()
