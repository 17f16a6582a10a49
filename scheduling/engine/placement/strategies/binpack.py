"""Binpack: the fullest node that fits (paper 3.3.3)."""

from scheduling.engine.placement.view import PoolView


def pick(view: PoolView, left: int) -> tuple[int, int]:
    """Return (node number or -1, pods to place there).

    The fullest node has the fewest free GPUs; ties go to the first in topology order
    (index_layout.py). A share of a GPU goes to the node whose largest free part of a used GPU
    holds it most tightly; if none holds it, it opens a free GPU of the fullest node.
    """
    if view.share:
        number = view.tightest_share()
        return (number if number >= 0 else view.fullest(1)), 1
    # Each further pod makes the fullest node fuller, so it stays the choice as long as pods fit.
    return view.fullest(view.gpus), left
