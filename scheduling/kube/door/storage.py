"""Volumes of pods: which nodes can mount them, and for which node one is to be made.

Sources: Kubernetes, "Storage Classes" (volume binding mode, allowed topologies), core/v1
PersistentVolumeSpec (nodeAffinity), and what kube-scheduler's volume binding does.
"""

import msgspec

from scheduling.engine.types import NodeExpression, NodeTerm
from scheduling.kube.door.client import MERGE_PATCH, Client, Reply
from scheduling.kube.door.requests import Request, gone_or_refused, looking, names_uid
from scheduling.kube.seam import (
    CallOutcome,
    ClaimFacts,
    Result,
    SelectNode,
    StorageClassFacts,
    VolumeFacts,
)
from scheduling.kube.translate.node_selectors import node_terms
from scheduling.kube.translate.objects import KubeClaim, KubeStorageClass, KubeVolume, encode

SELECTED_NODE = "volume.kubernetes.io/selected-node"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
# Labels of volumes that also say where they are, with several values as "a__b".
ZONES = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")

_claim = msgspec.json.Decoder(KubeClaim)


def claim_facts(raw: KubeClaim) -> ClaimFacts:
    meta = raw.metadata
    return ClaimFacts(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        bound=raw.status.phase == "Bound",
        lost=raw.status.phase == "Lost",
        deleting=bool(meta.deletion_timestamp),
        volume=raw.spec.volume_name,
        storage_class=raw.spec.storage_class_name,
        selected_node=meta.annotations.get(SELECTED_NODE, ""),
    )


def volume_facts(raw: KubeVolume) -> VolumeFacts:
    meta, nodes = raw.metadata, raw.spec.node_affinity
    found = [node_terms(nodes.required)] if nodes is not None else []
    for key in ZONES:
        if key in meta.labels:
            values = tuple(meta.labels[key].split("__"))
            found.append(((NodeExpression(key, "In", values),),))
    return VolumeFacts(meta.name, meta.uid, tuple(filter(None, found)))


def storage_class_facts(raw: KubeStorageClass) -> StorageClassFacts:
    terms: list[NodeTerm] = [
        tuple(
            NodeExpression(e.key, "In", tuple(e.values)) for e in topology.match_label_expressions
        )
        for topology in raw.allowed_topologies
    ]
    return StorageClassFacts(
        name=raw.metadata.name,
        uid=raw.metadata.uid,
        waits=raw.volume_binding_mode == "WaitForFirstConsumer",
        provisions=raw.provisioner != NO_PROVISIONER,
        topologies=tuple(terms) if all(terms) else (),
    )


class ClaimRequests:
    """Builds the requests of one API server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def select_node(self, effect: SelectNode) -> Request:
        """DONE when the claim says so; its provisioner makes the volume, or takes it back."""

        def settle(reply: Reply) -> CallOutcome | None:
            if reply.code == 200:
                return CallOutcome(Result.DONE, effect.uid, effect.node)
            if reply.code == 422 and names_uid(reply):
                return None
            return gone_or_refused(reply, effect.uid)

        def judge(claim: KubeClaim | None) -> CallOutcome | None:
            if claim is None or claim.metadata.uid != effect.uid:
                return CallOutcome(Result.GONE, effect.uid, code=404)
            return None

        meta = {"uid": effect.uid, "annotations": {SELECTED_NODE: effect.node}}
        path = f"/api/v1/namespaces/{effect.namespace}/persistentvolumeclaims/{effect.name}"
        look = looking(self._client, path, _claim.decode, judge, "the volume claim")
        return Request("PATCH", path, encode({"metadata": meta}), settle, look, MERGE_PATCH)
