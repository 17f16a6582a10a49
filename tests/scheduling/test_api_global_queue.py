"""The global queue of a cluster over REST and from the command line."""

from datetime import timedelta

import pytest
from django.utils import timezone

from scheduling.models import Job, PodSet, SchedulerLease, StandingOrder
from scheduling.queries.queues.waiting_order import packed
from tests.scheduling.test_api_jobs_follow import explained

URL = "/api/v1/clusters/demo/queue"


@pytest.fixture
def waiting(org):
    """Jobs 0 to 4 in order of submission; 3 belongs to a tenant that eve cannot see, 4 needs
    another GPU type."""
    now = timezone.now()
    jobs = []
    for i in range(5):
        tenant = org.tenants["law" if i == 3 else "vision"]
        job = Job.objects.create(
            name=f"j{i}",
            tenant=tenant,
            cluster=org.cluster,
            user=org.users["eve"] if i == 0 else None,
            submitted_at=now + timedelta(seconds=i),
            gpu_milli=8000,
            state="QUOTA_RESERVED",
            reason="InsufficientGpus",
            message="Needs 8, 4 are free.",
        )
        models = {0: ["H100", "A100"], 4: ["A100"]}.get(i, ["H100"])
        PodSet.objects.create(job=job, index=0, name="main", count=1, gpus=8, gpu_models=models)
        jobs.append(job)
    return jobs


def names(answer):
    assert answer.status_code == 200, answer.json()
    return [place["name"] for place in answer.json()["items"]]


def test_it_is_in_the_order_of_the_scheduler_and_says_what_keeps_the_heads(org, eve, waiting):
    Job.objects.filter(name="j2").update(priority=5)
    Job.objects.filter(name="j1").update(held=True, reason="OnHold")
    ops = org.client("ops")
    found = ops.get(URL).json()["items"]
    assert [p["name"] for p in found] == ["j2", "j0", "j3", "j4"]
    assert [p["position"] for p in found] == [1, 2, 3, 4]
    assert [p["head_of"] for p in found] == [["H100"], [], [], ["A100"]]
    assert found[1] == {
        **found[1],
        "job": str(waiting[0].pk),
        "tenant": "vision",
        "queue": "default",
        "user": "eve",
        "gpus": 8,
        "gpu_types": ["H100", "A100"],
        "reason": "InsufficientGpus",
        "message": "Needs 8, 4 are free.",
    }
    assert explained(eve, waiting[0].pk)["position"] == found[1]["position"]
    lease = SchedulerLease.objects.create(cluster=org.cluster)
    order = packed([str(waiting[i].pk) for i in (4, 3, 0, 2)])
    StandingOrder.objects.create(lease=lease, jobs=order)
    assert names(ops.get(URL)) == ["j4", "j3", "j0", "j2"]


def test_of_other_tenants_it_tells_the_size_and_the_reason_alone(eve, waiting):
    hidden = eve.get(URL).json()["items"][3]
    assert {name for name, value in hidden.items() if value is None} == {
        *("job", "name", "tenant", "queue", "user", "message"),
    }
    assert (hidden["position"], hidden["gpus"], hidden["reason"]) == (4, 8, "InsufficientGpus")


def test_it_is_filtered_by_gpu_type_and_keeps_the_places(eve, waiting):
    found = eve.get(f"{URL}?gpu_type=A100").json()["items"]
    assert [(p["position"], p["name"]) for p in found] == [(1, "j0"), (5, "j4")]
    assert names(eve.get(f"{URL}?gpu_type=H100")) == ["j0", "j1", "j2", None]


def test_pages_go_on_behind_their_last_job_wherever_that_is_by_then(eve, waiting):
    page = eve.get(f"{URL}?limit=2").json()
    assert [p["name"] for p in page["items"]] == ["j0", "j1"]
    assert names(eve.get(page["next"])) == ["j2", None]
    Job.objects.filter(name="j4").update(priority=9)  # it comes first now
    assert names(eve.get(page["next"])) == ["j2", None]
    Job.objects.filter(name="j1").update(state="RUNNING")  # the last one no longer waits
    Job.objects.filter(name="j4").update(priority=0)
    assert names(eve.get(page["next"])) == ["j2", None]
    last = eve.get(eve.get(page["next"]).json()["next"]).json()
    assert ([p["name"] for p in last["items"]], last["next"]) == (["j4"], None)


def test_each_shard_has_its_own(org, eve, waiting):
    for scope in ("a", "b"):
        SchedulerLease.objects.create(cluster=org.cluster, scope=scope)
    Job.objects.filter(name="j0").update(scope="a")
    Job.objects.filter(name="j1").update(scope="b")
    assert names(eve.get(URL)) == names(eve.get(f"{URL}?scope=a")) == ["j0"]
    assert names(eve.get(f"{URL}?scope=b")) == ["j1"]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("gpu_type=H300", "There is no GPU type “H300”"),
        ("scope=c", "There is no shard “c”"),
        ("gpu=H100", "Unknown parameter"),
        ("limit=0", "Must be a whole number from 1 to 500"),
        *((f"cursor={text}", "Not a cursor of this list") for text in ("x", "WzFd", "WzEsIjIiXQ")),
    ],
)
def test_what_it_does_not_understand_it_refuses(eve, waiting, query, told):
    answer = eve.get(f"{URL}?{query}")
    assert answer.status_code == 400
    assert told in answer.json()["detail"]
    assert eve.get("/api/v1/clusters/nowhere/queue").status_code == 404
