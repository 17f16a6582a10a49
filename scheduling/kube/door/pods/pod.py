"""The pod of a request: its path, how to look at it, and whether it is the one that was meant."""

from collections.abc import Mapping

import msgspec

from scheduling.kube.door.client import Client
from scheduling.kube.door.requests import Judge, Look, looking
from scheduling.kube.seam import CallOutcome, Result
from scheduling.kube.translate.objects import KubePod

_pod = msgspec.json.Decoder(KubePod)


def path_of(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def look_at(client: Client, namespace: str, name: str, judge: Judge[KubePod]) -> Look:
    """Return a function that looks at the pod; see `looking`."""
    return looking(client, path_of(namespace, name), _pod.decode, judge, "the pod")


def other_incarnation(pod: KubePod | None, uid: str) -> CallOutcome | None:
    if pod is None:
        return CallOutcome(Result.GONE, uid, code=404)
    if pod.metadata.uid != uid:
        return CallOutcome(Result.NEW_INCARNATION, pod.metadata.uid, pod.spec.node_name, 409)
    return None


def has(all_of: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(all_of.get(key) == value for key, value in wanted.items())
