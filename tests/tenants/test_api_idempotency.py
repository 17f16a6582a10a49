"""A POST sent twice with the same Idempotency-Key takes effect once."""

from datetime import timedelta

import pytest
from django.utils import timezone

from kant.celery import app
from scheduling.api import jobs
from scheduling.models import Job
from tenants.api import tokens
from tenants.api.idempotency import forget_old_keys
from tenants.models import ApiToken, IdempotencyKey, Tenant

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


def sent_within(monkeypatch, module, name, act):
    """Run `act` during the first request, before that does anything."""
    real, inner = getattr(module, name), []

    def slow(*args, **kwargs):
        if not inner:
            inner.append(None)
            inner[0] = act()
        return real(*args, **kwargs)

    monkeypatch.setattr(module, name, slow)
    return inner


def test_while_the_first_is_being_answered_a_second_is_told_to_wait(eve, monkeypatch):
    body, url = {"name": "t"}, "/api/v1/tokens"
    inner = sent_within(monkeypatch, tokens, "create_token", lambda: send(eve, body, url=url))
    assert send(eve, body, url=url).status_code == 201
    assert (inner[0].status_code, inner[0].json()["code"]) == (409, "key-in-flight")
    assert ApiToken.objects.filter(name="t").count() == 1


@pytest.mark.parametrize("function", ["submit_job", "submit_array"])
def test_of_two_jobs_at_once_the_later_gets_the_answer_of_the_other(eve, monkeypatch, function):
    body = JOB if function == "submit_job" else JOB | {"array": {"count": 2}}
    inner = sent_within(monkeypatch, jobs, function, lambda: send(eve, body))
    later = send(eve, body)
    assert (inner[0].status_code, later.status_code) == (201, 201)
    assert later.json() == inner[0].json()
    assert later["Idempotency-Replayed"] == "true"
    assert later["Location"] == inner[0]["Location"]
    assert Job.objects.count() == (1 if function == "submit_job" else 2)


def test_what_was_answered_is_answered_again_though_it_would_be_refused_now(org, eve):
    first = send(eve)
    Tenant.objects.filter(name="vision").update(max_waiting=1)
    again = send(eve)
    assert (again.status_code, again.json()) == (201, first.json())
    other = send(eve, {**JOB, "gpus": -1})
    assert (other.status_code, other.json()["code"]) == (409, "key-reused")
    assert send(eve, key="k2").status_code == 409
    assert IdempotencyKey.objects.count() == 1


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
    def taken_over():
        return IdempotencyKey.objects.all().delete()

    sent_within(monkeypatch, tokens, "create_token", taken_over)
    assert send(eve, {"name": "t"}, url="/api/v1/tokens").status_code == 409
    assert not ApiToken.objects.filter(name="t").exists()


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
