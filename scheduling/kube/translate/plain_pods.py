"""What a pod that Kant did not make says of where it may run, as far as Kant honours it.

A scheduler that binds a pod answers for all of its constraints. What Kant does not honour is
listed with its field and a remedy, and such a pod is not bound. What it says of other pods is read
by `pod_rules`.
Sources: core/v1 PodSpec, and the filters of kube-scheduler's default plugins.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from scheduling.engine.cluster.affinity import both
from scheduling.engine.types import NodeExpression, NodeTerm, Toleration
from scheduling.kube.seam import PlainPod, Reference, Unhonoured
from scheduling.kube.translate import pod_rules
from scheduling.kube.translate.claims import names_of_claims, names_of_device_claims
from scheduling.kube.translate.manifests import IDENTITY, REQUIRED, is_made
from scheduling.kube.translate.node_selectors import NodeSelector, node_terms
from scheduling.kube.translate.objects import Container, KubePod, OwnerReference, PodSpec
from scheduling.kube.translate.quantities import is_counted, requested
from scheduling.kube.translate.texts import storable

# Volumes that every node can mount, or that name no place.
ANYWHERE = frozenset(
    {
        *("configMap", "secret", "downwardAPI", "projected", "emptyDir", "hostPath", "image"),
        *("csi", "nfs", "cephfs", "glusterfs"),
    }
)
# Where their volumes can be mounted, the claims say (`kube.storage`).
CLAIMS = frozenset({"persistentVolumeClaim", "ephemeral"})
# The label that names the gang of a pod, and the annotation that says of how many pods it is.
GANG, GANG_SIZE = "kant.io/gang", "kant.io/gang-size"
NODE_AFFINITY = f"spec.affinity.nodeAffinity.{REQUIRED}"
DEFAULT_ACCOUNT = "default"
SYSTEM, WINDOWS = "kubernetes.io/os", "windows"


class _Toleration(Struct, rename="camel"):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class _NodeAffinity(Struct):
    required: NodeSelector | None = msgspec.field(default=None, name=REQUIRED)


class _Affinity(Struct, rename="camel"):
    node_affinity: _NodeAffinity | None = None


class _SchedulingGroup(Struct, rename="camel"):
    pod_group_name: str = ""


class _Variable(Struct):
    name: str = ""


class _More(Struct, rename="camel"):
    """The fields of a pod's spec that only matter where Kant has to find its place."""

    node_selector: dict[str, str] = {}
    tolerations: list[_Toleration] = []
    affinity: _Affinity | None = None
    volumes: list[dict[str, msgspec.Raw]] = []


def is_plain(raw: KubePod) -> bool:
    """Whether it waits for a place and Kant did not make it."""
    waits = not raw.spec.node_name and raw.status.phase not in ("Succeeded", "Failed")
    return waits and not is_made(raw.metadata.name, raw.metadata.labels)


def plain_pod(raw: KubePod, created_at: float) -> PlainPod:
    """Never raises: what cannot be read is not honoured either."""
    spec = raw.spec
    main = spec.containers[0] if spec.containers else Container()
    more, command = _More(), list[str]()
    env, group = tuple[str, ...](), _SchedulingGroup()
    try:
        more = _more(spec)
        group = _decoded(spec.scheduling_group, _SchedulingGroup, group)
        pod_rules.says(raw)
        names_of_claims(raw)
        names_of_device_claims(raw)
        command = [*_decoded(main.command, list[str], []), *_decoded(main.args, list[str], [])]
        env = _env(spec)
        unhonoured = (
            *_labels(raw.metadata.labels),
            *_older_group(spec),
            *_volumes(more),
            *_resources(spec),
        )
    except ValueError as wrong:
        unhonoured = (Unhonoured("spec", f"Kant cannot read it: {storable(str(wrong))}."),)
    account = spec.service_account_name
    return PlainPod(
        node_selector=more.node_selector,
        node_affinity=both(_terms(more), _system(spec)),
        # What is tolerated for a while only is no reason to be placed there.
        tolerations=tuple(
            Toleration(t.key, t.operator or "Equal", t.value, t.effect)
            for t in more.tolerations
            if t.toleration_seconds is None
        ),
        image=storable(main.image),
        command=tuple(map(storable, command)),
        preempts=spec.preemption_policy != "Never",
        gates=tuple(gate.name for gate in spec.scheduling_gates),
        created_at=created_at,
        unhonoured=unhonoured,
        env=env,
        service_account="" if account == DEFAULT_ACCOUNT else account,
        owner=_owner(raw.metadata.owner_references),
        scheduling_group=group.pod_group_name,
    )


def _more(spec: PodSpec) -> _More:
    return _More(
        node_selector=_decoded(spec.node_selector, dict[str, str], {}),
        tolerations=_decoded(spec.tolerations, list[_Toleration], []),
        affinity=_decoded(spec.affinity, _Affinity | None, None),
        volumes=_decoded(spec.volumes, list[dict[str, msgspec.Raw]], []),
    )


def _env(spec: PodSpec) -> tuple[str, ...]:
    """The names of the variables of all containers, each once."""
    containers = (*spec.init_containers, *spec.containers)
    found = (_decoded(each.env, list[_Variable], []) for each in containers)
    return tuple(dict.fromkeys(storable(v.name) for variables in found for v in variables))


def _decoded(raw: msgspec.Raw, kind: Any, absent: Any) -> Any:
    found = msgspec.json.decode(raw, type=kind | None) if bytes(raw) else None
    return absent if found is None else found


def _labels(labels: Mapping[str, str]) -> list[Unhonoured]:
    remedy = "Only Kant gives it, to the pods that it makes; remove it."
    return [Unhonoured(f"metadata.labels[{n}]", remedy) for n in sorted(IDENTITY & labels.keys())]


def _older_group(spec: PodSpec) -> list[Unhonoured]:
    """The field of Kubernetes 1.35, before its shape was changed."""
    if bytes(spec.workload_ref) in (b"", b"null"):
        return []
    remedy = (
        f"Kant does not read it; name the gang by the label {GANG}, and the number of its pods by "
        f"the annotation {GANG_SIZE}."
    )
    return [Unhonoured("spec.workloadRef", remedy)]


def _owner(owners: Sequence[OwnerReference]) -> Reference | None:
    """The object that made the pod."""
    for owner in owners:
        if owner.controller:
            return Reference(owner.api_version, owner.kind, owner.name, owner.uid)
    return None


def _terms(more: _More) -> tuple[NodeTerm, ...]:
    """The terms of its required node affinity."""
    rules = more.affinity and more.affinity.node_affinity
    return node_terms(rules.required if rules else None)


def _system(spec: PodSpec) -> tuple[NodeTerm, ...]:
    """A kubelet of another system rejects the pod. Only those of Windows surely have the label."""
    name = spec.os.name if spec.os is not None else ""
    if not name:
        return ()
    operator = "In" if name == WINDOWS else "NotIn"
    return ((NodeExpression(SYSTEM, operator, (WINDOWS,)),),)


def _volumes(more: _More) -> list[Unhonoured]:
    remedy = "Kant does not know which nodes can mount it; use a claim for a volume."
    return [
        Unhonoured(f"spec.volumes[{index}].{name}", remedy)
        for index, volume in enumerate(more.volumes)
        for name in sorted(volume.keys() - ANYWHERE - CLAIMS - {"name"})
    ]


def _resources(spec: PodSpec) -> list[Unhonoured]:
    return [
        Unhonoured(
            f"spec.containers[].resources.requests[{name}]",
            "Kant does not count it on the nodes; leave it out.",
        )
        for name, amount in sorted(requested(spec).items())
        if amount and not is_counted(name)
    ]
