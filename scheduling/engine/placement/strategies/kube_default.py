"""Native placement: what a default Kubernetes scheduler with gangs does, the baseline of studies.

NodeResourcesFit with LeastAllocated scores the emptiest node highest, pod by pod, and knows
neither the job's other pods nor leaf groups nor zones. Here: most free GPUs, ties by the first
in topology order (kube-scheduler would draw lots).
"""

from scheduling.engine.placement.view import PoolView


def pick(view: PoolView, left: int) -> tuple[int, int]:  # noqa: ARG001 - one signature for all
    """(node number or -1, pods to place there)."""
    return view.emptiest(), 1
