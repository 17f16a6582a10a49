"""Group-level preselection: how many pods each topology group gets (paper 3.3.5 and 3.4.2).

Pure functions on capacities: `pods[g]` is the number of pods that group g holds now.
"""

import numpy as np

from scheduling.engine.cluster.index_layout import Ints


def tightest(pods: Ints, count: int) -> int:
    """The group that holds `count` pods and fewest more, the first of them; -1 if none does."""
    enough = np.flatnonzero(pods >= count)
    if not enough.size:
        return -1
    return int(enough[pods[enough].argmin()])


def fewest(pods: Ints, count: int) -> list[tuple[int, int]]:
    """(group, pods) in group order, using the fewest groups that hold `count` pods together.

    The largest groups are filled until the rest fits into one; that one is the tightest. No
    choice uses fewer groups. The caller has checked that the sum suffices.
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
    """(group, pods) in group order: all groups as equally filled as their capacity allows, one
    more in the first groups where it does not divide."""
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
