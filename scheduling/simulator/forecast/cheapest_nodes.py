"""Which nodes cost least to take from the jobs on them."""

from collections.abc import Iterable, Mapping, Set
from typing import TypeVar

J = TypeVar("J")  # the key of a job


def cheapest_nodes(
    among: Iterable[str],
    count: int,
    on: Mapping[str, Set[J]],
    cost: Mapping[J, float],
    used: Mapping[str, int],
) -> tuple[str, ...]:
    """Return `count` of the nodes, or all if there are fewer.

    They are taken one after the other: the cheapest given those taken already; of equals the
    emptiest, then the first by name. `on`: node -> its jobs. `cost`: what each job loses if any of
    its nodes is taken, counted once. `used`: GPU-milli by node.
    """
    left: dict[str, float] = {}
    nodes_of: dict[J, list[str]] = {}
    for name in among:
        jobs = on.get(name, frozenset())
        left[name] = sum(cost[job] for job in jobs)
        for job in jobs:
            nodes_of.setdefault(job, []).append(name)
    taken: list[str] = []
    lost: set[J] = set()
    while left and len(taken) < count:
        name = min(left, key=lambda n: (left[n], used.get(n, 0), n))
        del left[name]
        taken.append(name)
        for job in on.get(name, frozenset()) - lost:
            lost.add(job)
            for other in nodes_of[job]:
                if other in left:
                    left[other] -= cost[job]
    return tuple(taken)
