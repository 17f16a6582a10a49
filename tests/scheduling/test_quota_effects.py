"""Preview quota changes: which jobs start, which stop, and whose wait changes."""

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from scheduling.models import Cluster, ClusterPolicy, Job, Placement
from scheduling.queries import effects
from tenants.models import Quota, Tenant
from tests.scheduling.test_rehearsal import fleet, runs, waits  # noqa: F401 - a fixture

PREVIEW = "/api/v1/quotas:preview"


@pytest.fixture
def borrowed(fleet):  # noqa: F811
    """Law runs on all four nodes and borrows two of them; vision waits for two."""
    ClusterPolicy.objects.create(cluster=fleet.cluster, document={"preemption": ["reclaim"]})
    Quota.objects.filter(tenant__name="vision").delete()
    Quota.objects.filter(tenant__name="law").update(guaranteed_milli=32000)
    old = runs(fleet, ["h000", "h001"], declared_s=7200)
    young = runs(fleet, ["h002", "h003"], declared_s=7200)
    Job.objects.filter(pk=young.pk).update(admitted_at=timezone.now() - timedelta(minutes=1))
    Placement.objects.filter(job=young).update(held_from=timezone.now() - timedelta(minutes=1))
    return fleet, old, young


def preview(org, who="ops", **guaranteed):
    rows = [
        {"tenant": tenant, "gpu_type": "H100", "guaranteed": gpus}
        for tenant, gpus in guaranteed.items()
    ]
    return org.client(who).post(PREVIEW, {"quotas": rows}, format="json")


def asks(org, tenant, replicas, who):
    body = {"name": "asks", "tenant": tenant, "gpu_type": "H100", "gpus": 8, "replicas": replicas}
    answer = org.client(who).post("/api/v1/jobs", body, format="json")
    assert answer.status_code == 201, answer.json()
    return answer.json()["id"]


def test_a_move_of_gpus_tells_who_starts_who_stops_and_who_lends(borrowed):
    org, old, young = borrowed
    waiting = asks(org, "vision", 2, "eve")
    answer = preview(org, law=16, vision=16)
    assert answer.status_code == 200, answer.json()
    found = answer.json()
    assert [job["job"] for job in found["starts"] + found["possible"]] == [waiting, waiting]
    (stop,) = found["stops"]
    assert stop["job"]["job"] == str(young.pk)
    assert (stop["job"]["tenant"], stop["job"]["gpus"], stop["whole"]) == ("law", 16, True)
    assert stop["by"]["name"] == "asks"
    assert 16 * 60 <= stop["lost_gpu_s"] <= 16 * 120
    assert stop["again"] is not None
    assert found["counts"]["stops"] == 1
    assert found["counts"]["lost_gpu_s"] == stop["lost_gpu_s"]
    assert found["troubles"] == []
    assert Quota.objects.get(tenant__name="law").guaranteed_milli == 32000
    assert Job.objects.get(pk=old.pk).state == "RUNNING"


def test_a_move_in_the_tree_tells_who_can_start_by_it(borrowed):
    """Vision has no quota; below law its job counts against law's quota."""
    org, *_ = borrowed
    waiting = asks(org, "vision", 2, "eve")
    ops, draft = org.client("ops"), "/api/v1/quota-drafts/ops"
    body = {"tenants": [{"tenant": "vision", "parent": "law"}]}
    version = ops.patch(draft, body, format="json").json()["version"]
    tag = {"HTTP_IF_MATCH": f'"{version}"'}
    answer = ops.post(f"{draft}/apply?dry_run=true", {"reason": "r"}, format="json", **tag)
    found = answer.json()["effects"]
    assert [job["job"] for job in found["possible"]] == [waiting]
    assert found["troubles"] == []
    assert Tenant.objects.get(name="vision").parent.name == "ml"


def test_less_makes_a_job_impossible_and_lenders_change(borrowed):
    org, *_ = borrowed
    Quota.objects.create(
        tenant=org.tenants["vision"], gpu_type=org.gpu_types["H100"], guaranteed_milli=0
    )
    Quota.objects.filter(tenant__name="law").update(guaranteed_milli=32000)
    waiting = asks(org, "vision", 4, "eve")
    found = preview(org, law=16).json()
    assert [one["job"]["job"] for one in found["impossible"]] == [waiting]
    assert "16" in found["impossible"][0]["why"]
    assert found["counts"]["delayed"] == 0


def test_of_tenants_that_are_not_seen_only_sizes_are_told(borrowed):
    org, *_ = borrowed
    asks(org, "vision", 2, "eve")
    terms = {"gpu_type": org.gpu_types["H100"], "guaranteed_milli": 16000}
    after = {(name, "H100"): Quota(tenant=org.tenants[name], **terms) for name in ("law", "vision")}
    found = effects.quota_effects(org.users["eve"], after)
    (stop,) = found.stops
    assert (stop.job.job, stop.job.name, stop.job.tenant, stop.job.user) == (None,) * 4
    assert stop.job.gpu_milli == 16000
    assert stop.by is not None
    assert stop.by.name == "asks"
    assert preview(org, "lex", law=16).status_code == 403


def test_a_dry_run_of_one_quota_tells_its_effects_too(borrowed):
    org, *_ = borrowed
    asks(org, "vision", 2, "eve")
    ops = org.client("ops")
    quota = Quota.objects.get(tenant__name="law")
    url = "/api/v1/quotas/law/H100"
    tag = {"HTTP_IF_MATCH": f'"{quota.version}"'}
    body = {"guaranteed": 16, "reason": "r"}
    found = ops.put(f"{url}?dry_run=true", body, format="json", **tag).json()
    assert found["would"] == "update"
    assert found["effects"]["stops"] == []  # vision has no quota that it could reclaim
    found = ops.delete(f"{url}?dry_run=true&reason=x", **tag).json()
    assert found["effects"]["counts"]["stops"] == 0


def test_what_is_wrong_is_named_with_its_place(borrowed):
    org, *_ = borrowed
    found = preview(org, law=16, nobody=1).json()
    assert [e["pointer"] for e in found["errors"]] == ["/quotas/1/tenant"]
    found = preview(org, law=16, vision=17).json()
    assert found["errors"][0]["pointer"] == "/quotas/1/guaranteed"
    assert preview(org, "eve", law=16).status_code == 422
    assert org.client("ops").post(PREVIEW, {"quotas": []}, format="json").status_code == 422


def test_what_is_unknown_is_named_with_its_field(borrowed):
    org, *_ = borrowed
    known = {"tenant": "law", "gpu_type": "H100", "guaranteed": 1}
    for field in ("tenant", "gpu_type"):
        rows = [known, {**known, field: "none-such"}]
        answer = org.client("ops").post(PREVIEW, {"quotas": rows}, format="json")
        assert answer.status_code == 422
        assert [e["pointer"] for e in answer.json()["errors"]] == [f"/quotas/1/{field}"]


def test_a_quota_stands_once(borrowed):
    org, *_ = borrowed
    row = {"tenant": "law", "gpu_type": "H100", "guaranteed": 1}
    answer = org.client("ops").post(PREVIEW, {"quotas": [row, row]}, format="json")
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/quotas/1/tenant")
    assert "is given twice" in answer.json()["errors"][0]["detail"]


def test_where_nobody_decides_it_says_so(borrowed):
    org, *_ = borrowed
    Cluster.objects.update(connected=False)
    found = preview(org, law=16, vision=16).json()
    assert found["until"] is None
    assert "no connection" in found["troubles"][0]


def test_it_does_not_take_longer_than_it_may(borrowed, monkeypatch):
    org, *_ = borrowed
    waits(org, 1)
    monkeypatch.setattr(effects, "WITHIN_S", 0.0)
    began = time.process_time()
    found = preview(org, law=16, vision=16).json()
    assert time.process_time() - began < 5
    assert found["until"] is not None
