"""Actions on a waiting job and on an array, and what the job's page shows, without a browser."""

import re
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.core.cache import cache
from django.urls import reverse
from django.utils import timezone

from scheduling.models import Job, JobEvent
from scheduling.templatetags.jobs import gpu_time
from tests.e2e import kept_rows, story
from tests.e2e.test_pages_jobs import job_url, names

ARRAY_URL = f"/jobs/?array={story.ARRAY}"


@pytest.fixture
def played(db):
    cache.clear()
    kept_rows.write(story.tell_after_the_scene)


def plain(answer) -> str:
    """Return the text of a page without its tags."""
    text = re.sub(r"<(svg|script|title).*?</\1>", "", answer.content.decode(), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", text).split()).replace(" ,", ",").replace(" .", ".")


# --- hold, release, change ------------------------------------------------------------------------
def test_a_waiting_job_is_held_and_released(as_user):
    client, url = as_user("erin"), job_url("wait-000")
    held = client.post(f"{url}hold/", follow=True)
    assert "wait-000 is on hold." in plain(held)
    assert "starts only after somebody releases it" in plain(held)
    assert f'action="{url}release/"' in held.content.decode()
    assert Job.objects.get(name="wait-000").held
    assert "The job is already on hold." in plain(client.post(f"{url}hold/", follow=True))
    released = client.post(f"{url}release/", follow=True)
    assert "wait-000 is released." in plain(released)
    assert not Job.objects.get(name="wait-000").held
    assert "The job is not on hold." in plain(client.post(f"{url}release/", follow=True))
    kinds = JobEvent.objects.filter(job__name="wait-000").values_list("kind", "actor")
    assert list(kinds)[-2:] == [("HELD", "erin"), ("RELEASED", "erin")]


@pytest.mark.parametrize("act", ["hold", "release", "change"])
def test_only_those_who_may_cancel_may_change(as_user, act):
    assert as_user("vik").post(f"{job_url('held')}{act}/").status_code == 404
    url = job_url("urgent")
    answer = as_user("vik").post(f"{url}{act}/", {"change-priority": 7}, follow=True)
    assert "a tenant admin or an operator may change it" in plain(answer)
    assert "data-dialog=" not in as_user("vik").get(url).content.decode()
    assert Job.objects.get(name="urgent").version == 1
    assert as_user("vik").get(f"{url}{act}/").status_code == 405


def test_priority_and_run_time_are_changed_in_a_dialog(as_user):
    client, url = as_user("erin"), job_url("held")
    page = client.get(url).content.decode()
    assert 'name="change-declared_min" value="90"' in page
    answer = client.post(
        f"{url}change/", {"change-priority": "5", "change-declared_min": "1.5"}, follow=True
    )
    assert "held is changed." in plain(answer)
    job = Job.objects.get(name="held")
    assert (job.priority, job.declared_s) == (5, 90)
    client.post(f"{url}change/", {"change-priority": "5", "change-declared_min": ""})
    assert Job.objects.get(name="held").declared_s == 90  # an empty field without what it showed
    shown = {"initial-change-priority": "5", "initial-change-declared_min": "1.5"}
    client.post(f"{url}change/", {**shown, "change-priority": "5", "change-declared_min": ""})
    assert Job.objects.get(name="held").declared_s is None


def test_what_was_not_touched_keeps_what_somebody_else_changed(as_user):
    Job.objects.filter(name="held").update(priority=9)
    shown = {"initial-change-priority": "0", "initial-change-declared_min": "90"}
    as_user("erin").post(
        f"{job_url('held')}change/",
        {**shown, "change-priority": "0", "change-declared_min": "30"},
    )
    job = Job.objects.get(name="held")
    assert (job.priority, job.declared_s) == (9, 1800)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("priority", "high", "Must be a whole number."),
        ("priority", "", "Fill this in."),
        ("priority", "9999999", "Must be from -1000000 to 1000000."),
        ("declared_min", "NaN", "Must be a number."),
        ("declared_min", "0", "Must be from 0.02 to 5270400."),
        ("declared_min", "1e99", "Must be from 0.02 to 5270400."),
    ],
)
def test_a_wrong_change_opens_the_dialog_again(as_user, field, value, message):
    typed = {"change-priority": "1", "change-declared_min": "", f"change-{field}": value}
    answer = as_user("erin").post(f"{job_url('held')}change/", typed)
    assert answer.status_code == 422
    text = answer.content.decode()
    assert '<dialog id="change" aria-labelledby="change-title" data-open>' in text
    error = re.search(rf'id="id_change-{field}-error">.*?</svg>([^<]*)', text, re.DOTALL)
    assert error, "no message beside the field"
    assert message in error[1]
    assert f'hx-get="{job_url("held")}"' in text  # the page goes on following the job
    assert Job.objects.get(name="held").version == 1


def test_a_job_that_started_meanwhile_cannot_be_changed(as_user):
    answer = as_user("erin").post(f"{job_url('prepare')}change/", {"change-priority": "1"})
    assert answer.status_code == 422
    assert "only a waiting job can be held, released or changed" in plain(answer)
    assert 'data-dialog="hold"' not in as_user("erin").get(job_url("prepare")).content.decode()
    Job.objects.filter(name="prepare").update(state="RUNNING")
    answer = as_user("erin").post(f"{job_url('prepare')}change/", {"change-priority": "1"})
    assert answer.status_code == 422
    can = "only declared_s, run_limit_s and the number of its pods can be changed"
    assert can in plain(answer)
    page = as_user("erin").get(job_url("prepare")).content.decode()
    assert 'data-dialog="hold"' not in page
    assert "change-priority" not in page


def test_of_a_job_that_runs_the_times_are_changed(as_user):
    client, url = as_user("erin"), job_url("prepare")
    Job.objects.filter(name="prepare").update(state="RUNNING")
    client.post(f"{url}change/", {"change-declared_min": "30", "change-limit_min": "90"})
    job = Job.objects.get(name="prepare")
    assert (job.declared_s, job.run_limit_s) == (1800, 5400)
    page = client.get(url).content.decode()
    assert 'name="change-limit_min" value="90"' in page
    assert "only its times can be changed" in plain(client.get(url))
    assert "tells those who wait when its GPUs become free" in plain(client.get(url))
    assert "start sooner" not in plain(client.get(url))
    assert "helps it start sooner" in plain(client.get(job_url("held")))
    Job.objects.filter(name="prepare").update(admitted_at=timezone.now() - timedelta(hours=1))
    late = client.post(f"{url}change/", {"initial-change-limit_min": "90", "change-limit_min": "1"})
    assert late.status_code == 422
    assert re.search(r"has already run for 36\d\d s", plain(late))
    assert Job.objects.get(name="prepare").run_limit_s == 5400


def test_how_many_pods_a_job_has_is_changed_also_while_it_runs(as_user):
    client, url = as_user("erin"), job_url("prepare")
    Job.objects.filter(name="prepare").update(state="RUNNING", gang=False)
    count = Job.objects.get(name="prepare").pod_sets.get().count
    page = client.get(url)
    assert f'name="change-pods_0" value="{count}"' in page.content.decode()
    assert f'data-change-pods_0="{count}"' in page.content.decode()
    assert "only its times and how many pods it has can be changed" in plain(page)
    shown = {"initial-change-pods_0": str(count)}
    answer = client.post(f"{url}change/", {**shown, "change-pods_0": "12"}, follow=True)
    assert "prepare is changed." in plain(answer)
    assert Job.objects.get(name="prepare").pod_sets.get().count == 12
    for typed, told in (("0", "Must be from 1 to 100000."), ("", "Fill this in.")):
        wrong = client.post(f"{url}change/", {**shown, "change-pods_0": typed})
        assert wrong.status_code == 422
        error = re.search(r'id="id_change-pods_0-error">.*?</svg>([^<]*)', wrong.content.decode())
        assert error
        assert told in error[1]
    # A gang that has started needs all its pods; the page says so.
    Job.objects.filter(name="prepare").update(gang=True)
    assert "pods_0" not in client.get(url).content.decode()
    late = client.post(f"{url}change/", {**shown, "change-pods_0": "3"})
    assert late.status_code == 422
    assert "is a gang that needs all pods of" in plain(late)
    assert Job.objects.get(name="prepare").pod_sets.get().count == 12


def test_the_page_tells_why_a_service_has_no_more_pods_and_which_of_them_leave(as_user):
    client, url = as_user("erin"), job_url("prepare")
    job = Job.objects.get(name="prepare")
    told = {"reason": "InsufficientGpus", "summary": "Needs 16 GPUs; 8 are free.",
            "evidence": {}, "at": timezone.now().isoformat()}  # fmt: skip
    Job.objects.filter(pk=job.pk).update(
        state="RUNNING", gang=False, growth=told, attempt=1, admitted_at=timezone.now()
    )
    job.placements.all().delete()
    job.pod_sets.update(count=4)
    for ordinal in range(3):
        job.placements.create(
            attempt=1, pod_set=0, ordinal=ordinal, pod_name=f"p{ordinal}", node="n",
            gpu_model="H100", held_milli=1000, state="RUNNING", intended_at=timezone.now(),
            reason="Resized" if ordinal else "",
        )  # fmt: skip
    text = plain(client.get(url))
    assert "1 of its 4 pods has a place. The other 3 wait in the queue" in text
    assert "Why not now: Needs 16 GPUs; 8 are free." in text
    assert "2 pods leave, because the job was scaled down." in text


def test_times_sent_for_a_job_that_ended_meanwhile_are_refused_with_that_reason(as_user):
    Job.objects.filter(name="prepare").update(state="CANCELLED")
    late = as_user("erin").post(f"{job_url('prepare')}change/", {"change-declared_min": "30"})
    assert late.status_code == 422
    assert "The job is cancelled; only a waiting job" in plain(late)
    assert "Fill this in." not in plain(late)


def test_the_buttons_follow_the_state_of_the_job(as_user):
    client, url, live = as_user("erin"), job_url("held"), {"HX-Request": "true"}
    waits = client.get(url, headers=live).content.decode()
    for part in ('hx-swap-oob="innerMorph"', "Change", "Release", "Cancel job"):
        assert part in waits
    Job.objects.filter(name="held").update(state="RUNNING")
    runs = client.get(url, headers=live).content.decode()
    assert "Cancel job" in runs
    assert "Release" not in runs
    assert "data-dialog" in runs
    Job.objects.filter(name="held").update(state="SUCCEEDED")
    over = client.get(url, headers=live)
    assert "The job is already over; there is nothing left to cancel." in plain(over)
    assert "data-dialog" not in over.content.decode()
    refused = client.post(f"{url}release/", follow=True)
    assert "The job is succeeded; only a waiting job" in plain(refused)


def test_the_buttons_of_an_array_follow_its_jobs(as_user):
    client, live = as_user("erin"), {"HX-Request": "true"}
    open_ = client.get(ARRAY_URL, headers=live)
    assert "3 of its 4 jobs are not over" in plain(open_)
    assert 'data-dialog="cancel"' in open_.content.decode()
    Job.objects.filter(array_id=story.ARRAY).update(state="SUCCEEDED")
    over = client.get(ARRAY_URL, headers=live)
    assert "All its jobs are already over" in plain(over)
    assert "data-dialog" not in over.content.decode()
    assert 'id="array-actions"' not in client.get("/jobs/", headers=live).content.decode()


# --- what the page shows --------------------------------------------------------------------------
def test_the_page_tells_of_dependencies_limits_and_the_reservation(as_user):
    text = plain(as_user("erin").get(job_url("head")))
    assert "After the success of prepare Succeeded" in text
    foreign = Job.objects.get(name="urgent")
    assert f"After the end of {foreign.pk} (you may not see it)" in text
    assert "Run-time limit 2 h" in text
    assert "Not before in 59 min" in text
    assert re.search(r"expected to start in 24 min \d+ s on node-000, node-001", text)
    assert "node-005 and 2 more nodes, when the jobs there end" in text
    operator = as_user("operator").get(job_url("head"))
    assert "urgent Waiting" in plain(operator)
    assert "/ops/nodes/demo/node-000/" in operator.content.decode()


def test_preemptions_say_for_whom_why_and_what_they_cost(as_user):
    text = plain(as_user("erin").get(job_url("head")))
    assert (
        "2 of its pods made room for prepare of vision, which has a higher priority. It went back "
        "to its queue; 1.5 GPU-hours of work lost, 2.5 GPU-hours by all jobs that made room. "
        "Other choices: other victims: +1800.0 GPU-s, 3 jobs."
    ) in text
    assert (
        "made room for a job of another tenant, whose tenant took back quota that it had lent. "
        "It went on with the others; 42 GPU-seconds of work lost."
    ) in text
    assert str(Job.objects.get(name="urgent").pk) not in text.rpartition("Events")[2]


def test_the_preemptor_says_who_makes_room_for_it(as_user):
    page = as_user("erin").get(job_url("prepare"))
    assert (
        "Room made 3 pods of head of vision and 1 other job make room for it; "
        "2.5 GPU-hours of work lost."
    ) in plain(page)
    assert str(Job.objects.get(name="urgent").pk) not in page.content.decode()
    assert "of head of vision, urgent of search make room" in plain(
        as_user("operator").get(job_url("prepare"))
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 GPU-seconds"), (1, "1 GPU-second"), (90, "1.5 GPU-minutes"), (3600, "1 GPU-hour")],
)
def test_gpu_time(seconds, text):
    assert gpu_time(seconds) == text


# --- the list -------------------------------------------------------------------------------------
def test_held_jobs_are_found_and_marked(as_user):
    answer = as_user("erin").get("/jobs/?state=held")
    assert names(answer) == {"held"}
    assert "Waiting On hold" in plain(answer)


def test_an_array_is_reached_from_its_jobs_and_counted(as_user):
    client = as_user("erin")
    assert f'href="{ARRAY_URL}"' in client.get("/jobs/").content.decode()
    assert f'href="{ARRAY_URL}"' in client.get(job_url("sweep-2")).content.decode()
    page = client.get(ARRAY_URL)
    assert names(page) == {f"sweep-{i}" for i in range(4)}
    assert "4 jobs, 32 GPUs 3 Waiting 1 Succeeded" in plain(page)
    assert names(client.get(f"{ARRAY_URL}&state=ended")) == {"sweep-0"}


@pytest.mark.parametrize(
    ("who", "array"), [("erin", "x"), ("erin", uuid.UUID(int=0)), ("vik", story.ARRAY)]
)
def test_an_unknown_array_is_told_as_any_other_filter(as_user, who, array):
    page = as_user(who).get(f"/jobs/?array={array}")
    assert names(page) == set()
    assert f"<h2>There is no array “{array}” that you may see</h2>" in page.content.decode()
    assert f"There is no array “{array}” that you may see." in (
        as_user(who).get(f"/jobs/jobs.csv?array={array}", follow=True).content.decode()
    )


def test_an_array_is_cancelled_after_asking(as_user):
    cancel = reverse("array-cancel", args=[story.ARRAY])
    assert as_user("vik").post(cancel).status_code == 404
    client = as_user("erin")
    assert "3 of its 4 jobs are not over" in plain(client.get(ARRAY_URL))
    answer = client.post(cancel, follow=True)
    assert answer.redirect_chain[-1][0] == ARRAY_URL
    assert "The jobs of sweep that were not over are cancelled." in plain(answer)
    states = dict(Job.objects.filter(array_id=story.ARRAY).values_list("array_index", "state"))
    assert states == {0: "SUCCEEDED", 1: "CANCELLED", 2: "CANCELLED", 3: "CANCELLED"}
    assert "Cancel array" not in plain(client.get(ARRAY_URL))
    assert "All jobs of this array are over." in plain(client.post(cancel, follow=True))


def test_what_waits_of_an_array_is_held_and_released(as_user):
    hold, release = (reverse(f"array-{act}", args=[story.ARRAY]) for act in ("hold", "release"))
    assert as_user("vik").post(hold).status_code == 404
    client = as_user("erin")

    def offered(answer):
        return re.findall('data-dialog="(hold|release)"', answer.content.decode())

    assert offered(client.get(ARRAY_URL)) == ["hold"]
    answer = client.post(hold, follow=True)
    assert answer.redirect_chain[-1][0] == ARRAY_URL
    assert "The waiting jobs of sweep are on hold." in plain(answer)
    assert offered(answer) == ["release"]
    held = Job.objects.filter(held=True, array_id=story.ARRAY)
    assert sorted(held.values_list("array_index", flat=True)) == [1, 2, 3]
    assert "are already on hold" in plain(client.post(hold, follow=True))
    assert "The held jobs of sweep are released." in plain(client.post(release, follow=True))
    assert not held.exists()
    assert "is on hold" in plain(client.post(release, follow=True))
    # For an array with some jobs on hold, both actions are possible.
    Job.objects.filter(name="sweep-2").update(held=True)
    assert offered(client.get(ARRAY_URL)) == ["release", "hold"]


def test_the_page_tells_the_place_in_the_queue_and_what_is_known_of_the_start(as_user):
    client = as_user("erin")
    Job.objects.filter(name="wait-000").update(priority=900, reason="InsufficientGpus")
    text = plain(client.get(job_url("wait-000")))
    assert "Place in the queue 1 Expected start" in text
    assert "makes no forecast" in text
    at = datetime(2030, 1, 1, tzinfo=UTC)
    Job.objects.filter(name="wait-000").update(reserved_start=at, reserved_nodes=["node-001"])
    assert "It is expected to start on one node" in plain(client.get(job_url("wait-000")))
    Job.objects.filter(name="wait-000").update(state="RUNNING")
    assert "Place in the queue" not in plain(client.get(job_url("wait-000")))


def test_the_page_names_who_is_ahead_as_far_as_the_reader_may_see_them(as_user):
    waiting = Job.objects.filter(state__in=["PENDING", "QUOTA_RESERVED"])
    last = waiting.get(name="wait-000")
    waiting.exclude(pk=last.pk).update(priority=7, reason="InsufficientGpus", held=False)
    waiting.filter(pk=last.pk).update(priority=6, reason="BehindInQueue")
    count = waiting.count() - 1
    for reader in ("operator", "erin"):
        client = as_user(reader)
        told = client.get(f"/api/v1/jobs/{last.pk}/explain").json()["ahead"]
        page = client.get(job_url("wait-000")).content.decode()
        listed = page.partition('id="ahead">')[2].partition("</ol>")[0]
        assert listed.count("<li>") == len(told) == 5
        for other in told:
            named = f'href="/jobs/{other["job"]}/">{other["name"]}</a>'
            assert (named in listed) == (other["job"] is not None)
        assert f"and {count - 5} more" in page
        hidden = sum(other["job"] is None for other in told)
        assert listed.count("a job of another tenant") == hidden
        assert bool(hidden) == (reader == "erin")
    Job.objects.filter(pk=last.pk).update(held=True)
    assert 'id="ahead"' not in as_user("erin").get(job_url("wait-000")).content.decode()


def test_a_job_that_waits_for_an_array_names_it(as_user):
    Job.objects.filter(name="wait-000").update(after=[str(story.ARRAY)])
    page = as_user("erin").get(job_url("wait-000"))
    assert "After the end of all jobs of the array of sweep-0" in plain(page)
    assert f'href="{ARRAY_URL}"' in page.content.decode()


def test_what_stands_behind_a_reason_is_told_in_words(as_user):
    client, job = as_user("erin"), Job.objects.get(name="prepare")
    rows = Job.objects.filter(name="wait-000")
    evidence = {"after": str(job.pk), "left": 2.0, "used": 49.384, "free": 12345, "jobs": 1}
    message = f"It waits for job or array {job.pk} to succeed, and that did not succeed."
    rows.update(reason="Misconfigured", message=message, evidence=evidence)
    page = client.get(job_url("wait-000"))
    text = plain(page)
    assert "for job or array prepare to succeed" in text
    for part in ("After prepare", "Left 2 Used", "Used 49.384", "Free 12,345"):
        assert part in text
    assert "Kant checks again when nodes, quotas, the policy or the job change" in text
    assert page.content.decode().count(f'<a href="{job_url("prepare")}">prepare</a>') == 2
    foreign = str(Job.objects.get(name="urgent").pk)
    rows.update(reason="ReservedForHead", evidence={"ahead": foreign, "starts_at": 1893456000.0})
    page = client.get(job_url("wait-000"))
    assert "Ahead a job you may not see" in plain(page)
    assert 'title="2030-01-01 00:00:00 UTC">in ' in page.content.decode()
    rows.update(evidence={"asked_milli": 1500, "to_end_milli": 8000, "avoided_until": 1893456000.0})
    page = client.get(job_url("wait-000"))
    assert "Asked GPUs 1.5 To end GPUs 8 Avoided until in" in plain(page)
    assert 'title="2030-01-01 00:00:00 UTC">in ' in page.content.decode()
    rows.update(evidence={"after": str(story.ARRAY)})
    assert "After the array of sweep-0" in plain(client.get(job_url("wait-000")))


def test_a_job_that_waits_for_others_is_not_called_held(as_user):
    client, rows = as_user("erin"), Job.objects.filter(name="wait-000")
    rows.update(reason="OnHold", evidence={"jobs": 2}, message="It waits for 2 other jobs.")
    text = plain(client.get(job_url("wait-000")))
    assert "On hold" not in text
    assert "Why it is waiting Waits for other jobs" in text
    assert "When the jobs before it have ended." in text
    rows.update(held=True)
    assert "Why it is waiting On hold" in plain(client.get(job_url("wait-000")))


def test_a_job_before_its_time_does_not_back_off(as_user):
    client, rows = as_user("erin"), Job.objects.filter(name="wait-000")
    at = datetime(2030, 1, 1, tzinfo=UTC)
    rows.update(reason="BackingOff", evidence={"not_before": at.timestamp()})
    assert "Why it is waiting Backing off" in plain(client.get(job_url("wait-000")))
    rows.update(start_not_before=at)
    assert "Why it is waiting Not yet due" in plain(client.get(job_url("wait-000")))
    assert "Not yet due" in plain(client.get("/jobs/?q=wait-000"))


def test_the_page_of_a_node_marks_its_bad_gpus(as_user):
    text = plain(as_user("operator").get("/ops/nodes/demo/node-005/"))
    assert text.count("3 Bad") == 1
    assert len(re.findall(r"\d Bad ", text)) == 1
    assert "Unhealthy GPUs 3 status.allocatable" in text


def test_a_change_is_previewed_before_it_is_made(as_user):
    client = as_user("operator")
    job = Job.objects.filter(state="PENDING", held=False, array_id=None)[0]
    now = {"initial-change-priority": str(job.priority)}
    url = f"/jobs/{job.pk}/change/preview/"
    told = client.post(url, {**now, "change-priority": str(job.priority + 1)})
    assert told.context["title"] == "What this change would do"
    assert Job.objects.get(pk=job.pk).priority == job.priority
    same = client.post(url, {**now, "change-priority": str(job.priority)}).content.decode()
    assert "nothing to preview" in same
    too_much = client.post(url, {**now, "change-priority": "9" * 12}).content.decode()
    assert "Priority: Must be" in too_much


@pytest.mark.parametrize("act", ["hold", "release", "cancel"])
def test_what_an_act_would_do_to_others_is_told_or_why_it_is_refused(as_user, act):
    client, url = as_user("erin"), job_url("held")
    before = Job.objects.get(name="held").version
    answer = client.post(f"{url}{act}/preview/")
    if act == "hold":
        assert "The job is already on hold." in plain(answer)
    else:
        assert "What it would do to other jobs" in plain(answer)
    assert Job.objects.get(name="held").version == before
    assert client.get(f"{url}{act}/preview/").status_code == 405
    assert client.post(f"{url}explode/preview/").status_code == 404
    array = reverse("array-act-preview", args=[story.ARRAY, act])
    answer = client.post(array)
    assert ("is on hold" if act == "release" else "What it would do to other jobs") in plain(answer)
    assert client.post(array.replace(act, "explode")).status_code == 404
    stranger = as_user("vik")
    assert stranger.post(f"{url}{act}/preview/").status_code == 404
    assert stranger.post(array).status_code == 404
