"""Moves and weights of tenants in drafts on the pages."""

import html

import pytest

from tenants.models import AuditRecord, DraftTenant, QuotaOrder, Tenant
from tests.e2e.test_pages_quotas import guaranteed, sheet

PLACE = "/tenants/speech/place/"


def form(parent="vision", weight="1", now=("research", "1"), **more):
    return {"parent": parent, "weight": weight, "now-parent": now[0], "now-weight": now[1], **more}


def text_of(answer):
    return html.unescape(answer.content.decode())


def stands(name="speech"):
    row = Tenant.objects.select_related("parent").get(name=name)
    return (row.parent.name if row.parent else None, row.weight)


def drafted():
    return {row.tenant.name: row.fields for row in DraftTenant.objects.select_related("tenant")}


@pytest.fixture
def vera(as_user):
    return as_user("vera")


def shown(told="moves below vision"):
    return {"placed": f"speech: {told}"}


def test_a_move_is_kept_in_the_draft_shown_and_saved(vera):
    assert "tenants/speech/place" in text_of(vera.get("/tenants/speech/"))
    page = text_of(vera.get(PLACE))
    assert '<option value="research" selected>research (now)' in page
    assert "top of the tree" not in page  # only operators move tenants at this level
    answer = vera.post(PLACE, form(weight="2"), follow=True)
    assert "The change is in your draft" in text_of(answer)
    assert "moves below vision, weight 1 → 2" in text_of(answer)
    assert "1 change<" in text_of(answer)
    assert stands() == ("research", 1.0)
    told = shown("moves below vision, weight 1 → 2")
    preview = vera.post("/quotas/preview/", told | sheet(nlp="90"))
    assert "What these 2 changes would do" in text_of(preview)
    answer = vera.post("/quotas/", told | sheet("Season", nlp="90"), follow=True)
    assert "1 quota and 1 tenant changed." in text_of(answer)
    assert (stands(), guaranteed("nlp"), drafted()) == (("vision", 2.0), 90, {})
    changes = text_of(vera.get("/quotas/changes/"))
    assert "Tenant above" in changes
    record = AuditRecord.objects.get(action="tenant.changed")
    assert f"/quotas/changes/{record.pk}/revert-tenant/" in changes


def test_what_the_page_has_not_shown_is_not_saved(vera):
    vera.post(PLACE, form())
    answer = vera.post("/quotas/", sheet("Season", nlp="90"))
    assert (answer.status_code, guaranteed("nlp")) == (422, 96)
    assert "1 more edit" in text_of(answer)
    assert "moves below vision" in text_of(answer)


def test_what_stands_against_a_move_is_told_beside_it(vera):
    vera.post("/tenants/vision/place/", form(parent="speech"))
    vera.post(PLACE, form(parent="vision"))
    checked = text_of(vera.post("/quotas/check/", sheet()))
    assert "“speech” cannot be moved below “vision”, which is below it" in checked
    assert "Correct the marked tenants" in text_of(vera.post("/quotas/preview/", sheet()))
    told = {"placed": ["speech: moves below vision", "vision: moves below speech"]}
    answer = vera.post("/quotas/", told | sheet("Season"))
    assert answer.status_code == 422
    assert "cannot be moved below" in text_of(answer)
    assert (stands()[0], stands("vision")[0]) == ("research", "research")


def test_a_weight_that_is_none_is_kept_and_marked(vera):
    answer = vera.post(PLACE, form(parent="research", weight="1,5"), follow=True)
    assert "weight 1 → 1,5" in text_of(answer)
    assert "Write a number in the digits 0 to 9" in text_of(vera.post("/quotas/check/", sheet()))
    assert 'value="1,5"' in text_of(vera.get(PLACE))
    long = vera.post(PLACE, form(weight="9" * 64))
    assert (long.status_code, "Use at most 63 characters" in text_of(long)) == (422, True)


def test_an_edit_leaves_the_draft(vera):
    vera.post(PLACE, form())
    assert "Take out of my draft" in text_of(vera.get(PLACE))
    vera.post(PLACE, form(take="yes"))
    assert drafted() == {}


def test_somebody_faster_is_told_and_overwritten_only_when_seen(vera):
    vera.post(PLACE, form(parent="research", weight="2"))
    Tenant.objects.filter(name="speech").update(weight=3)
    # The page was opened before: it does not overwrite the newer draft.
    vera.post(PLACE, form(parent="research", weight="4"))
    checked = text_of(vera.post("/quotas/check/", sheet()))
    assert "Weight: theirs 3, yours 4, 1 when you began." in checked
    told = shown("weight 3 → 4")
    assert vera.post("/quotas/", told | sheet("Season")).status_code == 422
    assert "theirs 3" in text_of(vera.get(PLACE))
    vera.post(PLACE, form(parent="research", weight="4", now=("research", "3")))
    assert vera.post("/quotas/", told | sheet("Season")).status_code == 302
    assert stands() == ("research", 4.0)


def test_theirs_is_taken_field_by_field(vera):
    vera.post(PLACE, form(weight="2"))
    vera.post("/tenants/nlp/place/", form(parent="research", weight="5"))
    assert "Take theirs" not in text_of(vera.post("/quotas/check/", sheet()))
    Tenant.objects.filter(name="speech").update(weight=3)
    checked = text_of(vera.post("/quotas/check/", sheet()))
    assert checked.count("Take theirs") == 1
    speech = str(Tenant.objects.get(name="speech").pk)
    assert f'hx-vals=\'{{"theirs": "{speech}"}}\'' in checked
    # The same request keeps what is typed in the neighbouring cells.
    edits = sheet(nlp="90") | {"tab": "t", "stamp": "1", "theirs": speech}
    taken = text_of(vera.post("/quotas/check/", edits))
    assert "Take theirs" not in taken
    assert 'value="speech: moves below vision"' in taken
    assert drafted() == {"speech": {"parent": "vision"}, "nlp": {"weight": "5"}}
    assert "3 changes<" in taken
    # Repeated without a competing change, it takes nothing.
    vera.post("/quotas/check/", sheet() | {"theirs": speech})
    assert drafted() == {"speech": {"parent": "vision"}, "nlp": {"weight": "5"}}


def test_what_is_not_yours_to_change_any_more_is_taken_out(vera):
    vera.post(PLACE, form())
    Tenant.objects.filter(name="speech").update(parent=None)
    assert vera.get(PLACE).status_code == 404
    checked = text_of(vera.post("/quotas/check/", sheet()))
    assert "There is no tenant “speech” that you may see." in checked
    assert "tenants/speech/place" not in checked
    speech = str(Tenant.objects.get(name="speech").pk)
    assert "Take out" in checked
    assert "speech" not in text_of(vera.post("/quotas/check/", sheet() | {"out": speech}))
    assert drafted() == {}


@pytest.mark.parametrize(("who", "code"), [("operator", 200), ("vera", 200), ("erin", 404)])
def test_who_may_move_a_tenant(as_user, who, code):
    assert as_user(who).get(PLACE).status_code == code
    assert ("/place/" in text_of(as_user("erin").get("/tenants/vision/"))) is False


def test_others_see_who_moves_what(as_user):
    as_user("operator").post("/tenants/speech/place/", form(weight="2"))
    assert "speech: moves below vision, weight 1 → 2" in text_of(as_user("vera").get("/quotas/"))
    assert "moves below" not in text_of(as_user("erin").get("/quotas/"))


def test_a_move_for_a_while_has_its_order(vera):
    vera.post(PLACE, form())
    body = shown() | sheet("Season") | {"ends_at": "2027-06-01T18:00"}
    answer = vera.post("/quotas/", body, follow=True)
    assert "1 tenant changed until" in text_of(answer)
    assert "speech moves below vision" in text_of(answer)
    order = QuotaOrder.objects.get()
    page = text_of(vera.get(f"/quotas/orders/{order.pk}/"))
    assert "Change of 1 tenant" in page
    assert "moves below vision" in page
    vera.post(f"/quotas/orders/{order.pk}/", {"end": "yes", "reason": "Over"})
    assert stands()[0] == "research"


def test_a_change_is_taken_back_on_its_page(vera):
    vera.post(PLACE, form(weight="2"))
    vera.post("/quotas/", shown("moves below vision, weight 1 → 2") | sheet("Season"))
    record = AuditRecord.objects.get(action="tenant.changed")
    at = f"/quotas/changes/{record.pk}/revert-tenant/"
    page = text_of(vera.get(at))
    assert "What would be set back" in page
    assert "What reverting it would do" in text_of(vera.post(f"{at}preview/"))
    refused = vera.post(at, {"reason": ""})
    assert (refused.status_code, "Say why" in text_of(refused)) == (422, True)
    assert vera.post(at, {"reason": "Back"}).status_code == 302
    assert stands() == ("research", 1.0)
    assert "already has its values from before this change" in text_of(vera.get(at))


def test_the_form_previews_the_draft_with_what_it_says_and_keeps_nothing(vera):
    told = vera.post(f"{PLACE}preview/", form(parent="research", weight="4"))
    assert told.context["title"] == "What this change would do"
    assert told.context["effects"].until is not None
    assert (drafted(), stands()) == ({}, ("research", 1.0))
    assert "nothing to preview" in text_of(vera.post(f"{PLACE}preview/", form(parent="research")))
    assert "weight" in text_of(vera.post(f"{PLACE}preview/", form(weight="heavy"))).lower()
    assert vera.post("/tenants/nobody/place/preview/", form()).status_code == 404
