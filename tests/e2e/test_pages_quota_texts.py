"""Mode and limits in the cells of the quota matrix and in its CSV file, without a browser."""

import csv
import io

import pytest

from tenants.models import DraftCell, GpuType, Quota
from tests.e2e.test_pages_quota_drafts import drafted, shown
from tests.e2e.test_pages_quotas import guaranteed, key, note, quota, sheet


@pytest.fixture
def terms():
    """vision borrows at most 4 H200 and lends none; nlp is isolated."""
    Quota.objects.filter(pk=quota("vision").pk).update(borrow_limit_milli=4000, lend_limit_milli=0)
    Quota.objects.filter(pk=quota("nlp").pk).update(mode="isolated")


def of(tenant):
    row = quota(tenant)
    return row.guaranteed_milli // 1000, row.mode, row.borrow_limit_milli, row.lend_limit_milli


def exported(client):
    """Return {(tenant, GPU type): text}."""
    rows = csv.DictReader(io.StringIO(client.get("/quotas/quotas.csv").content.decode()))
    return {(row["tenant"], kind): text for row in rows for kind, text in row.items()}


def test_what_is_exported_is_filled_in_as_no_change(as_user, terms):
    vera = as_user("vera")
    table = exported(vera)
    assert table["vision", "H200"] == "128 shared borrow 4 lend 0"
    assert table["nlp", "H200"] == "96 isolated"
    assert table["speech", "H200"] == str(guaranteed("speech"))
    kinds = GpuType.objects.values_list("name", flat=True)
    keys = {key(t, k): table[t, k] for t in ("vision", "nlp", "speech") for k in kinds}
    filled = {f"q-{at}": text for at, text in keys.items()} | {"marked": list(keys)}
    answer = vera.post("/quotas/check/", filled | {"reason": "", "fresh": " ".join(keys)})
    assert "No changes" in answer.content.decode()
    assert "was <s>" not in answer.content.decode()
    assert not DraftCell.objects.exists()
    # Nor if there already is a draft of these cells.
    vera.post("/quotas/check/", sheet("", vision="100 isolated"))
    assert drafted() == {"vision": "100 isolated"}
    vera.post("/quotas/check/", filled | {"reason": ""})
    assert not DraftCell.objects.exists()


def test_mode_and_limits_are_saved_with_the_guarantee(as_user, terms):
    vera = as_user("vera")
    texts = {"vision": "100 borrow any", "nlp": "96 shared lend 8", "speech": "60 isolated"}
    checked = vera.post("/quotas/check/", sheet("Season", **texts)).content.decode()
    assert "3 changes" in checked
    assert "was <s>128 shared borrow 4 lend 0</s>" in checked
    assert "Mode Shared, Lends 8" in checked
    page = vera.get("/quotas/")
    assert {t: shown(page, t) for t in texts} == texts
    one = vera.get("/quotas/nlp/H200/").content.decode()
    assert 'value="96"' in one
    assert 'value="8"' in one
    assert vera.post("/quotas/", sheet("Season", **texts)).status_code == 302
    assert of("vision") == (100, "shared", None, 0)
    assert of("nlp") == (96, "shared", None, 8000)
    assert of("speech") == (60, "isolated", None, None)
    assert not DraftCell.objects.exists()


def test_they_are_saved_at_once_without_a_check(as_user, terms):
    saved = as_user("vera").post("/quotas/", sheet("Season", nlp="96 shared"))
    assert (saved.status_code, of("nlp")) == (302, (96, "shared", None, None))


def test_wrong_text_marks_its_cell_is_kept_and_nothing_is_saved(as_user, terms):
    vera = as_user("vera")
    texts = {"vision": "100 isolatd", "nlp": "96 borrow 4", "speech": "60 lend 1,200"}
    answer = vera.post("/quotas/", sheet("Season", **texts))
    assert answer.status_code == 422
    assert "“isolatd” cannot be read here" in note(answer, "vision")
    assert "e.g. 8 shared borrow 4 lend any" in note(answer, "vision")
    assert "An isolated quota neither borrows nor lends" in note(answer, "nlp")
    assert "After lend: Write thousands without a separator" in note(answer, "speech")
    assert {t: shown(vera.get("/quotas/"), t) for t in texts} == texts
    assert of("vision") == (128, "shared", 4000, 0)


def test_a_text_takes_over_what_the_page_of_the_quota_wrote(as_user, terms):
    vera = as_user("vera")
    written = {"guaranteed": "100", "mode": "shared", "borrow_limit": "9", "lend_limit": "3",
               "version": str(quota("vision").version), "draft": "1"}  # fmt: skip
    assert vera.post("/quotas/vision/H200/", written).status_code == 302
    told = "May borrow 9, Lends 3"
    assert f'value="{told}"' in vera.get("/quotas/").content.decode()
    seen = {f"t-{key('vision')}": told}
    checked = vera.post("/quotas/check/", sheet("", vision="100 borrow 7") | seen).content.decode()
    assert 'value="Lends 3"' in checked
    assert "May borrow 7" in checked
    assert "May borrow 9" not in checked
    seen = {f"t-{key('vision')}": "Lends 3"}
    assert vera.post("/quotas/", sheet("Season", vision="100 borrow 7") | seen).status_code == 302
    assert of("vision") == (100, "shared", 7000, 3000)


def test_who_was_faster_is_told_of_what_the_text_names(as_user, terms):
    vera = as_user("vera")
    mine = sheet("Mine", vision="128 borrow 9")
    as_user("operator").post("/quotas/", sheet("Theirs", vision="128 borrow 5"))
    answer = vera.post("/quotas/", mine)
    assert "May borrow: theirs 5, yours 9, 4 when you began." in note(answer, "vision")
    assert of("vision")[2] == 5000
