"""A plain pod uses only tenants that its namespace may use, whatever its label says."""

import contextlib
import urllib.error

import pytest

from scheduling.engine.states import JobState as S
from scheduling.models import Cluster
from scheduling.session import changes
from tenants.models import GpuType, Quota, Tenant
from tests.live import plain_pods
from tests.live.plain_pods import job_of, make, state_of, told

pytestmark = pytest.mark.live


@pytest.fixture
def org(world):
    """Tenants team (namespace team-jobs) > team-a, and other, without a namespace. All have
    quota."""
    team = world.tenant
    gpu_type = GpuType.objects.get()
    Tenant.objects.filter(pk=team.pk).update(namespace="team-jobs")
    for name, parent in (("team-a", team), ("other", None)):
        tenant = Tenant.objects.create(name=name, parent=parent)
        Quota.objects.create(tenant=tenant, gpu_type=gpu_type, guaranteed_milli=100_000)
    Cluster.objects.update(namespace_tenants={})
    for name in ("team-jobs", "elsewhere"):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        with contextlib.suppress(urllib.error.HTTPError):  # left by an earlier test
            world.call("POST", "/api/v1/namespaces", body)
    return world


RIGHTS = {
    "its own namespace": ("team-jobs", "team", {}, True),
    "its own namespace, below": ("team-jobs", "team-a", {}, True),
    "its own namespace, another tenant": ("team-jobs", "other", {}, False),
    "no map opens a tenant's namespace": ("team-jobs", "other", {"team-jobs": ["other"]}, False),
    "not named": ("elsewhere", "other", {}, False),
    "named": ("elsewhere", "other", {"elsewhere": ["other"]}, True),
    "another one is named": ("elsewhere", "other", {"elsewhere": ["team"]}, False),
    "all tenants": ("elsewhere", "other", {"elsewhere": ["*"]}, True),
    "all namespaces": ("elsewhere", "other", {"*": ["other"]}, True),
    "all others are named": ("elsewhere", "other", {"*": ["other"], "elsewhere": []}, False),
    "everything": ("elsewhere", "team-a", {"*": ["*"]}, True),
}


UNNAMED = {
    "that whose namespace it is": ("team-jobs", {}, "team"),
    "the only one it may use": ("elsewhere", {"elsewhere": ["other"]}, "other"),
    "the only one of all others": ("elsewhere", {"*": ["other"]}, "other"),
    "one of two": ("elsewhere", {"elsewhere": ["other", "team"]}, ""),
    "any": ("elsewhere", {"*": ["*"]}, ""),
    "none": ("elsewhere", {}, ""),
}


@pytest.mark.parametrize(("namespace", "table", "tenant"), UNNAMED.values(), ids=UNNAMED)
def test_a_pod_without_the_label_uses_the_tenant_of_its_namespace(
    org, monkeypatch, namespace, table, tenant
):
    monkeypatch.setattr(plain_pods, "NAMESPACE", namespace)
    Cluster.objects.update(namespace_tenants=table)
    uid = make(org, gpus=1, labels={})
    if tenant:
        org.drive(lambda: state_of(uid) is S.RUNNING)
        assert job_of(uid).tenant.name == tenant
        return
    org.drive(lambda: told(org))
    [(_, reason, _)] = told(org)
    assert reason == "NoTenant"


@pytest.mark.parametrize(("namespace", "tenant", "table", "allowed"), RIGHTS.values(), ids=RIGHTS)
def test_who_may_use_a_tenant(org, monkeypatch, namespace, tenant, table, allowed):
    monkeypatch.setattr(plain_pods, "NAMESPACE", namespace)
    Cluster.objects.update(namespace_tenants=table)
    uid = make(org, gpus=1, labels={"kant.io/tenant": tenant})
    if allowed:
        org.drive(lambda: state_of(uid) is S.RUNNING)
        assert job_of(uid).tenant.name == tenant
        return
    org.drive(lambda: told(org))
    [(kind, reason, note)] = told(org)
    assert (kind, reason) == ("Warning", "TenantNotAllowed")
    assert namespace in note
    assert f"“{tenant}”" in note
    assert job_of(uid) is None


def test_a_pod_is_taken_up_when_an_operator_allows_it(org, monkeypatch):
    monkeypatch.setattr(changes, "COUNT_S", 0.5)
    monkeypatch.setattr(plain_pods, "NAMESPACE", "elsewhere")
    uid = make(org, gpus=1, labels={"kant.io/tenant": "other"})
    org.drive(lambda: told(org))
    Cluster.objects.update(namespace_tenants={"elsewhere": ["other"]})
    org.drive(lambda: state_of(uid) is S.RUNNING)


def test_all_pods_of_a_gang_are_told(org, monkeypatch):
    monkeypatch.setattr(plain_pods, "NAMESPACE", "elsewhere")
    labels = {"kant.io/tenant": "other", "kant.io/gang": "g"}
    for name in ("a", "b"):
        make(org, name, gpus=1, labels=labels, notes={"kant.io/gang-size": "2"})
    org.drive(lambda: told(org, "a") and told(org, "b"))
    assert {told(org, name)[-1][1] for name in ("a", "b")} == {"TenantNotAllowed"}
