"""POST /api/v1/jobs:act applies one act to many jobs and answers for each job separately."""

import uuid

import pytest

from scheduling.models import Job, JobEvent
from scheduling.services.jobs.many import MOST_AT_ONCE

URL = "/api/v1/jobs:act"


@pytest.fixture
def jobs(org):
    eve = org.client("eve")
    hello = {"tenant": "vision", "gpu_type": "H100", "gpus": 1}
    made = [eve.post("/api/v1/jobs", {**hello, "name": n}, format="json") for n in "abc"]
    return [uuid.UUID(answer.json()["id"]) for answer in made]


def ask(client, ids, act="cancel", query="", **more):
    body = {"act": act, "ids": [str(i) for i in ids], **more}
    return client.post(URL + query, body, format="json")


def test_each_is_done_or_refused_for_itself_in_their_order(org, jobs):
    eve = org.client("eve")
    eve.post(f"/api/v1/jobs/{jobs[1]}/cancel")
    nowhere = uuid.uuid4()
    answer = ask(eve, [jobs[2], nowhere, jobs[1], jobs[0], jobs[2]]).json()
    assert (answer["done"], answer["refused"]) == (2, 2)
    assert [one["id"] for one in answer["answers"]] == [
        str(i) for i in (jobs[2], nowhere, jobs[1], jobs[0])
    ]
    assert [one["status"] for one in answer["answers"]] == [200, 404, 409, 200]
    done, _, refused, _ = answer["answers"]
    assert (done["job"]["state"], done["problem"]) == ("CANCELLED", None)
    assert refused["job"] is None
    assert "already cancelled" in refused["problem"]["detail"]


def test_a_dry_run_changes_nothing_and_says_the_same(org, jobs):
    eve, events = org.client("eve"), JobEvent.objects.count()
    told = ask(eve, jobs, "hold", "?dry_run=true").json()
    assert (told["dry_run"], told["result"]["done"]) == (True, 3)
    assert all(one["job"]["held"] for one in told["result"]["answers"])
    assert JobEvent.objects.count() == events
    assert not Job.objects.filter(held=True).exists()


@pytest.mark.parametrize(
    ("act", "changes", "field", "value"),
    [
        ("hold", None, "held", True),
        ("change", {"priority": 7}, "priority", 7),
        ("cancel", None, "state", "CANCELLED"),
    ],
)
def test_the_acts_do_what_the_calls_for_one_job_do(org, jobs, act, changes, field, value):
    more = {"changes": changes} if changes else {}
    answer = ask(org.client("eve"), jobs, act, **more)
    assert answer.json()["done"] == 3
    assert set(Job.objects.values_list(field, flat=True)) == {value}


def test_who_may_not_is_refused_each_and_who_may_not_see_learns_nothing(org, jobs):
    by_joe = ask(org.client("joe"), jobs).json()
    assert {one["status"] for one in by_joe["answers"]} <= {403, 404}
    by_lex = ask(org.client("lex"), jobs).json()
    assert {one["status"] for one in by_lex["answers"]} == {404}
    assert not Job.objects.filter(state="CANCELLED").exists()


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"act": "cancel", "ids": []}, "/ids"),
        ({"act": "cancel", "ids": ["x"]}, "/ids/0"),
        ({"act": "explode", "ids": [str(uuid.uuid4())]}, "/act"),
        ({"act": "cancel", "ids": [str(uuid.uuid4())] * (MOST_AT_ONCE + 1)}, "/ids"),
        ({"act": "change", "ids": [str(uuid.uuid4())]}, "/changes"),
        ({"act": "hold", "ids": [str(uuid.uuid4())], "changes": {"priority": 1}}, "/changes"),
        (
            {"act": "change", "ids": [str(uuid.uuid4())], "changes": {"colour": 1}},
            "/changes/colour",
        ),
        ({"ids": [str(uuid.uuid4())]}, "/act"),
    ],
)
def test_a_body_that_cannot_be_read_names_the_field(org, body, pointer):
    answer = org.client("eve").post(URL, body, format="json")
    assert answer.status_code == 422
    assert pointer in {error["pointer"] for error in answer.json()["errors"]}
