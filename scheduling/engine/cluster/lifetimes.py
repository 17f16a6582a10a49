"""Estimate how long a node will stay partly used, to choose the best one for a small pod to join.

A node counts as fragmented from its first small pod (smaller than the node) to its last, except
while pods fill it. A pod that outlives the others on its node lengthens that time. A pod that fills
the node shortens it by the time for which all of them stay. Declared run times are only guesses:
jobs use widely different shares of them, and a job that has run for long tends to run on for long.
So the remaining time of each pod is modelled as exponential, with a mean that depends on its
declared run time and its age.
"""

from collections.abc import Sequence
from math import exp, fsum, inf
from typing import Final, NamedTuple

# The median job uses a third of its declared time; jobs that declare long times use less.
USED_SHARE: Final = 0.25
SHORTEST_S: Final = 60.0
# Expected run time of a pod that declares none, when it starts.
UNDECLARED_S: Final = 900.0
# Penalty in seconds for each GPU that would stay free on the node: of two otherwise equal nodes,
# other pods fill the fuller one sooner.
LEFT_FREE_S: Final = 300.0


class NodeOutlook(NamedTuple):
    """When the pods on a node are expected to end.

    `last`: expected seconds until the last end. `rate`: rate of the next end, per second. Both hold
    until the time `until`.
    """

    last: float
    rate: float
    until: float


def mean_left(declared_s: float | None, age_s: float) -> float:
    """Return the expected seconds that a pod of this age still runs.

    Ages are rounded down to powers of two of a minute, so that an outlook holds for a while. An
    overdue pod may end at any moment.
    """
    return _left(declared_s, age_s)[0]


def outlook(pods: Sequence[tuple[float, float | None]], now: float) -> NodeOutlook:
    """Return the outlook of a node, from the start and declared run time of each pod."""
    if not pods:
        return NodeOutlook(0.0, 0.0, inf)
    seconds, until = [], inf
    for since, declared_s in pods:
        left, changes_at = _left(declared_s, now - since)
        seconds.append(left)
        if since + changes_at < until:
            until = since + changes_at
    return NodeOutlook(max(seconds), fsum([1 / left for left in seconds]), until)


def growth(mean_s: float, node: NodeOutlook, left_free: int) -> float:
    """Return by how many seconds the node's partly used time is expected to grow by another pod.

    `mean_s`: expected run time of the pod. `left_free`: GPUs that stay free. Negative if the pod
    fills the node.
    """
    longer = mean_s * exp(-node.last / mean_s)
    if left_free:
        return longer + LEFT_FREE_S * left_free
    return longer - 1 / (1 / mean_s + node.rate)


def _left(declared_s: float | None, age_s: float) -> tuple[float, float]:
    """Return the expected remaining seconds of a pod, and the age at which that changes next."""
    age, doubled = 0.0, 60.0
    if age_s >= 60.0:
        # The largest power of two of a minute that does not exceed the age.
        age = 60.0 * (1 << int(age_s / 60.0).bit_length() - 1)
        doubled = 2 * age
    if declared_s is None:
        return UNDECLARED_S + age / 2, doubled
    if age_s >= declared_s:
        return SHORTEST_S, doubled
    left = USED_SHARE * declared_s + age / 2
    if left > declared_s - age:
        left = declared_s - age
    return left if left > SHORTEST_S else SHORTEST_S, min(doubled, declared_s)
