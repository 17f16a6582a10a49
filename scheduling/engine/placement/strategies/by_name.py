"""The placement strategies by name. A policy maps job kinds to them; a job may ask for one."""

from collections.abc import Callable
from typing import NamedTuple

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.placement.strategies import binpack, ebinpack, gradient, kube_default, spread
from scheduling.engine.placement.view import PoolView
from scheduling.engine.types import PodSetSpec


class Strategy(NamedTuple):
    """A placement strategy.

    `pick`: chooses the next node. `packs`: gangs go to the fewest leaf groups, best fit first.
    `zones`: the inference zone is left to small inference pods while there is room elsewhere.
    `spreads`: pods go where most is free, so they must not be moved together later. `judges`: nodes
    are judged by fragmentation.py, over all GPU models that a pod accepts at once.
    """

    name: str
    pick: Callable[[PoolView, int], tuple[int, int]]
    packs: bool = False
    zones: bool = False
    spreads: bool = False
    judges: bool = False


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy("binpack", binpack.pick),
        Strategy("e-binpack", ebinpack.pick, packs=True, zones=True),
        Strategy("spread", spread.pick, spreads=True),
        # E-Spread is E-Binpack, but for small inference pods in the zone (`fill` in pods.py).
        Strategy("e-spread", ebinpack.pick, packs=True, zones=True),
        Strategy("native", kube_default.pick, spreads=True),
        Strategy("fragmentation", gradient.pick, judges=True),
    )
}


def compares(state: ClusterState, how: Strategy, pod_set: PodSetSpec) -> bool:
    """Whether to compare the pools that the pods accept, instead of trying them in order.

    `fragmentation` always compares them. A strategy that packs does so once shares of GPUs are in
    use, for pods that accept any GPU model.
    """
    if how.judges:
        return True
    return how.packs and state.mixed and not pod_set.gpu_models
