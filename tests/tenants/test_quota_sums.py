"""The arithmetic of promises along the tenant tree."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tenants.services.quota_sums import Overpromise, excess_of, nearest_above, promised_below
from tests.cases import examples

#      1
#    2   3
#   4 5
TREE = {1: None, 2: 1, 3: 1, 4: 2, 5: 2}


def test_tenants_without_a_quota_pass_through():
    quotas = {1: 10, 4: 3, 5: 4}
    assert nearest_above(TREE, 4, quotas) == 1
    assert promised_below(TREE, 1, quotas) == 7
    assert promised_below(TREE, None, quotas) == 10
    assert promised_below(TREE, 1, {**quotas, 2: 9}) == 9


def test_children_may_not_be_promised_more_than_the_parent_has():
    before = {2: 10, 4: 5}
    assert excess_of(TREE, before, {**before, 5: 5}, None) is None
    assert excess_of(TREE, before, {**before, 5: 6}, None) == Overpromise(2, 11, 10)
    assert excess_of(TREE, before, {**before, 2: 4}, None) == Overpromise(2, 5, 4)


def test_roots_may_not_be_promised_more_than_is_installed():
    before = {1: 80}
    assert excess_of(TREE, before, {1: 100}, 100) is None
    assert excess_of(TREE, before, {1: 101}, 100) == Overpromise(None, 101, 100)
    assert excess_of(TREE, before, {1: 101}, None) is None


def test_what_is_already_too_much_may_shrink_step_by_step():
    assert excess_of(TREE, {1: 200}, {1: 150}, 100) is None
    assert excess_of(TREE, {1: 200}, {1: 201}, 100) == Overpromise(None, 201, 100)


@settings(max_examples=examples(200))
@given(
    quotas=st.dictionaries(st.sampled_from(list(TREE)), st.integers(0, 20)),
    tenant=st.sampled_from(list(TREE)),
    new=st.integers(0, 20),
    installed=st.integers(0, 40),
)
def test_changes_that_pass_never_break_a_sum_that_held(quotas, tenant, new, installed):
    def kept(q):
        sums = [promised_below(TREE, t, q) <= q[t] for t in q]
        return all(sums) and promised_below(TREE, None, q) <= installed

    after = {**quotas, tenant: new}
    if kept(quotas) and excess_of(TREE, quotas, after, installed) is None:
        assert kept(after)
    if kept(after):
        assert excess_of(TREE, quotas, after, installed) is None
