"""Fixtures for replays: a recorded history and an operator."""

import pytest
from django.core.cache import cache

from tenants.models import GpuType, Quota, Tenant, User
from tests.metrics import rows
from tests.metrics.replays import NODES


@pytest.fixture(autouse=True)
def nothing_kept():
    """Forget what was cached of another test's history."""
    cache.clear()


@pytest.fixture
def operator(db):
    return User.objects.create_user("ops", is_operator=True)


@pytest.fixture
def blocked_head(db):
    """Four nodes, and a head of the queue that is blocked for nine minutes; under best-effort order
    a small job passes it."""
    found = rows.cluster(4, leaf_size=2)
    tenant, _ = Tenant.objects.get_or_create(name="vision")
    Quota.objects.create(
        tenant=tenant, gpu_type=GpuType.objects.create(name="H100"), guaranteed_milli=64_000
    )
    rows.job(found, "long", pods=3, submitted=10, bound=10, ended=610, nodes=NODES[:3])
    rows.job(found, "head", pods=4, submitted=60, bound=610, ended=910, nodes=NODES)
    rows.job(found, "small", submitted=100, bound=100, ended=610, nodes=NODES[3:])
    return found
