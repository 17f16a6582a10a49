"""Device claims of pods: the controller that makes and frees them, and what a kubelet needs.

It stands for kube-controller-manager's resourceclaim controller. A claim is made from its template
when the pod appears. Pods that have ended or are gone lose their reservation; without reservations
the claim loses its devices. It is deleted with the pod that owns it.
"""

from collections.abc import Iterator

from scheduling.simcluster.objects.kinds import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from scheduling.simcluster.objects.registry import DeleteOptions, Registry
from scheduling.simcluster.objects.status import ApiError
from scheduling.simcluster.objects.store import Obj, Store, StoredChange
from scheduling.simcluster.objects.timers import Timers

DELAY_S = 0.05
FINALIZER = "resource.kubernetes.io/delete-protection"
POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
_FINISHED = ("Succeeded", "Failed")
_PHASE = list(PODS.selectable).index("status.phase")


def names_of(pod: Obj) -> Iterator[str | None]:
    """Yield the names of a pod's claims; None for one not made yet."""
    made = {
        each["name"]: each.get("resourceClaimName")
        for each in pod["status"].get("resourceClaimStatuses") or ()
    }
    for each in pod["spec"].get("resourceClaims") or ():
        yield each.get("resourceClaimName") or made.get(each["name"])
    # The pod's scheduler may have made a claim for resources requested by name.
    if extended := pod["status"].get("extendedResourceClaimStatus"):
        yield extended.get("resourceClaimName")


def are_ready(store: Store, pod: Obj) -> bool:
    """Whether all claims of the pod have devices and are reserved for it."""
    return all(_is_ready(store, pod["metadata"], name) for name in names_of(pod))


def _is_ready(store: Store, meta: Obj, name: str | None) -> bool:
    found = store.get(RESOURCE_CLAIMS.table, f"{meta['namespace']}/{name}") if name else None
    status = (found.decode().get("status") or {}) if found is not None else {}
    consumers = status.get("reservedFor") or ()
    return bool(status.get("allocation")) and any(c["uid"] == meta["uid"] for c in consumers)


class ResourceClaimController:
    """Finds its work in the store, so that a new process continues where the last one stopped."""

    def __init__(self, registry: Registry, timers: Timers) -> None:
        self._registry = registry
        self._store = registry.store
        self._timers = timers
        self._wake = timers.soon(DELAY_S, self.refresh)
        self._store.listeners.append(self._on_change)
        self._wake()

    def _on_change(self, plural: str, _: StoredChange, obj: Obj) -> None:
        of_pod = plural == PODS.table and any(True for _ in names_of(obj))
        if of_pod or plural in (RESOURCE_CLAIMS.table, RESOURCE_CLAIM_TEMPLATES.table):
            self._wake()

    def refresh(self) -> None:
        """Check every pod that names claims, and every claim."""
        live: set[str] = set()
        if not self._store.objects[RESOURCE_CLAIMS.table] and not self._has_templates:
            return
        for pod in list(self._store.objects[PODS.table].values()):
            if pod.fields[_PHASE] not in _FINISHED:
                live.add(pod.uid)
                obj = pod.decode()
                if obj["spec"].get("resourceClaims"):
                    self._make(pod.key, obj)
        for claim in list(self._store.objects[RESOURCE_CLAIMS.table].values()):
            self._follow(claim.key, claim.decode(), live)

    @property
    def _has_templates(self) -> bool:
        return bool(self._store.objects[RESOURCE_CLAIM_TEMPLATES.table])

    def _make(self, key: str, pod: Obj) -> None:
        """Make the claims from a pod's templates that do not exist yet."""
        meta, status = pod["metadata"], pod["status"]
        told = list(status.get("resourceClaimStatuses") or ())
        known = {each["name"] for each in told}
        for named in pod["spec"]["resourceClaims"]:
            template = named.get("resourceClaimTemplateName")
            if not template or named["name"] in known or meta.get("deletionTimestamp"):
                continue
            of = self._store.get(RESOURCE_CLAIM_TEMPLATES.table, f"{meta['namespace']}/{template}")
            if of is None:
                continue
            told.append(
                {"name": named["name"], "resourceClaimName": self._made(pod, named, of.decode())}
            )
        if len(told) > len(known):
            pod["status"] = {**status, "resourceClaimStatuses": told}
            self._registry.set(PODS, key, pod)

    def _made(self, pod: Obj, named: Obj, template: Obj) -> str:
        meta = pod["metadata"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        wanted = (template["spec"].get("metadata") or {}) | {
            "generateName": f"{meta['name']}-{named['name']}-",
            "annotations": {POD_CLAIM: named["name"]},
            "ownerReferences": [owner | {"controller": True, "blockOwnerDeletion": True}],
        }
        claim = {"metadata": wanted, "spec": template["spec"]["spec"]}
        made = self._registry.create(RESOURCE_CLAIMS, meta["namespace"], claim)
        return str(made["metadata"]["name"])

    def _follow(self, key: str, claim: Obj, live: set[str]) -> None:
        meta, status = claim["metadata"], dict(claim.get("status") or {})
        consumers = status.get("reservedFor") or []
        left = [each for each in consumers if each["uid"] in live]
        owners = {each["uid"] for each in meta.get("ownerReferences") or ()}
        ownerless = bool(owners) and not owners & live
        if len(left) < len(consumers) or (ownerless and status.get("allocation") and not left):
            status["reservedFor"] = left
            if not left:
                status.pop("reservedFor")
                status.pop("allocation", None)
            claim["status"] = status
            self._registry.set(RESOURCE_CLAIMS, key, claim)
        if ownerless and not meta.get("deletionTimestamp"):
            options = DeleteOptions(uid=meta["uid"])
            try:
                self._registry.delete(RESOURCE_CLAIMS, meta["namespace"], meta["name"], options)
            except ApiError as error:
                if error.code not in (404, 409):
                    raise
        elif meta.get("deletionTimestamp") and not status.get("allocation"):
            self._unprotect(meta["namespace"], meta["name"])

    def _unprotect(self, namespace: str, name: str) -> None:
        def change(claim: Obj) -> Obj:
            kept = [f for f in claim["metadata"].get("finalizers") or () if f != FINALIZER]
            claim["metadata"]["finalizers"] = kept
            return claim

        self._registry.modify(RESOURCE_CLAIMS, namespace, name, change)
