"""The demo organisation has queues and quotas to try out, and they obey the usual rules."""

import pytest

from kant.demo import organisation as demo
from tenants.models import GpuType, Queue, Quota, User
from tenants.services.queues.terms import QueueTerms

pytestmark = pytest.mark.django_db


def test_the_demo_organisation_has_a_few_queues_once():
    operator = demo._accounts()
    demo._tenants(operator)
    made = {
        (q.tenant.name, q.name): QueueTerms.of(q).columns()
        for q in Queue.objects.select_related("tenant")
    }
    assert {key for key in made if key[1] == "default"} == {
        (t.name, "default") for t in demo.TENANTS
    }
    for queue in demo.QUEUES:
        assert made[queue.tenant, queue.name] == queue.terms.columns()
    assert len(made) == len(demo.TENANTS) + len(demo.QUEUES)
    Queue.objects.exclude(name="default").delete()
    demo._tenants(operator)  # what was deleted stays deleted at the next start
    assert not Queue.objects.exclude(name="default").exists()
    assert User.objects.get(username="operator").is_operator


def test_its_quotas_need_no_second_person(settings):
    settings.KANT_QUOTA_APPROVAL_GPUS = 1
    operator = demo._accounts()
    demo._tenants(operator)
    demo._quotas(operator, GpuType.objects.create(name="H100"), 64)
    assert Quota.objects.count() == len(demo.TENANTS)
