"""If an object is deleted or comes into use during a request, the answer is 404 or 409."""

import pytest

from scheduling.models import Job
from tenants.errors import Conflict, NotFound
from tenants.models import AuditRecord, IdempotencyKey, Membership, Quota, Tenant
from tenants.services.members import set_member
from tenants.services.quota_terms import QuotaChange, QuotaTerms
from tenants.services.quotas import change_quota
from tenants.services.tenants import change_tenant, create_tenant, delete_tenant
from tests import organisation

# Foreign keys are checked at the commit, so it must be a real one.
pytestmark = pytest.mark.django_db(transaction=True)
JOB = {"name": "late", "tenant": "law", "gpu_type": "H100", "gpus": 1}


@pytest.fixture
def org():
    return organisation.build()


@pytest.fixture
def law(org):
    """A tenant as it was read just before somebody deleted it."""
    tenant = org.tenants["law"]
    Tenant.objects.get(name="law").delete()
    return tenant


def test_writes_that_refer_to_a_deleted_tenant(org, law):
    ops = org.users["ops"]
    with pytest.raises(Conflict, match="Read it again"):
        set_member(ops, law, "eve", "viewer", source="api")
    with pytest.raises(Conflict, match="Read it again"):
        change_quota(
            ops,
            QuotaChange(law, org.gpu_types["H100"], 0, "late", "api"),
            QuotaTerms(1000),
        )
    assert not Quota.objects.exists()
    assert not Membership.objects.filter(tenant=law.pk).exists()
    assert not AuditRecord.objects.exists()


def test_changing_a_deleted_tenant(org, law):
    with pytest.raises(NotFound, match="no tenant “law”"):
        change_tenant(org.users["ops"], law, {"title": "x"}, source="api")


def test_a_tenant_is_deleted_once(org, law):
    with pytest.raises(NotFound, match="no tenant “law”"):
        delete_tenant(org.users["ops"], law, source="api")
    assert not AuditRecord.objects.exists()


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "k"}])
def test_a_job_whose_tenant_vanishes(org, headers, monkeypatch):
    def vanish(_room, order, _more):
        Tenant.objects.get(id=order.tenant.pk).delete()

    monkeypatch.setattr("scheduling.services.jobs.intake.WaitingRoom.take", vanish)
    answer = org.client("ops").post("/api/v1/jobs", JOB, format="json", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert not Job.objects.exists()
    assert not IdempotencyKey.objects.exists()


def test_a_name_that_is_taken_is_told_as_such(org):
    with pytest.raises(Conflict, match="already a tenant"):
        create_tenant(org.users["ops"], "law", source="api")
