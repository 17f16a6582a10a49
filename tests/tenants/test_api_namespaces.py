"""Valid values of a tenant's namespace over REST."""

import pytest

from scheduling.kube.door import config
from scheduling.models import Cluster
from tenants.models import Tenant

URL = "/api/v1/tenants"


@pytest.fixture
def ops(org):
    return org.client("ops")


def set_to(client, tenant, namespace, **more):
    return client.patch(f"{URL}/{tenant}", {"namespace": namespace, **more}, format="json")


@pytest.mark.parametrize(
    ("namespace", "text"),
    [
        ("Team_A", "lower-case letters"),
        ("a.b", "lower-case letters"),
        ("-a", "lower-case letters"),
        ("a" * 64, "63"),
        ("", "empty"),
        (7, "string"),
        ("kube-system", "begin with kube-"),
        ("kube-team", "begin with kube-"),
        ("default", "everybody who names none"),
        ("kant-jobs", "pods of all tenants without a namespace"),
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
    Tenant.objects.filter(name="ml").update(namespace="ml")  # also that of a tenant above it
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
