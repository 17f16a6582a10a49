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
def rings(monkeypatch):
    heard = []
    monkeypatch.setattr("scheduling.services.common.doorbell.ring", heard.append)
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


# --- changes of what waits ------------------------------------------------------------------------
def array_of_three_states(client):
    """An array of five: one is over, one runs, three wait."""
    array_id = post(client).json()["id"]
    Job.objects.filter(array_index=0).update(state="SUCCEEDED")
    Job.objects.filter(array_index=1).update(state="RUNNING", version=4)
    return array_id


def versions():
    return dict(Job.objects.values_list("array_index", "version"))


def detail(answer, status=409):
    assert answer.status_code == status, answer.json()
    return answer.json()["detail"]


def test_hold_and_release_what_waits_of_an_array(
    eve, org, rings, django_capture_on_commit_callbacks
):
    array_id = array_of_three_states(eve)
    hold, release = (f"{ARRAYS}/{array_id}/{verb}" for verb in ("hold", "release"))
    for who, status in (("joe", 403), ("lex", 404)):
        assert org.client(who).post(hold).status_code == status
    assert detail(eve.post(release)) == "None of the 3 waiting jobs of this array is on hold."
    assert eve.post(f"{hold}?dry_run=true").json()["would"] == "update"
    assert not Job.objects.filter(held=True).exists()
    eve.post(f"{URL}/{Job.objects.get(array_index=2).pk}/hold")
    rings.clear()
    with django_capture_on_commit_callbacks(execute=True):
        assert eve.post(hold).status_code == 200
    assert rings == [org.cluster.pk]
    held = Job.objects.filter(held=True).values_list("array_index", flat=True)
    assert sorted(held) == [2, 3, 4]
    assert versions() == {0: 1, 1: 4, 2: 2, 3: 2, 4: 2}
    events = JobEvent.objects.filter(kind="HELD")
    assert Counter(events.values_list("job__array_index", "actor")) == {
        (2, "eve"): 1,
        (3, "eve"): 1,
        (4, "eve"): 1,
    }
    assert detail(eve.post(hold)) == "All 3 waiting jobs of this array are already on hold."
    assert eve.post(release).status_code == 200
    assert not Job.objects.filter(held=True).exists()
    assert JobEvent.objects.filter(kind="RELEASED").count() == 3
    Job.objects.update(state="RUNNING")
    for answer in (eve.post(hold), eve.post(release)):
        assert detail(answer).startswith("No job of this array is waiting;")


def test_change_what_waits_of_an_array(eve, org, rings, django_capture_on_commit_callbacks):
    array_id = array_of_three_states(eve)
    other = eve.post(URL, {**SWEEP, "array": None}, format="json").json()["id"]
    url = f"{ARRAYS}/{array_id}"
    assert org.client("joe").patch(url, {"priority": 1}, format="json").status_code == 403
    rings.clear()
    changes = {"priority": 7, "declared_s": 60, "after": [other]}
    with django_capture_on_commit_callbacks(execute=True):
        answer = eve.patch(url, changes, format="json")
    assert answer.status_code == 200, answer.json()
    assert rings == [org.cluster.pk]
    rows = Job.objects.filter(array_id=array_id).order_by("array_index")
    assert [j.priority for j in rows] == [0, 0, 7, 7, 7]
    assert [j.after for j in rows] == [[], [], [other], [other], [other]]
    assert [j.declared_s for j in rows] == [None, None, 60, 60, 60]
    event = JobEvent.objects.filter(kind="CHANGED").last()
    assert event.message == f"priority → 7; declared_s → 60; after → {other}"
    Job.objects.update(state="CANCELLED")
    answer = eve.patch(url, {"priority": 1}, format="json")
    assert detail(answer).startswith("No job of this array is waiting;")


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"priority": 10**30}, "/priority"),
        ({"declared_s": 0}, "/declared_s"),
        ({"after": ["x"]}, "/after/0"),
        ({"after_ok": [str(uuid.uuid4())]}, "/after_ok/0"),
        ({"gpus": 4}, "/gpus"),
    ],
)
def test_wrong_changes_of_an_array_are_named_and_change_nothing(eve, changes, pointer):
    array_id = post(eve).json()["id"]
    before = list(Job.objects.order_by("id").values())
    answer = eve.patch(f"{ARRAYS}/{array_id}", changes, format="json")
    assert answer.status_code == 422, answer.json()
    assert pointer in [e["pointer"] for e in answer.json()["errors"]]
    assert list(Job.objects.order_by("id").values()) == before


def test_changing_the_largest_array_takes_a_statement_for_many_of_its_jobs(
    eve, django_assert_max_num_queries
):
    array_id = post(eve, array={"count": 10_000}).json()["id"]
    with django_assert_max_num_queries(150):
        assert eve.post(f"{ARRAYS}/{array_id}/hold").status_code == 200
    assert Job.objects.filter(held=True, version=2).count() == 10_000


# --- dependencies on arrays -----------------------------------------------------------------------
def dependent(client, **fields):
    return client.post(URL, {**SWEEP, "name": "next", "array": None, **fields}, format="json")


def errors(answer):
    assert answer.status_code == 422, answer.json()
    return {e["pointer"]: e["detail"] for e in answer.json()["errors"]}


def test_a_job_may_wait_for_an_array(eve, org):
    array_id = post(eve).json()["id"]
    made = dependent(eve, after=[array_id], after_ok=[array_id])
    assert made.status_code == 201, made.json()
    assert (made.json()["after"], made.json()["after_ok"]) == ([array_id], [array_id])
    Job.objects.filter(array_index=3).update(state="FAILED")
    said = errors(dependent(eve, after=[array_id], after_ok=[array_id]))
    assert said.keys() == {"/after_ok/0"}
    assert "without success in 1 of its jobs" in said["/after_ok/0"]
    unseen = org.client("lex").post(
        URL, {**SWEEP, "tenant": "law", "array": None, "after": [array_id]}, format="json"
    )
    assert f"no job or array {array_id} that you may see" in errors(unseen)["/after/0"]


def test_no_job_waits_for_itself_by_way_of_an_array(eve):
    array_id = post(eve).json()["id"]
    member = Job.objects.get(array_index=2)
    said = errors(eve.patch(f"{URL}/{member.pk}", {"after": [array_id]}, format="json"))
    assert "The job would wait for itself" in said["/after/0"]
    behind = dependent(eve, after=[array_id]).json()["id"]
    last = dependent(eve, after_ok=[behind]).json()["id"]
    url = f"{ARRAYS}/{array_id}"
    for loop in (array_id, str(member.pk), behind, last):
        said = errors(eve.patch(url, {"after": [loop]}, format="json"))
        assert "The job would wait for itself" in said["/after/0"], loop
    assert not Job.objects.filter(array_id=array_id).exclude(after=[]).exists()
