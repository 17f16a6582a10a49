"""A gang that waits for nodes requests all of them from an autoscaler by ProvisioningRequests."""

import pytest
from django.utils import timezone

from scheduling.engine.states import JobState as S
from scheduling.models import Cluster, Job, JobEvent
from scheduling.session import changes
from scheduling.session.pods.autoscaling import provisioning
from tests.live.growing import SELECTOR, add_node, all_unschedulable, b200_job, stand_ins
from tests.live.plain_pods import NAMESPACE, pod_of
from tests.live.test_workloads import INDEXED, member, own

pytestmark = pytest.mark.live
CLASS = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
ALL = "/apis/autoscaling.x-k8s.io/v1/provisioningrequests"
CONSUMES = "autoscaling.x-k8s.io/consume-provisioning-request"


@pytest.fixture
def asks(autoscaled, monkeypatch):
    monkeypatch.setattr(changes, "COUNT_S", 0.3)
    Cluster.objects.update(provisioning_class=CLASS)
    return autoscaled


def requests(world):
    """Return {name: request} of all ProvisioningRequests."""
    return {each["metadata"]["name"]: each for each in world.call("GET", ALL)["items"]}


def templates(world):
    items = world.call("GET", "/api/v1/podtemplates")["items"]
    return {each["metadata"]["name"]: each for each in items}


def only(found):
    [one] = found.values()
    return one


def answer(world, request, type_, message="", status="True", at="2026-11-26T14:02:00Z"):
    """Set the status that an autoscaler reports."""
    said = {"type": type_, "status": status, "reason": "Said", "message": message}
    name, namespace = (request["metadata"][key] for key in ("name", "namespace"))
    group, _, plural = ALL.rpartition("/")
    body = {"status": {"conditions": [{**said, "lastTransitionTime": at}]}}
    path = f"{group}/namespaces/{namespace}/{plural}/{name}/status"
    world.call("PATCH", path, body, kind="merge-patch+json")


def told(job):
    return Job.objects.get(pk=job.pk).message


def test_a_gang_asks_for_all_of_its_nodes_and_says_what_becomes_of_it(asks):
    world = asks
    job = b200_job(world, pods=2)
    world.drive(lambda: requests(world))
    request = only(requests(world))
    spec = request["spec"]
    assert spec["provisioningClassName"] == CLASS
    [pods] = spec["podSets"]
    assert pods["count"] == 2
    template = templates(world)[pods["podTemplateRef"]["name"]]
    [container] = template["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["nvidia.com/gpu"] == "8"
    world.drive(
        lambda: templates(world)[template["metadata"]["name"]]["metadata"].get("ownerReferences")
    )
    assert not stand_ins(world)
    world.drive(lambda: "for 2 pods on nodes of b200" in told(job))
    assert told(job).endswith("no answer yet.")
    answer(world, request, "Accepted")
    world.drive(lambda: told(job).endswith(": accepted."))
    answer(world, request, "Provisioned")
    world.drive(lambda: told(job).endswith(": the nodes are there."))
    add_node(world)
    add_node(world, "b200-b")
    world.drive_to(job, S.RUNNING)
    world.drive(lambda: not requests(world) and not templates(world))
    name = request["metadata"]["name"]
    assert {p["metadata"]["annotations"][CONSUMES] for p in world.pods().values()} == {name}
    notes = JobEvent.objects.filter(job=job, reason="ProvisioningRequest")
    assert [note.message.rpartition(": ")[2] for note in notes.order_by("id")] == [
        *("no answer yet.", "accepted.", "the nodes are there."),
    ]


@pytest.mark.parametrize(
    ("type_", "words"),
    [
        ("Failed", "failed"),
        ("BookingExpired", "the nodes were not used in time"),
        ("CapacityRevoked", "the nodes were taken back"),
    ],
)
def test_after_a_failure_another_request_asks_under_a_new_name(asks, type_, words, monkeypatch):
    world = asks
    job = b200_job(world, pods=2)
    world.drive(lambda: requests(world))
    first = only(requests(world))
    monkeypatch.setattr(provisioning, "FIRST_S", 3600.0)
    at = timezone.now()
    answer(world, first, type_, "no such machines left", at=f"{at:%Y-%m-%dT%H:%M:%SZ}")
    said = f"{words} at {at:%H:%M} UTC: no such machines left; asked again at "
    world.drive(lambda: said in told(job))
    monkeypatch.setattr(provisioning, "FIRST_S", -1e9)
    second = first["metadata"]["name"][:-1] + "2"
    world.drive(lambda: requests(world).keys() == {second})
    monkeypatch.setattr(provisioning, "FIRST_S", 60.0)
    world.restart_scheduler()
    world.drive(lambda: world.scheduler.led)
    world.drive(lambda: told(job).endswith("no answer yet."))
    assert requests(world).keys() == {second}
    world.cancel(job)
    world.drive(lambda: not requests(world) and not templates(world))


def test_a_gang_of_pods_asks_and_its_pods_say_so(asks):
    world = asks
    job = own(world, "Job", "tune", {**INDEXED, "parallelism": 2, "completions": 2})
    for n in (0, 1):
        member(world, f"tune-{n}", job, **SELECTOR)
    world.drive(lambda: requests(world))
    request = only(requests(world))
    assert request["metadata"]["namespace"] == NAMESPACE
    [owner] = request["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Job", job["metadata"]["uid"])
    template = only(templates(world))
    assert template["template"]["spec"]["nodeSelector"] == SELECTOR["nodeSelector"]
    name = request["metadata"]["name"]

    def marks():
        return [pod_of(world, f"tune-{n}")["metadata"]["annotations"].get(CONSUMES) for n in (0, 1)]

    world.drive(lambda: marks() == [name, name])
    Cluster.objects.update(provisioning_class="")
    world.drive(lambda: marks() == [None, None] and not requests(world))
    Cluster.objects.update(provisioning_class=CLASS)
    world.drive(lambda: marks() == [name, name])
    add_node(world)
    add_node(world, "b200-b")
    world.drive(lambda: Job.objects.get(pod_gang="Job/tune").state == S.RUNNING)
    world.drive(lambda: not requests(world) and not templates(world))


def test_jobs_of_single_pods_have_stand_ins_as_before(asks):
    world = asks
    b200_job(world, pods=2, gang=False)
    world.drive(lambda: all_unschedulable(world, 2))
    assert not requests(world)


@pytest.mark.parametrize("by_request", [True, False])
def test_an_elastic_gang_asks_for_its_minimum(asks, by_request):
    world = asks
    if not by_request:
        Cluster.objects.update(provisioning_class="")
    job = b200_job(world, pods=4, min_count=1)
    if by_request:
        world.drive(lambda: requests(world))
        assert only(requests(world))["spec"]["podSets"][0]["count"] == 1
    else:
        world.drive(lambda: all_unschedulable(world, 1))
    add_node(world)
    world.drive_to(job, S.RUNNING)
    # It runs: quota allows one of its missing pods, for which a single node is enough.
    world.drive(lambda: not requests(world) and all_unschedulable(world, 1))
    [has] = world.placements(job)
    assert (has.pod_set, has.ordinal) not in stand_ins(world)
    assert len(world.pods()) == 2


def test_who_has_asked_otherwise_gets_no_request(asks, monkeypatch):
    world = asks
    job = own(world, "Job", "tune", {**INDEXED, "parallelism": 2, "completions": 2})
    for n in (0, 1):
        member(world, f"tune-{n}", job, notes={CONSUMES: "of-theirs"}, **SELECTOR)
    world.drive(lambda: Job.objects.filter(pod_gang="Job/tune", reason="WaitingForNodes"))
    notes = pod_of(world, "tune-0")["metadata"]["annotations"]
    assert (requests(world), notes[CONSUMES]) == ({}, "of-theirs")
    monkeypatch.setattr(provisioning, "MOST_POD_SETS", 0)  # of one request
    b200_job(world, pods=1)
    world.drive(lambda: all_unschedulable(world, 1))
    assert not requests(world)


def test_what_is_refused_is_told_and_pods_stand_in(asks):
    world = asks
    job = b200_job(world, pods=1)
    world.drive(lambda: requests(world))
    [name] = requests(world)
    theirs = {"metadata": {"name": f"{name[:-1]}2-0"}, "template": {"spec": {"containers": []}}}
    namespace = requests(world)[name]["metadata"]["namespace"]
    world.call("POST", f"/api/v1/namespaces/{namespace}/podtemplates", theirs)
    answer(world, requests(world)[name], "Failed", at="2020-01-01T00:00:00Z")
    world.drive(lambda: "the API server refuses it: a PodTemplate named" in told(job))
    world.drive(lambda: all_unschedulable(world, 1))
    world.drive(lambda: not requests(world))
