"""The table of jobs without a browser: orders, filters, files, saved views, acts on many jobs."""

import csv
from datetime import timedelta

import pytest
from django.utils import timezone

from scheduling.engine.states import HOLDING, TERMINAL, WAITING
from scheduling.models import Job, JobEvent, JobTable
from scheduling.pages.jobs.columns import COLUMNS, USUAL
from scheduling.pages.jobs.filters import SORTS
from scheduling.services.jobs.tables import MOST_VIEWS
from tests.e2e.test_pages_jobs import names

OPEN = list(WAITING | HOLDING)


def rows_of(answer) -> list[dict[str, str]]:
    assert answer["Content-Type"] == "text/csv", answer.content.decode()[:500]
    return list(csv.DictReader(answer.content.decode().splitlines()))


def listed(client, query: str) -> list[str]:
    """Return the names of all jobs at the address, in order, over all pages."""
    found, address = [], f"/jobs/?{query}"
    while address:
        answer = client.get(address)
        found += [job.name for job in answer.context["jobs"]]
        older = answer.context["older"]
        address = f"/jobs/?{query}&after={older}" if older else ""
    return found


@pytest.mark.parametrize(("sort", "state"), [(s, "open") for s in SORTS] + [("oldest", "ended")])
def test_each_order_walks_over_every_job_once(as_user, monkeypatch, sort, state):
    monkeypatch.setattr("scheduling.pages.jobs.table.JOBS_PER_PAGE", 7)
    states = list(TERMINAL) if state == "ended" else OPEN
    expected = Job.objects.filter(state__in=states).order_by(*SORTS[sort][1])
    found = listed(as_user("operator"), f"state={state}&sort={sort}")
    assert found == list(expected.values_list("name", flat=True))
    assert len(found) > 7


def test_an_order_of_open_jobs_is_of_these_alone(as_user):
    found = listed(as_user("operator"), "sort=gpus")
    assert set(found) == set(Job.objects.filter(state__in=OPEN).values_list("name", flat=True))
    assert (
        '<option value="open" selected>'
        in as_user("operator").get("/jobs/?sort=gpus").content.decode()
    )


def test_filters_by_size_time_and_person(as_user):
    client = as_user("operator")
    now = timezone.now()
    jobs = Job.objects.all()
    for query, rows in (
        ("min_gpus=16", jobs.filter(gpu_milli__gte=16000)),
        ("max_gpus=1.5", jobs.filter(gpu_milli__lte=1500)),
        ("min_gpus=2&max_gpus=8", jobs.filter(gpu_milli__gte=2000, gpu_milli__lte=8000)),
        ("since=1h", jobs.filter(submitted_at__gt=now - timedelta(hours=1))),
        ("user=erin", jobs.filter(user__username="erin")),
    ):
        expected = set(rows.values_list("name", flat=True))
        assert set(listed(client, query)) == expected, query
        assert 0 < len(expected) < Job.objects.count(), query


def test_the_file_has_what_the_filters_find_in_their_order(as_user):
    client = as_user("operator")
    Job.objects.filter(name="wait-000").update(name="=cmd()")
    found = rows_of(client.get("/jobs/jobs.csv?state=open&sort=priority"))
    expected = Job.objects.filter(state__in=OPEN).order_by(*SORTS["priority"][1])
    assert [row["id"] for row in found] == [str(job.pk) for job in expected]
    assert "'=cmd()" in {row["name"] for row in found}
    one = found[0]
    job = Job.objects.get(pk=one["id"])
    assert float(one["gpus"]) * 1000 == job.gpu_milli
    assert (one["tenant"], one["state"]) == (job.tenant.name, job.state)
    everything = {row["tenant"] for row in rows_of(client.get("/jobs/jobs.csv"))}
    assert {row["tenant"] for row in rows_of(as_user("vik").get("/jobs/jobs.csv"))} < everything


def test_too_many_jobs_for_a_file_are_told(as_user, monkeypatch):
    monkeypatch.setattr("scheduling.pages.jobs.export.MOST_ROWS", 3)
    answer = as_user("operator").get("/jobs/jobs.csv", follow=True)
    assert "More than 3 jobs match. Filter them" in answer.content.decode()


def heads(answer) -> set[str]:
    return set(answer.context["columns"])


def test_columns_are_of_their_reader_and_an_address_goes_before(as_user):
    vik = as_user("vik")
    chosen = {"column": ["position", "gpus", "nonsense"], "back": "state=open&columns=by"}
    answer = vik.post("/jobs/columns/", chosen)
    assert answer["Location"] == "/jobs/?state=open"
    assert heads(vik.get("/jobs/")) == {"position", "gpus"}
    assert heads(vik.get("/jobs/?columns=priority,ran")) == {"priority", "ran"}
    assert heads(as_user("vera").get("/jobs/")) == set(USUAL)
    as_user("vik").post("/jobs/columns/", {"usual": "1", "column": ["by"]})
    assert heads(as_user("vik").get("/jobs/")) == set(USUAL)


def test_the_live_part_shows_the_columns_of_its_page(as_user):
    client = as_user("operator")
    client.post("/jobs/columns/", {"column": list(COLUMNS)})
    page = client.get("/jobs/?state=open").content.decode()
    address = page.partition('id="jobs-live"')[2].partition('hx-get="')[2].partition('"')[0]
    part = client.get(f"/jobs/{address}".replace("&amp;", "&"), headers={"HX-Request": "true"})
    for title in COLUMNS.values():
        assert f">{title}</th>" in page
        assert f">{title}</th>" in part.content.decode()


def test_views_are_kept_replaced_and_removed(as_user):
    vik = as_user("vik")

    def keep(name, back):
        return vik.post(
            "/jobs/views/", {"name": name, "back": back, "columns": "gpus"}, follow=True
        )

    keep(" My  jobs ", "user=me&after=abc")
    assert JobTable.objects.get().views == [{"name": "My jobs", "query": "columns=gpus&user=me"}]
    page = vik.get("/jobs/?user=me&columns=gpus").content.decode()
    assert 'href="?columns=gpus&amp;user=me" aria-current="page">My jobs</a>' in page
    keep("My jobs", "state=open")
    assert [view["query"] for view in JobTable.objects.get().views] == ["columns=gpus&state=open"]
    assert "Give the view a name." in keep(" ", "").content.decode()
    assert "at most 60 characters" in keep("x" * 61, "").content.decode()
    assert "too long" in keep("long", f"q={'x' * 1000}").content.decode()
    for i in range(MOST_VIEWS - 1):
        keep(f"view {i}", "")
    assert f"You already have {MOST_VIEWS} views" in keep("one more", "").content.decode()
    assert "My jobs</a>" not in as_user("vera").get("/jobs/").content.decode()
    vik = as_user("vik")
    vik.post("/jobs/views/remove/", {"name": "My jobs"})
    answer = vik.post("/jobs/views/remove/", {"name": "My jobs"}, follow=True)
    assert "You have no view “My jobs”." in answer.content.decode()


def chosen(client, act, jobs, **more):
    fields = {"act": act, "id": [job.pk for job in jobs], "back": "state=open", **more}
    return client.post("/jobs/chosen/", fields, follow=True)


def test_an_act_is_shown_first_and_then_done_where_it_can_be(as_user):
    client = as_user("operator")
    waiting = list(Job.objects.filter(state__in=list(WAITING)).order_by("name")[:3])
    running = Job.objects.filter(state="RUNNING").first()
    before = JobEvent.objects.count()
    answer = chosen(client, "hold", [*waiting, running])
    text = answer.content.decode()
    assert "<h1>Hold 3 jobs?</h1>" in text
    assert "1 stays as it is" in text
    assert "only a waiting job can be held" in text
    assert JobEvent.objects.count() == before
    assert not Job.objects.filter(pk__in=[job.pk for job in waiting], held=True).exists()
    done = chosen(client, "hold", [*waiting, running], confirmed="1")
    assert done.redirect_chain[-1][0] == "/jobs/?state=open"
    assert "3 jobs are on hold." in done.content.decode()
    assert f"{running.name}: The job is running" in done.content.decode()
    assert Job.objects.filter(pk__in=[job.pk for job in waiting], held=True).count() == 3


def test_cancelling_tells_what_becomes_free_and_what_is_lost(as_user):
    client = as_user("operator")
    jobs = [*Job.objects.filter(state="RUNNING").order_by("name")[:2],
            Job.objects.filter(state="PENDING").first()]  # fmt: skip
    text = chosen(client, "cancel", jobs).content.decode()
    free = sum(job.gpu_milli for job in jobs[:2]) // 1000
    assert "1 job leaves the queue." in text
    assert f"2 jobs end: {free} GPUs become free, and" in text
    assert "GPU-hours of work is lost unless the jobs saved it." in text
    chosen(client, "cancel", jobs, confirmed="1")
    assert not Job.objects.filter(pk__in=[job.pk for job in jobs], state__in=OPEN).exists()


def test_who_may_not_act_on_any_is_told_of_each(as_user):
    job = Job.objects.filter(state="RUNNING", tenant__name="search").first()
    text = chosen(as_user("vik"), "cancel", [job]).content.decode()
    assert "None of these jobs can be changed like this" in text
    assert "Only the user who submitted this job" in text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"act": "cancel"}, "Name 1 to 500 jobs"),
        ({"act": "explode"}, "The selection of jobs cannot be read"),
        ({"act": "cancel", "id": ["x"]}, "The selection of jobs cannot be read"),
        ({"act": "change", "priority": "1.5"}, "Write the new priority as a whole number"),
    ],
)
def test_what_cannot_be_read_changes_nothing(as_user, fields, text):
    before = JobEvent.objects.count()
    answer = as_user("operator").post("/jobs/chosen/", {**fields, "confirmed": "1"}, follow=True)
    assert text in answer.content.decode()
    assert JobEvent.objects.count() == before


def test_names_and_positions_are_there_where_the_column_is(as_user):
    page = as_user("operator").get("/jobs/?state=waiting&columns=position")
    assert names(page)
    places = page.context["positions"]
    assert sorted(places.values()) == sorted(set(places.values()))
    assert min(places.values()) == 1


def test_unticking_every_column_is_refused_not_taken_for_the_usual_ones(as_user):
    vik = as_user("vik")
    vik.post("/jobs/columns/", {"column": ["by"]})
    answer = vik.post("/jobs/columns/", {}, follow=True)
    assert "Choose at least one column besides name and state." in answer.content.decode()
    assert answer.context["columns"] == ("by",)


def test_the_table_begins_with_how_many_wait_and_run_of_what_is_filtered(as_user):
    client = as_user("operator")
    waiting = Job.objects.filter(state__in=list(WAITING))
    active = Job.objects.filter(state__in=list(HOLDING))
    for query, of in (("", {}), ("state=ended", {}), ("tenant=vision", {"tenant__name": "vision"})):
        standing = client.get(f"/jobs/?{query}").context["standing"]
        told = (standing.waiting, standing.active)
        assert told == (waiting.filter(**of).count(), active.filter(**of).count())
        assert standing.held == waiting.filter(held=True, **of).count()
    live = client.get("/jobs/", headers={"HX-Request": "true"}).content.decode()
    assert 'id="jobs-standing" hx-swap-oob="innerMorph"' in live
    assert client.get("/jobs/?state=nonsense").context["standing"] is None
    Job.objects.all().delete()
    assert client.get("/jobs/").context["standing"] is None


def test_the_page_that_asks_tells_what_the_act_would_do_to_other_jobs(as_user):
    client = as_user("operator")
    running = Job.objects.filter(state="RUNNING")[0]
    sent = {"act": "cancel", "id": [str(running.pk)]}
    asked = client.post("/jobs/chosen/", sent).content.decode()
    assert 'hx-post="/jobs/chosen/preview/"' in asked
    told = client.post("/jobs/chosen/preview/", sent)
    assert told.context["title"] == "What it would do to other jobs"
    assert Job.objects.get(pk=running.pk).state == "RUNNING"
    unread = client.post("/jobs/chosen/preview/", {"act": "cancel", "id": ["x"]})
    assert "cannot be read" in unread.content.decode()
