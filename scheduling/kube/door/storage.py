"""Volumes of pods: which nodes can mount them, how many, and which node one is to be made for.

Sources: Kubernetes, "Storage Classes" (volume binding mode, allowed topologies), core/v1
PersistentVolumeSpec (nodeAffinity), storage/v1 CSINode, CSIDriver and CSIStorageCapacity, and
kube-scheduler's plugins VolumeBinding, VolumeRestrictions and NodeVolumeLimits.
"""

import math

import msgspec

from scheduling.engine.types import NodeExpression, NodeTerm
from scheduling.kube.door.client import MERGE_PATCH, Client, Reply
from scheduling.kube.door.requests import Request, gone_or_refused, looking, names_uid
from scheduling.kube.seam import (
    CallOutcome,
    CapacityFacts,
    ClaimFacts,
    CsiDriverFacts,
    CsiNodeFacts,
    Result,
    SelectNode,
    StorageClassFacts,
    VolumeFacts,
)
from scheduling.kube.translate.label_selectors import requirements
from scheduling.kube.translate.node_selectors import node_terms
from scheduling.kube.translate.objects import (
    InTreeVolume,
    KubeCapacity,
    KubeClaim,
    KubeCsiDriver,
    KubeCsiNode,
    KubeStorageClass,
    KubeVolume,
    VolumeSpec,
    encode,
)
from scheduling.kube.translate.quantities import Amount, parse

SELECTED_NODE = "volume.kubernetes.io/selected-node"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
SOLE = "ReadWriteOncePod"
# In-tree volume kinds and provisioners, which Kubernetes has migrated to CSI drivers.
IN_TREE = {
    "aws_elastic_block_store": "ebs.csi.aws.com",
    "gce_persistent_disk": "pd.csi.storage.gke.io",
    "azure_disk": "disk.csi.azure.com",
    "cinder": "cinder.csi.openstack.org",
    "vsphere_volume": "csi.vsphere.vmware.com",
}
PROVISIONERS = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/vsphere-volume": "csi.vsphere.vmware.com",
}
# Volume labels that also limit where a volume is; several values are written "a__b".
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
        sole=SOLE in raw.spec.access_modes,
        size=_bytes(raw.spec.resources.requests.get("storage", 0)),
    )


class ClaimReader:
    """Reads claims and counts how often a selected node was withdrawn.

    A withdrawal may follow so fast that only the last of two changes is seen.
    """

    def __init__(self) -> None:
        self._selected: dict[str, tuple[str, int]] = {}  # by uid: node, times refused

    def __call__(self, raw: KubeClaim) -> ClaimFacts:
        facts = claim_facts(raw)
        node, refused = self._selected.get(facts.uid, ("", 0))
        if facts.bound or facts.deleting:
            self._selected.pop(facts.uid, None)
            return facts
        refused += bool(node and not facts.selected_node)
        if facts.selected_node or refused:
            self._selected[facts.uid] = facts.selected_node, refused
        return msgspec.structs.replace(facts, refused=refused) if refused else facts


def volume_facts(raw: KubeVolume) -> VolumeFacts:
    meta, nodes = raw.metadata, raw.spec.nodes
    found = [node_terms(nodes.required)] if nodes is not None else []
    for key in ZONES:
        if key in meta.labels:
            values = tuple(meta.labels[key].split("__"))
            found.append(((NodeExpression(key, "In", values),),))
    return VolumeFacts(meta.name, meta.uid, tuple(filter(None, found)), *_driver(raw.spec))


def _driver(spec: VolumeSpec) -> tuple[str, str]:
    """Return its CSI driver, and the driver's name for the volume."""
    if spec.csi is not None:
        return spec.csi.driver, spec.csi.volume_handle
    of: InTreeVolume | None
    for field, driver in IN_TREE.items():
        if (of := getattr(spec, field)) is not None:
            return driver, of.handle
    return "", ""


def _bytes(amount: Amount) -> int:
    """Return the amount in bytes; 0 if it cannot be read (the API server accepted it)."""
    try:
        return math.ceil(parse(amount))
    except ValueError:
        return 0


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
        driver=PROVISIONERS.get(raw.provisioner, raw.provisioner),
    )


def csi_node_facts(raw: KubeCsiNode) -> CsiNodeFacts:
    limits = {
        driver.name: driver.allocatable.count
        for driver in raw.spec.drivers
        if driver.allocatable is not None and driver.allocatable.count is not None
    }
    return CsiNodeFacts(raw.metadata.name, raw.metadata.uid, limits)


def csi_driver_facts(raw: KubeCsiDriver) -> CsiDriverFacts:
    tells = raw.spec.storage_capacity is True
    return CsiDriverFacts(raw.metadata.name, raw.metadata.uid, tells)


def capacity_facts(raw: KubeCapacity) -> CapacityFacts:
    """Return its facts; as in kube-scheduler, one without a node topology applies to no node."""
    wanted = requirements(raw.node_topology)
    term = tuple(NodeExpression(each.key, each.operator, each.values) for each in wanted or ())
    most = raw.capacity if raw.maximum_volume_size is None else raw.maximum_volume_size
    return CapacityFacts(
        uid=raw.metadata.uid,
        storage_class=raw.storage_class_name,
        nodes=() if wanted is None else (term,),
        size=0 if most is None else _bytes(most),
    )


class ClaimRequests:
    """Builds requests about volume claims for one API server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def select_node(self, effect: SelectNode) -> Request:
        """Select the node: DONE once the claim names it.

        Its provisioner then makes the volume, or withdraws the node.
        """

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
