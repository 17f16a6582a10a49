"""Wakes a scheduler for the clusters that need a cycle now."""

import threading
import time

Key = tuple[int, str]  # cluster and scope


class Alarm:
    """Rings for news, and by itself when a decision is due. Any thread may ring."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rung: set[int] = set()
        self._woken = False
        self._due: dict[Key, float] = {}

    def ring(self, cluster_id: int) -> None:
        with self._changed:
            self._rung.add(cluster_id)
            self._changed.notify()

    def wake(self) -> None:
        """Wake the waiting thread, for no cluster."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def ring_at(self, key: Key, due: float | None) -> None:
        """Ring for the scope once at `due` (seconds since the epoch), replacing an earlier time."""
        with self._changed:
            if due is None:
                self._due.pop(key, None)
            else:
                self._due[key] = due
            self._changed.notify()

    def wait(self, until: float) -> set[int]:
        """Return the clusters that were rung for since the last call.

        If there are none, wait until one is, at the longest until `until` of the monotonic clock.
        """
        with self._changed:
            while not (self._take_due() or self._woken):
                left = until - time.monotonic()
                if left <= 0:
                    break
                first = min(self._due.values(), default=None)
                if first is not None:
                    left = min(left, first - time.time())
                self._changed.wait(min(max(left, 0.0), threading.TIMEOUT_MAX))
            rung, self._rung, self._woken = self._rung, set(), False
            return rung

    def _take_due(self) -> bool:
        """Ring for what is due; return whether any cluster was rung for."""
        now = time.time()
        for key in [key for key, due in self._due.items() if due <= now]:
            del self._due[key]
            self._rung.add(key[0])
        return bool(self._rung)
