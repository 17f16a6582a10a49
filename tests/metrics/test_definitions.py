"""The formulas of docs/metrics.md on small cases worked out by hand, and their invariants."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics import definitions as d


def node(allocated=0, *, gpus=8, healthy=None, free=None, schedulable=True, leaf="l0"):
    healthy = gpus if healthy is None else healthy
    free = healthy - math.ceil(allocated / 1000) if free is None else free
    return d.NodeUse("H100", gpus, healthy, max(free, 0), allocated, schedulable, leaf)


@pytest.mark.parametrize(
    ("gpus", "label"),
    [
        (0, "0"),
        (0.3, "1"),
        (1, "1"),
        (7, "2–7"),
        (8, "8"),
        (15, "8"),
        (96, "64"),
        (2048, "2048+"),
        (9000, "2048+"),
    ],
)
def test_size_class(gpus, label):
    assert d.size_class(int(gpus * 1000)) == label


def test_a_size_class_is_read_as_all_that_it_holds():
    """A chart must not label 24 GPUs as "16 GPUs"."""
    read = [d.size_range(label) for label in (*d.SIZE_LABELS, "all")]
    assert read[:6] == ["0", "1", "2–7", "8–15", "16–31", "32–63"]
    assert read[-3:] == ["1024–2047", "2048+", "all"]


def test_gar_and_gfr_of_a_small_pool():
    use = d.pool_use([node(8000), node(3000), node(0), node(500, leaf="l1")])
    assert use.gar == 11_500 / 32_000
    assert use.gfr == 2 / 4
    assert use.free_by_node == {0: 1, 5: 1, 7: 1, 8: 1}


def test_a_cordoned_node_leaves_the_denominator_except_for_what_it_still_holds():
    use = d.pool_use([node(4000, schedulable=False), node(0)])
    assert (use.available_milli, use.allocated_milli) == (12_000, 4_000)
    assert use.excluded_milli == 4_000
    assert use.nodes == 1, "GFR looks at schedulable nodes only"


def test_a_bad_gpu_makes_a_full_node_full_not_fragmented():
    use = d.pool_use([node(7000, healthy=7)])
    assert use.fragmented == 0
    assert use.gar == 1.0


def test_nothing_available_is_no_ratio():
    use = d.pool_use([])
    assert use.gar is None
    assert use.gfr is None


def test_largest_gang_is_what_whole_nodes_of_one_leaf_hold():
    use = d.pool_use([node(0), node(0), node(0, leaf="l1"), node(6000, leaf="l1")])
    assert (use.largest_gang_leaf, use.largest_gang_any) == (16, 24)


def test_gang_curve_counts_places():
    curve = d.gang_curve([node(0), node(0), node(0, leaf="l1"), node(6000, leaf="l1")])
    assert curve[1] == (26, 26)
    assert curve[2] == (13, 13)
    assert curve[8] == (3, 3)
    assert curve[16] == (1, 1)
    assert curve[32] == (0, 0)


def test_gangs_do_not_mix_gpu_models():
    other = d.NodeUse("L40S", 4, 4, 4, 0, True, "l0")
    curve = d.gang_curve([*(node(0) for _ in range(5)), *5 * [other]])
    assert curve[4] == (10 + 5, 10 + 5)
    assert curve[16] == (2 + 1, 2 + 1)
    assert curve[20] == (2 + 1, 2 + 1)
    assert curve[40] == (1, 1)
    assert max(size for size, (anywhere, _) in curve.items() if anywhere) == 40


def test_sor_integrates_exactly_inside_the_window():
    held = d.held_milli_seconds(
        np.array([1000, 2000]), np.array([0.0, 50.0]), np.array([100.0, math.inf]), (10.0, 60.0)
    )
    assert held == 1000 * 50 + 2000 * 10


def test_a_step_integral_refuses_time_going_backwards():
    integral = d.StepIntegral(at=10.0)
    integral.change(12.0, 5.0)
    integral.change(14.0, 0.0)
    assert integral.area == 10.0
    with pytest.raises(ValueError, match="backwards"):
        integral.change(13.0, 1.0)


def test_waits_without_censoring_are_the_plain_distribution():
    curve = d.wait_curve([1, 2, 3, 4], [True] * 4)
    assert curve.started.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert curve.mean == 2.5
    assert curve.quantile(0.5) == 2


def test_those_still_waiting_keep_the_curve_down():
    curve = d.wait_curve([1, 5, 5, 5], [True, False, False, False])
    assert curve.started.tolist() == [0.25]
    assert curve.quantile(0.5) is None
    assert (curve.jobs, curve.waiting) == (4, 3)


def test_kaplan_meier_textbook_case():
    # Risk sets 6, 4, 3, 1: survival 5/6, 5/6*3/4, 5/6*3/4*2/3, 0.
    curve = d.wait_curve([1, 2, 3, 4, 4.5, 5], [True, False, True, True, False, True])
    expected = [1 / 6, 1 - 5 / 6 * 3 / 4, 1 - 5 / 6 * 3 / 4 * 2 / 3, 1.0]
    assert curve.started == pytest.approx(expected)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.booleans()), max_size=40))
def test_wait_curve_is_monotone_and_bounded(rows):
    curve = d.wait_curve([w for w, _ in rows], [o for _, o in rows])
    assert np.all(np.diff(curve.started) >= 0)
    assert np.all((curve.started >= 0) & (curve.started <= 1 + 1e-9))
    assert curve.jobs == len(rows)


@given(
    st.lists(
        st.builds(
            lambda a, h, s, leaf: node(min(a, h * 1000), healthy=h, schedulable=s, leaf=leaf),
            st.integers(0, 8000),
            st.integers(0, 8),
            st.booleans(),
            st.sampled_from("abc"),
        )
    )
)
def test_ratios_stay_between_nothing_and_one(nodes):
    use = d.pool_use(nodes)
    assert use.gar is None or 0 <= use.gar <= 1
    assert use.gfr is None or 0 <= use.gfr <= 1
    assert sum(use.free_by_node.values()) == use.nodes
    assert use.largest_gang_leaf <= use.largest_gang_any


def test_jtted():
    assert d.fewest_nodes(17, 8) == 3
    assert d.fewest_groups(9, 8) == 2
    assert d.deviation(4, 3) == pytest.approx(4 / 3)
    with pytest.raises(ValueError, match="at least one"):
        d.deviation(0, 1)
