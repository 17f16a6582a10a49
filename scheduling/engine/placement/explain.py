"""Why a job could not be placed: the dominating reason and its numbers, only when asked for."""

from scheduling.engine.cluster import ClusterState
from scheduling.engine.constraints import admits
from scheduling.engine.placement.fit import devices_on, rest_fits, share_milli
from scheduling.engine.placement.place import PlacementFailure
from scheduling.engine.types import MILLI, JobRequest, Node, PodSet
from scheduling.engine.verdict import Reason, Verdict


def explain(state: ClusterState, job: JobRequest, failure: PlacementFailure) -> Verdict:
    """The verdict on a job that `place_job` could not place on this state."""
    if failure.misconfigured:
        return Verdict(
            Reason.MISCONFIGURED,
            failure.misconfigured,
            remedies=("correct the job and submit it again",),
        )
    pod_set = job.pod_sets[failure.pod_set]
    models = pod_set.gpu_models or ("", *state.gpu_models())
    named = " or ".join(model for model in models if model) or "any model"
    pool = [
        (slot, node)
        for slot, node in enumerate(state.facts)
        if node is not None and node.gpu_model in models
    ]
    if not pool:
        return Verdict(
            Reason.NO_MATCHING_GPU_TYPE,
            f"no node of this cluster has {named}",
            {"models": named},
            ("choose a GPU type that the cluster has",),
        )
    least = pod_set.count if pod_set.min_count is None else pod_set.min_count
    pods = least if job.gang else 1
    admitted = [(slot, node) for slot, node in pool if admits(node, pod_set)]
    most = sum(_pods_when_empty(node, pod_set) for _, node in admitted)
    asked = pods * pod_set.milli_per_pod
    if most < pods:
        return Verdict(
            Reason.EXCEEDS_CAPACITY,
            f"{pods} pods of {pod_set.gpus} GPUs are asked for; the nodes that admit them hold "
            f"{most} even when empty",
            {"asked_pods": pods, "possible_pods": most, "admitting_nodes": len(admitted)},
            ("ask for fewer or smaller pods", "relax selectors or add tolerations"),
        )
    usable = [(s, n) for s, n in admitted if state.usable[s] and n.name not in failure.avoid]
    free = sum(state.free[s] * MILLI + sum(state.partial[s].values()) for s, _ in usable)
    evidence: dict[str, int | float | str] = {
        "asked_milli": asked,
        "free_milli": free,
        "usable_nodes": len(usable),
    }
    if free < asked:
        return Verdict(
            Reason.INSUFFICIENT_GPUS,
            f"{asked / MILLI:g} {named} GPUs are asked for at once, {free / MILLI:g} are free",
            evidence,
            ("wait until jobs end", "ask for fewer GPUs"),
        )
    starved = [
        s
        for s, n in usable
        if devices_on(state, s, pod_set, share_milli(n, pod_set)) is not None
        and not rest_fits(state, s, pod_set)
    ]
    if starved:
        evidence["starved_nodes"] = len(starved)
        return Verdict(
            Reason.INSUFFICIENT_CPU_OR_MEMORY,
            f"{len(starved)} nodes have the GPUs but not the CPU, memory, NICs or other resources",
            evidence,
            ("ask for less CPU or memory per pod",),
        )
    return Verdict(
        Reason.FRAGMENTED_CAPACITY,
        f"{free / MILLI:g} {named} GPUs are free, but not in the groups the job needs",
        evidence,
        ("wait until jobs end", "ask for smaller pods or a wider topology level"),
    )


def _pods_when_empty(node: Node, pod_set: PodSet) -> int:
    """Pods of this set that the node would hold with nothing else on it."""
    if not node.schedulable:
        return 0
    milli = share_milli(node, pod_set)
    limits = [node.max_pods]
    healthy = sum(device.healthy for device in node.devices)
    if pod_set.gpus:
        limits.append(
            healthy // pod_set.gpus
            if milli == MILLI
            else healthy * (MILLI // milli)
            if milli
            else 0
        )
    if pod_set.cpu_milli:
        limits.append(node.cpu_milli // pod_set.cpu_milli)
    if pod_set.memory_mib:
        limits.append(node.memory_mib // pod_set.memory_mib)
    if pod_set.max_per_node:
        limits.append(pod_set.max_per_node)
    return min(limits)
