"""Pod disruption budgets: their status, and evictions that respect them (policy/v1)."""

import math
from typing import Any

from scheduling.simcluster.controllers.binding import set_condition
from scheduling.simcluster.objects.kinds import DISRUPTION_BUDGETS, PODS
from scheduling.simcluster.objects.registry import DeleteOptions, Registry, delete_options
from scheduling.simcluster.objects.selectors import selector_of
from scheduling.simcluster.objects.status import ApiError, bad_request, internal_error
from scheduling.simcluster.objects.store import Obj, Stored, StoredChange
from scheduling.simcluster.objects.timers import Timers


def _healthy(pod: Stored) -> bool:
    obj = pod.decode()
    if obj["metadata"].get("deletionTimestamp"):
        return False
    conditions = obj["status"].get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _scaled(value: int | str, total: int) -> int:
    """Return an int-or-percent of `total`, rounded up."""
    if isinstance(value, str):
        return math.ceil(int(value.rstrip("%")) * total / 100)
    return value


def _live_status(registry: Registry, budget: Stored) -> dict[str, Any]:
    """Return the budget's status as the disruption controller would compute it now."""
    obj = budget.decode()
    spec = obj["spec"]
    chosen = selector_of(spec.get("selector"))
    pods = [
        p
        for p in registry.store.objects["pods"].values()
        if p.namespace == budget.namespace
        and chosen(p)
        and p.fields[_PHASE] not in ("Succeeded", "Failed")
    ]
    expected = len(pods)
    healthy = sum(_healthy(p) for p in pods)
    if spec.get("maxUnavailable") is not None:
        desired = max(0, expected - _scaled(spec["maxUnavailable"], expected))
    else:
        desired = _scaled(spec.get("minAvailable", 1), expected)
    status = dict(obj.get("status") or {})
    status.update(
        observedGeneration=obj["metadata"].get("generation", 1),
        disruptionsAllowed=max(0, healthy - desired) if expected else 0,
        currentHealthy=healthy,
        desiredHealthy=desired,
        expectedPods=expected,
    )
    return status


_PHASE = list(PODS.selectable).index("status.phase")


class DisruptionController:
    """Keeps the status of every budget up to date with the pods that it selects."""

    def __init__(self, registry: Registry, timers: Timers) -> None:
        self._registry = registry
        self._timers = timers
        self._stale: set[str] = set()
        registry.store.listeners.append(self._on_change)

    def _on_change(self, plural: str, change: StoredChange, _obj: Obj) -> None:
        budgets = self._registry.store.objects["poddisruptionbudgets"]
        if plural not in ("pods", "poddisruptionbudgets") or not budgets:
            return
        if not self._stale:
            self._timers.after(0, self.refresh)
        self._stale.add(change.new.namespace)

    def refresh(self) -> None:
        """Recompute the budgets of the namespaces in which something changed."""
        namespaces, self._stale = self._stale, set()
        store = self._registry.store
        for budget in list(store.objects["poddisruptionbudgets"].values()):
            if budget.namespace not in namespaces:
                continue
            obj = budget.decode()
            status = _live_status(self._registry, budget)
            if obj.get("status") != status:
                obj["status"] = status
                self._registry.set(DISRUPTION_BUDGETS, budget.key, obj)


def evict(registry: Registry, namespace: str, name: str, body: Obj, *, dry_run: bool) -> None:
    """POST pods/{name}/eviction: delete the pod unless a disruption budget forbids it.

    Raises:
        ApiError: 404, 409, 429 (a budget forbids it) or 500 (several budgets match).
    """
    given = body.get("deleteOptions") or {}
    if not isinstance(given, dict):
        raise bad_request("Eviction cannot be handled: deleteOptions must be an object")
    options = delete_options(given, {"dryRun": "All"} if dry_run else {})
    pod = registry.stored(PODS, namespace, name)
    if pod.fields[_PHASE] not in ("Succeeded", "Failed", "Pending"):
        _ask_budget(registry, pod)
        if not options.dry_run:
            _mark_disrupted(registry, pod, options)
            # The mark makes a new version; a resourceVersion precondition was already checked with
            # it.
            options = DeleteOptions(options.uid, "", options.grace_s, options.dry_run)
    registry.delete(PODS, namespace, name, options)


def _ask_budget(registry: Registry, pod: Stored) -> None:
    if pod.decode()["metadata"].get("deletionTimestamp"):
        return
    budgets = [
        b
        for b in registry.store.objects["poddisruptionbudgets"].values()
        if b.namespace == pod.namespace and selector_of(b.decode()["spec"].get("selector"))(pod)
    ]
    if len(budgets) > 1:
        raise internal_error(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does "
            "not support."
        )
    if not budgets or not _healthy(pod):
        return
    status = _live_status(registry, budgets[0])
    if status["disruptionsAllowed"] <= 0:
        raise ApiError(
            429,
            "TooManyRequests",
            "Cannot evict pod as it would violate the pod's disruption budget.",
            {
                "causes": [
                    {
                        "reason": "DisruptionBudget",
                        "message": f"The disruption budget {budgets[0].name} needs "
                        f"{status['desiredHealthy']} healthy pods and has "
                        f"{status['currentHealthy']} currently",
                    }
                ]
            },
        )


def _mark_disrupted(registry: Registry, pod: Stored, options: DeleteOptions) -> None:
    registry.check_delete(PODS, pod, options)
    obj = pod.decode()
    set_condition(
        obj,
        {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        },
        registry.clock(),
    )
    registry.set(PODS, pod.key, obj)
