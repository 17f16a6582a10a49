"""How long a node will still be partly used: which partly used node a small pod does best to join.

A node counts as fragmented from its first small pod (of less than the node) to its last, except
while pods fill it. A pod that outlives the others of its node lengthens that time; one that fills
the node shortens it by as long as all of them stay. Run times are known to be guesses: jobs use a
widely spread share of what they declare, and one that has run for long goes on for long. So each
pod's end is taken for exponential, with a mean made of what it declared and has already used.
"""

from collections.abc import Sequence
from math import exp, fsum, inf
from typing import Final, NamedTuple

# Jobs use a third of their declared time at the median, and less of a long one.
USED_SHARE: Final = 0.25
SHORTEST_S: Final = 60.0
# Mean of what is left of a pod that declares nothing, when it starts.
UNDECLARED_S: Final = 900.0
# A node counts as worse by so many seconds for each GPU that would still be free on it: of two
# nodes that are alike otherwise, the fuller one is filled sooner by others.
LEFT_FREE_S: Final = 300.0


class NodeOutlook(NamedTuple):
    """What is to come on a node: mean seconds to its `last` end, `rate` of the next end (per
    second); both hold until the instant `until`."""

    last: float
    rate: float
    until: float


def mean_left(declared_s: float | None, age_s: float) -> float:
    """Mean seconds that a pod of this age goes on. The age counts by powers of two of a minute,
    so that an outlook holds for a while; a pod that is overdue may end at any moment."""
    return _left(declared_s, age_s)[0]


def outlook(pods: Sequence[tuple[float, float | None]], now: float) -> NodeOutlook:
    """The outlook of a node whose pods began at these times and declared these run times."""
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
    """Expected seconds by which the node's time of being partly used grows when a pod of mean run
    time `mean_s` joins it and `left_free` GPUs stay free; negative when the pod fills it."""
    longer = mean_s * exp(-node.last / mean_s)
    if left_free:
        return longer + LEFT_FREE_S * left_free
    return longer - 1 / (1 / mean_s + node.rate)


def _left(declared_s: float | None, age_s: float) -> tuple[float, float]:
    """Mean seconds that a pod of this age goes on, and the age at which that changes next."""
    age, doubled = 0.0, 60.0
    if age_s >= 60.0:
        # The largest power of two of a minute that is no more than the age.
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
