"""PATCH changes the number of pods; tests/live covers what the scheduler does then."""

import uuid

import pytest

from scheduling.job_fields.faults import MAX_PODS
from scheduling.models import Job, JobEvent, NodeRecord, Placement
from tests.scheduling.test_api_jobs_change import HELLO, URL, patch, pointers, submit

SERVICE = {"gang": False, "kind": "inference", "replicas": 4}
TWO_SETS = {
    "name": "two",
    "tenant": "vision",
    "gang": False,
    "pod_sets": [
        {"name": "server", "count": 4, "gpus": 2, "gpu_type": "H100"},
        {"name": "router", "count": 1, "cpu_milli": 500},
    ],
}


def resize(client, job_id, count, query="", name="worker", **more):
    return patch(client, job_id, query, pod_sets=[{"name": name, "count": count, **more}])


def runs(job_id, placed=0):
    """Give the job places for this many of its pods."""
    Job.objects.filter(pk=job_id).update(state="RUNNING", attempt=1)
    job = Job.objects.get(pk=job_id)
    now = job.submitted_at
    for ordinal in range(placed):
        Placement.objects.create(
            job=job, attempt=1, pod_set=0, ordinal=ordinal, pod_name=f"p{ordinal}", node="n",
            gpu_model="H100", state="RUNNING", intended_at=now, held_from=now,
        )  # fmt: skip


def test_a_service_that_runs_gets_another_count(eve):
    job_id = submit(eve, **SERVICE)
    runs(job_id, placed=4)
    answer = resize(eve, job_id, 12)
    assert answer.status_code == 200, answer.json()
    assert (answer.json()["pod_sets"][0]["count"], answer.json()["gpus"]) == (12, 12)
    assert eve.get(f"{URL}/{job_id}").json() == answer.json()
    assert eve.get(f"{URL}/{job_id}/document").json()["replicas"] == 12
    growth = eve.get(f"{URL}/{job_id}/explain").json()["growth"]
    assert (growth["has"], growth["asked"]) == (4, 12)
    event = JobEvent.objects.filter(job=job_id).last()
    assert (event.kind, event.actor, event.message) == ("CHANGED", "eve", "worker: 4 → 12 pods")
    assert event.evidence == {"from": "worker=4", "to": "worker=12"}
    job = Job.objects.get()
    # Otherwise the scheduler's own next step would find the job changed by somebody else.
    assert job.version == 1
    # Waits refer to what the job requested when it started.
    assert (job.first_pods, job.first_gpu_milli) == (4, 4000)
    rehearsed = resize(eve, job_id, 2, "?dry_run=true").json()
    assert (rehearsed["would"], rehearsed["result"]["pod_sets"][0]["count"]) == ("update", 2)
    assert Job.objects.get().pod_sets.get().count == 12


def test_a_count_that_it_has_already_is_no_change(eve):
    job_id = submit(eve, **SERVICE)
    assert resize(eve, job_id, 4).status_code == 200
    assert JobEvent.objects.filter(job=job_id).count() == 1
    assert Job.objects.get().version == 1


def test_who_gave_up_waiting_before_it_had_a_place_has_no_wait(eve):
    job_id = submit(eve, **SERVICE)
    runs(job_id, placed=3)
    resize(eve, job_id, 2)
    assert Job.objects.get().first_pods == 3
    resize(eve, job_id, 9)
    assert (Job.objects.get().first_pods, Job.objects.get().first_gpu_milli) == (3, 4000)


def test_with_other_changes_it_is_one_change(eve):
    job_id = submit(eve)
    sizes = [{"name": "worker", "count": 2}]
    answer = patch(eve, job_id, pod_sets=sizes, priority=5)
    assert (answer.json()["gpus"], answer.json()["priority"]) == (2, 5)
    assert JobEvent.objects.last().message == "worker: 1 → 2 pods; priority: 0 → 5"
    assert (Job.objects.get().version, Job.objects.get().first_pods) == (2, None)
    refused = patch(eve, job_id, pod_sets=[{"name": "worker", "count": 3}], priority=10**7)
    assert pointers(refused) == ["/priority"]


def test_pod_sets_are_resized_by_their_names(eve):
    job_id = eve.post(URL, TWO_SETS, format="json").json()["id"]
    runs(job_id)
    sizes = [{"name": "router", "count": 2}, {"name": "server", "count": 6}]
    answer = patch(eve, job_id, pod_sets=sizes)
    assert [s["count"] for s in answer.json()["pod_sets"]] == [6, 2]
    assert answer.json()["gpus"] == 12
    assert JobEvent.objects.last().message == "server: 4 → 6 pods; router: 1 → 2 pods"
    assert JobEvent.objects.last().evidence["to"] == "server=6 router=2"


@pytest.mark.parametrize(
    ("item", "pointer", "text"),
    [
        ({"name": "router", "count": 2}, "name", "no such pod set; it has worker."),
        ({"name": "worker", "count": 0}, "count", "Must be from 1 to 100000."),
        ({"name": "worker", "count": None}, "count", ""),
        ({"name": "worker"}, "count", "Give the new number of pods"),
        ({"count": 2}, "name", ""),
        ({"name": "worker", "count": 2, "gpus": 8}, "gpus", "Unknown field"),
        ({"name": "worker", "count": 4, "min_count": 2}, "min_count", "no minimum number"),
    ],
)
def test_what_is_wrong_is_named(eve, item, pointer, text):
    job_id = submit(eve, **SERVICE)
    answer = patch(eve, job_id, pod_sets=[item])
    assert pointers(answer) == [f"/pod_sets/0/{pointer}"]
    assert text in answer.json()["errors"][0]["detail"]
    assert Job.objects.get().pod_sets.get().count == 4


def test_a_pod_set_is_named_once_and_a_list_is_not_empty(eve):
    job_id = submit(eve, **SERVICE)
    twice = patch(eve, job_id, pod_sets=[{"name": "worker", "count": n} for n in (2, 3)])
    assert pointers(twice) == ["/pod_sets/1/name"]
    assert pointers(patch(eve, job_id, pod_sets=[])) == ["/pod_sets"]


def test_a_job_has_no_more_pods_than_at_submission(eve):
    job_id = eve.post(URL, TWO_SETS, format="json").json()["id"]
    answer = resize(eve, job_id, MAX_PODS, name="server")
    assert pointers(answer) == ["/pod_sets"]
    assert answer.json()["errors"][0]["detail"] == "A job has at most 100000 pods."


def test_slices_stay_whole_and_a_gang_keeps_its_least(eve):
    job_id = submit(
        eve, replicas=8, min_count=4, slice_size=2, required_level="leaf", name="sliced"
    )
    odd = resize(eve, job_id, 5)
    assert pointers(odd) == ["/pod_sets/0/count"]
    assert "slice_size (2)" in odd.json()["errors"][0]["detail"]
    few = resize(eve, job_id, 2)
    assert few.json()["errors"][0]["detail"] == (
        "Must be at least min_count (4). Lower min_count, too."
    )
    both = resize(eve, job_id, 2, min_count=2)
    assert (both.status_code, both.json()["pod_sets"][0]["min_count"]) == (200, 2)
    assert JobEvent.objects.last().message == "worker: 8 → 2 pods; worker: min_count 4 → 2"


def test_a_gang_larger_than_the_cluster_is_refused_as_at_submission(eve):
    NodeRecord.objects.exclude(name="h000").delete()
    job_id = submit(eve, replicas=8)
    answer = resize(eve, job_id, 9)
    assert answer.status_code == 422, answer.json()
    assert answer.json()["code"] == "ExceedsCapacity"
    assert "needs 9 H100 GPUs at once; cluster “demo” has 8." in answer.json()["detail"]
    submitted = eve.post(URL, {**HELLO, "replicas": 9}, format="json")
    assert submitted.json()["code"] == "ExceedsCapacity"
    # Fewer pods, or a start one by one: the scheduler decides on that.
    NodeRecord.objects.update(gpus=4)
    assert resize(eve, job_id, 5).status_code == 200
    service = submit(eve, **SERVICE)
    assert resize(eve, service, 9).status_code == 200


@pytest.mark.parametrize("least", [None, 2])
def test_a_gang_that_runs_can_only_do_without_what_it_does_not_need(eve, least):
    job_id = submit(eve, replicas=4, min_count=least)
    runs(job_id)
    answer = resize(eve, job_id, 3)
    if least is not None:
        assert answer.status_code == 200
        higher = resize(eve, job_id, 3, min_count=3)
        assert "min_count of worker is 2" in higher.json()["detail"]
        assert resize(eve, job_id, 3, min_count=None).status_code == 409
        assert resize(eve, job_id, 1, min_count=1).status_code == 200
        return
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert "needs all pods of worker" in answer.json()["detail"]
    assert "with a min_count" in answer.json()["detail"]
    assert resize(eve, job_id, 4, min_count=2).status_code == 409


def test_plain_pods_arrays_and_jobs_that_are_over_are_refused(eve):
    job_id = submit(eve)
    Job.objects.update(pod_name="p", pod_namespace="n")
    plain = resize(eve, job_id, 2)
    assert (plain.status_code, "Kant did not create its pods" in plain.json()["detail"]) == (
        409,
        True,
    )
    Job.objects.update(pod_name="", state="SUCCEEDED")
    assert resize(eve, job_id, 2).status_code == 409
    body = {**HELLO, "array": {"count": 2}}
    array = eve.post(URL, body, format="json").json()["id"]
    sizes = {"pod_sets": [{"name": "worker", "count": 2}]}
    answer = eve.patch(f"/api/v1/job-arrays/{array}", sizes, format="json")
    assert pointers(answer) == ["/pod_sets"]
    assert "one by one" in answer.json()["errors"][0]["detail"]
    one = Job.objects.filter(array_id=array).first()
    assert resize(eve, one.pk, 2).status_code == 200


def test_a_waiting_job_is_routed_again_unless_pods_of_it_are_left(eve):
    job_id = submit(eve)
    Job.objects.update(scope="north")
    Placement.objects.create(
        job_id=uuid.UUID(job_id), attempt=1, pod_set=0, ordinal=0, pod_name="p", node="n",
        intended_at=Job.objects.get().submitted_at,
    )  # fmt: skip
    assert resize(eve, job_id, 2).json()["scope"] == "north"
    Placement.objects.update(state="RELEASED")
    assert resize(eve, job_id, 3).json()["scope"] == ""


def test_only_who_may_change_the_job_may_resize_it(org, eve):
    job_id = submit(eve, **SERVICE)
    for who, status in (("joe", 403), ("vic", 403), ("lex", 404), ("ada", 200)):
        assert resize(org.client(who), job_id, 5).status_code == status
