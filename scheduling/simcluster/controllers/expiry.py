"""Objects that a cluster deletes by itself: old events and old ended pods.

Events go after an hour, as with kube-apiserver's --event-ttl. The oldest of many ended pods go, as
with kube-controller-manager's --terminated-pod-gc-threshold.
"""

from scheduling.simcluster.objects.kinds import EVENTS, PODS
from scheduling.simcluster.objects.meta import seconds
from scheduling.simcluster.objects.registry import DeleteOptions, Registry
from scheduling.simcluster.objects.store import Obj
from scheduling.simcluster.objects.timers import Timers

EVENT_TTL_S = 3600.0
CHECK_S = 300.0
FINISHED_PODS = 12_500
COLLECT_S = 20.0

_PHASE = list(PODS.selectable).index("status.phase")


class EventExpiry:
    """Deletes events that have not been written for `EVENT_TTL_S`."""

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
    """Return when the event was created or its series was last counted."""
    observed = (event.get("series") or {}).get("lastObservedTime")
    created = seconds(event["metadata"]["creationTimestamp"])
    return max(created, seconds(observed)) if observed else created


class FinishedPods:
    """Deletes the oldest ended pods while there are more than `FINISHED_PODS`."""

    def __init__(self, registry: Registry, timers: Timers) -> None:
        self._registry = registry
        self._timers = timers
        timers.after(COLLECT_S, self.collect)

    def collect(self) -> None:
        # The table keeps pods in order of creation.
        pods = self._registry.store.objects[PODS.plural].values()
        ended = [pod for pod in pods if pod.fields[_PHASE] in ("Succeeded", "Failed")]
        for pod in ended[: max(0, len(ended) - FINISHED_PODS)]:
            self._registry.delete(PODS, pod.namespace, pod.name, DeleteOptions(grace_s=0))
        self._timers.after(COLLECT_S, self.collect)
