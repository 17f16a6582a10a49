"""Group-level preselection: how many pods each topology group gets (paper 3.3.5 and 3.4.2).

Pure functions on capacities: `pods[g]` is the number of pods that group g has room for now.
"""

import numpy as np

from scheduling.engine.cluster.index_layout import Ints


def tightest(pods: Ints, count: int) -> int:
    """Return the first group that holds `count` pods with the least room to spare; -1 if none."""
    enough = np.flatnonzero(pods >= count)
    if not enough.size:
        return -1
    return int(enough[pods[enough].argmin()])


def fewest(pods: Ints, count: int) -> list[tuple[int, int]]:
    """Divide `count` pods over the fewest groups; return (group, pods) in group order.

    It fills the largest groups until the rest fits into one, and takes the tightest such group. No
    choice uses fewer groups. The caller must ensure that all groups together hold `count` pods.
    """
    groups = np.flatnonzero(pods)
    groups = groups[np.argsort(-pods[groups], kind="stable")]
    chosen: list[tuple[int, int]] = []
    left = count
    for at, group in enumerate(groups.tolist()):
        if pods[group] >= left:
            rest = np.sort(groups[at:])
            chosen.append((int(rest[tightest(pods[rest], left)]), left))
            break
        chosen.append((group, int(pods[group])))
        left -= int(pods[group])
    return sorted(chosen)


def balanced(pods: Ints, count: int) -> list[tuple[int, int]]:
    """Divide `count` pods over all groups as evenly as they fit; return (group, pods) in order.

    If the division leaves a remainder, the first groups get one pod more.
    """
    given = np.zeros_like(pods)
    left = count
    while left:
        room = np.flatnonzero(pods > given)
        if not room.size:
            break
        each = left // room.size
        if not each:
            given[room[:left]] += 1
            break
        step = np.minimum(pods[room] - given[room], each)
        given[room] += step
        left -= int(step.sum())
    return [(int(group), int(given[group])) for group in np.flatnonzero(given)]
