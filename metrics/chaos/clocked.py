"""Celery with an adjustable clock: `python -m metrics.chaos.clocked FILE celery-arguments`.

FILE holds the clock's offset from the true time in seconds and is read again continually. The time
in Python and Django, and so in all of Kant's decisions, follows it; monotonic clocks, and C
libraries that ask the system, do not. (libfaketime shifts those too, but its version 0.9.10 breaks
time.sleep.)
"""

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

READ_S = 0.1


def shifted(true_time: Callable[[], float], file: Path) -> Callable[[], float]:
    """Return a clock shifted by the offset in `file`. Raises ValueError if it holds no number."""
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
    # Before any other module gets a reference to the clock.
    time.time = clock
    from django.utils import timezone

    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    timezone.now = lambda: epoch + timedelta(seconds=clock())
    from celery.__main__ import main as celery

    celery()


if __name__ == "__main__":
    main()
