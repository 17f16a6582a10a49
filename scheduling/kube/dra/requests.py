"""Writing claims, as kube-scheduler does: who gets which devices.

A claim first gets its finalizer, so that it stays while a pod uses it, then in its status the
devices and the pod that they are for. Each write names the version that was read; if somebody else
wrote meanwhile, the claim is read and judged again. Repeating a write has no effect. A claim for a
pod's extended resources is created first, and the pod is told its name last; the claim is deleted
when the pod gives its place back.
"""

from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import msgspec

from scheduling.engine.types import NodeTerm
from scheduling.kube.door.client import MERGE_PATCH, Reply
from scheduling.kube.door.requests import Request, gone_or_refused, names_uid, refused
from scheduling.kube.dra.extended import ANNOTATION
from scheduling.kube.seam import (
    AllocateClaim,
    CallOutcome,
    NewClaim,
    OwnClaim,
    ReleaseClaim,
    Result,
)
from scheduling.kube.translate.objects import encode
from scheduling.kube.translate.quantities import written

FINALIZER = "resource.kubernetes.io/delete-protection"
MOST_CONSUMERS = 256
TRIES = 8  # while others write, too

Object = dict[str, Any]
Settled = Callable[[Request], Awaitable[CallOutcome]]
# The attempt had no effect because the claim has, or may have, a newer version.
CHANGED = CallOutcome(Result.TAKEN)


class DeviceClaimRequests:
    """Writes claims at one API server; `settled` carries out one request."""

    def __init__(self, settled: Settled) -> None:
        self._settled = settled

    async def allocate(self, effect: AllocateClaim) -> CallOutcome:
        """Allocate: DONE once the claim has these devices and is reserved for the pod.

        TAKEN if somebody else has allocated it otherwise.
        """
        if effect.new is None:
            return await self._write(effect, lambda claim: _allocated(claim, effect))
        made: list[Object] = []
        outcome = await self._settled(_make(effect, effect.new, made))
        if outcome.code == 409:
            outcome = await self._settled(_read(_path(effect), effect.uid, made))
        if outcome.result is not Result.DONE:
            return outcome
        [claim] = made
        if not _is_made_for(claim, effect, effect.new):
            return _taken("a claim of its name is there that is not for it")
        of = msgspec.structs.replace(effect, uid=claim["metadata"]["uid"])
        outcome = await self._write(of, lambda claim: _allocated(claim, of))
        if outcome.result is not Result.DONE or isinstance(effect.new, OwnClaim):
            return outcome
        return await self._settled(_tell_pod(effect, effect.pod, _status(effect, effect.new)))

    async def release(self, effect: ReleaseClaim) -> CallOutcome:
        """Release: DONE once the claim is not reserved for the pod.

        If no reservation is left, it has no devices either.
        """
        if not effect.made_for:
            return await self._write(effect, lambda claim: _released(claim, effect))
        # Otherwise a kubelet whose node has a device plugin would look for the claim.
        told = await self._settled(_tell_pod(effect, effect.made_for, None))
        if told.result not in (Result.DONE, Result.GONE, Result.NEW_INCARNATION):
            return told
        free = await self._write(effect, lambda claim: _unprotected(claim, effect))
        if free.result is not Result.DONE:
            return free
        return await self._settled(_delete(effect))

    async def _write(
        self,
        effect: AllocateClaim | ReleaseClaim,
        change: Callable[[Object], Object | CallOutcome],
    ) -> CallOutcome:
        path = _path(effect)
        for _ in range(TRIES):
            found: list[Object] = []
            outcome = await self._settled(_read(path, effect.uid, found))
            if outcome.result is not Result.DONE:
                return outcome
            claim = found[0]
            meta = claim["metadata"]
            if meta["uid"] != effect.uid:
                return CallOutcome(Result.NEW_INCARNATION, meta["uid"])
            patch = change(claim)
            if isinstance(patch, CallOutcome):
                return patch
            at = "" if "metadata" in patch else "/status"
            named = {"uid": effect.uid, "resourceVersion": meta["resourceVersion"]}
            body = {**patch, "metadata": {**patch.get("metadata", {}), **named}}
            outcome = await self._settled(_patch(f"{path}{at}", effect.uid, body))
            if outcome.result not in (Result.DONE, CHANGED.result):
                return outcome
        return CallOutcome(Result.FAILED, message="others write the claim at the same time")


def _path(effect: AllocateClaim | ReleaseClaim, *, of_all: bool = False) -> str:
    path = f"/apis/resource.k8s.io/v1/namespaces/{effect.namespace}/resourceclaims"
    return path if of_all else f"{path}/{effect.name}"


def _make(effect: AllocateClaim, new: NewClaim | OwnClaim, made: list[Object]) -> Request:
    """Create the claim: DONE with the claim in `made`; code 409 if one of its name exists."""

    def settle(reply: Reply) -> CallOutcome | None:
        if reply.code == 201:
            made[:] = [msgspec.json.decode(reply.body)]
            return CallOutcome(Result.DONE, effect.uid)
        return CallOutcome(Result.TAKEN, code=409) if reply.code == 409 else refused(reply)

    pod = {"apiVersion": "v1", "kind": "Pod", "name": effect.pod, "uid": effect.pod_uid}
    meta: Object = {"name": effect.name, "ownerReferences": [{**pod, "controller": True}]}
    if isinstance(new, OwnClaim):
        spec = new.spec
        meta |= {"labels": new.labels, "annotations": new.annotations}
    else:
        spec = {"devices": {"requests": _requests(new)}}
        meta["annotations"] = {ANNOTATION: "true"}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta}
    path = _path(effect, of_all=True)
    return Request("POST", path, encode({**body, "spec": spec}), settle, _nothing_known)


def _requests(new: NewClaim) -> list[Object]:
    return [
        {
            "name": request.name,
            "exactly": {
                "deviceClassName": device_class,
                "allocationMode": "ExactCount",
                "count": request.amount,
            },
        }
        for request, device_class in new.requests
    ]


def _is_made_for(claim: Object, effect: AllocateClaim, new: NewClaim | OwnClaim) -> bool:
    owners = claim["metadata"].get("ownerReferences") or ()
    mine = any(owner["uid"] == effect.pod_uid for owner in owners)
    # A claim that a pod names asks for the same as long as the pod exists.
    asks = claim["spec"]["devices"].get("requests")
    return mine and (isinstance(new, OwnClaim) or asks == _requests(new))


def _status(effect: AllocateClaim, new: NewClaim) -> Object:
    mappings = [
        {
            "containerName": each.container,
            "resourceName": each.resource,
            "requestName": each.request,
        }
        for each in new.mappings
    ]
    return {"resourceClaimName": effect.name, "requestMappings": mappings}


def _tell_pod(effect: AllocateClaim | ReleaseClaim, name: str, status: Object | None) -> Request:
    """Write which claim has the pod's extended resources into its status (None = no claim)."""
    uid = effect.pod_uid

    def settle(reply: Reply) -> CallOutcome | None:
        if reply.code == 200:
            return CallOutcome(Result.DONE, uid)
        if names_uid(reply):
            return CallOutcome(Result.NEW_INCARNATION, code=reply.code)
        return gone_or_refused(reply, uid)

    path = f"/api/v1/namespaces/{effect.namespace}/pods/{name}/status"
    body = {"metadata": {"uid": uid}, "status": {"extendedResourceClaimStatus": status}}
    return Request("PATCH", path, encode(body), settle, _nothing_known, MERGE_PATCH)


def _delete(effect: ReleaseClaim) -> Request:
    """Delete the claim: DONE once it is gone or another claim has its name."""

    def settle(reply: Reply) -> CallOutcome | None:
        if reply.code in (200, 202, 404, 409):
            return CallOutcome(Result.DONE, effect.uid)
        return refused(reply)

    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": effect.uid}}
    return Request("DELETE", _path(effect), encode(options), settle, _nothing_known)


def _read(path: str, uid: str, found: list[Object]) -> Request:
    """Read the claim: DONE with the claim in `found`."""

    def settle(reply: Reply) -> CallOutcome | None:
        if reply.code == 200:
            found[:] = [msgspec.json.decode(reply.body)]
            return CallOutcome(Result.DONE, uid)
        return gone_or_refused(reply, uid)

    return Request("GET", path, b"", settle, _nothing_known)


async def _nothing_known() -> CallOutcome | None:
    return None


def _patch(path: str, uid: str, body: Object) -> Request:
    """Patch the claim: DONE once written, CHANGED if it has to be read again."""

    def settle(reply: Reply) -> CallOutcome | None:
        if reply.code == 200:
            return CallOutcome(Result.DONE, uid)
        if reply.code == 409:
            return CHANGED
        return gone_or_refused(reply, uid)

    async def look() -> CallOutcome | None:
        return CHANGED

    return Request("PATCH", path, encode(body), settle, look, MERGE_PATCH)


def _allocated(claim: Object, effect: AllocateClaim) -> Object | CallOutcome:
    """Return what is still to be written, or the outcome: it is written, or cannot be."""
    meta, status = claim["metadata"], claim.get("status") or {}
    now, consumers = status.get("allocation"), status.get("reservedFor") or []
    done = CallOutcome(Result.DONE, effect.uid)
    if now is None and effect.given is None:
        return _taken("it has no devices any more")
    if now is None and meta.get("deletionTimestamp"):
        return CallOutcome(Result.DELETING, effect.uid, message="it is being deleted")
    if now is not None and effect.given is not None and _devices(now) != _given(effect):
        return _taken("somebody else has allocated it")
    mine = any(each["uid"] == effect.pod_uid for each in consumers)
    if now is not None and mine:
        return done
    if not mine and len(consumers) >= MOST_CONSUMERS:
        return _taken(f"{MOST_CONSUMERS} pods use it, which is the most")
    finalizers = meta.get("finalizers") or []
    if now is None and FINALIZER not in finalizers:
        return {"metadata": {"finalizers": [*finalizers, FINALIZER]}}
    change: Object = {}
    if now is None:
        change["allocation"] = _allocation(claim, effect)
    if not mine:
        pod = {"resource": "pods", "name": effect.pod, "uid": effect.pod_uid}
        change["reservedFor"] = [*consumers, pod]
    return {"status": change}


def _taken(why: str) -> CallOutcome:
    return CallOutcome(Result.TAKEN, code=409, message=why)


def _unprotected(claim: Object, effect: ReleaseClaim) -> Object | CallOutcome:
    """Remove the claim's finalizer, so that it can be deleted at once."""
    finalizers = claim["metadata"].get("finalizers") or []
    if FINALIZER not in finalizers:
        return CallOutcome(Result.DONE, effect.uid)
    return {"metadata": {"finalizers": [f for f in finalizers if f != FINALIZER] or None}}


def _released(claim: Object, effect: ReleaseClaim) -> Object | CallOutcome:
    status = claim.get("status") or {}
    consumers = status.get("reservedFor") or []
    left = [each for each in consumers if each["uid"] != effect.pod_uid]
    if len(left) == len(consumers) and (left or not status.get("allocation")):
        return CallOutcome(Result.DONE, effect.uid)
    # None of its devices is used any more; kube-scheduler frees them in this case, too.
    change: Object = {"reservedFor": left or None}
    if not left:
        change["allocation"] = None
    return {"status": change}


# --- what is written ------------------------------------------------------------------------------
Named = tuple[str, str, str, str]


def _devices(allocation: Object) -> set[Named]:
    results = (allocation.get("devices") or {}).get("results") or ()
    return {(r["request"], r["driver"], r["pool"], r["device"]) for r in results}


def _given(effect: AllocateClaim) -> set[Named]:
    return {(g.request, *g.device) for g in effect.given or ()}


def _allocation(claim: Object, effect: AllocateClaim) -> Object:
    spec = claim["spec"]["devices"]
    asks = dict(_asks(spec.get("requests") or ()))
    results = []
    for given in effect.given or ():
        driver, pool, device = given.device
        result: Object = {
            "request": given.request,
            "driver": driver,
            "pool": pool,
            "device": device,
        }
        if given.admin:
            result["adminAccess"] = True
        if given.consumed is not None:
            result["shareID"] = str(uuid4())
            consumed = {name: written(amount) for name, amount in given.consumed}
            if consumed:
                result["consumedCapacity"] = consumed
        if given.ready_by:
            result["bindingConditions"] = list(given.ready_by)
        if given.fails_by:
            result["bindingFailureConditions"] = list(given.fails_by)
        if tolerations := asks.get(given.request, {}).get("tolerations"):
            result["tolerations"] = tolerations
        results.append(result)
    devices: Object = {"results": results}
    if config := [*_of_classes(effect), *_of_claim(spec, effect)]:
        devices["config"] = config
    found: Object = {
        "devices": devices,
        "allocationTimestamp": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    }
    if effect.node:
        names = {"key": "metadata.name", "operator": "In", "values": [effect.node]}
        found["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [names]}]}
    elif effect.nodes:
        found["nodeSelector"] = {"nodeSelectorTerms": list(map(_term, effect.nodes))}
    return found


def _asks(requests: Iterable[Object]) -> Iterable[tuple[str, Object]]:
    """Yield requests by the name that results use."""
    for request in requests:
        yield request["name"], request.get("exactly") or {}
        for other in request.get("firstAvailable") or ():
            yield f"{request['name']}/{other['name']}", other


def _of_classes(effect: AllocateClaim) -> Iterable[Object]:
    for requests, config in effect.class_config:
        for each in msgspec.json.decode(config) or ():
            yield {"source": "FromClass", "requests": list(requests), **each}


def _of_claim(spec: Object, effect: AllocateClaim) -> Iterable[Object]:
    """Yield the claim's configuration for all requests or for those that were answered."""
    answered = {given.request for given in effect.given or ()}
    answered |= {name.partition("/")[0] for name in answered}
    for each in spec.get("config") or ():
        if not each.get("requests") or answered.intersection(each["requests"]):
            yield {"source": "FromClaim", **each}


def _term(term: NodeTerm) -> Object:
    parts: Object = {}
    for each in term:
        part = "matchFields" if each.of_name else "matchExpressions"
        requirement: Object = {"key": each.key, "operator": each.operator}
        if each.values:
            requirement["values"] = list(each.values)
        parts.setdefault(part, []).append(requirement)
    return parts
