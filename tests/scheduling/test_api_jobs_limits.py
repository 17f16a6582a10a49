"""Tenants have limits on submissions: the number of waiting jobs, and their priority."""

from scheduling.models import Job
from tenants.models import Tenant

URL = "/api/v1/jobs"
HELLO = {"name": "hello", "tenant": "vision", "gpu_type": "H100", "gpus": 8}


def test_waiting_jobs_are_limited_for_a_tenant_and_all_below_it(eve, org):
    ml = Tenant.objects.filter(name="ml")
    ml.update(max_waiting=3)
    assert eve.post(URL, {**HELLO, "array": {"count": 2}}, format="json").status_code == 201
    assert eve.post(URL, {**HELLO, "tenant": "vision-lab"}, format="json").status_code == 201
    for more in (HELLO, {**HELLO, "array": {"count": 2}}):
        refused = eve.post(URL, more, format="json")
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
        assert "“ml” has 3 waiting jobs of at most 3" in refused.json()["detail"]
    law = {**HELLO, "tenant": "law"}
    assert org.client("lex").post(URL, law, format="json").status_code == 201
    Job.objects.filter(array_index=0).update(state="RUNNING")
    assert eve.post(f"{URL}?dry_run=true", HELLO, format="json").status_code == 200
    assert eve.post(URL, HELLO, format="json").status_code == 201
    assert Job.objects.filter(tenant__name__startswith="vision").count() == 4


def test_priority_is_limited_for_a_tenant_and_all_below_it(eve, org):
    Tenant.objects.filter(name="ml").update(max_priority=10)
    Tenant.objects.filter(name="vision-lab").update(max_priority=5)
    Tenant.objects.filter(name="law").update(max_priority=0)

    def answer(tenant, priority, **more):
        return eve.post(
            URL, {**HELLO, "tenant": tenant, "priority": priority, **more}, format="json"
        )

    assert answer("vision", 10).status_code == 201
    assert answer("vision-lab", 5).status_code == 201
    for tenant, priority, whose in (("vision", 11, "ml"), ("vision-lab", 6, "vision-lab")):
        refused = answer(tenant, priority, array={"count": 2})
        assert refused.status_code == 422
        (error,) = refused.json()["errors"]
        assert error["pointer"] == "/priority"
        assert f"The highest priority of jobs of tenant “{whose}” is" in error["detail"]
    job = answer("vision", 10).json()["id"]
    raised = eve.patch(f"{URL}/{job}", {"priority": 11}, format="json")
    assert (raised.status_code, raised.json()["errors"][0]["pointer"]) == (422, "/priority")
    assert eve.patch(f"{URL}/{job}", {"priority": -1}, format="json").status_code == 200
    array = answer("vision", 0, array={"count": 2}).json()["id"]
    raised = eve.patch(f"/api/v1/job-arrays/{array}", {"priority": 11}, format="json")
    assert (raised.status_code, raised.json()["errors"][0]["pointer"]) == (422, "/priority")
    assert set(Job.objects.values_list("priority", flat=True)) == {10, 5, -1, 0}
