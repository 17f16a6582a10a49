"""The namespace of a tenant over REST: who sets it, to what, and who has it by inheritance."""

import pytest

from scheduling.kube import config
from scheduling.models import Cluster
from tenants.models import AuditRecord, Tenant

URL = "/api/v1/tenants"


@pytest.fixture
def ops(org):
    return org.client("ops")


def set_to(client, tenant, namespace, **more):
    return client.patch(f"{URL}/{tenant}", {"namespace": namespace, **more}, format="json")


def in_force(client):
    return {t["name"]: t["effective_namespace"] for t in client.get(URL).json()["items"]}


def test_tenants_below_have_it_unless_they_have_one_of_their_own(org, ops):
    assert set(in_force(ops).values()) == {None}
    changed = set_to(ops, "ml", "ml-jobs", reason="Not trusted")
    assert changed.status_code == 200
    assert changed.json()["namespace"] == changed.json()["effective_namespace"] == "ml-jobs"
    everywhere = {"ml": "ml-jobs", "vision": "ml-jobs", "vision-lab": "ml-jobs", "law": None}
    assert in_force(ops) == everywhere
    lab = ops.get(f"{URL}/vision-lab").json()
    assert (lab["namespace"], lab["effective_namespace"]) == (None, "ml-jobs")
    # Also for who cannot see the tenant that has it.
    assert in_force(org.client("vic")) == {"vision": "ml-jobs", "vision-lab": "ml-jobs"}
    set_to(ops, "vision", "vision")
    assert in_force(ops) == {**everywhere, "vision": "vision", "vision-lab": "vision"}
    moved = ops.patch(f"{URL}/vision-lab?dry_run=true", {"parent": "law"}, format="json").json()
    assert moved["result"]["effective_namespace"] is None
    set_to(ops, "vision", None)
    assert in_force(ops) == everywhere


def test_it_is_audited_and_counts_as_a_change(ops):
    before = Tenant.objects.get(name="ml").version
    set_to(ops, "ml", "ml-jobs", reason="Not trusted")
    record = AuditRecord.objects.first()
    assert (record.action, record.reason) == ("tenant.changed", "Not trusted")
    assert (record.before["namespace"], record.after["namespace"]) == (None, "ml-jobs")
    assert Tenant.objects.get(name="ml").version > before
    tried = ops.patch(f"{URL}/law?dry_run=true", {"namespace": "law"}, format="json").json()
    assert tried["result"]["effective_namespace"] == "law"
    assert Tenant.objects.get(name="law").namespace is None


@pytest.mark.parametrize("who", ["root", "ada"])
def test_only_operators_set_it(org, who):
    admin = org.client(who)
    refused = set_to(admin, "vision", "vision")
    assert refused.status_code == 403
    assert set_to(admin, "vision", None).status_code == 403
    body = {"name": "new", "parent": "vision", "namespace": "new"}
    assert admin.post(URL, body, format="json").status_code == 403
    assert not Tenant.objects.filter(name="new").exists()
    assert (
        "Only operators set the namespace"
        in set_to(org.client("root"), "vision", "x").json()["detail"]
    )
    assert set_to(admin, "law", "law").status_code == 404
    del body["namespace"]
    assert admin.post(URL, body, format="json").json()["effective_namespace"] is None


@pytest.mark.parametrize(
    ("namespace", "text"),
    [
        ("Team_A", "lower-case letters"),
        ("a.b", "lower-case letters"),
        ("-a", "lower-case letters"),
        ("a" * 64, "63"),
        ("", "empty"),
        (7, "text"),
        ("kube-system", "begin with kube-"),
        ("kube-team", "begin with kube-"),
        ("default", "everybody who names none"),
        ("kant-jobs", "pods of all tenants that have none"),
        ("kant", "Kant itself runs in kant"),
        ("law", "of tenant “law”"),
        ("ml", "of tenant “ml”"),
    ],
)
def test_names_that_cannot_be(ops, monkeypatch, tmp_path, namespace, text):
    own = tmp_path / "namespace"
    own.write_text("kant\n")
    monkeypatch.setattr(config, "OWN_NAMESPACE", own)
    Tenant.objects.filter(name="law").update(namespace="law")
    Tenant.objects.filter(name="ml").update(namespace="ml")  # also of a tenant above it
    new = {"name": "new", "namespace": namespace}
    for answer in (set_to(ops, "vision", namespace), ops.post(URL, new, format="json")):
        assert answer.status_code == 422, answer.json()
        [error] = answer.json()["errors"]
        assert error["pointer"] == "/namespace"
        assert text in error["detail"]
    assert Tenant.objects.get(name="vision").namespace is None
    assert set_to(ops, "ml", "ml").status_code == 200  # it has it already


def test_a_cluster_does_not_get_that_of_a_tenant(ops):
    set_to(ops, "law", "law")
    body = {"name": "east", "access": {"in_cluster": True}, "namespace": "law"}
    for answer in (
        ops.post("/api/v1/clusters", body, format="json"),
        ops.patch("/api/v1/clusters/demo", {"namespace": "law"}, format="json"),
    ):
        assert answer.status_code == 422
        [error] = answer.json()["errors"]
        assert (error["pointer"], "tenant “law”" in error["detail"]) == ("/namespace", True)
    assert Cluster.objects.get().namespace == "kant-jobs"


def test_a_cluster_does_not_get_that_of_kant_itself(ops, monkeypatch, tmp_path):
    own = tmp_path / "namespace"
    own.write_text("kant\n")
    monkeypatch.setattr(config, "OWN_NAMESPACE", own)
    body = {"name": "east", "access": {"in_cluster": True}, "namespace": "kant"}
    for answer in (
        ops.post("/api/v1/clusters", body, format="json"),
        ops.patch("/api/v1/clusters/demo", {"namespace": "kant"}, format="json"),
    ):
        assert answer.status_code == 422
        [error] = answer.json()["errors"]
        assert error["pointer"] == "/namespace"
        assert "Kant itself runs in kant" in error["detail"]
    assert Cluster.objects.get().namespace == "kant-jobs"
    answer = ops.post("/api/v1/clusters", {**body, "namespace": "jobs"}, format="json")
    assert answer.status_code == 201
