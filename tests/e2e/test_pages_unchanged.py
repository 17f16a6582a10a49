"""While nothing changes, an open page costs 304, a few statements and no bytes; every change
reaches those who may see it."""

import pytest
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from scheduling.models import Cluster, Job, JobEvent, Placement, SchedulerLease
from scheduling.services.jobs.changes import hold_job
from tenants.models import Membership, Quota, Tenant, User
from tenants.web import conditional
from tests.cases import paired

LIVE = {"HX-Request": "true"}
# Most statements for an answer that is rendered, and for a 304.
MADE, UNMADE = 12, 10


@pytest.fixture(autouse=True)
def _words_last(monkeypatch):
    monkeypatch.setattr(conditional, "WORDS_LAST_S", 10**9)
    cache.clear()


def job(state):
    return Job.objects.filter(state=state, tenant__name="vision").first()


PAGES = {
    "operations": ("operator", lambda: "/ops/"),
    "overview": ("erin", lambda: "/"),
    "runs": ("erin", lambda: f"/jobs/{job('RUNNING').pk}/"),
    "waits": ("erin", lambda: f"/jobs/{job('PENDING').pk}/"),
}
of_pages = pytest.mark.parametrize("page", PAGES)


def ask(client, path, tag=""):
    with CaptureQueriesContext(connection) as told:
        answer = client.get(path, headers=LIVE | ({"If-None-Match": tag} if tag else {}))
    return answer, len(told)


@of_pages
def test_who_has_the_live_part_is_told_so_by_few_statements(as_user, page):
    user, address = PAGES[page]
    client, path = as_user(user), address()
    first, made = ask(client, path)
    again, unmade = ask(client, path, first["ETag"])
    assert (first.status_code, again.status_code) == (200, 304)
    assert again.content == b""
    assert again["ETag"] == first["ETag"]
    assert again["Cache-Control"] == "private, no-cache"
    assert {"Cookie", "HX-Request"} <= {part.strip() for part in again["Vary"].split(",")}
    assert unmade <= UNMADE
    if page == "overview":
        assert made <= MADE


@of_pages
def test_a_whole_page_is_always_made(as_user, page):
    # It shows the result of the reader's last act, e.g. that a button was refused.
    user, address = PAGES[page]
    client, path = as_user(user), address()
    tag = ask(client, path)[0]["ETag"]
    assert client.get(path, headers={"If-None-Match": tag}).status_code == 200


CHANGES = {
    "an event": lambda: JobEvent.objects.create(
        job=job("PENDING"), at=timezone.now(), kind="REASON", to_state="PENDING"
    ),
    "a quota": lambda: Quota.objects.filter(tenant__name="vision").update(version=99),
    "a tenant": lambda: Tenant.objects.filter(name="vision").update(version=99),
    "a pass": lambda: SchedulerLease.objects.update(pace={"passes": 7}),
    "no connection": lambda: Cluster.objects.update(connected=False, status_message="refused"),
}


@pytest.mark.parametrize(("change", "page"), paired(CHANGES, ["overview", "waits", "operations"]))
def test_whatever_changes_is_told(as_user, page, change):
    user, address = PAGES[page]
    client, path = as_user(user), address()
    SchedulerLease.objects.update_or_create(cluster=Cluster.objects.get(), pace={"passes": 6})
    tag = ask(client, path)[0]["ETag"]
    CHANGES[change]()
    later = ask(client, path, tag)[0]
    # For operations only the text counts, which need not have changed.
    assert later.status_code == 200 or page == "operations"


def test_operators_are_shown_what_has_changed(as_user):
    client = as_user("operator")
    before = ask(client, "/ops/")[0]
    why = "The API server does not answer."
    Cluster.objects.update(connected=False, status_message=why)
    for _ in range(2):
        assert why in ask(client, "/ops/", before["ETag"])[0].content.decode()


def test_one_live_part_is_made_for_all_operators(as_user):
    User.objects.create(username="second", is_operator=True)
    made = ask(as_user("operator"), "/ops/")
    told = ask(as_user("second"), "/ops/")
    assert told[0].content == made[0].content
    assert told[1] <= UNMADE < made[1]
    assert ask(as_user("operator"), "/ops/?window=1h")[0].content != made[0].content
    assert as_user("erin").get("/ops/", headers=LIVE).status_code == 403


STEPS = {
    "its pods": lambda found: Placement.objects.filter(job=found).update(state="SUCCEEDED"),
    "numbers": lambda found: Job.objects.filter(pk=found.pk).update(growth={"reason": "x"}),
    "what happened": lambda found: JobEvent.objects.create(
        job=found, at=timezone.now(), kind="REASON", to_state="RUNNING"
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_job_that_runs_tells_what_happens_to_it(as_user, step):
    client, found = as_user("erin"), job("RUNNING")
    tag = ask(client, f"/jobs/{found.pk}/")[0]["ETag"]
    CHANGES["a quota"]()  # other changes do not affect it
    assert ask(client, f"/jobs/{found.pk}/", tag)[0].status_code == 304
    STEPS[step](found)
    assert ask(client, f"/jobs/{found.pk}/", tag)[0].status_code == 200


def test_a_job_that_waits_tells_that_it_is_held(as_user):
    client, found = as_user("operator"), job("PENDING")
    tag = ask(client, f"/jobs/{found.pk}/")[0]["ETag"]
    hold_job(User.objects.get(username="operator"), found)
    assert ask(client, f"/jobs/{found.pk}/", tag)[0].status_code == 200


@pytest.mark.parametrize("page", ["overview", "runs"])
def test_what_one_reader_has_is_no_answer_for_another(as_user, page):
    client, path = as_user("erin"), PAGES[page][1]()
    tag = ask(client, path)[0]["ETag"]
    assert ask(client, path, tag)[0].status_code == 304
    # Nor for the same user with other rights.
    Membership.objects.filter(user__username="erin").update(role="viewer")
    assert ask(client, path, tag)[0].status_code == 200
    Membership.objects.filter(user__username="erin").delete()
    assert ask(client, path, tag)[0].status_code == (200 if page == "overview" else 404)
    assert ask(as_user("vera"), path, tag)[0].status_code == 200


def test_words_of_time_are_told_anew(as_user, monkeypatch):
    client = as_user("erin")
    tag = ask(client, "/")[0]["ETag"]
    monkeypatch.setattr(conditional, "WORDS_LAST_S", 10**6)
    assert ask(client, "/", tag)[0].status_code == 200
