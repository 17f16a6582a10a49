"""How long news come together before the next pass takes them in, where many come all the time."""

import math
import time

# News a second (about three for a pod: seen, bound, seen bound), from which on passes are put off,
# and from which on they are until GOOD news have come, but no longer than MOST_S. Each pass costs a
# dozen statements, whatever it takes in.
FROM, FULL = 60.0, 90.0
GOOD = 450
MOST_S = 1.0
OVER_S = 3.0  # a burst, like the pods of a gang, says little of what comes after it


class Bites:
    """Told of each pass how many news it took in; says how long to wait until the next one.

    The rate is averaged over OVER_S, what is older counting e times less with each. Where little
    comes nothing ever waits.
    """

    def __init__(self) -> None:
        self._rate = 0.0  # news a second
        self._last = -math.inf  # when the last pass began, by the monotonic clock

    def took(self, news: int) -> None:
        """A pass begins, with so many news."""
        now = time.monotonic()
        apart = max(now - self._last, 1e-3)
        kept = math.exp(-apart / OVER_S)
        self._rate = self._rate * kept + news / apart * (1.0 - kept)
        self._last = now

    @property
    def are_large(self) -> bool:
        """Whether news come so fast that passes wait for them as long as they ever do."""
        return self._rate >= FULL

    def rest(self) -> float:
        """Seconds until the next pass; 0 = it may begin now."""
        part = (self._rate - FROM) / (FULL - FROM)
        if part <= 0.0:
            return 0.0
        whole = min(MOST_S, GOOD / self._rate)
        return max(0.0, self._last + min(part, 1.0) * whole - time.monotonic())
