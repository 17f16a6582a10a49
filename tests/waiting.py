"""Wait for something that another thread does."""

import time
from collections.abc import Callable


def until(holds: Callable[[], object], within_s: float = 30.0) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)
