"""Previews of acts on jobs over REST show the effect on all jobs: `jobs:act` and the calls for
one job."""

import pytest
from django.utils.dateparse import parse_datetime

from scheduling.models import ClusterPolicy, Job, JobEvent
from tenants.models import Quota
from tests.scheduling.test_quota_effects import asks
from tests.scheduling.test_rehearsal import fleet, runs  # noqa: F401 - a fixture

URL = "/api/v1/jobs:act?dry_run=true"


@pytest.fixture
def full(fleet):  # noqa: F811
    """Law runs on all four nodes; one job of vision waits for three nodes, another for two."""
    ClusterPolicy.objects.create(
        cluster=fleet.cluster, document={"queueing": "strict-fifo", "preemption": ["priority"]}
    )
    Quota.objects.filter(tenant__name__in=("law", "vision")).update(guaranteed_milli=32000)
    old = runs(fleet, ["h000", "h001"], declared_s=7200)
    young = runs(fleet, ["h002", "h003"], declared_s=3600)
    return fleet, old, young, asks(fleet, "vision", 3, "eve"), asks(fleet, "vision", 2, "eve")


def tried(org, act, *ids, who="ops", **more):
    body = {"act": act, "ids": [str(one) for one in ids], **more}
    answer = org.client(who).post(URL, body, format="json")
    assert answer.status_code == 200, answer.json()
    return answer.json()


def ids(rows):
    return [one["job"] for one in rows]


def test_cancelling_a_running_job_starts_who_waited_for_its_places(full):
    org, old, young, three, two = full
    events = JobEvent.objects.count()
    found = tried(org, "cancel", old.pk, young.pk)
    assert found["result"]["done"] == 2
    assert ids(found["effects"]["starts"]) == [three]
    assert found["effects"]["stops"] == []  # what is ended itself is in the answers
    assert [one["job"]["job"] for one in found["effects"]["shifts"]] == [two]
    assert Job.objects.filter(state="RUNNING").count() == 2
    assert JobEvent.objects.count() == events


def test_cancelling_or_holding_who_stands_first_lets_the_next_go(full):
    org, old, _, three, two = full
    for act in ("cancel", "hold"):
        found = tried(org, act, three)["effects"]
        (shift,) = found["shifts"]
        assert shift["job"]["job"] == two
        assert shift["by_s"] < 0
    both = tried(org, "cancel", three, old.pk)["effects"]
    assert ids(both["starts"]) == [two]
    assert both["shifts"] == []  # the preview says nothing about the cancelled job itself


def test_a_released_job_is_told_with_those_that_it_passes(full):
    org, _, young, three, two = full
    eve = org.client("eve")
    assert eve.post(f"/api/v1/jobs/{three}/hold").status_code == 200
    found = tried(org, "release", three)["effects"]
    shifts = {one["job"]["job"]: one for one in found["shifts"]}
    assert shifts[three]["before"] is None
    assert shifts[two]["by_s"] > 0
    assert young.state == "RUNNING"


def test_more_priority_tells_who_is_preempted_for_it(full):
    org, _, _, three, two = full
    found = tried(org, "change", two, changes={"priority": 50})["effects"]
    assert len(found["stops"]) == 1
    assert found["stops"][0]["by"]["job"] == two
    assert three in [one["job"]["job"] for one in found["shifts"]] or found["shifts"] == []
    assert Job.objects.get(pk=two).priority == 0


def test_the_calls_for_one_job_tell_the_same(full):
    org, _, _, three, two = full
    eve = org.client("eve")
    changed = {"priority": 50}
    by_patch = eve.patch(f"/api/v1/jobs/{two}?dry_run=true", changed, format="json").json()
    assert by_patch["result"]["priority"] == 50
    assert by_patch["effects"]["counts"]["stops"] == 1
    (stop,) = by_patch["effects"]["stops"]
    assert stop["job"]["job"] is None  # of a tenant that she cannot see
    held = eve.post(f"/api/v1/jobs/{three}/hold?dry_run=true").json()
    assert held["effects"]["counts"]["sooner"] == 1
    refused = eve.post(f"/api/v1/jobs/{three}/release?dry_run=true")
    assert (refused.status_code, refused.json()["detail"]) == (409, "The job is not on hold.")


def test_what_is_refused_changes_nothing_and_the_rest_is_told(full):
    org, old, young, three, _ = full
    found = tried(org, "cancel", old.pk, young.pk, three, who="eve")
    assert (found["result"]["done"], found["result"]["refused"]) == (1, 2)
    assert found["effects"]["counts"]["starts"] == 0


def test_another_number_of_pods_of_a_running_service_tells_who_goes_and_who_comes(full):
    org, old, young, *_ = full
    Job.objects.filter(pk__in=(old.pk, young.pk)).update(gang=False)

    def sized(count):
        sizes = [{"name": old.pod_sets.get().name, "count": count}]
        found = tried(org, "change", old.pk, changes={"pod_sets": sizes})["effects"]
        assert found["troubles"] == []
        (resize,) = found["resizes"]
        assert resize.pop("job")["job"] == str(old.pk)
        return found, resize

    fewer, resize = sized(1)
    told = {"leave": 1, "more": 0, "at_once": 0, "all_at": None, "why": "", "notice_s": 0.0}
    assert resize == told
    assert fewer["counts"]["sooner"] == 2  # the first in line needs three nodes, and gets them
    _, resize = sized(4)
    assert (resize["leave"], resize["more"], resize["at_once"]) == (0, 2, 0)
    assert resize["all_at"] > fewer["as_of"]  # when the other one is over
    assert Job.objects.get(pk=old.pk).pod_sets.get().count == 2
    Job.objects.filter(pk=old.pk).update(checkpoint_notice_s=600)
    warned, resize = sized(1)
    assert resize == told | {"notice_s": 600.0}
    begin = min(parse_datetime(shift["after"]) for shift in warned["shifts"])
    assert (begin - parse_datetime(warned["as_of"])).total_seconds() >= 590.0


def test_an_array_is_previewed_as_its_jobs_are(full):
    org, old, young, three, two = full
    Job.objects.filter(pk__in=(three, two)).update(priority=9)
    body = {"name": "many", "tenant": "law", "gpu_type": "H100", "gpus": 8, "array": {"count": 3}}
    made = org.client("lex").post("/api/v1/jobs", body, format="json").json()
    url = f"/api/v1/job-arrays/{made['id']}"
    lex, before = org.client("lex"), JobEvent.objects.count()

    def told(answer):
        assert answer.status_code == 200, answer.json()
        assert answer.json()["result"]["count"] == 3
        return answer.json()["effects"]

    # Jobs ahead of it are not affected.
    assert told(lex.post(f"{url}/cancel?dry_run=true"))["counts"]["sooner"] == 0
    found = told(lex.patch(f"{url}?dry_run=true", {"priority": 50}, format="json"))
    # Its jobs take the places that were meant for the one ahead.
    assert (found["counts"]["starts"], ids(found["delayed"])) == (3, [None])
    assert told(lex.post(f"{url}/hold?dry_run=true"))["shifts"] == []
    held = lex.post(f"{url}/release?dry_run=true")
    assert (held.status_code, held.json()["code"]) == (409, "conflict")
    assert org.client("eve").post(f"{url}/cancel?dry_run=true").status_code == 404
    assert JobEvent.objects.count() == before
    assert {job.state for job in Job.objects.filter(array_id=made["id"])} == {"PENDING"}
    Job.objects.filter(pk__in=(three, two)).update(priority=0)
    Job.objects.filter(pk__in=(old.pk, young.pk)).update(array_id=made["id"])
    ended = org.client("ops").post(f"{url}/cancel?dry_run=true").json()["effects"]
    assert ids(ended["starts"]) == [three]
