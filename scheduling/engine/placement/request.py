"""Check a request without looking at any node: one sentence on what is wrong, or nothing."""

from scheduling.engine.cluster.constraints import wrong_rules
from scheduling.engine.types import MILLI, PodSetSpec

HYPER_NODE = "hyper-node"
HYPER = -1  # the level number of hyper-nodes, which are outside the numbered levels
MAX_AMOUNT = 1 << 52


def level_number(name: str, levels: tuple[str, ...]) -> int:
    """Return the number of a level, 0 = narrowest, or HYPER; raise ValueError if it is unknown."""
    return HYPER if name == HYPER_NODE else levels.index(name)


def shares_leaves(s: PodSetSpec) -> bool:
    """Whether slices in different hyper-nodes may still compete for the places in one leaf.

    A leaf with a pod limit may extend over several hyper-nodes.
    """
    return s.required_level == HYPER_NODE and s.slice_size > 0 and s.max_per_leaf is not None


def misconfigured(
    pod_sets: tuple[PodSetSpec, ...],
    job_levels: tuple[str, str],
    strategy: str,
    known: tuple[str, ...],
    levels: tuple[str, ...],
) -> str:
    """Return why a job can never be placed as it is written; "" if nothing is wrong.

    `job_levels`: the job's required and preferred level. `known`: the names of the placement
    strategies. `levels`: the topology levels of the cluster.
    """
    if strategy not in known:
        return f"placement strategy {strategy!r} does not exist; choose one of {', '.join(known)}"
    if not pod_sets:
        return "the job has no pod set; declare at least one"
    wrong = _unknown_level("required_level", job_levels[0], levels)
    wrong = wrong or _unknown_level("preferred_level", job_levels[1], levels)
    if wrong:
        return wrong
    for pod_set in pod_sets:
        wrong = _wrong_amounts(pod_set) or _wrong_levels(pod_set, levels)
        wrong = wrong or wrong_rules(pod_set.nodes)
        if wrong:
            return f"pod set {pod_set.name!r}: {wrong}"
    return ""


def _wrong_amounts(s: PodSetSpec) -> str:
    if s.count < 1:
        return f"count is {s.count}; ask for at least one pod"
    if min(s.gpus, s.gpu_memory_mib, s.cpu_milli, s.memory_mib, s.nics) < 0:
        return "an amount is negative; amounts are zero or more"
    if max(s.count, s.gpus, s.gpu_memory_mib, s.cpu_milli, s.memory_mib, s.nics) > MAX_AMOUNT:
        return "an amount is larger than any cluster; correct it"
    if any(not 0 <= amount <= MAX_AMOUNT for amount in s.extended.values()):
        return "an extended amount is negative or larger than any node; correct it"
    if not (s.gpus or s.gpu_memory_mib or s.cpu_milli or s.memory_mib or any(s.extended.values())):
        return "asks for no GPU, CPU or memory; ask for something"
    if s.nics and not s.gpus:
        return "asks for NICs, which come with GPUs; ask for none, or for a GPU"
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


def _wrong_levels(s: PodSetSpec, levels: tuple[str, ...]) -> str:
    if not (s.required_level or s.preferred_level or s.balance_level or s.slice_size):
        return ""
    if s.slice_size and (s.slice_size < 1 or s.count % s.slice_size):
        return f"slice_size is {s.slice_size}; it has to divide count ({s.count})"
    if s.slice_size and s.min_count is not None and s.min_count % s.slice_size:
        return f"slice_size is {s.slice_size}; it has to divide min_count ({s.min_count})"
    if s.slice_size and not s.required_level:
        return "slice_size without required_level; name the level a slice has to stay inside"
    return (
        _unknown_level("required_level", s.required_level, levels)
        or _unknown_level("preferred_level", s.preferred_level, levels)
        or _unknown_level("balance_level", s.balance_level, levels)
    )


def _unknown_level(name: str, level: str, levels: tuple[str, ...]) -> str:
    if not level or level == HYPER_NODE or level in levels:
        return ""
    known = ", ".join((*levels, HYPER_NODE))
    return f"{name} {level!r} does not exist; this cluster has {known}"
