"""POST /api/v1/jobs:batch takes different jobs at once and answers each as if it had come alone."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduling.models import Job, JobEvent, PodSet
from scheduling.services.jobs.submission.batch import MOST_DOCUMENTS
from tenants.models import IdempotencyKey, Queue, QueueState, Tenant

URL = "/api/v1/jobs"
BATCH = f"{URL}:batch"
HELLO = {"name": "hello", "tenant": "vision", "gpu_type": "H100", "gpus": 1}
TWO_GPUS = {"name": "a", "count": 1, "gpu_type": "H100", "gpus": 2}
ALONE = ("id", "submitted_at")


@pytest.fixture
def rings(monkeypatch):
    heard = []
    monkeypatch.setattr("scheduling.services.common.doorbell.ring", heard.append)
    return heard


def post(client, *jobs, query="", **headers):
    return client.post(BATCH + query, {"jobs": list(jobs)}, format="json", headers=headers)


def without(names, document):
    return {name: value for name, value in document.items() if name not in names}


WANTED = [
    HELLO,
    HELLO | {"name": "train", "gpus": 8, "replicas": 2, "priority": 3, "labels": {"a": "b"}},
    {"name": "two", "tenant": "vision", "pod_sets": [TWO_GPUS, {**TWO_GPUS, "name": "b"}]},
    HELLO | {"gpus": "8"},  # a type error
    HELLO | {"gpus": -1},  # a value out of range
    HELLO | {"tenant": "law"},  # not visible to the user
    HELLO | {"gpu_type": "B200"},  # does not exist
    HELLO | {"gpus": 4096},  # too large
    HELLO | {"queue": "none"},
    HELLO | {"colour": "red"},
    {"name": "nobody"},
    "a text",
    None,
]


def test_each_is_answered_as_if_it_came_alone(eve):
    answer = post(eve, *WANTED)
    assert answer.status_code == 200, answer.json()
    body = answer.json()
    assert (body["accepted"], body["refused"]) == (3, len(WANTED) - 3), body
    for document, told in zip(WANTED, body["answers"], strict=True):
        alone = eve.post(URL, document, format="json")
        said = alone.json()
        if alone.status_code == 201:
            assert (told["status"], told["problem"], told["array"]) == (201, None, None)
            assert without(ALONE, told["job"]) == without(ALONE, said)
            assert eve.get(f"{URL}/{told['job']['id']}").json() == told["job"]
        elif isinstance(document, dict):
            assert told["status"] == alone.status_code
            its = ("instance", "request_id")
            assert without(its, told["problem"]) == without(its, said)
        else:
            assert (told["status"], told["problem"]["code"]) == (422, "invalid")


def test_they_stand_in_the_queue_in_their_order_also_with_arrays(
    eve, org, rings, django_capture_on_commit_callbacks
):
    sweep = HELLO | {"name": "sweep", "array": {"count": 3}}
    with django_capture_on_commit_callbacks(execute=True):
        body = post(eve, HELLO, sweep, HELLO | {"gpus": -1}, HELLO | {"name": "last"}).json()
    assert [a["status"] for a in body["answers"]] == [201, 201, 422, 201]
    assert body["answers"][1]["array"]["count"] == 3
    jobs = list(Job.objects.order_by("submitted_at"))
    assert [job.name for job in jobs] == ["hello", "sweep-0", "sweep-1", "sweep-2", "last"]
    assert len({job.submitted_at for job in jobs}) == 5
    assert JobEvent.objects.count() == PodSet.objects.count() == 5
    assert rings == [org.cluster.pk]


def test_arrays_of_one_call_are_bounded_together(eve, monkeypatch):
    monkeypatch.setattr("scheduling.services.jobs.submission.batch.MOST_JOBS", 5)
    sweeps = [HELLO | {"name": f"s{n}", "array": {"count": n}} for n in (3, 4, 2, 1)]
    answers = post(eve, *sweeps).json()["answers"]
    assert [a["status"] for a in answers] == [201, 422, 201, 422]
    told = answers[1]["problem"]
    assert told["errors"][0]["pointer"] == "/array"
    assert "at most 5 jobs, jobs of arrays included; 2 are left" in told["detail"]
    assert Job.objects.count() == 5


def test_limits_count_those_of_the_same_batch(eve):
    Tenant.objects.filter(name="vision").update(max_waiting=3)
    vision = Tenant.objects.get(name="vision")
    Queue.objects.create(tenant=vision, name="narrow", max_waiting=1)
    Queue.objects.create(tenant=vision, name="shut", state=QueueState.CLOSED)
    narrow, shut = HELLO | {"queue": "narrow"}, HELLO | {"queue": "shut"}
    answers = post(eve, narrow, narrow, shut, HELLO, HELLO, HELLO).json()["answers"]
    assert [a["status"] for a in answers] == [201, 409, 409, 201, 201, 409]
    assert "has 1 waiting jobs of at most 1" in answers[1]["problem"]["detail"]
    assert "accepts no jobs: it is closed" in answers[2]["problem"]["detail"]
    assert "“vision” has 3 waiting jobs of at most 3" in answers[5]["problem"]["detail"]
    assert Job.objects.count() == 3


def test_a_dry_run_changes_nothing(eve):
    body = post(eve, HELLO, HELLO | {"gpus": -1}, query="?dry_run=true").json()
    assert (body["dry_run"], body["would"]) == (True, "create")
    told = body["result"]
    assert (told["accepted"], told["refused"]) == (1, 1)
    assert "id" not in told["answers"][0]["job"]
    assert not Job.objects.exists()


def test_a_batch_sent_twice_happens_once(eve):
    first, again = (post(eve, HELLO, HELLO, **{"Idempotency-Key": "b-1"}) for _ in range(2))
    assert first.json() == again.json()
    assert Job.objects.count() == 2
    assert IdempotencyKey.objects.count() == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "jobs"),
        ({"jobs": []}, "jobs"),
        ({"jobs": {}}, "jobs"),
        ({"jobs": [HELLO] * (MOST_DOCUMENTS + 1)}, "1000"),
        ({"jobs": [HELLO], "all": True}, "Unknown field"),
        ([HELLO], "object"),
    ],
)
def test_a_body_that_is_no_batch(eve, body, said):
    answer = eve.post(BATCH, body, format="json")
    assert answer.status_code in (400, 422)
    assert said in answer.json()["detail"]
    assert not Job.objects.exists()


NO_NAMES = ["", "Vision", "a b", 7, None, {"a": 1}, ["vision"], "v" * 300, "\n"]


@pytest.mark.parametrize("field", ["tenant", "queue"])
def test_what_is_no_name_harms_nobody_else(eve, field):
    wrong = [HELLO | {field: name} for name in NO_NAMES if name or field == "tenant"]
    for jobs in ([], [HELLO]):
        answer = post(eve, *wrong, *jobs)
        assert answer.status_code == 200, answer.json()
        statuses = [a["status"] for a in answer.json()["answers"]]
        assert set(statuses[: len(wrong)]) <= {404, 422}
        assert statuses[len(wrong) :] == [201] * len(jobs)
    for job in wrong:
        assert eve.post(URL, job, format="json").status_code in (404, 422)
    assert Job.objects.count() == 1


def test_a_batch_without_a_document_of_a_job(eve):
    answer = post(eve, None, "a text", {"name": "nobody"}, {"after": [], "array": None})
    assert {a["status"] for a in answer.json()["answers"]} == {422}


def test_who_may_not_submit_is_told_for_each(org):
    answer = post(org.client("vic"), HELLO, HELLO)
    assert answer.status_code == 200
    assert [a["status"] for a in answer.json()["answers"]] == [403, 403]


def test_many_cost_as_many_statements_as_few(eve):
    def statements(count):
        with CaptureQueriesContext(connection) as told:
            answer = post(eve, *(HELLO | {"name": f"j{i}"} for i in range(count)))
        assert answer.json()["accepted"] == count
        return len(told)

    statements(1)  # the first one also reads the session
    few, many = statements(20), statements(60)
    assert many == few <= 16
    assert Job.objects.count() == 81
