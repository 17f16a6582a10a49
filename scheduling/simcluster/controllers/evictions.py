"""The taint eviction controller: pods leave a node with a NoExecute taint they do not tolerate."""

from collections.abc import Mapping
from typing import Any

from scheduling.simcluster.controllers.binding import set_condition
from scheduling.simcluster.controllers.predicates import tolerating
from scheduling.simcluster.objects.kinds import PODS
from scheduling.simcluster.objects.registry import DeleteOptions, Registry
from scheduling.simcluster.objects.store import Obj, StoredChange
from scheduling.simcluster.objects.timers import Timers

# The kubelet acts first: a pod that it refuses is Failed before this controller deletes it.
REACTION_S = 0.2
_NODE = list(PODS.selectable).index("spec.nodeName")


def tolerated_s(taints: list[dict[str, Any]], spec: Mapping[str, Any]) -> float | None:
    """Return how many seconds a pod may stay beside these NoExecute taints.

    None = for ever, 0 = not at all.
    """
    shortest: float | None = None
    for taint in taints:
        matching = list(tolerating(taint, spec))
        if not matching:
            return 0.0
        limits = [
            t["tolerationSeconds"] for t in matching if t.get("tolerationSeconds") is not None
        ]
        if limits:
            least = max(0.0, float(min(limits)))
            shortest = least if shortest is None else min(shortest, least)
    return shortest


class TaintEvictions:
    """Watches nodes and pods; each (pod, node taints) pair gets at most one deadline."""

    def __init__(self, registry: Registry, timers: Timers) -> None:
        self._registry = registry
        self._store = registry.store
        self._timers = timers
        # A node's current NoExecute taints, and since when; nodes without any are absent.
        self._tainted: dict[str, tuple[list[dict[str, Any]], float]] = {}
        for node in self._store.objects["nodes"].values():
            self._consider_node(node.name, node.decode())
        self._store.listeners.append(self._on_change)

    def _on_change(self, plural: str, change: StoredChange, obj: Obj) -> None:
        if plural == "nodes":
            if change.type == "DELETED":
                self._tainted.pop(change.new.name, None)
            else:
                self._consider_node(change.new.name, obj)
        elif plural == "pods" and change.type != "DELETED" and self._tainted:
            node = change.new.fields[_NODE]
            was = change.old.fields[_NODE] if change.old else ""
            if node in self._tainted and not was:
                self._plan(change.new.key, change.new.uid, node, obj)

    def _consider_node(self, name: str, obj: Obj) -> None:
        taints = [t for t in obj["spec"].get("taints") or () if t.get("effect") == "NoExecute"]
        if not taints:
            self._tainted.pop(name, None)
            return
        if name in self._tainted and self._tainted[name][0] == taints:
            return
        self._tainted[name] = (taints, self._registry.clock())
        for pod in self._store.objects["pods"].values():
            if pod.fields[_NODE] == name:
                self._plan(pod.key, pod.uid, name, pod.decode())

    def _plan(self, key: str, uid: str, node: str, pod: Obj) -> None:
        taints, since = self._tainted[node]
        stay = tolerated_s(taints, pod["spec"])
        if stay is not None:
            due = max(since + stay, self._registry.clock() + REACTION_S)
            self._timers.at(due, self._evict, key, uid, node, since)

    def _evict(self, key: str, uid: str, node: str, since: float) -> None:
        if self._tainted.get(node, (None, None))[1] != since:
            return  # the taint is gone or changed: another deadline applies
        pod = self._store.get("pods", key)
        if pod is None or pod.uid != uid:
            return
        obj = pod.decode()
        if obj["metadata"].get("deletionTimestamp"):
            return
        set_condition(
            obj,
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "DeletionByTaintManager",
                "message": "Taint manager: deleting due to NoExecute taint",
            },
            self._registry.clock(),
        )
        self._registry.set(PODS, key, obj)
        self._registry.delete(PODS, pod.namespace, pod.name, DeleteOptions(uid=uid))
