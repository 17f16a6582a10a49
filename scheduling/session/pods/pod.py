"""The pods of a live job: how they are requested, recognised, and judged when they fail."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from scheduling.engine.cluster.columns import extended_of
from scheduling.engine.cluster.constraints import narrowed
from scheduling.engine.placement.fit import share_milli
from scheduling.engine.types import MILLI, Node, NodeTerm, PodPlacement, PodSetSpec
from scheduling.job_fields.secrets import without_secrets
from scheduling.kube.seam import Bind, CreateAndBind, PodFacts
from scheduling.kube.translate import manifests
from scheduling.session.memory.live import LiveJob, LivePod, PodKey

CHECKPOINT_BY = "kant.io/checkpoint-by"
CHECKPOINTED_AT = "kant.io/checkpointed-at"

# Reasons of a Failed pod whose own program is not to blame: the kubelet rejected it, or the node
# took it down (kubelet eviction, node shutdown).
NOT_ITS_FAULT = re.compile(
    r"OutOf\S+|UnexpectedAdmissionError|TopologyAffinityError|Node(Affinity|Name|Ports|Lost)"
    r"|TaintToleration|PodOS\w+|SupplementalGroupsPolicyNotSupported|InvalidNodeInfo"
    r"|Evicted|Preempting|Shutdown|NodeShutdown|Terminated|TerminationByKubelet|AdmissionFailed"
    r"|ContainerStatusUnknown"
)


def new_pod(job: LiveJob, place: PodPlacement, gpu_model: str, *, later: bool) -> LivePod:
    """Return a pod for the job's attempt, to be created or bound; a new pod's name is unique."""
    if job.plain:
        ref = job.plain[place.pod_set, place.ordinal]
        return LivePod(place, job.attempt, ref.name, gpu_model, uid=ref.uid)
    name = name_of(job, job.attempt, place.pod_set, place.ordinal)
    return LivePod(place, job.attempt, name, gpu_model, later=later)


def name_of(job: LiveJob, attempt: int, pod_set: int, ordinal: int) -> str:
    """Return the name of a pod that Kant makes for the job; "" = the job has no such pod set."""
    if pod_set >= len(job.request.pod_sets):
        return ""
    name = job.request.pod_sets[pod_set].name
    return manifests.pod_name(job.name, job.id, attempt, pod_set, name, ordinal)


def create_and_bind(
    job: LiveJob, pod: LivePod, node: Node, *, gpus_by_claims: bool = False
) -> CreateAndBind | Bind:
    """Return the effect that brings one pod of the job to its place; a plain pod exists already.

    The pod requests GPUs and NICs by the resource names that its node advertises: a kubelet drops a
    request for a resource that its node does not have, and the pod would run without it.
    `gpus_by_claims`: its claims bring the GPUs.
    """
    place = pod.place
    chosen = manifests.binding_annotations(place.devices, place.milli, place.nics)
    if job.plain:
        of = job.effect_key(pod), job.namespace, pod.name, pod.uid
        return Bind(*of, place.node, chosen)
    pod_set = job.request.pod_sets[place.pod_set]
    if gpus_by_claims:
        pod_set = replace(pod_set, gpus=0)
    # Without what the engine counts under names that no node has.
    extended = extended_of(node, place, job.asked.pod_sets[place.pod_set])
    template = _template(job, place.pod_set, pod_set, pod.attempt, node, extended, job.namespace)
    return CreateAndBind(
        key=job.effect_key(pod),
        namespace=job.namespace,
        name=pod.name,
        manifest=manifests.pod_manifest(template, pod.name, place.ordinal, place.milli),
        node=place.node,
        annotations=chosen,
    )


def stand_in(
    job: LiveJob,
    pod_set: int,
    ordinal: int,
    node: Node,
    of_group: tuple[NodeTerm, ...],
    name: tuple[str, str],
) -> dict[str, Any]:
    """Return a pod that requests what the job's pod would on a node like this one.

    `of_group`: terms for nodes that have such GPUs; `name`: namespace and name.
    """
    asked = job.asked.pod_sets[pod_set]
    asked = replace(asked, nodes=narrowed(asked.nodes, of_group))
    if pod_set in job.gpus_by_templates:
        asked = replace(asked, gpus=0)
    milli = share_milli(node.gpu_memory_mib, asked) if asked.gpus else MILLI
    every = PodPlacement(pod_set, ordinal, node.name, (), MILLI, tuple(range(asked.nics)))
    extended = extended_of(node, every, asked)
    template = _template(job, pod_set, asked, 0, node, extended, name[0])
    return manifests.stand_in_manifest(template, name[1], ordinal, milli or MILLI)


def name_of_stand_in(job: LiveJob, pod_set: int, ordinal: int) -> str:
    """Return the name of a stand-in for a pod of the job."""
    name = job.asked.pod_sets[pod_set].name
    return manifests.pod_name(job.name, job.id, manifests.WAITS, pod_set, name, ordinal)


def _template(
    job: LiveJob,
    index: int,
    pod_set: PodSetSpec,
    attempt: int,
    node: Node,
    extended: Mapping[str, int],
    namespace: str,
) -> manifests.PodTemplate:
    content = job.contents[index]
    return manifests.PodTemplate(
        namespace=namespace,
        job_id=job.id,
        tenant=job.request.tenant,
        attempt=attempt,
        pod_set=index,
        image=content.image,
        command=content.command,
        env=content.env,
        gpus=pod_set.gpus,
        cpu_milli=pod_set.cpu_milli,
        memory_mib=pod_set.memory_mib,
        gpu_resource=node.gpu_resource,
        extended=extended,
        labels=job.labels,
        annotations={**content.annotations, **job.consumes},
        settings=content.settings,
        nodes=pod_set.nodes,
        is_told=job.notice_s > 0,
        gang=_gang(job, index),
    )


def _gang(job: LiveJob, pod_set: int) -> manifests.Gang | None:
    """Return what a pod of the set learns about the others; None = there are none."""
    sets = job.request.pod_sets
    if job.request.pods < 2:
        return None
    return manifests.Gang(
        job_name=job.name,
        pod_set_name=sets[pod_set].name,
        first_rank=sum(each.count for each in sets[:pod_set]),
        world_size=job.request.pods,
        head=manifests.host_name(0, sets[0].name, 0),
    )


def labels_of(job: LiveJob, pod: LivePod) -> dict[str, str]:
    """Return the labels of a pod of the job."""
    if job.plain:
        return dict(job.plain[pod.key].labels)
    own = manifests.own_labels(job.id, job.request.tenant, pod.attempt, *pod.key)
    return {**job.labels, **own}


def identity(labels: Mapping[str, str]) -> tuple[str, int, PodKey] | None:
    """Return (job id, attempt, pod key) of a pod of Kant's own; None for any other."""
    try:
        key = int(labels[manifests.POD_SET]), int(labels[manifests.ORDINAL])
        return labels[manifests.JOB], int(labels[manifests.ATTEMPT]), key
    except (KeyError, ValueError):
        return None


def checkpointed_at(pod: PodFacts, now: float) -> float | None:
    """Return when the pod last reported that the job saved its work; None = it did not.

    Read from `kant.io/checkpointed-at`, in seconds since the epoch. A time in the future counts as
    now.
    """
    try:
        at = float(pod.annotations.get(CHECKPOINTED_AT, ""))
    except ValueError:
        return None
    return min(at, now) if math.isfinite(at) else None


def told_by(pod: PodFacts) -> float | None:
    """Return by when the pod was warned to save its work; None = it was not warned.

    Read from `kant.io/checkpoint-by` (RFC 3339).
    """
    try:
        return datetime.fromisoformat(pod.annotations.get(CHECKPOINT_BY, "")).timestamp()
    except ValueError:
        return None


def was_rejected(pod: PodFacts) -> bool:
    """Whether a Failed pod was rejected by its place instead of failing by its own program."""
    if NOT_ITS_FAULT.fullmatch(pod.reason):
        return True
    return pod.exit_code is None and pod.reason != "DeadlineExceeded"


def has_crashed(pod: PodFacts) -> bool:
    """Whether a Failed pod's own program is to blame."""
    return pod.phase == "Failed" and not was_rejected(pod)


def failure_text(pod: PodFacts) -> str:
    """Return one sentence on why a pod failed, without secrets.

    A runtime's message may quote the pod's command, whose secrets not every reader may see.
    """
    code = "" if pod.exit_code is None else f" with exit code {pod.exit_code}"
    reason = f" ({pod.reason})" if pod.reason else ""
    detail = f": {without_secrets(pod.message)}" if pod.message else ""
    return f"Pod {pod.name} on node {pod.node or '—'} failed{code}{reason}{detail}"
