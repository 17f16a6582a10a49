"""Holding, releasing and changing waiting jobs; what they wait for."""

import uuid
from datetime import timedelta

import pytest

from scheduling.models import Cluster, Job, JobEvent
from scheduling.queries.wording import in_state
from scheduling.services.jobs.changes import change_job

URL = "/api/v1/jobs"
HELLO = {"name": "one", "tenant": "vision", "gpu_type": "H100", "gpus": 1}


def submit(client, **fields):
    answer = client.post(URL, {**HELLO, **fields}, format="json")
    assert answer.status_code == 201, answer.json()
    return answer.json()["id"]


def patch(client, job_id, query="", **changes):
    return client.patch(f"{URL}/{job_id}{query}", changes, format="json")


def pointers(answer):
    assert answer.status_code == 422, answer.json()
    return [e["pointer"] for e in answer.json()["errors"]]


@pytest.fixture
def rings(monkeypatch):
    heard = []
    monkeypatch.setattr("scheduling.services.common.doorbell.ring", heard.append)
    return heard


@pytest.mark.parametrize("state", ["PENDING", "QUOTA_RESERVED"])
def test_hold_and_release(eve, org, state, rings, django_capture_on_commit_callbacks):
    job_id = submit(eve)
    Job.objects.update(state=state)
    with django_capture_on_commit_callbacks(execute=True):
        held = eve.post(f"{URL}/{job_id}/hold")
    assert held.status_code == 200
    assert (held.json()["held"], held.json()["state"]) == (True, state)
    assert rings == [org.cluster.pk]
    assert Job.objects.get().version == 2
    again = eve.post(f"{URL}/{job_id}/hold")
    assert (again.status_code, again.json()["detail"]) == (409, "The job is already on hold.")
    assert [j["id"] for j in eve.get(f"{URL}?held=true").json()["items"]] == [job_id]
    assert eve.post(f"{URL}/{job_id}/release?dry_run=true").json()["result"]["held"] is False
    assert eve.post(f"{URL}/{job_id}/release").json()["held"] is False
    assert eve.post(f"{URL}/{job_id}/release").status_code == 409
    events = JobEvent.objects.filter(job=job_id).values_list("kind", "to_state", "actor")
    assert list(events)[1:] == [("HELD", state, "eve"), ("RELEASED", state, "eve")]


def test_who_releases_a_job_that_its_pod_holds_is_told_so(eve):
    job_id = submit(eve)
    Job.objects.update(pod_hold="Its pod has the scheduling gate x/y.")
    answer = eve.post(f"{URL}/{job_id}/release")
    assert answer.status_code == 409
    assert answer.json()["detail"] == (
        "The job itself is not on hold. Its pod has the scheduling gate x/y."
    )


def test_a_job_may_be_submitted_on_hold_and_stands_in_nobodys_way(eve):
    held = submit(eve, held=True)
    free = submit(eve)
    assert eve.get(f"{URL}/{held}").json()["held"] is True
    assert eve.get(f"{URL}/{free}/explain").json()["position"] == 1
    assert eve.get(f"{URL}/{held}/explain").json()["position"] is None


def test_change_what_a_waiting_job_asks_for(eve, org, rings, django_capture_on_commit_callbacks):
    other = submit(eve, name="other")
    job_id = submit(eve, declared_s=60, run_limit_s=120)
    with django_capture_on_commit_callbacks(execute=True):
        answer = patch(
            eve,
            job_id,
            priority=7,
            declared_s=None,
            run_limit_s=3600,
            checkpoint_notice_s=120,
            max_restarts=3,
            not_before="2030-01-31T12:00:00+01:00",
            after=[other],
        )
    assert answer.status_code == 200, answer.json()
    body = answer.json()
    assert (body["priority"], body["declared_s"], body["run_limit_s"]) == (7, None, 3600)
    assert (body["checkpoint_notice_s"], body["max_restarts"]) == (120, 3)
    assert body["not_before"] == "2030-01-31T11:00:00Z"
    assert (body["after"], body["after_ok"]) == ([other], [])
    assert eve.get(f"{URL}/{job_id}").json() == body
    assert rings == [org.cluster.pk]
    event = JobEvent.objects.filter(job=job_id).last()
    assert (event.kind, event.actor) == ("CHANGED", "eve")
    assert "priority: 0 → 7; declared_s: 60 → none; run_limit_s: 120 → 3600" in event.message
    assert "checkpoint_notice_s: none → 120; max_restarts: 0 → 3" in event.message
    assert patch(eve, job_id, not_before=None, after=[]).json()["after"] == []
    rehearsed = patch(eve, job_id, "?dry_run=true", priority=9).json()
    assert (rehearsed["would"], rehearsed["result"]["priority"]) == ("update", 9)
    assert Job.objects.get(id=job_id).priority == 7


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"priority": 10**30}, "/priority"),
        ({"priority": 1_000_001}, "/priority"),
        ({"priority": None}, "/priority"),
        ({"declared_s": 0}, "/declared_s"),
        ({"declared_s": -5}, "/declared_s"),
        ({"run_limit_s": 0}, "/run_limit_s"),
        ({"run_limit_s": "1h"}, "/run_limit_s"),
        ({"checkpoint_notice_s": 3601}, "/checkpoint_notice_s"),
        ({"max_restarts": 1001}, "/max_restarts"),
        ({"not_before": "soon"}, "/not_before"),
        ({"after": ["x"]}, "/after/0"),
        ({"after_ok": [str(uuid.uuid4())]}, "/after_ok/0"),
        ({"after": [str(uuid.uuid4())] * 1001}, "/after"),
        ({"gpus": 4}, "/gpus"),
    ],
)
def test_wrong_changes_are_named_and_change_nothing(eve, changes, pointer):
    job_id = submit(eve)
    before = Job.objects.values().get()
    assert pointer in pointers(patch(eve, job_id, **changes))
    assert Job.objects.values().get() == before
    if changes.keys() != {"priority"} or changes["priority"] is not None:
        answer = eve.post(URL, {**HELLO, "gpus": 1, **changes}, format="json")
        assert changes.keys() == {"gpus"} or pointer in pointers(answer)


def test_who_made_a_plain_pod_restarts_it(eve):
    job_id = submit(eve)
    Job.objects.update(pod_namespace="default", pod_name="own")
    answer = patch(eve, job_id, max_restarts=3)
    assert pointers(answer) == ["/max_restarts"]
    assert "Kant did not create its pods" in answer.json()["errors"][0]["detail"]
    assert Job.objects.get().max_restarts == 0


def test_an_empty_change_is_refused(eve):
    answer = patch(eve, submit(eve))
    assert answer.status_code == 422
    assert "nothing to change" in answer.json()["detail"]


@pytest.mark.parametrize("state", ["ADMITTED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"])
def test_only_waiting_jobs_can_be_changed(eve, state):
    job_id = submit(eve)
    Job.objects.update(state=state)
    for answer in (
        eve.post(f"{URL}/{job_id}/hold"),
        eve.post(f"{URL}/{job_id}/release"),
        patch(eve, job_id, priority=1),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        assert answer.json()["detail"].startswith(f"The job is {in_state(state)};")
    row = Job.objects.get()
    assert (row.version, row.priority, row.held) == (1, 0, False)


def test_of_a_job_that_has_started_its_times_can_be_changed(now, eve):
    job_id = submit(eve, run_limit_s=600)
    began = now - timedelta(seconds=300)
    Job.objects.update(state="RUNNING", admitted_at=began)
    answer = patch(eve, job_id, run_limit_s=7200, declared_s=3600)
    assert answer.status_code == 200, answer.json()
    assert (answer.json()["run_limit_s"], answer.json()["declared_s"]) == (7200, 3600)
    # Otherwise the scheduler's own next step would find the job changed by somebody else.
    assert Job.objects.get().version == 1
    event = JobEvent.objects.filter(job=job_id).last()
    assert (event.kind, event.to_state) == ("CHANGED", "RUNNING")
    assert "run_limit_s: 600" in event.message
    late = patch(eve, job_id, run_limit_s=200)
    assert pointers(late) == ["/run_limit_s"]
    assert "has already run for 300 s" in late.json()["errors"][0]["detail"]
    mixed = patch(eve, job_id, run_limit_s=9000, priority=1)
    assert (mixed.status_code, mixed.json()["code"]) == (409, "conflict")
    can = "only declared_s, run_limit_s and the number of its pods can be changed"
    assert can in mixed.json()["detail"]
    assert Job.objects.get().run_limit_s == 7200


def test_who_may_hold_and_change(org, eve):
    job_id = submit(eve)
    for who, status in (("joe", 403), ("vic", 403), ("lex", 404), ("ada", 200)):
        client = org.client(who)
        assert client.post(f"{URL}/{job_id}/hold").status_code == status
        assert patch(client, job_id, priority=1).status_code == status


def test_a_change_meets_a_scheduler_that_was_faster(org, eve, meet_a_scheduler):
    submit(eve)
    job = Job.objects.get()
    meet_a_scheduler("QUOTA_RESERVED")
    changed = change_job(org.users["eve"], job, {"priority": 3})
    assert (changed.state, changed.priority, changed.version) == ("QUOTA_RESERVED", 3, 3)


# --- dependencies ---------------------------------------------------------------------------------
def test_dependencies_name_jobs_that_may_be_seen(org, eve):
    first = submit(eve)
    body = eve.get(f"{URL}/{submit(eve, after=[first], after_ok=[first])}").json()
    assert (body["after"], body["after_ok"]) == ([first], [first])
    foreign = submit(org.client("lex"), tenant="law")
    answer = eve.post(URL, {**HELLO, "after": [first, foreign]}, format="json")
    assert pointers(answer) == ["/after/1"]
    assert "no job" in answer.json()["detail"]
    Job.objects.filter(id=first).update(state="FAILED")
    answer = eve.post(URL, {**HELLO, "after_ok": [first]}, format="json")
    assert pointers(answer) == ["/after_ok/0"]
    assert f"Job {first} is FAILED and will not succeed" in answer.json()["detail"]
    assert eve.post(URL, {**HELLO, "after": [first]}, format="json").status_code == 201


def test_dependencies_stay_within_a_cluster(org, eve):
    away = submit(eve)
    Job.objects.update(cluster=Cluster.objects.create(name="other", is_active=False))
    answer = eve.post(URL, {**HELLO, "after": [away]}, format="json")
    assert pointers(answer) == ["/after/0"]
    assert "not on cluster “demo”" in answer.json()["detail"]


def test_dependencies_close_no_cycle(eve):
    a = submit(eve, name="a")
    b = submit(eve, name="b", after=[a])
    c = submit(eve, name="c", after_ok=[b])
    own = patch(eve, a, after=[a])
    assert pointers(own) == ["/after/0"]
    ring = patch(eve, a, after=[], after_ok=[c])
    assert pointers(ring) == ["/after_ok/0"]
    assert f"{a} waits for {c} waits for {b} waits for {a}." in ring.json()["detail"]
    assert Job.objects.get(id=a).after_ok == []
    assert patch(eve, c, after=[a]).status_code == 200
    Job.objects.filter(id=b).update(state="SUCCEEDED")
    assert patch(eve, b, after=[]).status_code == 409
    Job.objects.filter(id=c).update(after=[])
    assert patch(eve, a, after=[c]).status_code == 200  # b is over and delays nobody any more
