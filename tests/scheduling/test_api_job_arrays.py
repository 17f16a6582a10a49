"""Job arrays: many small jobs as one submission."""

import uuid
from collections import Counter

import pytest

from scheduling.models import Job, JobEvent, PodSet

URL = "/api/v1/jobs"
ARRAYS = "/api/v1/job-arrays"
SWEEP = {
    "name": "sweep",
    "tenant": "vision",
    "gpu_type": "H100",
    "gpus": 1,
    "env": {"SEED": "7"},
    "array": {"count": 5},
}


def post(client, query="", headers=None, **fields):
    return client.post(URL + query, {**SWEEP, **fields}, format="json", headers=headers)


@pytest.fixture
def eve(org):
    return org.client("eve")


@pytest.fixture
def rings(monkeypatch):
    heard = []
    monkeypatch.setattr("scheduling.services.jobs.ring", heard.append)
    return heard


def test_an_array_is_one_submission_of_many_jobs(
    eve, org, rings, django_capture_on_commit_callbacks
):
    with django_capture_on_commit_callbacks(execute=True):
        made = post(eve)
    assert made.status_code == 201, made.json()
    array = made.json()
    assert made["Location"].endswith(f"{ARRAYS}/{array['id']}")
    assert eve.get(made["Location"]).json() == array
    assert (array["name"], array["count"], array["gpus"]) == ("sweep", 5, 5)
    assert (array["states"], array["user"]) == ({"PENDING": 5}, "eve")
    assert rings == [org.cluster.pk]
    jobs = eve.get(f"{URL}?array={array['id']}").json()["items"][::-1]
    assert [(j["name"], j["array_index"]) for j in jobs] == [(f"sweep-{i}", i) for i in range(5)]
    assert {j["array"] for j in jobs} == {array["id"]}
    assert jobs[3]["pod_sets"][0]["env"] == {
        "SEED": "7",
        "KANT_ARRAY_INDEX": "3",
        "KANT_ARRAY_COUNT": "5",
    }
    assert Counter(JobEvent.objects.values_list("kind", flat=True)) == {"SUBMITTED": 5}
    assert post(eve, name="other").status_code == 201
    assert len(eve.get(f"{URL}?array={array['id']}").json()["items"]) == 5


def test_an_array_is_submitted_once_per_key_and_rehearsed(eve):
    key = {"Idempotency-Key": "sweep-1"}
    first, again = post(eve, headers=key), post(eve, headers=key)
    assert first.json() == again.json()
    assert Job.objects.count() == 5
    rehearsed = post(eve, "?dry_run=true").json()
    assert (rehearsed["would"], rehearsed["result"]["count"]) == ("create", 5)
    assert "id" not in rehearsed["result"]
    assert Job.objects.count() == PodSet.objects.count() == 5


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"array": {"count": 0}}, "/array/count"),
        ({"array": {"count": 10_001}}, "/array/count"),
        ({"array": {"count": 10**30}}, "/array/count"),
        ({"array": {"count": "5"}}, "/array/count"),
        ({"array": {}}, "/array/count"),
        ({"array": {"count": 5, "step": 2}}, "/array/step"),
        ({"array": 5}, "/array"),
        ({"array": {"count": 10_000}, "replicas": 11, "gang": False}, "/array/count"),
        ({"array": {"count": 10_000}, "env": {"BLOB": "x" * 7000}}, "/array/count"),
        ({"name": "x" * 62}, "/name"),
        ({"gpus": 9}, "/gpus"),
    ],
)
def test_wrong_arrays(eve, fields, pointer):
    answer = post(eve, **fields)
    assert answer.status_code == 422, answer.json()
    assert pointer in [e["pointer"] for e in answer.json()["errors"]]
    assert not Job.objects.exists()


def test_cancel_a_whole_array(eve, org, rings, django_capture_on_commit_callbacks):
    array_id = post(eve).json()["id"]
    Job.objects.filter(array_index=0).update(state="SUCCEEDED")
    Job.objects.filter(array_index=1).update(state="RUNNING", version=4)
    beside = eve.post(URL, {**SWEEP, "array": None}, format="json").json()["id"]
    url = f"{ARRAYS}/{array_id}/cancel"
    for who, status in (("joe", 403), ("lex", 404)):
        assert org.client(who).post(url).status_code == status
    rehearsed = eve.post(f"{url}?dry_run=true").json()
    assert rehearsed["result"]["states"] == {"CANCELLED": 4, "SUCCEEDED": 1}
    assert not Job.objects.filter(state="CANCELLED").exists()
    with django_capture_on_commit_callbacks(execute=True):
        answer = eve.post(url)
    assert answer.status_code == 200
    assert answer.json()["states"] == {"CANCELLED": 4, "SUCCEEDED": 1}
    assert rings == [org.cluster.pk]
    events = JobEvent.objects.filter(kind="CANCELLED").values_list("from_state", "actor")
    assert Counter(events) == {("PENDING", "eve"): 3, ("RUNNING", "eve"): 1}
    assert Job.objects.get(array_index=1).version == 5
    assert Job.objects.get(array_index=1).ended_at is not None
    assert Job.objects.get(id=beside).state == "PENDING"
    again = eve.post(url)
    assert (again.status_code, again.json()["detail"]) == (409, "All jobs of this array are over.")


def test_arrays_of_others_do_not_exist(org, eve):
    array_id = post(eve).json()["id"]
    assert org.client("lex").get(f"{ARRAYS}/{array_id}").status_code == 404
    assert eve.get(f"{ARRAYS}/{uuid.uuid4()}").status_code == 404
    assert org.client("vic").get(f"{ARRAYS}/{array_id}").json()["count"] == 5


def test_the_largest_array_is_a_few_statements(eve, django_assert_max_num_queries):
    with django_assert_max_num_queries(20):
        assert post(eve, array={"count": 10_000}).status_code == 201
    assert Job.objects.count() == PodSet.objects.count() == JobEvent.objects.count() == 10_000
    assert eve.get(f"{URL}?limit=1").json()["items"][0]["name"] == "sweep-9999"
