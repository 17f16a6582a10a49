"""What a kubelet checks again before it runs a pod (pkg/kubelet/lifecycle/predicate.go).

Like a real kubelet, this one does not check NoSchedule taints, cordons, or affinity between pods.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduling.simcluster.objects.quantities import Requests, is_extended, pod_requests

HostPort = tuple[str, str, int]  # address, protocol, number
ANY_ADDRESS = "0.0.0.0"

# Same comparisons as the scheduler's node affinity; Gt and Lt compare integers.
_OPERATORS: dict[str, Callable[[str | None, list[str]], bool]] = {
    "In": lambda have, values: have in values,
    "NotIn": lambda have, values: have not in values,
    "Exists": lambda have, _: have is not None,
    "DoesNotExist": lambda have, _: have is None,
    "Gt": lambda have, values: _integer(have) is not None and _integer(have) > int(values[0]),  # type: ignore[operator]
    "Lt": lambda have, values: _integer(have) is not None and _integer(have) < int(values[0]),  # type: ignore[operator]
}


def _integer(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


@dataclass(frozen=True)
class Rejection:
    """Why a kubelet fails a pod: the pod's status.reason and message."""

    reason: str
    message: str


@dataclass
class KubeletView:
    """What the kubelet of one node knows: its node object, and what its running pods use."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[dict[str, Any], ...] = ()
    allocatable: Requests = field(default_factory=dict)
    used: Requests = field(default_factory=dict)
    host_ports: set[HostPort] = field(default_factory=set)


def admit(spec: Mapping[str, Any], requests: Requests, node: KubeletView) -> Rejection | None:
    """Return None if the pod may run, otherwise the first failing check, in the kubelet's order."""
    return (
        _check_node_name(spec, node)
        or _check_affinity(spec, node)
        or _check_ports(spec, node)
        or _check_resources(requests, node)
        or _check_taints(spec, node)
    )


def _check_node_name(spec: Mapping[str, Any], node: KubeletView) -> Rejection | None:
    if spec["nodeName"] == node.name:
        return None
    return _failed("NodeName", "node(s) didn't match the requested node name")


def _failed(reason: str, why: str) -> Rejection:
    return Rejection(reason, f"Predicate {reason} failed: {why}")


def known_requests(pod: Mapping[str, Any], allocatable: Requests) -> Requests:
    """Return the pod's requests that count on the node.

    Without what a claim provides, and without extended resources that the node does not know: a
    kubelet drops those and runs the pod without them (`removeMissingExtendedResources`).
    """
    by_claim = pod["status"].get("extendedResourceClaimStatus") or {}
    had = {each["resourceName"] for each in by_claim.get("requestMappings") or ()}
    requests = pod_requests(pod["spec"])
    known = {r: v for r, v in requests.items() if r in allocatable or not is_extended(r)}
    return {r: v for r, v in known.items() if r not in had}


def _check_resources(requests: Requests, node: KubeletView) -> Rejection | None:
    for resource, asked in {"pods": 1, **requests}.items():
        capacity = node.allocatable.get(resource)
        used, capacity = node.used.get(resource, 0), capacity or 0
        if asked and asked > capacity - used:
            return Rejection(
                f"OutOf{resource}",
                f"Node didn't have enough resource: {resource}, requested: {asked}, "
                f"used: {used}, capacity: {capacity}",
            )
    return None


def _check_affinity(spec: Mapping[str, Any], node: KubeletView) -> Rejection | None:
    selector = spec.get("nodeSelector") or {}
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    good = all(node.labels.get(k) == v for k, v in selector.items())
    if good and required:
        good = any(term_matches(t, node) for t in required["nodeSelectorTerms"])
    if good:
        return None
    return _failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")


def term_matches(term: Mapping[str, Any], node: KubeletView) -> bool:
    """Whether the node meets a term of a node selector."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(_matches(e, node.labels.get(e["key"])) for e in expressions) and all(
        f["key"] == "metadata.name" and _matches(f, node.name) for f in fields
    )


def _matches(requirement: Mapping[str, Any], have: str | None) -> bool:
    operator = _OPERATORS.get(requirement["operator"])
    return operator is not None and operator(have, requirement.get("values") or [])


def host_ports(spec: Mapping[str, Any]) -> set[HostPort]:
    """Return the host ports of the containers that run as long as the pod."""
    sidecars = (c for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always")
    return {
        (port.get("hostIP") or ANY_ADDRESS, port.get("protocol") or "TCP", port["hostPort"])
        for container in (*(spec.get("containers") or ()), *sidecars)
        for port in container.get("ports") or ()
        if port.get("hostPort")
    }


def _check_ports(spec: Mapping[str, Any], node: KubeletView) -> Rejection | None:
    for address, *port in host_ports(spec) if node.host_ports else ():
        for other, *taken in node.host_ports:
            if port == taken and (address == other or ANY_ADDRESS in (address, other)):
                why = "node(s) didn't have free ports for the requested pod ports"
                return _failed("NodePorts", why)
    return None


def _check_taints(spec: Mapping[str, Any], node: KubeletView) -> Rejection | None:
    for taint in node.taints:
        if taint.get("effect") == "NoExecute" and not tolerated(taint, spec):
            return _failed("TaintToleration", "node(s) had untolerated taint(s)")
    return None


def tolerated(taint: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    return any(True for _ in tolerating(taint, spec))


def tolerating(taint: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Yield the tolerations of a pod that match a taint."""
    for toleration in spec.get("tolerations") or ():
        effect, key = toleration.get("effect"), toleration.get("key")
        if effect and effect != taint.get("effect"):
            continue
        if key and key != taint["key"]:
            continue
        exists = toleration.get("operator") == "Exists"
        if exists or (key and (toleration.get("value") or "") == (taint.get("value") or "")):
            yield toleration
