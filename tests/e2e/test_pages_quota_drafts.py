"""Drafts on the quota pages, without a browser: edits are kept, and none is applied unseen."""

import html
import re
from datetime import timedelta

import pytest
from django.utils import timezone

from tenants.models import DraftCell, QuotaDraft, Tenant, User
from tenants.services.drafts import edits
from tests.e2e.test_pages_quotas import (
    cells_of,
    guaranteed,
    key,
    note,
    quota,
    sheet,
    version_sent,
)


def shown(answer, tenant):
    """Return what the field of a cell shows."""
    found = re.search(rf'id="q-{key(tenant)}" value="([^"]*)"', answer.content.decode())
    assert found
    return html.unescape(found[1])


def drafted():
    return {cell.tenant.name: cell.typed for cell in DraftCell.objects.select_related("tenant")}


def test_a_check_keeps_what_is_typed_also_what_is_no_number(as_user):
    as_user("vera").post("/quotas/check/", sheet("Season", vision="100", nlp="<junk>"))
    page = as_user("vera").get("/quotas/")
    assert (shown(page, "vision"), shown(page, "nlp")) == ("100", "<junk>")
    text = page.content.decode()
    assert 'value="Season"' in text
    assert "2 changes" in text
    assert guaranteed("vision") == 128
    # A cell set back to the current quota leaves the draft if the page had it marked.
    back = sheet("", vision="128") | {"marked": [key("vision")]}
    as_user("vera").post("/quotas/check/", back)
    assert drafted() == {"nlp": "<junk>"}
    # A cell that the page never showed as edited stays in the draft.
    as_user("vera").post("/quotas/check/", sheet("", nlp="96"))
    assert drafted() == {"nlp": "<junk>"}


def test_an_edit_that_came_true_is_none_and_the_next_one_begins_anew(as_user):
    """A check may read the quotas before its edits are saved, and write them to the draft
    afterwards."""
    before = quota("vision")
    late = edits.DraftEdit(before.tenant, before.gpu_type, "100", before.version)
    as_user("vera").post("/quotas/", sheet("Season", vision="100"))
    assert guaranteed("vision") == 100
    edits.edit_draft(User.objects.get(username="vera"), [late])
    page = as_user("vera").get("/quotas/")
    assert "No changes" in page.content.decode()
    assert version_sent(page, "vision") == str(quota("vision").version)
    answer = as_user("vera").post(
        "/quotas/", sheet("Back", vision="128") | {"fresh": key("vision")}
    )
    assert (answer.status_code, guaranteed("vision")) == (302, 128)


def test_others_see_who_edits_what_they_may_change(as_user):
    as_user("vera").post("/quotas/check/", sheet("", vision="100", nlp="90"))
    as_user("operator").post("/quotas/check/", sheet("", research="300", speech="60"))
    seen = {}
    for user in ("operator", "vera", "erin", "piet"):
        for path in ("/quotas/", "/quotas/editors/"):
            seen[user, path] = as_user(user).get(path).content.decode()
    for path in ("/quotas/", "/quotas/editors/"):
        assert "vera</span> is editing nlp H200" in seen["operator", path]
        assert "operator</span> is editing speech H200" in seen["vera", path]
        assert "research H200" not in seen["vera", path]
        for user in ("erin", "piet"):
            assert "is editing" not in seen[user, path]


def test_what_the_page_has_not_shown_is_not_applied(as_user):
    vera = as_user("vera")
    page = sheet("Mine", vision="100", nlp=str(guaranteed("nlp")))
    # In another browser, on this page of the table and on another one.
    vera.post("/quotas/check/", sheet("", nlp="90"))
    vera.post("/quotas/check/?tenant=speech", sheet("", speech="60"))
    answer = vera.post("/quotas/?tenant=nlp", page)
    assert answer.status_code == 422
    assert "your draft has 2 more edits" in answer.content.decode()
    assert [shown(answer, t) for t in ("vision", "nlp", "speech")] == ["100", "90", "60"]
    assert guaranteed("vision") == 128
    known = {"elsewhere": key("speech")} | sheet("Mine", vision="100", nlp="90")
    assert vera.post("/quotas/?tenant=nlp", known).status_code == 302
    assert [guaranteed(t) for t in ("vision", "nlp", "speech")] == [100, 90, 60]
    assert not DraftCell.objects.exists()


def test_a_tab_does_not_write_again_what_another_one_has_changed(as_user):
    vera = as_user("vera")
    vera.post("/quotas/check/", sheet("", vision="100"))
    vera.post("/quotas/check/", sheet("", vision="110"))  # in another tab
    mine = sheet("Mine", vision="100", nlp="90")
    checked = vera.post("/quotas/check/", mine | {"fresh": key("nlp")})
    assert drafted() == {"vision": "110", "nlp": "90"}
    assert "You wrote 110 here" in note(checked, "vision")
    saved = vera.post("/quotas/", mine | {"fresh": ""})
    assert (saved.status_code, shown(saved, "vision")) == (422, "110")
    assert guaranteed("vision") == 128
    # Nor an edit that was undone there, before it is saved.
    vera.post("/quotas/discard/")
    checked = vera.post("/quotas/check/", mine | {"fresh": key("nlp")})
    assert "You undid this edit" in note(checked, "vision")
    assert drafted() == {"nlp": "90"}
    assert vera.post("/quotas/", mine | {"fresh": ""}).status_code == 302
    assert (guaranteed("vision"), guaranteed("nlp")) == (100, 90)


def test_what_stands_against_an_edit_of_another_page_is_told(as_user):
    vera = as_user("vera")
    vera.post("/quotas/check/?tenant=vision", sheet("", vision="many"))
    known = {"elsewhere": key("vision")}
    checked = vera.post("/quotas/check/?tenant=nlp", known | sheet("", nlp="90"))
    assert "vision, H200: Write a number of GPUs" in checked.content.decode()
    preview = vera.post("/quotas/preview/?tenant=nlp", known | sheet("", nlp="90"))
    assert "Correct the marked cells first." in preview.content.decode()
    answer = vera.post("/quotas/?tenant=nlp", known | sheet("Mine", nlp="90"))
    assert answer.status_code == 422
    assert "Write a number of GPUs" in note(answer, "vision")
    assert guaranteed("nlp") == 96


def test_only_tenants_with_edits_are_shown_where_asked(as_user):
    vera = as_user("vera")
    assert cells_of(vera.get("/quotas/?edited=mine")) == set()
    vera.post("/quotas/check/", sheet("", vision="100"))
    assert cells_of(vera.get("/quotas/?edited=mine&gpu=H200")) == {key("vision")}
    assert "There is no choice of tenants “yes”" in vera.get("/quotas/?edited=yes").content.decode()


def test_a_full_draft_says_so_and_keeps_what_it_has(as_user, monkeypatch):
    monkeypatch.setattr(edits, "MOST_CELLS", 2)
    vera = as_user("vera")
    vera.post("/quotas/check/", sheet("", vision="100", nlp="90"))
    checked = vera.post("/quotas/check/", sheet("", speech="60"))
    assert "A draft holds at most 2 quotas" in checked.content.decode()
    assert "data-not-kept" in checked.content.decode()
    assert vera.post("/quotas/", sheet("Mine", speech="60")).status_code == 422
    assert drafted() == {"vision": "100", "nlp": "90"}


def test_what_is_too_long_for_a_draft_is_told_in_its_cell(as_user):
    vera = as_user("vera")
    checked = vera.post("/quotas/check/", sheet("", vision="1" * 65, nlp="90"))
    assert "Use at most 64 characters" in note(checked, "vision")
    assert drafted() == {"nlp": "90"}
    answer = vera.post("/quotas/", sheet("Mine", vision="1" * 65))
    assert (answer.status_code, guaranteed("nlp")) == (422, 96)
    assert shown(answer, "vision") == "1" * 65


@pytest.mark.parametrize("stamp", ["", "-1", "x", "1" * 40])
def test_a_page_that_does_not_say_its_stamp_well_writes_all_the_same(as_user, stamp):
    data = sheet("", vision="100") | {"tab": "t", "stamp": stamp}
    assert as_user("vera").post("/quotas/check/", data).status_code == 200
    assert drafted() == {"vision": "100"}


def test_a_draft_is_discarded(as_user):
    vera = as_user("vera")
    vera.post("/quotas/check/", sheet("Season", vision="100"))
    answer = vera.post("/quotas/discard/?gpu=H200", follow=True)
    assert answer.redirect_chain == [("/quotas/?gpu=H200", 302)]
    assert (drafted(), shown(answer, "vision")) == ({}, "128")
    assert 'value="Season"' not in answer.content.decode()
    assert as_user("erin").post("/quotas/discard/").status_code == 302


def test_who_may_change_nothing_writes_no_draft(as_user):
    as_user("erin").post("/quotas/check/", sheet("Mine", vision="100"))
    as_user("vera").post("/quotas/check/", sheet("Mine", research="100"))
    assert not QuotaDraft.objects.exists()


def test_statements_of_the_page_do_not_grow_with_drafts(as_user, django_assert_max_num_queries):
    as_user("vera").post("/quotas/check/", sheet("", vision="100", nlp="90", speech="60"))
    as_user("operator").post("/quotas/check/", sheet("", vision="101", nlp="91"))
    vera = as_user("vera")
    vera.get("/quotas/")
    with django_assert_max_num_queries(25):
        vera.get("/quotas/")


def test_statements_of_the_page_do_not_grow_with_tenants_in_drafts_and_orders(
    as_user, django_assert_max_num_queries
):
    above = Tenant.objects.get(name="research")
    rows = Tenant.objects.bulk_create(Tenant(name=f"t{i}", parent=above) for i in range(30))
    now = {"now-parent": "research", "now-weight": "1"}
    form = {"parent": "vision", "weight": "2"} | now
    vera, operator = as_user("vera"), as_user("operator")
    for row in rows[20:]:
        operator.post(f"/tenants/{row.name}/place/", form)
    told = [f"{row.name}: moves below vision, weight 1 → 2" for row in rows[20:]]
    starts_at = f"{timezone.now() + timedelta(days=30):%Y-%m-%dT%H:%M}"
    later = {"placed": told, "starts_at": starts_at}
    assert operator.post("/quotas/", sheet("Later") | later).status_code == 302
    # If somebody has changed the quota since, the edit is outdated, in drafts and in orders.
    for row in rows[:10]:
        vera.post(f"/tenants/{row.name}/place/", form)
    for row in rows[10:20]:
        operator.post(f"/tenants/{row.name}/place/", form)
    Tenant.objects.filter(pk__in=[row.pk for row in rows]).update(weight=3)
    vera.get("/quotas/")
    with django_assert_max_num_queries(26):
        page = html.unescape(vera.get("/quotas/").content.decode())
    for number in (0, 10, 20):
        assert f"t{number}" in page
    assert page.count("moves below vision") >= 30


def test_mode_and_limits_are_kept_in_the_draft_and_saved_with_it(as_user):
    vera, page = as_user("vera"), "/quotas/vision/H200/"
    form = {"guaranteed": "128", "mode": "shared", "borrow_limit": "16", "lend_limit": "",
            "version": "1", "reason": "", "draft": "yes"}  # fmt: skip
    answer = vera.post(page, form, follow=True).content.decode()
    assert "The change is in your draft and not saved yet." in answer
    assert "May borrow 16" in answer
    assert "1 change<" in answer
    assert quota("vision").borrow_limit_milli is None
    opened = vera.get(page).content.decode()
    assert "These values are from your draft" in opened
    assert 'name="borrow_limit" inputmode="decimal" value="16"' in opened
    # Typing the old guarantee again keeps the edits of the other fields.
    marked = sheet(vision="128") | {"marked": key("vision"), f"t-{key('vision')}": "May borrow 16"}
    checked = vera.post("/quotas/check/", marked).content.decode()
    assert "May borrow 16" in checked
    # A page that does not show them yet does not save them.
    unseen = vera.post("/quotas/", sheet("Season", vision="128"))
    assert (unseen.status_code, "1 more edit" in unseen.content.decode()) == (422, True)
    done = vera.post("/quotas/", marked | {"reason": "Season"}, follow=True).content.decode()
    assert "1 quota changed." in done
    assert quota("vision").borrow_limit_milli == 16000
    assert "These values are from your draft" not in vera.get(page).content.decode()


def test_terms_that_cannot_be_are_not_kept(as_user):
    form = {"guaranteed": "128", "mode": "shared", "lend_limit": "500", "version": "1",
            "draft": "yes"}  # fmt: skip
    answer = as_user("vera").post("/quotas/vision/H200/", form)
    assert (answer.status_code, "Lend at most what is guaranteed" in answer.content.decode()) == (
        422,
        True,
    )
    assert not DraftCell.objects.exists()
