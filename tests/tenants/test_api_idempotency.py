"""A POST sent twice with one Idempotency-Key happens once."""

from datetime import timedelta

import pytest
from django.utils import timezone

from kant.celery import app
from scheduling.models import Job
from tenants.api.idempotency import forget_old_keys
from tenants.models import IdempotencyKey

URL = "/api/v1/jobs"
JOB = {"name": "once", "tenant": "vision", "gpu_type": "H100", "gpus": 1}


@pytest.fixture
def eve(org):
    return org.client("eve")


def send(client, body=JOB, key="k1", url=URL):
    return client.post(url, body, format="json", headers={"Idempotency-Key": key})


def test_the_same_request_gets_the_same_answer(eve):
    first, second = send(eve), send(eve)
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    assert first["Location"] == second["Location"]
    assert second["Idempotency-Replayed"] == "true"
    assert Job.objects.count() == 1


def test_another_request_with_the_key_is_refused(eve):
    send(eve)
    other = send(eve, {**JOB, "gpus": 2})
    assert (other.status_code, other.json()["code"]) == (409, "key-reused")
    elsewhere = send(eve, {"name": "t"}, url="/api/v1/tokens")
    assert (elsewhere.status_code, elsewhere.json()["code"]) == (409, "key-reused")
    assert Job.objects.count() == 1


def test_keys_belong_to_their_user(org, eve):
    send(eve)
    assert send(org.client("joe")).status_code == 201
    assert Job.objects.count() == 2


def test_while_the_first_is_being_answered_a_second_waits(eve, monkeypatch):
    inner = {}

    def slow(*args, **kwargs):
        inner["answer"] = send(eve)
        return real(*args, **kwargs)

    from scheduling.api import jobs

    real = jobs.submit_job
    monkeypatch.setattr(jobs, "submit_job", slow)
    assert send(eve).status_code == 201
    assert inner["answer"].status_code == 409
    assert inner["answer"].json()["code"] == "key-in-flight"
    assert Job.objects.count() == 1


def test_an_error_frees_the_key(eve):
    assert send(eve, {**JOB, "gpus": -1}).status_code == 422
    assert send(eve, {**JOB, "gpus": 1}).status_code == 201


def test_a_claim_of_a_process_that_died_is_taken_over(eve, org):
    send(eve)
    IdempotencyKey.objects.update(
        status=None, response=None, created_at=timezone.now() - timedelta(minutes=2)
    )
    assert send(eve).status_code == 201


def test_a_slow_original_does_not_act_after_its_claim_was_taken_over(eve, monkeypatch):
    from scheduling.api import jobs

    real = jobs.submit_job

    def overtaken(*args, **kwargs):
        IdempotencyKey.objects.all().delete()
        return real(*args, **kwargs)

    monkeypatch.setattr(jobs, "submit_job", overtaken)
    assert send(eve).status_code == 409
    assert not Job.objects.exists()


def test_a_key_is_kept_for_a_day(eve):
    send(eve)
    IdempotencyKey.objects.update(created_at=timezone.now() - timedelta(hours=25))
    assert send(eve, {**JOB, "gpus": 2}).status_code == 201
    IdempotencyKey.objects.update(created_at=timezone.now() - timedelta(hours=25))
    assert forget_old_keys() == 1


def test_old_keys_are_forgotten_every_hour(eve):
    send(eve, key="old")
    IdempotencyKey.objects.update(created_at=timezone.now() - timedelta(hours=25))
    send(eve, key="new")
    entry = app.conf.beat_schedule["forget"]
    assert entry["schedule"] == 3600
    app.loader.import_default_modules()  # as a worker does
    app.tasks[entry["task"]]()
    assert list(IdempotencyKey.objects.values_list("key", flat=True)) == ["new"]


def test_a_dry_run_does_not_use_the_key(eve):
    assert send(eve, url=f"{URL}?dry_run=true").status_code == 200
    assert send(eve).status_code == 201


@pytest.mark.parametrize("key", ["", "x" * 129, "tab\there"])
def test_keys_that_are_none(eve, key):
    answer = send(eve, key=key)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-header")
    assert answer.json()["errors"][0]["header"] == "Idempotency-Key"
