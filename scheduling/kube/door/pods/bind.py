"""Binding a pod to its node. Source: core/v1 Binding as the API server implements it."""

from scheduling.kube.door.client import Client, Reply
from scheduling.kube.door.pods.pod import has, look_at, path_of
from scheduling.kube.door.requests import Request, refused
from scheduling.kube.seam import Bind, CallOutcome, Result
from scheduling.kube.translate.objects import KubePod, encode


def bind(client: Client, effect: Bind) -> Request:
    """Bind the pod: BOUND once it is on the wanted node with the wanted annotations."""

    def settle(reply: Reply) -> CallOutcome | None:
        if reply.code == 201:
            return CallOutcome(Result.BOUND, effect.uid, effect.node)
        if reply.code == 404:
            return CallOutcome(Result.GONE, effect.uid, code=404)
        return refused(reply)

    def judge(pod: KubePod | None) -> CallOutcome | None:
        if pod is None:
            return CallOutcome(Result.GONE, effect.uid, code=404)
        uid, node = pod.metadata.uid, pod.spec.node_name
        if uid != effect.uid:
            return CallOutcome(Result.NEW_INCARNATION, uid, node, 409)
        if node:
            mine = node == effect.node and has(pod.metadata.annotations, effect.annotations)
            return CallOutcome(Result.BOUND if mine else Result.TAKEN, uid, node)
        if pod.metadata.deletion_timestamp:
            return CallOutcome(Result.DELETING, uid, code=409)
        if pod.spec.scheduling_gates:
            gates = ", ".join(gate.name for gate in pod.spec.scheduling_gates)
            return CallOutcome(Result.GATED, uid, code=409, message=f"scheduling gates: {gates}")
        return None

    # The uid is a precondition. Not resourceVersion: unrelated changes of the pod raise it.
    meta = {
        "name": effect.name,
        "namespace": effect.namespace,
        "uid": effect.uid,
        "annotations": effect.annotations,
    }
    target = {"apiVersion": "v1", "kind": "Node", "name": effect.node}
    return Request(
        "POST",
        f"{path_of(effect.namespace, effect.name)}/binding",
        encode({"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}),
        settle,
        look_at(client, effect.namespace, effect.name, judge),
    )
