"""The numbers at the top of pages follow the filters and link to what they count."""

import re
from datetime import timedelta
from html import unescape

import pytest
from django.utils import timezone

from scheduling.engine.states import WAITING
from scheduling.models import Job, JobEvent
from scheduling.models.jobs import PREEMPTED
from scheduling.queries.events import stream
from tenants.models import Queue

KPI = re.compile(
    r'<div class="kpi"><dt>(.*?)</dt>\s*<dd class="big">(.*?)</dd>'
    r'(?:\s*<dd class="sub">(.*?)</dd>)?',
    re.DOTALL,
)


def plain(html):
    return " ".join(re.sub(r"<[^>]+>", "", html or "").split())


def numbers(page):
    """Return {title: (number, the text below it, its link)}."""
    found = {}
    for title, big, sub in KPI.findall(page.content.decode()):
        leads = re.search(r'href="([^"]+)"', title)
        found[plain(title)] = (plain(big), plain(sub), unescape(leads[1]) if leads else "")
    return found


def rows(page):
    return len(re.findall(r'<tr id="', page.content.decode()))


def test_quotas_begin_with_what_is_used_and_who_waits_for_quota(as_user):
    client = as_user("operator")
    Job.objects.filter(name__in=["wait-001", "wait-002"]).update(
        reason="WaitingForQuota", state="PENDING", held=False
    )
    whole = numbers(client.get("/quotas/"))
    of_part = numbers(client.get("/quotas/?tenant=vision&gpu=H100"))
    assert list(whole) == ["GPUs used", "Borrowing", "Waiting for quota"]
    assert whole["GPUs used"][1] == "of 792 guaranteed"  # of research and products, no others
    assert of_part["GPUs used"][1] == "of 64 guaranteed"
    assert of_part["Borrowing"][2] == "/quotas/loans/?tenant=vision&gpu=H100"
    for number, _, leads in (whole["Waiting for quota"], of_part["Waiting for quota"]):
        assert int(number.split()[0]) == rows(client.get(leads))
    assert int(whole["Waiting for quota"][0].split()[0]) > 0
    assert numbers(client.get("/tenants/")) == whole
    assert numbers(client.get("/tenants/", headers={"HX-Request": "true"})) == whole


def test_queues_begin_with_what_waits_and_what_is_not_open(as_user):
    client = as_user("operator")
    assert "Held" not in numbers(client.get("/queues/"))
    Queue.objects.filter(tenant__name__in=["vision", "ads"], name="default").update(state="held")
    found = numbers(client.get("/queues/"))
    number, _, leads = found["Held"]
    assert (number, leads) == ("2 queues", "?state=held")
    assert rows(client.get(f"/queues/{leads}")) == 2
    vision = numbers(client.get("/queues/?tenant=vision"))
    assert vision["Held"][0] == "1 queue"
    number, below, leads = vision["Waiting"]
    assert rows(client.get(leads)) == int(number.split()[0]) > 0
    assert below.startswith("the oldest came ")
    # The table of jobs could not show the same set.
    assert numbers(client.get("/queues/?q=vision"))["Waiting"][2] == ""


@pytest.mark.parametrize("kind", ["losses", "starts", "ends"])
def test_events_begin_with_how_many_of_each_kind(as_user, kind, monkeypatch):
    client, job = as_user("operator"), Job.objects.get(name="train-000")
    kinds = {"losses": "PREEMPTED", "starts": "RUNNING", "ends": "FAILED"}
    page = f"/events/?job={job.pk}"
    before = numbers(client.get(page))
    JobEvent.objects.create(
        job=job, at=timezone.now(), kind=kinds[kind], to_state="RUNNING", message="now"
    )
    found = numbers(client.get(page))
    grown = {title for title in found if found[title][0] != before[title][0]}
    (title,) = grown
    leads = found[title][2]
    assert f"kind={kind}" in leads
    chosen = client.get(f"/events/{leads}")
    assert numbers(chosen)[title][0] == found[title][0]  # whatever kind is chosen
    assert chosen.content.decode().count("<tr><td") == int(found[title][0])
    monkeypatch.setattr(stream, "MOST_COUNTED", 0)
    monkeypatch.setattr("scheduling.pages.events.events.MOST_COUNTED", 0)
    assert numbers(client.get(page))[title][0] == "0+"


def test_no_numbers_stand_over_a_filter_that_names_nothing(as_user):
    client = as_user("operator")
    for page in ("/quotas/?tenant=x", "/queues/?tenant=x", "/events/?kind=x", "/jobs/?tenant=x"):
        assert numbers(client.get(page)) == {}


def test_a_policy_begins_with_what_waits_under_it(as_user):
    client, now = as_user("operator"), timezone.now()
    job = Job.objects.get(name="wait-000")
    Job.objects.filter(pk=job.pk).update(reserved_start=now, reserved_nodes=["n1"])
    for hours in (1, 2, 30):
        JobEvent.objects.create(
            job=job, at=now - timedelta(hours=hours), kind="PREEMPTED", reason=PREEMPTED,
            to_state="REQUEUED", message="made room",
        )  # fmt: skip
    found = numbers(client.get("/policies/demo/"))
    number, below, leads = found["Waiting"]
    waiting = Job.objects.filter(state__in=WAITING)
    assert int(number.split()[0]) == waiting.filter(held=False).count() > 1
    assert "the oldest was submitted " in below
    assert client.get(leads).status_code == 200
    assert found["With a reserved start"][:2] == ("1 job", "nodes are kept for it")
    number, _, leads = found["Preempted, last 24 hours"]
    assert number == "1 job"
    assert str(job.pk) in client.get(leads).content.decode()
    Job.objects.all().delete()
    found = numbers(client.get("/policies/demo/"))
    assert [value[:2] for value in found.values()][:2] == [
        ("0 jobs", "nothing waits"),
        ("0 jobs", "nodes are kept for them"),
    ]
