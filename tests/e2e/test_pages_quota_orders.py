"""Quota changes for a later time or for a limited time, on the pages."""

from datetime import timedelta

import pytest
from django.utils import timezone

from tenants import tasks
from tenants.models import QuotaOrder
from tests.e2e.test_pages_quotas import guaranteed, key, sheet


def at(hours):
    return f"{timezone.now() + timedelta(hours=hours):%Y-%m-%dT%H:%M}"


def text_of(answer):
    return answer.content.decode()


def test_a_change_for_a_while_is_told_in_its_cell_and_set_back(as_user):
    vera = as_user("vera")
    until = at(3)
    answer = vera.post("/quotas/", sheet("Season", vision="100") | {"ends_at": until}, follow=True)
    assert "1 quota changed until" in text_of(answer)
    assert guaranteed("vision") == 100
    for user in ("vera", "operator", "erin"):
        text = text_of(as_user(user).get("/quotas/"))
        assert "back to 128 on" in text
        assert until.replace("T", " ") + " UTC" in text
    assert "back to 128" not in text_of(as_user("vik").get("/quotas/"))
    page = f"/quotas/orders/{QuotaOrder.objects.get().pk}/"
    assert "Go back now" not in text_of(as_user("erin").get(page))
    assert as_user("vik").get(page).status_code == 404
    refused = as_user("vera").post(page, {"end": "yes", "reason": ""})
    assert (refused.status_code, "Say why" in text_of(refused)) == (422, True)
    done = as_user("vera").post(page, {"end": "yes", "reason": "Earlier"}, follow=True)
    assert "The change is over; the quotas went back." in text_of(done)
    assert guaranteed("vision") == 128
    again = as_user("vera").post(page, {"end": "yes", "reason": "Earlier"})
    assert (again.status_code, "not possible in its current state" in text_of(again)) == (422, True)


def test_a_change_at_a_time_is_told_and_called_off(as_user):
    vera = as_user("vera")
    answer = vera.post(
        "/quotas/", sheet("Season", vision="100") | {"starts_at": at(2)}, follow=True
    )
    assert "1 quota will change on" in text_of(answer)
    assert "100 from" in text_of(answer)
    assert guaranteed("vision") == 128
    page = f"/quotas/orders/{QuotaOrder.objects.get().pk}/"
    assert as_user("operator").post(page, {"cancel": "yes", "reason": "No"}).status_code == 302
    text = text_of(vera.get("/quotas/"))
    assert "100 from" not in text
    assert "operator called it off: No" in text


def test_what_did_not_go_back_is_told(as_user):
    as_user("vera").post("/quotas/", sheet("Season", vision="100") | {"ends_at": at(2)})
    as_user("operator").post("/quotas/", sheet("Theirs", vision="90"))
    QuotaOrder.objects.update(ends_at=timezone.now())
    tasks.carry_out_orders()
    assert guaranteed("vision") == 90
    assert "1 quota did not go back." in text_of(as_user("vera").get("/quotas/"))
    page = text_of(as_user("vera").get(f"/quotas/orders/{QuotaOrder.objects.get().pk}/"))
    assert "Could not go back." in page
    assert "operator changed it" in page
    changes = text_of(as_user("vera").get("/quotas/changes/"))
    assert "Could not go back: 100" in changes


@pytest.mark.parametrize(
    ("times", "text"),
    [
        ({"starts_at": "tomorrow"}, "Write a date and a time of day in UTC"),
        ({"ends_at": "2020-01-01T00:00"}, "That time has passed"),
    ],
)
def test_times_that_cannot_be_are_told_beside_them(as_user, times, text):
    answer = as_user("vera").post("/quotas/", sheet("Season", vision="100") | times)
    assert answer.status_code == 422
    assert text in text_of(answer)
    assert f'value="{next(iter(times.values()))}"' in text_of(answer)
    assert f'id="q-{key("vision")}" value="100"' in text_of(answer)
    assert guaranteed("vision") == 128


def test_a_large_change_waits_for_a_second_person(as_user, settings):
    settings.KANT_QUOTA_APPROVAL_GPUS = 10
    vera = as_user("vera")
    answer = vera.post("/quotas/", sheet("Season", vision="100"), follow=True)
    assert "1 quota will change once somebody else has approved" in text_of(answer)
    assert "100 once somebody approves it" in text_of(answer)
    assert guaranteed("vision") == 128
    page = f"/quotas/orders/{QuotaOrder.objects.get().pk}/"
    mine, theirs = text_of(vera.get(page)), text_of(as_user("operator").get(page))
    assert "It waits for somebody else who may change" in mine
    assert "vera may not make this change alone: it is of 28 GPUs" in " ".join(theirs.split())
    assert ("Waits for your approval" in text_of(as_user("operator").get("/quotas/"))) is True
    assert "Waits for your approval" not in text_of(as_user("vera").get("/quotas/"))
    assert ("Call it off" in mine, "Approve</button>" in mine) == (True, False)
    assert ("Refuse</button>" in theirs, "Approve</button>" in theirs) == (True, True)
    assert as_user("vera").post(page, {"approve": "yes", "reason": "Me"}).status_code == 422
    done = as_user("operator").post(page, {"approve": "yes", "reason": "Fine"}, follow=True)
    assert "The change is approved." in text_of(done)
    assert guaranteed("vision") == 100
    # A single change beside a draft says what to do instead.
    form = {"guaranteed": "128", "mode": "shared", "version": "2", "reason": "Back"}
    alone = as_user("vera").post("/quotas/vision/H200/", form)
    assert (alone.status_code, "Make the change in a draft" in text_of(alone)) == (422, True)


@pytest.fixture
def waiting(as_user, settings):
    settings.KANT_QUOTA_APPROVAL_GPUS = 10
    as_user("vera").post("/quotas/", sheet("Season", vision="100"))
    return f"/quotas/orders/{QuotaOrder.objects.get().pk}/"


def test_who_approves_is_told_what_it_would_do(waiting, as_user):
    operator = as_user("operator")
    page = text_of(operator.get(waiting))
    assert 'data-label="Now">128<' in page
    assert f'hx-post="{waiting}preview/" hx-trigger="load"' in page
    told = text_of(operator.post(f"{waiting}preview/"))
    assert "What it would do if it were carried out now" in told
    assert guaranteed("vision") == 128
    operator.post(waiting, {"refuse": "yes", "reason": "No"})
    assert "can no longer be carried out" in text_of(operator.post(f"{waiting}preview/"))


def test_what_was_changed_since_it_was_placed_stands_against_it(waiting, as_user):
    before = text_of(as_user("vera").get(waiting))
    assert "can no longer be carried out" not in before
    form = {"guaranteed": "120", "mode": "shared", "version": "1", "reason": "Less"}
    as_user("operator").post("/quotas/vision/H200/", form)
    for user, remedy in (("vera", "Call it off"), ("operator", "vera has to schedule a new one")):
        page = text_of(as_user(user).get(waiting))
        assert "can no longer be carried out" in page
        assert remedy in page
        told = "operator set it to 120 meanwhile (“Less”); it was 128 when this was scheduled."
        assert told in page
    # A person who can do nothing about it is not told who was faster.
    assert "operator set it" not in text_of(as_user("erin").get(waiting))
    refused = text_of(as_user("operator").post(f"{waiting}preview/"))
    assert "The change cannot be carried out now. vision / H200" in refused
    answer = as_user("operator").post(waiting, {"approve": "yes", "reason": "Fine"})
    assert (answer.status_code, guaranteed("vision")) == (422, 120)


def test_an_open_page_hears_what_became_of_it(waiting, as_user):
    part = f"{waiting}?opened=waiting"
    live = {"HX-Request": "true"}
    assert "updated since you opened" not in text_of(as_user("vera").get(part, headers=live))
    as_user("operator").post(waiting, {"refuse": "yes", "reason": "Too many"})
    text = text_of(as_user("vera").get(part, headers=live))
    assert "This change was updated since you opened the page." in text
    assert "operator refused it: Too many" in text


def test_what_waits_too_long_says_so(waiting, as_user):
    QuotaOrder.objects.update(starts_at=timezone.now() - timedelta(hours=1))
    assert "once approved, it is carried out immediately" in text_of(as_user("vera").get(waiting))
    QuotaOrder.objects.update(created_at=timezone.now() - timedelta(days=31))
    tasks.carry_out_orders()
    page = text_of(as_user("vera").get(waiting))
    assert "Nobody approved it in time." in page
    assert "Failed" in page
