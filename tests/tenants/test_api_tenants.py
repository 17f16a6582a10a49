"""The tenant tree, members, GPU types over REST."""

import pytest
from django.utils import timezone

from scheduling.models import Job
from tenants.models import AuditRecord, GpuType, Membership, Quota, Tenant

URL = "/api/v1/tenants"


@pytest.fixture
def ops(org):
    return org.client("ops")


@pytest.fixture
def root(org):
    return org.client("root")


def names(answer):
    return [t["name"] for t in answer.json()["items"]]


def test_everybody_sees_their_part_of_the_tree(org, ops):
    assert names(ops.get(URL)) == ["law", "ml", "vision", "vision-lab"]
    assert names(org.client("vic").get(URL)) == ["vision", "vision-lab"]
    assert names(ops.get(f"{URL}?parent=ml")) == ["vision"]
    assert names(ops.get(f"{URL}?q=LAB")) == ["vision-lab"]
    assert org.client("vic").get(f"{URL}/ml").status_code == 404


def test_the_name_of_a_tenant_above_is_for_who_may_see_it(org, ops):
    vic = org.client("vic")
    above = {t["name"]: t["parent"] for t in vic.get(URL).json()["items"]}
    assert above == {"vision": None, "vision-lab": "vision"}
    assert vic.get(f"{URL}/vision").json()["parent"] is None
    assert names(vic.get(f"{URL}?parent=vision")) == ["vision-lab"]
    assert ops.get(f"{URL}/vision").json()["parent"] == "ml"


def test_nor_does_the_audit_trail_tell_it_to_others(org, ops, root):
    ops.patch(f"{URL}/vision", {"parent": "law"}, format="json")
    ops.patch(f"{URL}/vision", {"parent": "ml"}, format="json")
    root.patch(f"{URL}/vision-lab", {"parent": "ml"}, format="json")
    root.patch(f"{URL}/vision-lab", {"parent": "vision"}, format="json")

    def told(client):
        changes = client.get("/api/v1/audit?action=tenant").json()["items"]
        return [(c["before"]["parent"], c["after"]["parent"]) for c in changes]

    lab = [("ml", "vision"), ("vision", "ml")]
    assert told(ops) == [*lab, ("law", "ml"), ("ml", "law")]
    assert told(root) == [*lab, (None, "ml"), ("ml", None)]
    ada = org.client("ada")
    assert told(ada) == [(None, "vision"), ("vision", None), (None, None), (None, None)]
    assert not {"ml", "law"} & set(str(ada.get("/api/v1/audit").json()).split("'"))


def test_create(ops, root):
    made = ops.post(URL, {"name": "speech", "title": "Speech", "parent": "ml"}, format="json")
    assert made.status_code == 201
    assert ops.get(made["Location"]).json() == made.json()
    again = ops.post(URL, {"name": "speech"}, format="json")
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    assert root.post(URL, {"name": "r"}, format="json").status_code == 403
    assert root.post(URL, {"name": "r", "parent": "vision"}, format="json").status_code == 201
    foreign = root.post(URL, {"name": "s", "parent": "law"}, format="json")
    assert foreign.json()["errors"][0]["pointer"] == "/parent"
    for body, pointer in (
        ({"name": "No Slug"}, "/name"),
        ({"name": "x", "weight": 0}, "/weight"),
        ({"name": "x", "weight": "1"}, "/weight"),
        ({"name": "x", "title": "t" * 201}, "/title"),
        ({"name": "x", "max_running": -1}, "/max_running"),
        ({"name": "x", "max_waiting": 10**30}, "/max_waiting"),
        ({"name": "x", "max_priority": 1_000_001}, "/max_priority"),
    ):
        assert ops.post(URL, body, format="json").json()["errors"][0]["pointer"] == pointer
    assert AuditRecord.objects.filter(action="tenant.created").count() == 2


def test_change(org, ops, root):
    ada = org.client("ada")
    renamed = ada.patch(f"{URL}/vision", {"title": "Vision!"}, format="json")
    assert renamed.json()["title"] == "Vision!"
    assert ada.patch(f"{URL}/vision", {"weight": 2}, format="json").status_code == 403
    assert root.patch(f"{URL}/vision", {"weight": 2}, format="json").json()["weight"] == 2
    assert (
        org.client("eve").patch(f"{URL}/vision", {"title": "x"}, format="json").status_code == 403
    )
    assert Tenant.objects.get(name="vision").version == 3
    off = ops.patch(f"{URL}/vision", {"is_active": False, "reason": "moved"}, format="json")
    assert off.json()["is_active"] is False
    assert AuditRecord.objects.first().reason == "moved"


def test_limits_on_jobs_are_set_from_above(org, ops, root):
    made = ops.post(URL, {"name": "small", "parent": "ml", "max_running": 2}, format="json")
    assert (made.json()["max_running"], made.json()["max_waiting"]) == (2, None)
    limits = {"max_running": 3, "max_waiting": 0, "max_priority": -5}
    ada = org.client("ada")
    assert ada.patch(f"{URL}/vision", limits, format="json").status_code == 403
    changed = root.patch(f"{URL}/vision", limits, format="json").json()
    assert {name: changed[name] for name in limits} == limits
    after = AuditRecord.objects.first().after
    assert {name: after[name] for name in limits} == limits
    lifted = root.patch(f"{URL}/vision", {"max_running": None}, format="json").json()
    assert (lifted["max_running"], lifted["max_waiting"], lifted["max_priority"]) == (None, 0, -5)


def test_moves(ops, root, org):
    below = ops.patch(f"{URL}/ml", {"parent": "vision-lab"}, format="json")
    assert below.status_code == 409
    assert "which is below it" in below.json()["detail"]
    itself = ops.patch(f"{URL}/ml", {"parent": "ml"}, format="json")
    assert "the same tenant" in itself.json()["detail"]
    assert Tenant.objects.get(name="ml").parent is None
    assert Tenant.objects.get(name="ml").version == 1
    assert root.patch(f"{URL}/vision", {"parent": None}, format="json").status_code == 403
    assert root.patch(f"{URL}/vision", {"parent": "law"}, format="json").status_code == 422
    moved = ops.patch(f"{URL}/vision-lab", {"parent": "law"}, format="json")
    assert moved.json()["parent"] == "law"
    assert ops.patch(f"{URL}/vision", {"parent": None}, format="json").json()["parent"] is None


def test_a_move_must_keep_the_sums_of_quotas(ops, org):
    h100 = org.gpu_types["H100"]
    Quota.objects.create(tenant=org.tenants["law"], gpu_type=h100, guaranteed_milli=4000)
    Quota.objects.create(tenant=org.tenants["vision"], gpu_type=h100, guaranteed_milli=8000)
    refused = ops.patch(f"{URL}/vision", {"parent": "law"}, format="json")
    assert refused.status_code == 409
    assert "below “law” would be 8 GPUs of 4" in refused.json()["detail"]
    assert Tenant.objects.get(name="vision").parent == org.tenants["ml"]


def test_delete(ops, org):
    assert "vision" in ops.delete(f"{URL}/ml").json()["detail"]
    job = Job.objects.create(
        name="busy",
        tenant=org.tenants["law"],
        cluster=org.cluster,
        submitted_at=timezone.now(),
        state="RUNNING",
    )
    running = ops.delete(f"{URL}/law")
    assert running.status_code == 409
    assert "1 jobs that are not over (busy)" in running.json()["detail"]
    assert Tenant.objects.filter(name="law").exists()
    assert Membership.objects.filter(tenant__name="law").exists()
    assert not AuditRecord.objects.exists()
    Job.objects.filter(id=job.pk).update(state="SUCCEEDED")
    assert "is_active" in ops.delete(f"{URL}/law").json()["detail"]
    assert ops.delete(f"{URL}/vision-lab?dry_run=true").json()["would"] == "delete"
    assert org.client("eve").delete(f"{URL}/vision-lab").status_code == 403
    assert org.client("ada").delete(f"{URL}/vision-lab").status_code == 204
    assert not Tenant.objects.filter(name="vision-lab").exists()
    assert AuditRecord.objects.get(action="tenant.deleted").before["name"] == "vision-lab"


def test_members(org):
    ada, at = org.client("ada"), f"{URL}/vision/members"
    assert [m["user"] for m in ada.get(at).json()["items"]] == ["ada", "eve", "joe", "vic"]
    assert org.client("vic").get(at).status_code == 200
    assert org.client("lex").get(at).status_code == 404
    made = ada.put(f"{at}/lex", {"role": "engineer"}, format="json")
    assert (made.status_code, made.json()["role"]) == (201, "engineer")
    again = ada.put(f"{at}/lex", {"role": "viewer"}, format="json")
    assert (again.status_code, again.json()["role"]) == (200, "viewer")
    assert ada.put(f"{at}/lex", {"role": "king"}, format="json").status_code == 422
    nobody = ada.put(f"{at}/nobody", {"role": "viewer"}, format="json")
    assert (nobody.status_code, nobody.json()["errors"]) == (404, [])
    assert "no active user “nobody”" in nobody.json()["detail"]
    assert (
        org.client("eve").put(f"{at}/eve", {"role": "tenant-admin"}, format="json").status_code
        == 403
    )
    assert ada.delete(f"{at}/lex?dry_run=true").status_code == 200
    assert ada.delete(f"{at}/lex").status_code == 204
    assert ada.delete(f"{at}/lex").status_code == 404
    actions = AuditRecord.objects.order_by("at").values_list("action", "before", "after")
    assert list(actions) == [
        ("member.set", None, {"role": "engineer"}),
        ("member.set", {"role": "engineer"}, {"role": "viewer"}),
        ("member.removed", {"role": "viewer"}, None),
    ]
    assert Membership.objects.filter(user=org.users["lex"]).count() == 1


def test_gpu_types(org, ops):
    at = "/api/v1/gpu-types"
    eve = org.client("eve")
    assert names(eve.get(at)) == ["A100", "H100", "T4"]
    assert eve.post(at, {"name": "B200"}, format="json").status_code == 403
    assert ops.post(at, {"name": "B 200"}, format="json").status_code == 422
    made = ops.post(at, {"name": "B200", "memory_mib": 196608}, format="json")
    assert made.status_code == 201
    assert ops.post(at, {"name": "B200"}, format="json").status_code == 409
    assert ops.patch(f"{at}/B200", {"title": "Blackwell"}, format="json").json()["title"]
    assert ops.patch(f"{at}/B200", {"memory_mib": -1}, format="json").status_code == 422
    assert "in use by nodes or by jobs" in ops.delete(f"{at}/H100").json()["detail"]
    Quota.objects.create(tenant=org.tenants["ml"], gpu_type=org.gpu_types["T4"])
    assert "quota" in ops.delete(f"{at}/T4").json()["detail"]
    assert ops.delete(f"{at}/B200").status_code == 204
    assert not GpuType.objects.filter(name="B200").exists()
