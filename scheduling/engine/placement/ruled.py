"""Place pods with rules about other pods, one by one: each may change where the next may go."""

from collections.abc import Iterator

import numpy as np

from scheduling.engine.placement.plan import JobShape
from scheduling.engine.placement.pod_rules import (
    Around,
    Nodes,
    has_wishes,
    liking,
    mask_of_nodes,
    may_be,
)
from scheduling.engine.placement.pods import fill
from scheduling.engine.placement.view import PoolView
from scheduling.engine.types import JobRequest


def fill_by_rules(
    view: PoolView,
    index: int,
    job: JobRequest,
    plan: JobShape,
    want: int,
    least: int,
    around: Around,
) -> int:
    """Place up to `want` pods, at least `least` or none; return how many, like `fill`.

    The placed pods are added to `around`.
    """
    rules = view.pod_set.rules
    assert rules is not None
    slots, base, done = view.layout.slot_array, view.base, 0
    while done < want:
        may = may_be(around, view.pod_set)
        for nodes in _best_first(view, base, may, around):
            among = base & mask_of_nodes(nodes, slots)
            view.base = view.mask = among
            if not among or not fill(view, index, job, plan, 1, 0):
                continue
            base &= ~(among & ~view.base)  # keep the nodes closed that placing this pod closed
            done += 1
            around.beside.append((view.layout.slots[view.taken[-1][0]], rules))
            break
        else:
            break
    if done < least:
        view.undo()
        return 0
    return done


def _best_first(view: PoolView, base: int, may: Nodes, around: Around) -> Iterator[Nodes]:
    """Yield the nodes for one pod in groups of equal preference, the best first."""
    rules = view.pod_set.rules
    if rules is None or not has_wishes(rules):
        yield may
        return
    view.base = view.mask = base & mask_of_nodes(may, view.layout.slot_array)
    numbers = view.capacity()[0]
    holds = np.zeros(around.size, np.bool_)
    holds[view.layout.slot_array[numbers]] = True
    liked = liking(around, view.pod_set, holds)
    for score in np.unique(liked[holds])[::-1].tolist():
        yield holds & (liked == score)
