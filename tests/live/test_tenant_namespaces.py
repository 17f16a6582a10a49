"""Tenants with namespaces of their own: their pods and Services are made there and stay there."""

import pytest

from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.models import Job, JobEvent, PodSet
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.session import changes
from tenants.models import Tenant
from tenants.services.tenants import change_tenant

pytestmark = pytest.mark.live


@pytest.fixture
def vision(world):
    """A tenant below the one that has the quota; neither that one nor the cluster has a
    namespace."""
    return Tenant.objects.create(name="vision", parent=world.tenant, namespace="vision-jobs")


def namespaces(world, job):
    """Return the namespaces of the job's pods."""
    of = {p["metadata"]["name"]: p["metadata"] for p in world.pods().values()}
    metas = [m for m in of.values() if m["labels"].get("kant.io/job") == str(job.pk)]
    return sorted(meta["namespace"] for meta in metas)


def services(world):
    """Return {(namespace, name): uid} of all Services."""
    items = world.call("GET", "/api/v1/services")["items"]
    metas = [service["metadata"] for service in items]
    return {(m["namespace"], m["name"]): m["uid"] for m in metas}


def move(world, tenant, namespace):
    """Set the namespace, and wait until the scheduler knows."""
    change_tenant(world.user, tenant, {"namespace": namespace}, source="test")
    [led] = world.scheduler.led.values()
    wanted = namespace or "kant-jobs"
    world.drive(lambda: led.session.life.scope.namespaces[tenant.name] == wanted)


def fail_a_pod(world, job):
    row = world.placements(job, state__in=LIVE_PLACEMENTS)[0]
    world.report(row.pod_name, "Failed", row.namespace, reason="OutOfmemory", message="no room")


def test_pods_and_services_of_two_tenants_are_in_two_namespaces(world, vision, monkeypatch):
    child = Tenant.objects.create(name="lab", parent=vision)
    ours = world.submit("ours", pods=2, gpus=4, tenant=vision)
    theirs, shared = world.submit("theirs", tenant=child), world.submit("shared", pods=2, gpus=4)
    PodSet.objects.filter(job=ours).update(
        volumes=[{"name": "k", "secret": "keys", "mount_path": "/keys", "read_only": True}],
        env_from_secrets={"TOKEN": {"secret": "keys", "key": "token"}},
        service_account="trainer",
    )
    for job in (ours, theirs, shared):
        world.drive_to(job, S.RUNNING)
    assert namespaces(world, ours) == ["vision-jobs"] * 2
    assert namespaces(world, theirs) == ["vision-jobs"]
    assert namespaces(world, shared) == ["kant-jobs"] * 2
    assert {row.namespace for row in world.placements(ours)} == {"vision-jobs"}
    wanted = {("vision-jobs", f"job-{ours.pk}"), ("kant-jobs", f"job-{shared.pk}")}
    world.drive(lambda: services(world).keys() == wanted)
    # Names in a manifest are looked up in the namespace of its pod.
    pods = world.call("GET", "/api/v1/namespaces/vision-jobs/pods")["items"]
    mine = [pod for pod in pods if pod["metadata"]["labels"]["kant.io/job"] == str(ours.pk)]
    assert [pod["spec"]["serviceAccountName"] for pod in mine] == ["trainer"] * 2
    assert [pod["spec"]["volumes"][0]["secret"]["secretName"] for pod in mine] == ["keys"] * 2
    monkeypatch.setattr(changes, "COUNT_S", 3600.0)  # at once, not only when all jobs are examined
    world.cancel(ours)
    world.drive(lambda: services(world).keys() == {("kant-jobs", f"job-{shared.pk}")})
    assert namespaces(world, ours) == []


def test_jobs_stay_where_they_began_and_go_with_their_tenant_when_they_are_placed_anew(
    world, vision, monkeypatch
):
    gang = world.submit("gang", pods=2, gpus=4, tenant=vision)
    replicas = world.submit("replicas", pods=2, gang=False, gpus=4, tenant=vision)
    world.drive_to(gang, S.RUNNING)
    world.drive(lambda: len(world.placements(replicas, state="RUNNING")) == 2)
    before = {("vision-jobs", f"job-{job.pk}") for job in (gang, replicas)}
    world.drive(lambda: services(world).keys() == before)
    move(world, vision, "elsewhere")
    later = world.submit("later", gpus=4, tenant=vision)
    world.drive_to(later, S.RUNNING)
    assert namespaces(world, later) == ["elsewhere"]
    # One replica is placed again while the others run: they find each other through one Service.
    fail_a_pod(world, replicas)
    world.drive(lambda: len(world.placements(replicas)) == 3)
    world.drive(lambda: len(world.placements(replicas, state="RUNNING")) == 2)
    assert {row.namespace for row in world.placements(replicas)} == {"vision-jobs"}
    # A gang is placed anew as a whole, and its Service moves with it at once.
    monkeypatch.setattr(changes, "COUNT_S", 3600.0)
    fail_a_pod(world, gang)
    world.drive(lambda: Job.objects.get(pk=gang.pk).attempt == 2)
    world.drive_to(gang, S.RUNNING)
    world.drive(lambda: namespaces(world, gang) == ["elsewhere"] * 2)
    after = {("elsewhere", f"job-{gang.pk}"), ("vision-jobs", f"job-{replicas.pk}")}
    world.drive(lambda: services(world).keys() == after)


def test_a_scheduler_that_starts_finds_the_pods_of_all_namespaces(world, vision):
    ours, ends = world.submit("ours", pods=2, tenant=vision), world.submit("ends", tenant=vision)
    shared = world.submit("shared")
    for job in (ours, ends, shared):
        world.drive_to(job, S.RUNNING)
    world.drive(lambda: services(world))
    before = {p["metadata"]["uid"] for p in world.pods().values()}
    made = services(world)
    world.restart_scheduler()
    # No scheduler watches while the namespace changes, and one job ends.
    change_tenant(world.user, vision, {"namespace": "elsewhere"}, source="test")
    world.cancel(ends)
    world.drive(lambda: not world.placements(ends, state__in=LIVE_PLACEMENTS))
    assert namespaces(world, ours) == ["vision-jobs"] * 2
    assert namespaces(world, shared) == ["kant-jobs"]
    assert {p["metadata"]["uid"] for p in world.pods().values()} < before
    assert services(world) == made
    assert K.REQUEUED not in (*world.kinds(ours), *world.kinds(shared))
    world.cancel(ours)
    world.drive(lambda: namespaces(world, ours) == [])
    world.drive(lambda: services(world) == {})


def test_a_namespace_that_somebody_deleted_is_made_again_with_its_next_pods(world, vision):
    job, other = world.submit("job", pods=2, tenant=vision), world.submit("other")
    world.drive_to(job, S.RUNNING)
    world.drive_to(other, S.RUNNING)
    world.call("DELETE", "/api/v1/namespaces/vision-jobs")
    world.drive(lambda: Job.objects.get(pk=job.pk).attempt == 2)
    world.drive_to(job, S.RUNNING)
    assert namespaces(world, job) == ["vision-jobs"] * 2
    reasons = JobEvent.objects.filter(job=job, kind=K.REQUEUED).values_list("reason", flat=True)
    assert "BindingFailed" not in reasons
    world.drive(lambda: services(world).keys() == {("vision-jobs", f"job-{job.pk}")})
    assert K.REQUEUED not in world.kinds(other)


def test_a_budget_in_the_namespace_of_the_tenant_protects_its_pods(world, vision):
    labels = {"app": "web"}
    ours = world.submit("ours", gang=False, labels=labels, tenant=vision)
    shared = world.submit("shared", gang=False, labels=labels)
    for job in (ours, shared):
        world.drive_to(job, S.RUNNING)
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
    }
    path = "/apis/policy/v1/namespaces/vision-jobs/poddisruptionbudgets"
    world.call("POST", path, budget)
    [led] = world.scheduler.led.values()
    world.drive(lambda: led.session.life.jobs[str(ours.pk)].protected)
    assert not led.session.life.jobs[str(shared.pk)].protected


def test_what_is_left_over_where_the_tenant_had_its_pods_is_deleted_and_a_copy_is_not(
    world, vision
):
    job = world.submit(tenant=vision)
    world.drive_to(job, S.RUNNING)
    [row] = world.placements(job)
    pod = world.pods()[row.pod_name]
    meta = {"name": row.pod_name, "labels": pod["metadata"]["labels"]}
    spec = {"schedulerName": "kant", "containers": [{"name": "c", "image": "busybox"}]}
    same = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    move(world, vision, "elsewhere")
    world.cancel(job)
    world.drive(lambda: not world.placements(job, state__in=LIVE_PLACEMENTS))
    # As after a create that the API server carried out late.
    for namespace in ("vision-jobs", "default"):
        world.call("POST", f"/api/v1/namespaces/{namespace}/pods", same)

    def events():
        found = world.call("GET", "/apis/events.k8s.io/v1/namespaces/default/events")["items"]
        return [event["reason"] for event in found]

    world.drive(lambda: namespaces(world, job) == ["default"] and events() == ["NotOfAJob"])
