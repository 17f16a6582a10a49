"""Native placement: what a default Kubernetes scheduler with gangs does; the baseline of studies.

NodeResourcesFit with LeastAllocated scores the emptiest node highest, pod by pod. It knows neither
the job's other pods nor leaf groups nor zones. Here, the node with the most free GPUs wins; ties go
to the first in topology order (kube-scheduler picks one at random).
"""

from scheduling.engine.placement.view import PoolView


def pick(view: PoolView, left: int) -> tuple[int, int]:  # noqa: ARG001 - one signature for all
    """Return (node number or -1, pods to place there)."""
    return view.emptiest(), 1
