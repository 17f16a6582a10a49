"""Volumes: the controller that binds and makes them, and what a kubelet can mount.

It stands for the persistent volume controller, the ephemeral volume controller, and the provisioner
`sim.kant.io/disk` of storage classes. Parameters of such a class: `topologyKey`, a node label: a
volume is for nodes with the same value as the node that it was made for; without it, for all nodes.
`failOn`: comma-separated names of nodes for which no volume can be made.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from scheduling.simcluster.controllers.predicates import KubeletView, term_matches
from scheduling.simcluster.objects.kinds import CLAIMS, VOLUMES
from scheduling.simcluster.objects.quantities import parse
from scheduling.simcluster.objects.registry import DeleteOptions, Registry, key_of
from scheduling.simcluster.objects.status import ApiError
from scheduling.simcluster.objects.store import Obj, Store, StoredChange
from scheduling.simcluster.objects.timers import Timers

SELECTED_NODE = "volume.kubernetes.io/selected-node"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
PROVISIONER = "sim.kant.io/disk"
DELAY_S = 0.1  # seconds until a volume is made or a claim bound
STORAGE = frozenset({"persistentvolumeclaims", "persistentvolumes", "storageclasses"})


# --- what pods mount --------------------------------------------------------------------------
def claims_of(pod: Obj) -> Iterator[str]:
    """Yield the names of the claims that a pod mounts."""
    for volume in pod["spec"].get("volumes") or ():
        if "persistentVolumeClaim" in volume:
            yield volume["persistentVolumeClaim"]["claimName"]
        elif "ephemeral" in volume:
            yield f"{pod['metadata']['name']}-{volume['name']}"


def can_be_mounted(store: Store, pod: Obj, node: KubeletView) -> bool:
    """Whether all claims of the pod are bound to volumes that the node can mount."""
    namespace = pod["metadata"]["namespace"]
    return all(_is_for(store, f"{namespace}/{name}", node) for name in claims_of(pod))


def _is_for(store: Store, claim: str, node: KubeletView) -> bool:
    found = store.get(CLAIMS.plural, claim)
    obj = found.decode() if found is not None else {"status": {}}
    volume = None
    if obj["status"].get("phase") == "Bound":
        volume = store.get(VOLUMES.plural, obj["spec"]["volumeName"])
    if volume is None:
        return False
    affinity = (volume.decode()["spec"].get("nodeAffinity") or {}).get("required")
    return not affinity or any(term_matches(t, node) for t in affinity["nodeSelectorTerms"])


# --- the controller ---------------------------------------------------------------------------
class StorageController:
    """Brings claims and volumes together.

    It finds its work in the store, so that a new process continues where the last one stopped.
    """

    def __init__(self, registry: Registry, timers: Timers) -> None:
        self._registry = registry
        self._store = registry.store
        self._timers = timers
        self._wake = timers.soon(DELAY_S, self.refresh)
        self._store.listeners.append(self._on_change)
        self._wake()

    def _on_change(self, plural: str, change: StoredChange, obj: Obj) -> None:
        if plural in STORAGE:
            if plural == CLAIMS.plural and change.type == "DELETED":
                self._timers.after(0, self._release, obj)
            self._wake()
        elif plural == "pods" and change.type != "MODIFIED" and _ephemeral(obj):
            act = self._make_claims if change.type == "ADDED" else self._delete_claims
            self._timers.after(0, act, obj)

    def refresh(self) -> None:
        """Check every claim that is not bound, or whose volume is gone."""
        for volume in list(self._store.objects[VOLUMES.plural].values()):
            obj = volume.decode()
            if obj["status"].get("phase") == "Pending" and not obj["spec"].get("claimRef"):
                self._registry.set(VOLUMES, volume.key, obj | {"status": {"phase": "Available"}})
        for claim in list(self._store.objects[CLAIMS.plural].values()):
            obj = claim.decode()
            phase = obj["status"].get("phase")
            if phase == "Pending":
                self._settle(claim.key, obj)
            elif phase == "Bound" and self._volume(obj["spec"]["volumeName"]) is None:
                self._registry.set(CLAIMS, claim.key, obj | {"status": {"phase": "Lost"}})

    def _settle(self, key: str, claim: Obj) -> None:
        of = claim["spec"].get("storageClassName")
        if of is None and (default := self._default_class()):
            claim["spec"]["storageClassName"] = of = default
            self._registry.set(CLAIMS, key, claim)
        volume = self._for_it(claim)
        if volume is None:
            volume = self._made(key, claim, self._class(of or ""))
        if volume is not None:
            self._bind(key, claim, volume)

    def _for_it(self, claim: Obj) -> Obj | None:
        """Return the volume that the claim names, or that names the claim.

        For a claim without a class: the smallest volume without a class that fits.
        """
        named = claim["spec"].get("volumeName")
        free = [v.decode() for v in self._store.objects[VOLUMES.plural].values()]
        free = [v for v in free if _is_free_for(v, claim)]
        if named:
            return next((v for v in free if v["metadata"]["name"] == named), None)
        mine = [v for v in free if v["spec"].get("claimRef")]
        if not mine and claim["spec"].get("storageClassName") == "":
            mine = [v for v in free if not v["spec"].get("storageClassName") and _fits(v, claim)]
        return min(mine, key=_size, default=None)

    def _made(self, key: str, claim: Obj, of: Obj | None) -> Obj | None:
        """Make a volume if the claim's class is to make one now."""
        if of is None or of["provisioner"] != PROVISIONER or claim["spec"].get("volumeName"):
            return None
        notes = claim["metadata"].get("annotations") or {}
        node = notes.get(SELECTED_NODE, "")
        if of["volumeBindingMode"] == "WaitForFirstConsumer" and not node:
            return None
        parameters = of.get("parameters") or {}
        label = parameters.get("topologyKey", "")
        value = self._value(label, node) if label else ""
        if (label and value is None) or (node and node in parameters.get("failOn", "").split(",")):
            # This is how a provisioner says that it cannot make a volume there.
            claim["metadata"]["annotations"] = {
                k: v for k, v in notes.items() if k != SELECTED_NODE
            }
            self._registry.set(CLAIMS, key, claim)
            return None
        spec = _volume_spec(claim, of)
        if label:
            term = {"key": label, "operator": "In", "values": [value]}
            terms = [{"matchExpressions": [term]}]
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
        name = f"pvc-{claim['metadata']['uid']}"
        made = {"metadata": {"name": name}, "spec": spec}
        return self._volume(name) or self._registry.create(VOLUMES, "", made)

    def _bind(self, key: str, claim: Obj, volume: Obj) -> None:
        name, meta = volume["metadata"]["name"], claim["metadata"]
        volume["spec"]["claimRef"] = _ref(claim)
        volume["status"] = {"phase": "Bound"}
        self._registry.set(VOLUMES, name, volume)
        claim["spec"]["volumeName"] = name
        done = {"pv.kubernetes.io/bind-completed": "yes"}
        meta["annotations"] = (meta.get("annotations") or {}) | done
        spec = volume["spec"]
        claim["status"] = {
            "phase": "Bound",
            "accessModes": spec["accessModes"],
            "capacity": spec["capacity"],
        }
        self._registry.set(CLAIMS, key, claim)

    def _release(self, claim: Obj) -> None:
        """Release a deleted claim's volume: delete it, or keep it for somebody to look at."""
        name = claim["spec"].get("volumeName") or ""
        volume = self._volume(name)
        if volume is None or (volume["spec"].get("claimRef") or {}).get("uid") != _uid(claim):
            return
        if volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete":
            self._registry.delete(VOLUMES, "", name, DeleteOptions())
        else:
            self._registry.set(VOLUMES, name, volume | {"status": {"phase": "Released"}})

    # --- claims of ephemeral volumes --------------------------------------------------------------
    def _make_claims(self, pod: Obj) -> None:
        meta = pod["metadata"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        for volume in _ephemeral(pod):
            template = volume["ephemeral"]["volumeClaimTemplate"]
            claim = {
                "metadata": {
                    **(template.get("metadata") or {}),
                    "name": f"{meta['name']}-{volume['name']}",
                    "ownerReferences": [owner | {"controller": True}],
                },
                "spec": dict(template["spec"]),
            }
            try:
                self._registry.create(CLAIMS, meta["namespace"], claim)
            except ApiError as error:
                if error.code != 409:  # the pod waits for it, and its owner can see why
                    raise

    def _delete_claims(self, pod: Obj) -> None:
        for volume in _ephemeral(pod):
            namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
            key = key_of(CLAIMS, namespace, f"{name}-{volume['name']}")
            found = self._store.get(CLAIMS.plural, key)
            owners = found.decode()["metadata"].get("ownerReferences", ()) if found else ()
            if found is not None and any(owner["uid"] == _uid(pod) for owner in owners):
                self._registry.delete(CLAIMS, namespace, found.name, DeleteOptions())

    # --- the store --------------------------------------------------------------------------------
    def _volume(self, name: str) -> Obj | None:
        found = self._store.get(VOLUMES.plural, name)
        return found.decode() if found is not None else None

    def _class(self, name: str) -> Obj | None:
        found = self._store.get("storageclasses", name)
        return found.decode() if found is not None else None

    def _default_class(self) -> str:
        for found in self._store.objects["storageclasses"].values():
            notes = found.decode()["metadata"].get("annotations") or {}
            if notes.get(DEFAULT_CLASS) == "true":
                return found.name
        return ""

    def _value(self, label: str, node: str) -> str | None:
        """Return the label of that node.

        If the volume is made before a node is selected, any node's label will do.
        """
        nodes = self._store.objects["nodes"]
        names: Iterable[str] = [node] if node else sorted(nodes)
        labels = (nodes[name].labels.get(label) for name in names if name in nodes)
        return next((value for value in labels if value is not None), None)


def _ephemeral(pod: Obj) -> list[Obj]:
    return [volume for volume in pod["spec"].get("volumes") or () if "ephemeral" in volume]


def _volume_spec(claim: Obj, of: Obj) -> dict[str, Any]:
    spec = claim["spec"]
    return {
        "capacity": {"storage": spec["resources"]["requests"]["storage"]},
        "accessModes": spec["accessModes"],
        "persistentVolumeReclaimPolicy": of["reclaimPolicy"],
        "storageClassName": of["metadata"]["name"],
        "claimRef": _ref(claim),
        "csi": {"driver": PROVISIONER, "volumeHandle": f"pvc-{_uid(claim)}"},
    }


def _ref(claim: Obj) -> dict[str, str]:
    meta = claim["metadata"]
    of = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
    return {**of, "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]}


def _is_free_for(volume: Obj, claim: Obj) -> bool:
    """Whether no other claim has the volume or is meant to get it."""
    ref, meta = volume["spec"].get("claimRef"), claim["metadata"]
    if not ref:
        return bool(volume["status"].get("phase") == "Available")
    same = (ref.get("namespace"), ref.get("name")) == (meta["namespace"], meta["name"])
    return same and ref.get("uid") in (None, "", meta["uid"])


def _fits(volume: Obj, claim: Obj) -> bool:
    asked = parse(claim["spec"]["resources"]["requests"]["storage"])
    modes = set(claim["spec"]["accessModes"])
    return _size(volume) >= asked and modes <= set(volume["spec"]["accessModes"])


def _size(volume: Obj) -> Any:
    return parse(volume["spec"]["capacity"]["storage"])


def _uid(obj: Obj) -> str:
    return str(obj["metadata"]["uid"])
