"""How long a pass waits for more news, in clusters where news arrives all the time."""

import math
import time

# From FROM items of news a second on, passes are put off a little; from FULL on, until about GOOD
# items have arrived, but never longer than MOST_S. (A pod makes about three: seen, bound, seen
# bound.) Each pass costs a dozen statements, however much it takes in.
FROM, FULL = 60.0, 90.0
GOOD = 450
MOST_S = 1.0
OVER_S = 3.0  # a burst, like the pods of one gang, says little about what follows


class Bites:
    """Measures how much news each pass takes in, and says how long to wait before the next.

    The rate is an exponential average over OVER_S seconds. A cluster with little news never waits.
    """

    def __init__(self) -> None:
        self._rate = 0.0  # items of news a second
        self._last = -math.inf  # when the last pass began, by the monotonic clock

    def took(self, news: int) -> None:
        """Note that a pass begins with this much news."""
        now = time.monotonic()
        apart = max(now - self._last, 1e-3)
        kept = math.exp(-apart / OVER_S)
        self._rate = self._rate * kept + news / apart * (1.0 - kept)
        self._last = now

    @property
    def are_large(self) -> bool:
        """Whether news arrives so fast that passes wait the full time for more."""
        return self._rate >= FULL

    def rest(self) -> float:
        """Return the seconds until the next pass; 0 = it may begin now."""
        part = (self._rate - FROM) / (FULL - FROM)
        if part <= 0.0:
            return 0.0
        whole = min(MOST_S, GOOD / self._rate)
        return max(0.0, self._last + min(part, 1.0) * whole - time.monotonic())
