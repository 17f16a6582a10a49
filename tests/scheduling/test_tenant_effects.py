"""Preview over REST what tenant changes would do to jobs: `PATCH` and `DELETE` as dry runs."""

import pytest

from scheduling.models import ClusterPolicy
from tenants.models import AuditRecord, Quota, Tenant
from tests.scheduling.test_quota_effects import asks
from tests.scheduling.test_rehearsal import fleet, runs  # noqa: F401 - a fixture


def dry(org, who="ops", tenant="law", **changes):
    url = f"/api/v1/tenants/{tenant}?dry_run=true"
    return org.client(who).patch(url, changes, format="json")


@pytest.fixture
def limited(fleet):  # noqa: F811
    """Law may run one job at once, and does; another one waits for that reason alone."""
    Quota.objects.filter(tenant__name="vision").delete()
    Quota.objects.filter(tenant__name="law").update(guaranteed_milli=32000)
    Tenant.objects.filter(name="law").update(max_running=1)
    runs(fleet, ["h000"], declared_s=7200)
    return fleet


def test_who_starts_by_a_higher_limit_of_running_jobs(limited):
    waiting = asks(limited, "law", 1, "lex")
    answer = dry(limited, max_running=2)
    assert answer.status_code == 200, answer.json()
    found = answer.json()
    assert (found["would"], found["result"]["max_running"]) == ("update", 2)
    assert [job["job"] for job in found["effects"]["starts"]] == [waiting]
    assert Tenant.objects.get(name="law").max_running == 1
    assert dry(limited, max_running=1).json()["effects"]["starts"] == []


def test_what_jobs_do_not_feel_is_not_looked_at(limited):
    for changes in ({"title": "Law"}, {"max_priority": 3}, {"max_waiting": 1}):
        assert dry(limited, **changes).json()["effects"]["until"] is None


def test_another_weight_tells_whose_turn_comes_next(fleet):  # noqa: F811
    """The first job of vision has the turn already; with the weight the second one waits behind
    law."""
    ClusterPolicy.objects.create(
        cluster=fleet.cluster, document={"fair_share": True, "preemption": []}
    )
    Quota.objects.filter(tenant__name__in=("law", "vision")).update(guaranteed_milli=32000)
    runs(fleet, ["h000"], tenant="law", declared_s=3600)
    runs(fleet, ["h001", "h002"], tenant="law", declared_s=36000)
    runs(fleet, ["h003"], tenant="vision", declared_s=36000)
    _, second, of_law = asks_of(fleet, ("vision", "eve"), ("vision", "eve"), ("law", "lex"))
    found = dry(fleet, weight=50).json()["effects"]
    assert found["counts"]["sooner"] == found["counts"]["later"] == 1
    by_job = {one["job"]["job"]: one["by_s"] for one in found["shifts"]}
    assert by_job[of_law] < 0 < by_job[second]


def asks_of(org, *who):
    return [asks(org, tenant, 1, user) for tenant, user in who]


def test_the_rights_are_those_of_the_change(limited):
    assert dry(limited, "lex", max_running=2).status_code == 403
    assert dry(limited, "eve", max_running=2).status_code == 404


def test_deleting_a_tenant_tells_what_its_quota_did(fleet):  # noqa: F811
    """Small has no jobs, but law borrows what is guaranteed to it."""
    Quota.objects.filter(tenant__name="vision").delete()
    Quota.objects.filter(tenant__name="law").update(guaranteed_milli=8000)
    small = Tenant.objects.create(name="small", parent=Tenant.objects.get(name="law").parent)
    kind = fleet.gpu_types["H100"]
    Quota.objects.create(tenant=small, gpu_type=kind, guaranteed_milli=24000)
    runs(fleet, ["h000"], declared_s=7200)
    waiting = asks(fleet, "law", 2, "lex")
    ops = fleet.client("ops")
    found = ops.delete("/api/v1/tenants/small?dry_run=true").json()
    assert found["would"] == "delete"
    effects = found["effects"]
    assert waiting in [one["job"] for one in effects["delayed"]] + [
        one["job"]["job"] for one in effects["impossible"]
    ]
    assert Tenant.objects.filter(name="small").exists()


def test_a_change_that_was_previewed_keeps_what_was_told(limited):
    asks(limited, "law", 1, "lex")
    dry(limited, max_running=2)
    url = "/api/v1/tenants/law"
    limited.client("ops").patch(url, {"title": "The law"}, format="json")
    assert AuditRecord.objects.latest("at").preview is None
    limited.client("ops").patch(url, {"max_running": 2, "reason": "More"}, format="json")
    record = AuditRecord.objects.latest("at")
    assert record.preview.told["counts"]["starts"] == 1
