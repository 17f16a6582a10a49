"""GET /api/v1/events and the events page: one stream of all events, limited to what the reader
may see."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from scheduling.engine.states import JobEventKind as Kind
from scheduling.models import Job, JobEvent
from scheduling.models.jobs import PREEMPTED
from scheduling.queries.events.stream import THEMES, event_kinds
from tenants.models import AuditRecord, User
from tenants.services import audit
from tests.scheduling.test_rehearsal import runs

EVENTS = "/api/v1/events"
NOW = timezone.now().replace(microsecond=0)


def ago(minutes):
    return NOW - timedelta(minutes=minutes)


def event(job, kind, minutes, **more):
    return JobEvent.objects.create(job=job, at=ago(minutes), kind=kind, to_state="PENDING", **more)


def change(action, subject, minutes, tenant=None):
    made = audit.record(
        User.objects.get(username="ops"), action, subject, tenant=tenant, reason="why", source="api"
    )
    AuditRecord.objects.filter(pk=made.pk).update(at=ago(minutes))


@pytest.fixture
def past(org, time_machine):
    """A job of law and one of vision, each on a node, and changes of both and of the cluster."""
    time_machine.move_to(NOW)  # taken when tests are collected; they may run long after it
    JobEvent.objects.all().delete()
    AuditRecord.objects.all().delete()
    law = runs(org, ["h000"], user=org.users["lex"])
    vision = runs(org, ["h001"], tenant="vision", user=org.users["eve"])
    for job, start in ((law, 50), (vision, 40)):
        event(job, Kind.SUBMITTED, start)
        event(job, Kind.ADMITTED, start - 5)
    event(vision, Kind.REASON, 30, reason=PREEMPTED)
    change("quota.changed", "law / H100", 45, org.tenants["law"])
    change("node.drained", "demo / h001", 20)
    change("policy.changed", "demo", 10)
    return org


def told(org, who, **query):
    answer = org.client(who).get(EVENTS, query)
    assert answer.status_code == 200, answer.json()
    return [(e["kind"], e["subject"]) for e in answer.json()["items"]]


def jobs_of(org):
    return {j.tenant.name: j.name for j in Job.objects.select_related("tenant")}


def test_all_that_happened_is_one_list_the_newest_first(past):
    name = jobs_of(past)
    assert told(past, "ops") == [
        ("policy.changed", "demo"),
        ("node.drained", "demo / h001"),
        ("REASON", name["vision"]),
        ("ADMITTED", name["vision"]),
        ("SUBMITTED", name["vision"]),
        ("ADMITTED", name["law"]),
        ("quota.changed", "law / H100"),
        ("SUBMITTED", name["law"]),
    ]


def test_nobody_sees_jobs_or_changes_of_others(past):
    seen = told(past, "eve")
    assert {subject for _, subject in seen} == {jobs_of(past)["vision"]}
    assert len(seen) == 3
    law = told(past, "ops", tenant="law")
    assert {subject for _, subject in law} == {jobs_of(past)["law"], "law / H100"}


@pytest.mark.parametrize(
    ("query", "kinds"),
    [
        ({"kind": "starts"}, ["ADMITTED", "ADMITTED"]),
        ({"kind": "losses"}, ["REASON"]),
        ({"kind": "changes"}, ["policy.changed", "node.drained", "quota.changed"]),
        ({"kind": "quota"}, ["quota.changed"]),
        ({"kind": "node.drained"}, ["node.drained"]),
        ({"kind": "SUBMITTED"}, ["SUBMITTED", "SUBMITTED"]),
        ({"node": "h001"}, ["node.drained", "REASON", "ADMITTED", "SUBMITTED"]),
        ({"node": "h000", "kind": "jobs"}, ["ADMITTED", "SUBMITTED"]),
        ({"cluster": "demo", "kind": "changes"}, ["policy.changed", "node.drained"]),
        ({"since": ago(41).isoformat(), "until": ago(29).isoformat()}, [
            "REASON", "ADMITTED", "SUBMITTED"]),
    ],
)  # fmt: skip
def test_it_is_filtered(past, query, kinds):
    assert [kind for kind, _ in told(past, "ops", **query)] == kinds


def test_a_job_has_its_own(past):
    law = Job.objects.get(tenant__name="law")
    assert told(past, "ops", job=str(law.pk)) == [("ADMITTED", law.name), ("SUBMITTED", law.name)]


def test_pages_tell_everything_once_also_what_happened_at_one_instant(past):
    JobEvent.objects.update(at=ago(5))
    AuditRecord.objects.update(at=ago(5))
    whole = told(past, "ops")
    client, found = past.client("ops"), []
    address = f"{EVENTS}?limit=1"
    while address is not None:
        body = client.get(address).json()
        found += [(e["kind"], e["subject"]) for e in body["items"]]
        address = body["next"]
    assert found == whole
    assert len(whole) == len(set(whole)) == 8


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"kind": "preempted"}, "There is no kind of events “preempted”, but there is “PREEMPTED”"),
        ({"tenant": "nobody"}, "no tenant “nobody”"),
        ({"cluster": "mars"}, "no cluster “mars”"),
        ({"node": "h009"}, "no node “h009”"),
        ({"job": "7"}, "Must be a job id"),
        ({"since": "soon"}, "Must be a time"),
        ({"until": ago(2).isoformat(), "since": ago(1).isoformat()}, "before the end"),
        ({"since": ago(60 * 24 * 32).isoformat()}, "at most 31 days"),
        ({"cursor": "x"}, "Not a cursor"),
        ({"cursor": "WyJhIiwiam9iIiwiMSJd"}, "Not a cursor"),
        ({"limit": "0"}, "1 to 500"),
        ({"limits": "1"}, "Unknown parameter"),
    ],
)
def test_a_wrong_parameter_is_named(past, query, said):
    answer = past.client("ops").get(EVENTS, query)
    assert answer.status_code == 400
    assert said in answer.json()["detail"]


def test_statements_do_not_grow_with_what_happened(past):
    def statements():
        with CaptureQueriesContext(connection) as captured:
            told(past, "ops")
        return len(captured)

    before = statements()
    job = Job.objects.get(tenant__name="law")
    for _ in range(20):
        event(job, Kind.REASON, 1)
    assert statements() == before


def test_every_kind_is_asked_for_without_an_error(past):
    for kind in event_kinds().fixed:
        told(past, "ops", kind=kind)
    assert set(THEMES["jobs"]) == set(Kind)


def test_the_page_shows_them_with_links(past, client):
    client.force_login(User.objects.get(username="ops"))
    page = client.get("/events/").content.decode()
    job = Job.objects.get(tenant__name="law")
    assert f'href="/jobs/{job.pk}/"' in page
    assert 'href="/ops/nodes/demo/h001/"' in page
    assert "Policy changed" in page
    none = client.get("/events/", {"kind": "losses", "node": "h000"}).content.decode()
    assert "No event matches" in none
    for wrong in ({"kind": "x"}, {"until": "soon"}, {"node": "x"}, {"job": "x"}, {"period": "x"}):
        assert "so nothing matches" in client.get("/events/", wrong).content.decode()
    assert client.get("/events/?after=x").status_code == 404
    client.force_login(User.objects.get(username="eve"))
    assert f'href="/jobs/{job.pk}/"' not in client.get("/events/").content.decode()
