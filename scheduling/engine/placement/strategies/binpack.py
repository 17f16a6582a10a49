"""Binpack: the fullest node that fits (paper 3.3.3)."""

from scheduling.engine.placement.view import PoolView


def pick(view: PoolView, left: int) -> tuple[int, int]:
    """(node number or -1, pods to place there).

    The fullest node is the one with the fewest free GPUs; the first of them in topology order
    (index_layout.py). A share of a GPU goes to the node whose largest partly used GPU is the
    smallest that holds it, and opens a free GPU of the fullest node only when none does.
    """
    if view.share:
        number = view.tightest_share()
        return (number if number >= 0 else view.fullest(1)), 1
    # With one more pod the fullest node is fuller still: it stays the choice while it fits.
    return view.fullest(view.gpus), left
