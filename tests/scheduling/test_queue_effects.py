"""Preview over REST what queue changes would do to jobs: `PATCH`, `hold` and `release` as dry
runs."""

import pytest

from scheduling.models import Cluster, ClusterPolicy, Job
from tenants.models import Queue, Quota, Tenant
from tests.scheduling.test_quota_effects import asks
from tests.scheduling.test_rehearsal import fleet, runs  # noqa: F401 - a fixture


@pytest.fixture
def two(fleet):  # noqa: F811
    """Law runs on all four nodes; in each of two queues a job of vision waits for all of them."""
    ClusterPolicy.objects.create(
        cluster=fleet.cluster, document={"queueing": "strict-fifo", "preemption": []}
    )
    Quota.objects.filter(tenant__name__in=("law", "vision")).update(guaranteed_milli=32000)
    vision = Tenant.objects.get(name="vision")
    Queue.objects.create(tenant=vision, name="night")
    runs(fleet, ["h000", "h001", "h002", "h003"], declared_s=3600)
    first, second = (asks(fleet, "vision", 4, "eve") for _ in range(2))
    Job.objects.filter(pk=second).update(queue="night")
    return fleet, first, second


def tried(org, what="", queue="night", **given):
    client = org.client("ops")
    url = f"/api/v1/queues/vision/{queue}"
    if what:
        answer = client.post(f"{url}/{what}?dry_run=true", {"reason": "why"}, format="json")
    else:
        version = Queue.objects.get(tenant__name="vision", name=queue).version
        guard = {"If-Match": f'"{version}"'}
        answer = client.patch(f"{url}?dry_run=true", given, format="json", headers=guard)
    assert answer.status_code == 200, answer.json()
    return answer.json()["effects"]


def shifts(found):
    return {one["job"]["job"]: one["by_s"] for one in found["shifts"]}


def test_a_higher_rank_passes_the_other_queue(two):
    org, first, second = two
    by = shifts(tried(org, rank=5))
    assert by[second] < 0 < by[first]
    assert Queue.objects.get(name="night").rank == 0
    assert shifts(tried(org, rank=-5)) == {}  # it waits behind the other already


def test_a_held_queue_lets_the_other_go_and_its_own_jobs_start_later_than_is_looked(two):
    org, first, second = two
    found = tried(org, "hold")  # nobody waits behind it
    assert (shifts(found), found["counts"]["later"]) == ({second: None}, 1)
    found = tried(org, "hold", "default")
    by, after = shifts(found), {one["job"]["job"]: one["after"] for one in found["shifts"]}
    assert by.keys() == {first, second}
    assert by[second] < 0
    assert after[first] is None
    assert Queue.objects.get(tenant__name="vision", name="default").state == "open"


def test_a_released_queue_is_told_with_those_that_its_jobs_pass(two):
    org, first, second = two
    Queue.objects.filter(tenant__name="vision", name="default").update(state="held")
    found = tried(org, "release", "default")
    assert shifts(found)[second] > 0
    assert {one["job"]["job"]: one["before"] for one in found["shifts"]}[first] is None


def test_a_limit_that_keeps_jobs_from_starting(fleet):  # noqa: F811
    """Vision runs one job of the queue; two more wait that would start when it ends."""
    ClusterPolicy.objects.create(cluster=fleet.cluster, document={"preemption": []})
    Quota.objects.filter(tenant__name__in=("law", "vision")).update(guaranteed_milli=32000)
    runs(fleet, ["h000", "h001", "h002"], declared_s=3600)
    running = runs(fleet, ["h003"], tenant="vision", declared_s=36000)
    for _ in range(2):
        asks(fleet, "vision", 1, "eve")
    assert running.queue == "default"
    assert tried(fleet, queue="default", max_running=1)["counts"]["later"] == 2
    assert tried(fleet, queue="default", max_running=2)["counts"]["later"] == 1
    assert tried(fleet, queue="default", max_gpus={"H100": 8})["counts"]["later"] == 2
    assert tried(fleet, queue="default", max_running=9)["counts"]["later"] == 0
    # Jobs that run on another cluster count, too.
    elsewhere = Cluster.objects.create(name="elsewhere", is_active=False)
    Job.objects.create(
        name="other", tenant=running.tenant, cluster=elsewhere, state="RUNNING", gpu_milli=8000,
        submitted_at=running.submitted_at,
    )  # fmt: skip
    assert tried(fleet, queue="default", max_running=2)["counts"]["later"] == 2


def test_what_jobs_do_not_feel_is_not_looked_at(two):
    org, *_ = two
    for given in ({"title": "Nights"}, {"max_waiting": 3}, {"max_priority": 1}, {"kinds": []}):
        assert tried(org, **given)["until"] is None
    for what in ("drain", "close"):
        assert tried(org, what)["until"] is None
