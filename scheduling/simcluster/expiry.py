"""Events live for an hour, as with kube-apiserver's --event-ttl."""

from .kinds import EVENTS
from .meta import seconds
from .registry import DeleteOptions, Registry
from .store import Obj
from .timers import Timers

EVENT_TTL_S = 3600.0
CHECK_S = 300.0


class EventExpiry:
    """Removes events that nobody has written for `EVENT_TTL_S`."""

    def __init__(self, registry: Registry, timers: Timers) -> None:
        self._registry = registry
        self._timers = timers
        timers.after(CHECK_S, self.sweep)

    def sweep(self) -> None:
        oldest = self._registry.clock() - EVENT_TTL_S
        for event in self._registry.store.sorted(EVENTS.plural):
            if _last_written(event.decode()) < oldest:
                self._registry.delete(EVENTS, event.namespace, event.name, DeleteOptions())
        self._timers.after(CHECK_S, self.sweep)


def _last_written(event: Obj) -> float:
    """When the event was created or its series last counted."""
    observed = (event.get("series") or {}).get("lastObservedTime")
    created = seconds(event["metadata"]["creationTimestamp"])
    return max(created, seconds(observed)) if observed else created
