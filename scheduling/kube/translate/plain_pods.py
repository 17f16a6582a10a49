"""Where a pod that Kant did not make may run, as far as Kant honours what it says.

A scheduler that binds a pod answers for all of its constraints. Constraints that Kant does not
honour are listed with their field and a remedy, and such a pod is not bound. `pod_rules` reads what
the pod says of other pods.

Sources: core/v1 PodSpec, and the filters of kube-scheduler's default plugins.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
from msgspec import Struct

from scheduling.engine.types import ANY_NODE, NodeRules
from scheduling.kube.dra.extended import NOTHING, extended_asks
from scheduling.kube.dra.facts import ExtendedAsks
from scheduling.kube.seam import PlainPod, Reference, Unhonoured
from scheduling.kube.translate import pod_rules
from scheduling.kube.translate.claims import names_of_claims, names_of_device_claims
from scheduling.kube.translate.manifests import IDENTITY, STANDS_IN_FOR, is_made, is_stand_in
from scheduling.kube.translate.node_rules import rules_of
from scheduling.kube.translate.objects import (
    LATER,
    Container,
    KubePod,
    OwnerReference,
    PodSpec,
    decoded,
    encode,
)
from scheduling.kube.translate.quantities import is_counted, requested
from scheduling.kube.translate.texts import storable

# Volumes that every node can mount, or that are not tied to a place.
ANYWHERE = frozenset(
    {
        *("configMap", "secret", "downwardAPI", "projected", "emptyDir", "hostPath", "image"),
        *("csi", "nfs", "cephfs", "glusterfs"),
    }
)
# Their claims say where these volumes can be mounted (`kube.storage`).
CLAIMS = frozenset({"persistentVolumeClaim", "ephemeral"})
# The label that names a pod's gang, and the annotation with the gang's number of pods.
GANG, GANG_SIZE = "kant.io/gang", "kant.io/gang-size"
DEFAULT_ACCOUNT = "default"

_spec = msgspec.json.Decoder(PodSpec)


class _SchedulingGroup(Struct, rename="camel"):
    pod_group_name: str = ""


class _Variable(Struct):
    name: str = ""


def is_plain(raw: KubePod) -> bool:
    """Whether the pod waits for a place and was not made by Kant."""
    waits = not raw.spec.node_name and raw.status.phase not in ("Succeeded", "Failed")
    of = raw.metadata.name, raw.metadata.labels
    return waits and not (is_made(*of) or is_stand_in(*of))


def plain_pod(raw: KubePod, created_at: float) -> PlainPod:
    """Read a pod. Never raises: what cannot be read counts as not honoured."""
    spec = raw.spec
    of_spec = _OfSpec()
    try:
        pod_rules.says(raw)
        names_of_claims(raw)
        names_of_device_claims(raw)
        of_spec = _of_spec(encode(msgspec.structs.replace(spec, volumes=LATER, node_name="")))
        unhonoured = (
            *_labels(raw.metadata.labels),
            *of_spec.older_group,
            *_volumes(spec),
            *of_spec.resources,
        )
    except ValueError as wrong:
        unhonoured = (Unhonoured("spec", f"Kant cannot read it: {storable(str(wrong))}."),)
    account = spec.service_account_name
    return PlainPod(
        nodes=of_spec.nodes,
        image=storable(spec.containers[0].image if spec.containers else ""),
        command=of_spec.command,
        preempts=spec.preemption_policy != "Never",
        gates=tuple(gate.name for gate in spec.scheduling_gates),
        created_at=created_at,
        unhonoured=unhonoured,
        env=of_spec.env,
        service_account="" if account == DEFAULT_ACCOUNT else account,
        owner=_owner(raw.metadata.owner_references),
        scheduling_group=of_spec.group,
        extended=of_spec.extended,
    )


class _OfSpec(NamedTuple):
    """What a pod's spec says, without volumes: each pod may have its own one for its token."""

    nodes: NodeRules = ANY_NODE
    command: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    group: str = ""
    extended: ExtendedAsks = NOTHING
    older_group: tuple[Unhonoured, ...] = ()
    resources: tuple[Unhonoured, ...] = ()


@lru_cache(maxsize=1024)
def _of_spec(text: bytes) -> _OfSpec:
    """Read a spec given as JSON. Raises ValueError.

    The result is cached, as many pods are made from one template.
    """
    spec = _spec.decode(text)
    main = spec.containers[0] if spec.containers else Container()
    command = [*decoded(main.command, list[str], []), *decoded(main.args, list[str], [])]
    group = decoded(spec.scheduling_group, _SchedulingGroup, _SchedulingGroup())
    return _OfSpec(
        nodes=rules_of(spec),
        command=tuple(map(storable, command)),
        env=_env(spec),
        group=group.pod_group_name,
        extended=extended_asks(spec),
        older_group=tuple(_older_group(spec)),
        resources=tuple(_resources(spec)),
    )


def _env(spec: PodSpec) -> tuple[str, ...]:
    """Return the variable names of all containers, each once."""
    containers = (*spec.init_containers, *spec.containers)
    found = (decoded(each.env, list[_Variable], []) for each in containers)
    return tuple(dict.fromkeys(storable(v.name) for variables in found for v in variables))


def _labels(labels: Mapping[str, str]) -> list[Unhonoured]:
    remedy = "Only Kant sets it, on pods that it creates; remove it."
    own = IDENTITY | {STANDS_IN_FOR}
    return [Unhonoured(f"metadata.labels[{n}]", remedy) for n in sorted(own & labels.keys())]


def _older_group(spec: PodSpec) -> list[Unhonoured]:
    """Refuse the field of Kubernetes 1.35, whose shape has changed since."""
    if bytes(spec.workload_ref) in (b"", b"null"):
        return []
    remedy = (
        f"Kant does not support it; name the gang with the label {GANG}, and give the number of "
        f"its pods with the annotation {GANG_SIZE}."
    )
    return [Unhonoured("spec.workloadRef", remedy)]


def _owner(owners: Sequence[OwnerReference]) -> Reference | None:
    """Return the object that made the pod."""
    for owner in owners:
        if owner.controller:
            return Reference(owner.api_version, owner.kind, owner.name, owner.uid)
    return None


def _volumes(spec: PodSpec) -> list[Unhonoured]:
    remedy = "Kant does not know which nodes can mount it; use a volume claim."
    return [
        Unhonoured(f"spec.volumes[{index}].{name}", remedy)
        for index, volume in enumerate(decoded(spec.volumes, list[dict[str, msgspec.Raw]], []))
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
