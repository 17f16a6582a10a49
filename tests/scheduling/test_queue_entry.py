"""Which queue a job enters, what the queue sets on it, and which jobs it refuses."""

from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, transaction

from scheduling.models import Job, JobEvent
from scheduling.services.queues import entry
from tenants.errors import Conflict, Invalid
from tenants.models import Identity, Queue, Tenant
from tenants.services.transactions import checked, unit_of_work

URL = "/api/v1/jobs"
HELLO = {"name": "one", "tenant": "vision", "gpu_type": "H100", "gpus": 1}
CLOSED_AT = datetime(2030, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def night(org):
    return Queue.objects.create(tenant=org.tenants["vision"], name="night")


def setting(queue, **columns):
    Queue.objects.filter(pk=queue.pk).update(**columns)


def submit(client, query="", **fields):
    return client.post(f"{URL}{query}", {**HELLO, **fields}, format="json")


def accepted(client, **fields):
    answer = submit(client, **fields)
    assert answer.status_code == 201, answer.json()
    return answer.json()


def patch(client, job, **changes):
    return client.patch(f"{URL}/{job}", changes, format="json")


def refused(answer, status, *words, pointer=None):
    body = answer.json()
    assert answer.status_code == status, body
    assert all(word in body["detail"] for word in words), body["detail"]
    assert [e["pointer"] for e in body["errors"]] == ([pointer] if pointer else [])
    assert not Job.objects.exclude(name="there").exists()


def test_every_tenant_has_its_queue_and_a_name_stands_once(org):
    assert {q.name for q in Queue.objects.all()} == {"default"}
    assert Queue.objects.count() == Tenant.objects.count()
    tenant = org.tenants["law"]
    tenant.title = "Law"
    tenant.save()
    with pytest.raises(IntegrityError), transaction.atomic():
        Queue.objects.create(tenant=tenant, name="default")
    assert list(tenant.queues.values_list("name", flat=True)) == ["default"]


@pytest.mark.parametrize(("field", "value"), [("weight", 0.0), ("weight", -1.0), ("name", "No")])
def test_what_no_queue_can_be(org, field, value):
    with pytest.raises(Invalid) as told:
        checked(Queue(**{"tenant": org.tenants["law"], "name": "night", field: value}))
    assert [error.field for error in told.value.errors] == [field]


def test_a_job_that_names_no_queue_is_in_the_default_one(eve):
    body = accepted(eve)
    assert (body["queue"], Job.objects.get().queue) == ("default", "default")
    assert "queue" not in eve.get(f"{URL}/{body['id']}/document").json()


def test_a_tenant_of_an_older_kant_gets_its_queue_with_its_first_job(org, eve):
    Queue.objects.all().delete()
    accepted(eve)
    assert Queue.objects.get().tenant == org.tenants["vision"]


def test_a_job_names_its_queue_wherever_it_is_told(eve, night):
    body = accepted(eve, queue="night")
    assert body["queue"] == Job.objects.get().queue == "night"
    assert eve.get(f"{URL}/{body['id']}").json()["queue"] == "night"
    assert eve.get(f"{URL}/{body['id']}/document").json()["queue"] == "night"
    array = submit(eve, name="many", queue="night", array={"count": 3})
    assert array.status_code == 201
    assert Job.objects.filter(queue="night").count() == 4


def test_an_unknown_queue_is_told_with_those_there_are(eve, night):
    answer = submit(eve, queue="day")
    refused(answer, 422, "no queue “day”", "default, night", pointer="/queue")
    refused(submit(eve, queue="No!"), 422, "lower-case", pointer="/queue")


def test_who_may_not_use_a_queue_is_told_those_that_they_may(org, eve, night):
    Queue.objects.create(tenant=org.tenants["vision"], name="secret", users=["nobody"])
    Queue.objects.create(tenant=org.tenants["vision"], name="shut", state="closed")
    setting(night, roles=["tenant-admin"])
    refused(submit(eve, queue="night"), 403, "“night”", "Those you may use: default.")
    for who in ("ada", "root", "ops"):
        assert submit(org.client(who), "?dry_run=true", queue="night").status_code == 200
    setting(night, users=["eve"])
    assert accepted(eve, queue="night")
    # An admin of the tenant could admit themselves.
    assert submit(org.client("ada"), "?dry_run=true", queue="night").status_code == 200
    assert submit(org.client("joe"), "?dry_run=true", queue="night").status_code == 403


def test_roles_include_those_below_and_groups_are_those_here_and_there(org, eve, night):
    setting(night, roles=["engineer"])
    for who in ("eve", "ada"):
        assert submit(org.client(who), "?dry_run=true", queue="night").status_code == 200
    setting(night, roles=[], groups=["on-call"])
    assert submit(eve, "?dry_run=true", queue="night").status_code == 403
    org.users["eve"].groups.add(Group.objects.create(name="on-call"))
    assert submit(eve, "?dry_run=true", queue="night").status_code == 200
    joe = org.client("joe")
    Identity.objects.create(user=org.users["joe"], issuer="i", subject="s", groups=["other"])
    assert submit(joe, "?dry_run=true", queue="night").status_code == 403
    Identity.objects.update(groups=["other", "on-call"])
    assert submit(joe, "?dry_run=true", queue="night").status_code == 200


@pytest.mark.parametrize("state", ["draining", "closed"])
def test_a_queue_that_takes_no_jobs_says_since_when_by_whom_and_why(org, eve, night, state):
    Queue.objects.create(tenant=org.tenants["vision"], name="secret", users=["nobody"])
    why = {"state_reason": "New racks.", "state_by": "ada", "state_at": CLOSED_AT}
    setting(night, state=state, **why)
    told = (f"it is {state} since 2030-01-31 12:00 UTC, by ada: New racks.", "(default)")
    refused(submit(eve, queue="night"), 409, *told)
    refused(submit(eve, queue="night", array={"count": 2}), 409, *told)


def test_a_held_queue_takes_jobs(eve, night):
    setting(night, state="held")
    accepted(eve, queue="night")


def test_a_queue_is_full_with_so_many_waiting_jobs(org, eve, night):
    setting(night, max_waiting=3)
    accepted(eve, name="there", queue="night")
    many = {"queue": "night", "array": {"count": 3}}
    refused(submit(eve, **many), 409, "1 waiting jobs", "of at most 3", "3 more")
    Job.objects.update(state="RUNNING")
    assert submit(eve, **many).status_code == 201
    accepted(eve)  # into another one
    assert submit(eve, queue="night").status_code == 409


def test_a_queue_that_was_closed_or_deleted_meanwhile_takes_nothing(org, night):
    old = Queue.objects.get(pk=night.pk)
    setting(night, state="closed")
    with transaction.atomic(), pytest.raises(Conflict, match="closed"):
        entry.take_in(old, 1)
    night.delete()
    with transaction.atomic(), pytest.raises(Conflict, match="has just been deleted"):
        entry.take_in(old, 1)


def test_a_default_queue_that_is_not_there_is_made_with_the_first_job(org, eve):
    org.tenants["vision"].queues.all().delete()
    assert submit(eve, "?dry_run=true").status_code == 200
    refused(submit(eve, gpu_type="B9000"), 422, pointer="/gpu_type")
    assert not Queue.objects.filter(tenant__name="vision").exists()
    accepted(eve)
    accepted(eve, name="second")
    assert Queue.objects.get(tenant__name="vision").name == "default"


@pytest.mark.django_db(transaction=True)
def test_a_tenant_that_was_deleted_meanwhile_takes_nothing(org):
    tenant = Tenant.objects.create(name="brief")
    there = Tenant.objects.get(pk=tenant.pk)
    tenant.delete()
    queue = entry.queue_to_enter(None, there, "default")
    with pytest.raises(Conflict, match="has just been deleted"), unit_of_work(dry_run=False):
        entry.take_in(queue, 1)


def test_a_queue_gives_to_jobs_that_say_nothing(eve, night):
    setting(night, default_priority=5, default_run_limit_s=600, default_preemptible=False)
    asked = ("priority", "run_limit_s", "preemptible")
    body = accepted(eve, queue="night")
    assert [body[name] for name in asked] == [5, 600, False]
    said = accepted(eve, queue="night", priority=0, run_limit_s=60, preemptible=True)
    assert [said[name] for name in asked] == [0, 60, True]
    # A resubmission states the values that the queue would set otherwise.
    again = eve.get(f"{URL}/{said['id']}/document").json()
    assert [again[name] for name in asked] == [0, 60, True]
    nulls = accepted(eve, queue="night", priority=None, run_limit_s=None)
    assert [nulls[name] for name in asked] == [5, 600, False]


def test_a_queue_takes_only_some_jobs(eve, night):
    setting(night, kinds=["training"], max_priority=3, max_run_limit_s=600)
    assert accepted(eve, name="there", queue="night")["run_limit_s"] == 600
    asked = {"kind": "inference", "priority": 4, "run_limit_s": 601}
    answer = submit(eve, queue="night", **asked)
    assert answer.status_code == 422
    told = {e["pointer"]: e["detail"] for e in answer.json()["errors"]}
    assert told.keys() == {"/kind", "/priority", "/run_limit_s"}
    assert "training" in told["/kind"]
    assert "at most 3" in told["/priority"]
    assert "601 s" in told["/run_limit_s"]
    assert accepted(eve, **asked)["queue"] == "default"


def test_a_waiting_job_moves_and_keeps_its_time(eve, night):
    job = accepted(eve)
    body = patch(eve, job["id"], queue="night").json()
    assert (body["queue"], body["submitted_at"]) == ("night", job["submitted_at"])
    assert JobEvent.objects.get(kind="CHANGED").message == "queue: default → night"
    Job.objects.update(state="RUNNING")
    assert patch(eve, job["id"], queue="default").status_code == 409


def test_what_a_queue_does_not_take_does_not_move_there(org, eve, night):
    job = accepted(eve, name="there", priority=4)["id"]
    refused(patch(eve, job, queue="day"), 422, "no queue “day”", pointer="/queue")
    setting(night, max_priority=3, max_run_limit_s=600)
    assert patch(eve, job, queue="night").status_code == 422
    assert patch(eve, job, queue="night", priority=3).status_code == 422
    fits = {"queue": "night", "priority": 3, "run_limit_s": 60}
    setting(night, max_waiting=0)
    refused(patch(eve, job, **fits), 409, "of at most 0")
    setting(night, max_waiting=None, state="draining")
    refused(patch(eve, job, **fits), 409, "draining")
    setting(night, state="open", roles=["tenant-admin"])
    refused(patch(eve, job, **fits), 403, "Those you may use: default.")
    setting(night, roles=[])
    assert Job.objects.get().queue == "default"
    assert patch(eve, job, **fits).status_code == 200
    # There it must meet the limits of the queue.
    assert patch(eve, job, priority=4).status_code == 422
    assert patch(eve, job, run_limit_s=None).status_code == 422
    setting(night, state="closed")
    assert patch(eve, job, priority=1).status_code == 200


def test_the_waiting_jobs_of_an_array_move_together(eve, night):
    setting(night, max_waiting=2, max_priority=3)
    array = submit(eve, array={"count": 3}).json()["id"]
    here = f"/api/v1/job-arrays/{array}"
    full = eve.patch(here, {"queue": "night"}, format="json")
    assert full.status_code == 409, full.json()
    Job.objects.filter(array_index=0).update(state="RUNNING")
    Job.objects.filter(array_index=1).update(priority=4)
    assert eve.patch(here, {"queue": "night"}, format="json").status_code == 422
    moved = eve.patch(here, {"queue": "night", "priority": 2}, format="json")
    assert moved.status_code == 200, moved.json()
    queues = Job.objects.order_by("array_index").values_list("queue", flat=True)
    assert list(queues) == ["default", "night", "night"]
