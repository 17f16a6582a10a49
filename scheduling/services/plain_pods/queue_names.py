"""Which queue a plain pod names: by Kant's own label, or by that of another scheduler.

A map of the cluster leads the latter to a queue of Kant (`services.clusters.queue_map`). Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduling.engine.types import DEFAULT_QUEUE
from scheduling.job_fields.faults import SLUG, SLUG_RULE
from scheduling.kube.seam import PodFacts
from scheduling.kube.translate.manifests import TENANT
from scheduling.services.clusters.queue_map import FIELD, target_of

QUEUE = "kant.io/queue"
OTHERS = ("kueue.x-k8s.io/queue-name", "kai.scheduler/queue")
LABELS = (TENANT, QUEUE, *OTHERS)  # labels that name a queue
UNKNOWN_QUEUE = "UnknownQueue"


@dataclass(frozen=True, slots=True)
class QueueNames:
    """The queue map of a cluster, by the cluster's name.

    An empty map leaves the labels of others alone: they may be for another queueing system.
    `tenant`: for pods whose labels name none, by their namespace; "" = it has no single one.
    """

    cluster: str = ""
    queue_map: Mapping[str, str] = field(default_factory=dict)
    tenant: str = ""


class WrongQueue(Exception):
    """A reason, and what is wrong with the labels, with the remedy."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def queue_of(pod: PodFacts, names: QueueNames) -> tuple[str, str]:
    """Return the tenant that the pod's labels lead to, "" = none, and its queue.

    Raises WrongQueue.
    """
    tenant, own = pod.labels.get(TENANT, ""), pod.labels.get(QUEUE)
    if own is not None and not SLUG.fullmatch(own):
        raise WrongQueue("InvalidPod", f"label {QUEUE}: {SLUG_RULE}")
    if own is not None and (tenant or not names.queue_map):
        return tenant, own
    found: dict[tuple[str, str], str] = {}
    for label in OTHERS if names.queue_map else ():
        name = pod.labels.get(label)
        if name is None:
            continue
        target = target_of(names.queue_map, pod.namespace, name)
        if target is None:
            raise WrongQueue(UNKNOWN_QUEUE, _unknown(pod, names, label, name))
        found.setdefault(target, label)
    if len(found) > 1:
        (one, here), (other, there) = list(found.items())[:2]
        text = (
            f"label {here} means queue {'/'.join(one)} and label {there} means "
            f"{'/'.join(other)}, according to {FIELD} of cluster {names.cluster}. Leave one of "
            f"them out, or set {QUEUE}."
        )
        raise WrongQueue("InvalidPod", text)
    if not found:
        return tenant, own or DEFAULT_QUEUE
    [((owner, queue), label)] = found.items()
    if tenant and tenant != owner:
        text = (
            f"label {label} means queue {owner}/{queue} according to {FIELD} of cluster "
            f"{names.cluster}, but label {TENANT} is {tenant}. Leave one of them out, or set "
            f"{QUEUE} to a queue of {tenant}."
        )
        raise WrongQueue("InvalidPod", text)
    return owner, own or queue


def _unknown(pod: PodFacts, names: QueueNames, label: str, name: str) -> str:
    return (
        f"label {label}: {FIELD} of cluster {names.cluster} has neither {pod.namespace}/{name} "
        f"nor {name}. Ask an operator to add it there, or set {QUEUE} to a queue of the tenant."
    )
