"""Init containers, sidecars, security contexts and probes of Kant's own pods, as Kubernetes fields.

The functions take what documents of jobs say (`job_fields.containers`), without unset fields.
"""

from collections.abc import Mapping, Sequence
from typing import Any

# Field of a document -> field of the pod's or the container's security context.
OF_POD = {
    "run_as_user": "runAsUser",
    "run_as_group": "runAsGroup",
    "run_as_non_root": "runAsNonRoot",
    "fs_group": "fsGroup",
    "supplemental_groups": "supplementalGroups",
}
OF_CONTAINER = {
    "read_only_root_filesystem": "readOnlyRootFilesystem",
    "allow_privilege_escalation": "allowPrivilegeEscalation",
    "privileged": "privileged",
}
OF_PROBE = {
    "delay_s": "initialDelaySeconds",
    "period_s": "periodSeconds",
    "timeout_s": "timeoutSeconds",
    "failures": "failureThreshold",
}


def pod_rights(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the security context of the pod; {} = nothing is set."""
    found = {name: given[field] for field, name in OF_POD.items() if field in given}
    if "seccomp" in given:
        found["seccompProfile"] = {"type": given["seccomp"]}
    return found


def container_rights(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the security context of each container; {} = nothing is set."""
    found = {name: given[field] for field, name in OF_CONTAINER.items() if field in given}
    capabilities = {
        name: list(given[f"{name}_capabilities"])
        for name in ("add", "drop")
        if f"{name}_capabilities" in given
    }
    return {**found, "capabilities": capabilities} if capabilities else found


def probes_of(given: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the probes of a container by field name."""
    return {f"{name}Probe": _probe(each) for name, each in given.items()}


def _probe(given: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {name: given[f] for f, name in OF_PROBE.items() if f in given}
    if "command" in given:
        found["exec"] = {"command": list(given["command"])}
    elif "http_path" in given:
        found["httpGet"] = {"path": given["http_path"], "port": given["port"]}
    else:
        found["tcpSocket"] = {"port": given["port"]}
    return found


def extra_container(given: Mapping[str, Any], env: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return an extra container, without volumes and security context, which all share."""
    found: dict[str, Any] = {"name": given["name"], "image": given["image"]}
    if amounts := basic_amounts(given.get("cpu_milli", 0), given.get("memory_mib", 0)):
        found["resources"] = {"requests": amounts}
    if given.get("command"):
        found["command"] = list(given["command"])
    if env:
        found["env"] = list(env)
    return found


def basic_amounts(cpu_milli: int, memory_mib: int) -> dict[str, str]:
    """Return requests of CPU and memory; leave out what is 0."""
    amounts = {"cpu": f"{cpu_milli}m" if cpu_milli else "", "memory": f"{memory_mib}Mi"}
    return {name: text for name, text in amounts.items() if text and text != "0Mi"}
