"""Whether a node may get pods: its conditions, its health monitors, its taints."""

from collections.abc import Mapping

from scheduling.engine.types import Taint
from scheduling.kube.seam import Sourced
from scheduling.kube.translate.objects import KubeNode
from scheduling.kube.translate.quantities import GPU_RESOURCES
from scheduling.kube.translate.texts import seconds_of

SENTINEL = "dgxc.nvidia.com/nvsentinel-state"

# Kant's own pods tolerate these (manifests.py), so they keep none of them away.
TOLERATED = frozenset({"kant.io/managed", *GPU_RESOURCES})
BLOCKING = frozenset({"NoSchedule", "NoExecute"})
# The node controller's taints on a node whose kubelet does not answer.
DEAD = frozenset({"node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"})
SENTINEL_FINE = frozenset({"", "remediation-succeeded"})
# Conditions of the kubelet and of node-problem-detector that forbid new pods while True …
UNFIT = frozenset(
    {
        *("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"),
        *("KernelDeadlock", "ReadonlyFilesystem", "KubeletUnhealthy", "XfsShutdown"),
        *("ContainerRuntimeUnhealthy", "DiskBadBlock", "CperHardwareErrorFatal"),
    }
)
# … and those that only warn.
WORRYING = frozenset(
    {
        *("FrequentKubeletRestart", "FrequentContainerdRestart", "NTPProblem"),
        *("FrequentUnregisterNetDevice", "SysLogsXIDError", "SysLogsSXIDError"),
        "SysLogsGPUFallenOff",
    }
)


def is_schedulable(
    raw: KubeNode, labels: Mapping[str, str], facts: dict[str, Sourced], problems: list[str]
) -> bool:
    """Whether the node may get any pod at all.

    The reason, either way, becomes `facts["health"]`; mere warnings are added to `problems`.
    """
    conditions = {each.type: each for each in raw.status.conditions}
    for each in raw.status.conditions:
        if each.type in WORRYING and each.status == "True":
            problems.append(f"condition {each.type}: {each.message or each.reason}")
    fault = _fault(raw, labels, {name: each.status for name, each in conditions.items()})
    facts["health"] = fault or Sourced("healthy", "status.conditions[Ready]")
    return fault is None


def _fault(
    raw: KubeNode, labels: Mapping[str, str], conditions: Mapping[str, str]
) -> Sourced | None:
    """Say why no pod may come here. The engine checks taints for each pod separately."""
    if raw.metadata.deletion_timestamp:
        return Sourced("being deleted", "metadata.deletionTimestamp")
    if raw.spec.unschedulable:
        return Sourced("cordoned", "spec.unschedulable")
    sentinel = labels.get(SENTINEL, "")
    if sentinel not in SENTINEL_FINE:
        return Sourced(sentinel, SENTINEL)
    if conditions.get("Ready") != "True":
        return Sourced("not ready", "status.conditions[Ready]")
    for name in sorted(UNFIT):
        if conditions.get(name) == "True":
            return Sourced(name, f"status.conditions[{name}]")
    return None


def taints_of(raw: KubeNode) -> dict[Taint, float | None]:
    """Return the taints that keep away pods, even Kant's, that do not tolerate them.

    Values: since when, in seconds since the epoch; None = the taint does not say.
    """
    return {
        Taint(taint.key, taint.value, taint.effect): seconds_of(taint.time_added)
        for taint in raw.spec.taints
        if taint.effect in BLOCKING and taint.key not in TOLERATED
    }
