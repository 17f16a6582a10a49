"""E-Binpack: pack replicas of a job together and small jobs together, and keep leaf groups whole.

Source: paper 3.3.3, node level and LeafGroup level.
"""

from scheduling.engine.placement.strategies.gradient import best
from scheduling.engine.placement.view import PoolView


def pick(view: PoolView, left: int) -> tuple[int, int]:
    """Return (node number or -1, pods to place there).

    First come the nodes that already hold pods of the job, fullest first. Then comes a node that
    takes as many of the `left` pods at once as any node can. Of these, if the job declares its run
    time, it is the partly used node whose partly used time its pods extend least (lifetimes.py).
    If not, or if none is partly used, it is the fullest; among equally full nodes, one in the leaf
    group with the most GPUs of small pods (less than a node). Once shares of GPUs are in use, a
    single pod, or a pod that requests a share, follows the rule of `fragmentation` instead.
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
