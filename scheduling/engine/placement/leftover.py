"""What the free part of a partly used GPU is worth to shares that arrive later.

Linear programming packs the typical shares (a size in GPU-milli and its popularity) into whole
GPUs, as in the cutting-stock problem: columns are the ways to fill one GPU, and the dual price of
a size is the part of a GPU that one more pod of this size costs (P. C. Gilmore, R. E. Gomory, "A
linear programming approach to the cutting-stock problem", Operations Research 9, 1961). A free
part is worth as much as the most valuable set of sizes that fits into it.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from scheduling.engine.types import MILLI

Floats = NDArray[np.float64]
MAX_SIZES = 64  # use only the most popular sizes; more would only slow the solver down
_TINY = 1e-9


def leftover_table(demand: Mapping[int, float]) -> Floats:
    """Return the expected waste of a GPU with r GPU-milli free, for r = 0…1000, in GPU-milli.

    The waste is r minus what r saves: the GPUs that need not be opened for the shares that fit into
    r. It is negative where shares fit well that would waste much of a whole GPU. A wholly free GPU
    (r = 1000) wastes nothing, because whole-GPU pods use it. `demand`: popularity of each size,
    0 < size < 1000.
    """
    sizes = sorted(sorted(demand, key=lambda s: (-demand[s], s))[:MAX_SIZES])
    worth = np.zeros(MILLI + 1)
    if sizes:
        worth = _worth(sizes, _prices(sizes, [demand[s] for s in sizes]))[0]
        worth /= max(1.0, worth[MILLI])
    waste = np.arange(MILLI + 1) - MILLI * worth
    waste[MILLI] = 0.0
    return waste


def _prices(sizes: list[int], demand: list[float]) -> Floats:
    """Return the dual price of each size, in GPUs per pod, by column generation.

    A limit on the steps stops degenerate demands from cycling. The prices are usable after any
    step, because the caller scales them so that a GPU is worth at most 1 (Farley's bound).
    """
    n = len(sizes)
    fits = np.array([MILLI // s for s in sizes], float)
    inverse = np.diag(1 / fits)  # of the basis: each GPU is filled by one size alone
    amount = np.array(demand) / sum(demand) / fits
    cost = np.ones(n)
    for _ in range(40 * n):
        prices: Floats = cost @ inverse
        cheapest = int(np.argmin(prices))
        if prices[cheapest] < -_TINY:  # packing more of this size than requested would help
            column, price = np.zeros(n), 0.0
            column[cheapest] = -1.0
        else:
            column, price = _best_filling(sizes, prices), 1.0
            if column @ prices <= 1 + _TINY:
                break
        change = inverse @ column
        ratio = np.full(n, np.inf)
        np.divide(amount, change, out=ratio, where=change > _TINY)
        leaves = int(np.argmin(ratio))
        step = ratio[leaves]
        amount = np.maximum(amount - step * change, 0.0)
        amount[leaves] = step
        cost[leaves] = price
        inverse[leaves] /= change[leaves]
        rest = np.arange(n) != leaves
        inverse[rest] -= np.outer(change[rest], inverse[leaves])
    return np.maximum(cost @ inverse, 0.0)


def _best_filling(sizes: list[int], prices: Floats) -> Floats:
    """Return how many of each size make the most valuable filling of one GPU."""
    last = _worth(sizes, prices)[1]
    filling, left = np.zeros(len(sizes)), MILLI
    while last[left] >= 0:
        filling[last[left]] += 1
        left -= sizes[last[left]]
    return filling


def _worth(sizes: list[int], prices: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Return the value of the best set of sizes that fits into r = 0…1000, and one of its sizes."""
    worth = np.zeros(MILLI + 1)
    last = np.full(MILLI + 1, -1)
    for number, (size, price) in enumerate(zip(sizes, prices.tolist(), strict=True)):
        if price <= _TINY:
            continue
        for _ in range(MILLI // size):
            with_one_more = worth[:-size] + price
            better = with_one_more > worth[size:] + _TINY
            if not better.any():
                break
            worth[size:][better] = with_one_more[better]
            last[size:][better] = number
    return worth, last
