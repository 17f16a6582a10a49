"""Creating a pod of Kant's own."""

from collections.abc import Mapping
from typing import Any

from scheduling.kube.door.client import Client, Reply
from scheduling.kube.door.pods.pod import has, look_at
from scheduling.kube.door.requests import Request, created, refused_to_create
from scheduling.kube.seam import CallOutcome, CreateAndBind, CreatePod, CreateToBind, Result
from scheduling.kube.translate.objects import KubePod, encode


def create(client: Client, effect: CreateAndBind | CreatePod | CreateToBind) -> Request:
    """Create the pod: DONE, with its uid, once a pod of that name with Kant's labels exists."""

    def settle(reply: Reply) -> CallOutcome | None:
        if reply.code == 201:
            return CallOutcome(Result.DONE, uid=created.decode(reply.body).metadata.uid)
        return refused_to_create(reply)

    def judge(pod: KubePod | None) -> CallOutcome | None:
        if pod is None:
            return None
        uid = pod.metadata.uid
        if not _same_pod(pod, effect.manifest):
            message = f"a pod named {effect.name} exists that this scheduler did not create"
            return CallOutcome(Result.REFUSED, node=pod.spec.node_name, code=409, message=message)
        if pod.metadata.deletion_timestamp:
            return CallOutcome(Result.DELETING, uid, pod.spec.node_name, 409)
        return CallOutcome(Result.DONE, uid)

    return Request(
        "POST",
        f"/api/v1/namespaces/{effect.namespace}/pods",
        encode(effect.manifest),
        settle,
        look_at(client, effect.namespace, effect.name, judge),
    )


def _same_pod(pod: KubePod, manifest: Mapping[str, Any]) -> bool:
    """Whether the pod was made from that manifest: same scheduler, and all its labels."""
    labels = manifest["metadata"].get("labels", {})
    scheduler = manifest["spec"].get("schedulerName", "")
    return pod.spec.scheduler_name == scheduler and has(pod.metadata.labels, labels)
