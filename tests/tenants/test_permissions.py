"""Roles hold for all tenants below, operators may do everything, and foreign tenants seem not to
exist."""

import pytest

from tenants.models import Membership, Role
from tenants.permissions import Access, access_of, lineage

TREE = {1: None, 2: 1, 3: 2, 9: None}


def access(**roles):
    return Access(7, False, TREE, {int(k[1:]): v for k, v in roles.items()})


def test_a_role_holds_below_and_not_above_or_beside():
    admin = access(t2=Role.TENANT_ADMIN)
    assert [admin.may_view(t) for t in (1, 2, 3, 9)] == [False, True, True, False]
    assert [admin.may_administer(t) for t in (1, 2, 3)] == [False, True, True]
    assert [admin.may_administer_from_above(t) for t in (1, 2, 3)] == [False, False, True]
    assert admin.visible_tenants() == {2, 3}


def test_the_strongest_role_on_the_way_up_counts():
    mixed = access(t1=Role.ENGINEER, t3=Role.VIEWER)
    assert mixed.role_in(3) == Role.ENGINEER
    assert mixed.may_submit(3)
    assert not mixed.may_administer(3)


def test_cancel():
    engineer, admin, viewer = (
        access(t2=r) for r in (Role.ENGINEER, Role.TENANT_ADMIN, Role.VIEWER)
    )
    assert engineer.may_cancel(3, 7)
    assert not engineer.may_cancel(3, 8)
    assert admin.may_cancel(3, 8)
    assert not viewer.may_cancel(3, 7)


def test_a_damaged_tree_ends():
    assert list(lineage({1: 2, 2: 1}, 1)) == [1, 2]


@pytest.mark.django_db
def test_rights_are_read_from_the_database(org, django_assert_num_queries):
    with django_assert_num_queries(2):
        eve = access_of(org.users["eve"])
    assert eve.may_submit(org.tenants["vision-lab"].pk)
    assert not eve.may_view(org.tenants["ml"].pk)
    with django_assert_num_queries(0):
        assert access_of(org.users["ops"]).visible_tenants() is None
    Membership.objects.all().delete()
    assert access_of(org.users["eve"]).visible_tenants() == frozenset()
