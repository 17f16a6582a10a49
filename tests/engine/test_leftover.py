"""Prices of GPU shares: the cutting-stock optimum, checked by linear-programming duality."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.engine.placement.leftover import MAX_SIZES, leftover_table
from tests.cases import examples


def worth(table):
    return (np.arange(1001) - table) / 1000


def fillings(sizes, left=1000, start=0):
    """Return every maximal way to fill one GPU."""
    options = [i for i in range(start, len(sizes)) if sizes[i] <= left]
    if not options:
        yield [0] * len(sizes)
        return
    for i in options:
        for rest in fillings(sizes, left - sizes[i], i):
            yield [n + (j == i) for j, n in enumerate(rest)]


def fewest_gpus(sizes, demand):
    """Solve the linear program over all fillings that serve at least the demand, by its
    vertices."""
    columns = [(filling, 1.0) for filling in sorted({tuple(f) for f in fillings(sizes)})]
    columns += [(tuple(-(i == j) for i in range(len(sizes))), 0.0) for j in range(len(sizes))]
    best = np.inf
    for chosen in combinations(columns, len(sizes)):
        matrix = np.array([c for c, _ in chosen], float).T
        if abs(np.linalg.det(matrix)) < 1e-9:
            continue
        amounts = np.linalg.solve(matrix, demand)
        if (amounts > -1e-9).all():
            best = min(best, amounts @ np.array([cost for _, cost in chosen]))
    return best


@pytest.mark.parametrize(
    ("demand", "gpus"),
    [
        ({500: 10.0}, 5.0),
        ({600: 10.0}, 10.0),
        ({600: 10.0, 400: 10.0}, 10.0),
        ({600: 10.0, 300: 30.0}, 10 + 20 / 3),
        ({333: 3.0}, 1.0),
        ({334: 3.0}, 1.5),
    ],
)
def test_known_optima(demand, gpus):
    table = leftover_table(demand)
    assert sum(n * worth(table)[size] for size, n in demand.items()) == pytest.approx(gpus)


@settings(max_examples=examples(40))
@given(
    st.dictionaries(st.integers(180, 999), st.integers(1, 50), min_size=2, max_size=3),
)
def test_prices_reach_the_optimum_of_all_fillings(demand):
    sizes = sorted(demand)
    amounts = np.array([demand[s] for s in sizes], float)
    price = worth(leftover_table(demand))
    for filling in fillings(sizes):
        assert sum(n * price[s] for n, s in zip(filling, sizes, strict=True)) <= 1 + 1e-6
    assert amounts @ price[sizes] == pytest.approx(fewest_gpus(sizes, amounts))


@settings(max_examples=examples(60))
@given(st.dictionaries(st.integers(1, 999), st.floats(0.001, 100), max_size=30))
def test_tables_are_sane_for_any_demand(demand):
    table = leftover_table(demand)
    assert table.shape == (1001,)
    assert table[0] == 0
    assert table[1000] == 0
    assert np.isfinite(table).all()
    assert (table[:1000] <= np.arange(1000)).all()
    assert (np.diff(worth(table)[:1000]) >= -1e-9).all()


def test_a_gap_that_nothing_fits_is_all_waste():
    table = leftover_table({810: 10.0, 470: 6.0, 320: 4.0})
    assert table[190] == 190
    assert table[530] < 60
    assert (leftover_table({})[:1000] == np.arange(1000)).all()


def test_scarce_fillers_do_not_redeem_a_common_gap():
    """The 190 left beside each of many 810s is nearly all waste if only a few 160s can fill it."""
    assert leftover_table({810: 100.0, 160: 5.0})[190] == pytest.approx(190)
    assert leftover_table({810: 100.0, 160: 500.0})[190] < 30


def test_only_the_most_popular_sizes_count():
    many = {size: 1.0 + size for size in range(100, 900)}
    popular = dict(sorted(many.items(), key=lambda item: -item[1])[:MAX_SIZES])
    assert (leftover_table(many) == leftover_table(popular)).all()
