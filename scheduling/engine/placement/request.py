"""What is wrong with a request before any node is looked at: one sentence, or nothing."""

from scheduling.engine.types import MILLI, JobRequest, PodSet

HYPER_NODE = "hyper-node"


def misconfigured(
    job: JobRequest, strategy: str, known: tuple[str, ...], levels: tuple[str, ...]
) -> str:
    """Why the job can never be placed as it is written; "" when nothing is wrong.

    `known`: names of the placement strategies, `levels`: the topology levels of the cluster.
    """
    if strategy not in known:
        return f"placement strategy {strategy!r} does not exist; choose one of {', '.join(known)}"
    if not job.pod_sets:
        return "the job has no pod set; declare at least one"
    for pod_set in job.pod_sets:
        wrong = _wrong_amounts(pod_set) or _wrong_levels(pod_set, levels)
        if wrong:
            return f"pod set {pod_set.name!r}: {wrong}"
    return ""


def _wrong_amounts(s: PodSet) -> str:
    if s.count < 1:
        return f"count is {s.count}; ask for at least one pod"
    if min(s.gpus, s.gpu_memory_mib, s.cpu_milli, s.memory_mib, s.nics) < 0:
        return "an amount is negative; amounts are zero or more"
    if s.gpus == 0 and s.gpu_memory_mib == 0 and s.cpu_milli == 0 and s.memory_mib == 0:
        return "asks for no GPU, CPU or memory; ask for something"
    if not 1 <= s.gpu_milli <= MILLI:
        return f"gpu_milli is {s.gpu_milli}; a share of one GPU is 1 to {MILLI}"
    if s.gpu_milli < MILLI and s.gpus != 1:
        return (
            f"{s.gpu_milli} milli of {s.gpus} GPUs; a share is of exactly one GPU, "
            "set gpus to 1 or gpu_milli to 1000"
        )
    if s.gpu_memory_mib and (s.gpus != 1 or s.gpu_milli != MILLI):
        return "gpu_memory_mib asks for a share of one GPU; leave gpus at 1 and gpu_milli at 1000"
    if s.min_count is not None and not 1 <= s.min_count <= s.count:
        return f"min_count is {s.min_count}; it is between 1 and count ({s.count})"
    for name, limit in (("max_per_node", s.max_per_node), ("max_per_leaf", s.max_per_leaf)):
        if limit is not None and limit < 1:
            return f"{name} is {limit}; allow at least one pod"
    return ""


def _wrong_levels(s: PodSet, levels: tuple[str, ...]) -> str:
    for name, level in (
        ("required_level", s.required_level),
        ("preferred_level", s.preferred_level),
    ):
        if level and level != HYPER_NODE and level not in levels:
            known = ", ".join((*levels, HYPER_NODE))
            return f"{name} {level!r} does not exist; this cluster has {known}"
    return ""
