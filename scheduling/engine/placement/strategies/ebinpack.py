"""E-Binpack: replicas of a job together, small jobs together, whole groups kept whole
(paper 3.3.3, node level and LeafGroup level)."""

from scheduling.engine.placement.strategies.gradient import best
from scheduling.engine.placement.view import PoolView


def pick(view: PoolView, left: int) -> tuple[int, int]:
    """(node number or -1, pods to place there).

    First the nodes that hold pods of the job already, the fullest of them; then a node that takes
    as many of the `left` pods together as any node can. Of these, where the job declares its run
    time, the partly used one that its pods make be partly used least longer (lifetimes.py);
    where it does not, or none is partly used, the fullest and among equally full nodes the one in
    the leaf group that holds most GPUs of small pods (of less than a whole node). Where shares of
    GPUs are in use, a pod that comes alone, or asks for a share, goes by the rule of
    `fragmentation` instead.
    """
    if view.own:
        number = view.tightest_share(view.own) if view.share else -1
        if number < 0:
            number = view.fullest(view.gpus, 1, view.own)
        if number >= 0:
            return number, 1 if view.share else left
    if view.state.mixed and (view.share or left == 1 or not view.gpus):
        number = best(view, opened=True)[0] if view.share else -1
        return (number if number >= 0 else best(view)[0]), 1
    if view.share:
        return view.consolidated(1, 1), 1
    if not view.gpus:
        return view.consolidated(0, 1), left
    for pods in range(min(left, view.pool.top // view.gpus), 0, -1):
        number = view.consolidated(pods * view.gpus, pods)
        if number >= 0:
            return number, pods
    return -1, 0
