"""Quota pages without a browser: rights, validation, the change, its record, conflicts."""

import html
import re

import pytest
from django.utils import timezone

from scheduling.models import Job
from scheduling.pages.quotas import shown
from scheduling.pages.tenants import tenants as tenant_views
from tenants.models import AuditRecord, GpuType, Quota, Tenant
from tests.cases import of_each_kind, paired


def key(tenant: str, gpu_type: str = "H200") -> str:
    return f"{Tenant.objects.get(name=tenant).pk}-{GpuType.objects.get(name=gpu_type).pk}"


def quota(tenant: str, gpu_type: str = "H200") -> Quota:
    return Quota.objects.get(tenant__name=tenant, gpu_type__name=gpu_type)


def guaranteed(tenant: str) -> int:
    return quota(tenant).guaranteed_milli // 1000


def sheet(reason: str = "Because", **cells: str) -> dict[str, str]:
    """Return what the form sends when these cells of H200 are edited."""
    data = {"reason": reason}
    for tenant, typed in cells.items():
        data[f"q-{key(tenant)}"] = typed
        data[f"v-{key(tenant)}"] = str(quota(tenant).version)
    return data


def note(answer, tenant: str) -> str:
    """Return the message in a cell."""
    begins = rf'"#?cell-{key(tenant)}"[^>]*>'  # in the matrix, or in the answer to a check
    cell = re.search(begins + "(.*?)</t(?:d|emplate)>", answer.content.decode(), re.DOTALL)
    assert cell
    return " ".join(re.findall(r'class="(?:error|warn)">.*?</svg>([^<]*)', cell[1], re.DOTALL))


def version_sent(answer, tenant: str) -> str:
    """Return the version that a cell sends back."""
    return re.search(rf'name="v-{key(tenant)}" value="(\d+)"', answer.content.decode())[1]


def test_inputs_stand_only_where_the_reader_may_write(as_user):
    def inputs(user: str) -> set[str]:
        text = as_user(user).get("/quotas/").content.decode()
        return set(re.findall(r'aria-label="(\S+) H200 guaranteed', text))

    assert inputs("operator") == set(Tenant.objects.values_list("name", flat=True))
    assert inputs("vera") == {"vision", "speech", "nlp"}
    assert inputs("erin") == set()


def test_a_change_is_stored_with_its_record(as_user):
    answer = as_user("vera").post("/quotas/", sheet("New cameras", vision="120"), follow=True)
    assert "1 quota changed." in answer.content.decode()
    assert guaranteed("vision") == 120
    record = AuditRecord.objects.get()
    assert (record.actor_name, record.reason, record.source) == ("vera", "New cameras", "page")
    assert (record.before["guaranteed"], record.after["guaranteed"]) == (128, 120)
    text = as_user("vera").get("/quotas/changes/").content.decode()
    for part in ("New cameras", "vision / H200", "128", "120"):
        assert part in text


def test_gpus_move_between_tenants_at_full_capacity(as_user):
    as_user("vera").post("/quotas/", sheet(vision="160", nlp="96", speech="64"))
    assert guaranteed("vision") == 160
    answer = as_user("vera").post("/quotas/", sheet(nlp="128", vision="128"), follow=True)
    assert "2 quotas changed." in answer.content.decode()
    assert (guaranteed("nlp"), guaranteed("vision")) == (128, 128)


@pytest.mark.parametrize(
    ("typed", "message"),
    of_each_kind(
        [
            ("many", "Write a number of GPUs"),
            ("-8", "Write 0 or more GPUs"),
            ("1" + 30 * "0", "more than any cluster has"),
            ("NaN", "Write a number of GPUs in the digits 0 to 9"),
            ("1e3", "Write a number of GPUs in the digits 0 to 9"),
            ("1_0", "Write a number of GPUs in the digits 0 to 9"),
            ("1_000", "Write thousands without a separator, e.g. 1200"),
            ("1,200", "Write thousands without a separator, e.g. 1200"),
            ("1,200.5", "Write thousands without a separator, e.g. 1200"),
            ("1 200", "Write thousands without a separator, e.g. 1200"),
            ("٣٢", "with the digits 0 to 9"),
            ("１２", "with the digits 0 to 9"),
            ("1²", "with the digits 0 to 9"),
            ("0.0001", "The smallest share is 0.001 GPU"),
            ("12,5", "with a point, e.g. 1.5"),
            ("0,500", "with a point, e.g. 1.5"),
            ("1,00", "with a point, e.g. 1.5"),
            ("400", "are guaranteed to “research” above them"),
        ],
        lambda it: it[1],
    ),
)
def test_a_wrong_cell_says_so_and_nothing_is_saved(as_user, typed, message):
    data = sheet(vision=typed, nlp="90")
    answer = as_user("vera").post("/quotas/", data)
    assert answer.status_code == 422
    assert message in note(answer, "vision")
    assert f'value="{typed}"' in answer.content.decode()
    assert (guaranteed("vision"), guaranteed("nlp")) == (128, 96)
    assert not AuditRecord.objects.exists()


def test_the_same_amount_in_other_words_is_no_change(as_user):
    now = guaranteed("vision")
    answer = as_user("vera").post("/quotas/", sheet(vision=f" {now}.0 "), follow=True)
    assert "nothing has changed" in answer.content.decode()
    page = f"/quotas/vision/{quota('vision').gpu_type.name}/"
    form = {"guaranteed": f"{now}.0", "mode": "shared", "reason": "Same", "version": "1"}
    answer = as_user("vera").post(page, form, follow=True)
    assert "nothing has changed" in answer.content.decode()
    assert (quota("vision").version, AuditRecord.objects.count()) == (1, 0)


def test_more_than_is_installed_says_where_it_can_be_promised(as_user):
    answer = as_user("operator").post("/quotas/check/", sheet("", research="9999"))
    assert "an operator to set it over REST with overcommit=true" in note(answer, "research")


def test_check_marks_cells_and_writes_nothing(as_user):
    answer = as_user("vera").post("/quotas/check/", sheet("", vision="400", nlp="20"))
    assert answer.status_code == 200
    assert "above them" in note(answer, "vision")
    assert "<html" not in answer.content.decode()
    assert (guaranteed("vision"), guaranteed("nlp")) == (128, 96)
    as_user("vera").post("/quotas/discard/")
    lowered = as_user("vera").post("/quotas/check/", sheet("", speech="1"))
    assert "become borrowed and may be reclaimed" in note(lowered, "speech")


def test_a_check_sends_only_cells_that_are_marked_or_were(as_user):
    client, data = as_user("vera"), sheet("", vision="400")
    for tenant in ("speech", "nlp"):
        data |= sheet("", **{tenant: str(guaranteed(tenant))})
    answer = client.post("/quotas/check/", data)
    cells = re.findall(r'hx-target="#cell-(\S+)"', answer.content.decode())
    assert cells == [key("vision")]
    assert len(answer.content) < 5000
    back = data | {f"q-{key('vision')}": "128", "marked": [key("vision")]}
    answer = client.post("/quotas/check/", back)
    assert re.findall(r'hx-target="#cell-(\S+)"', answer.content.decode()) == [key("vision")]
    assert note(answer, "vision") == ""
    assert 'name="marked"' not in answer.content.decode()


def cells_of(answer):
    return set(re.findall(r'id="cell-(\S+)"', answer.content.decode()))


def test_the_matrix_is_shown_by_subtree_gpu_type_and_page(as_user, monkeypatch):
    client = as_user("operator")
    names, types = (set(m.objects.values_list("name", flat=True)) for m in (Tenant, GpuType))
    assert cells_of(client.get("/quotas/")) == {key(t, g) for t in names for g in types}
    below = {
        "research",
        *Tenant.objects.filter(parent__name="research").values_list("name", flat=True),
    }
    answer = client.get("/quotas/?tenant=research&gpu=H200")
    assert cells_of(answer) == {key(t) for t in below}
    assert 'action="/quotas/?tenant=research&amp;gpu=H200"' in answer.content.decode()
    monkeypatch.setattr(shown, "CELLS", 2 * len(types))
    seen, path = [], "/quotas/?page=1"
    while path:
        answer = client.get(path)
        assert len(cells_of(answer)) <= 2 * len(types)
        seen += cells_of(answer)
        after = re.search(r'href="(\?page=\d+)">Tenants after', answer.content.decode())
        path = f"/quotas/{after[1]}" if after else ""
    assert sorted(seen) == sorted(key(t, g) for t in names for g in types)
    for wrong, text in (("tenant=nobody", "nobody"), ("gpu=A1", "A1"), ("colour=red", "colour")):
        answer = client.get(f"/quotas/?{wrong}")
        assert text in answer.content.decode()
        assert cells_of(answer) == set()


def test_bars_of_a_gpu_type_have_one_scale_wherever_they_stand(as_user):
    def tracks(page: str) -> dict[str, float]:
        """Return how much of the width each bar takes up, by cell."""
        found = {}
        for cell in page.split('id="cell-')[1:]:
            width = re.search(r'class="track"[^>]* width="([\d.]+)"', cell)
            borrowed = re.search(r'class="borrowed"[^>]* width="([\d.]+)"', cell)
            if width and borrowed:
                found[cell.partition('"')[0]] = float(width[1]) + float(borrowed[1])
        return found

    client = as_user("vera")
    whole = tracks(client.get("/quotas/").content.decode())
    for model in ("H200", "H100"):
        of_type = GpuType.objects.get(name=model).pk
        of = {name: width for name, width in whole.items() if name.endswith(f"-{of_type}")}
        assert max(of.values()) == pytest.approx(100, abs=0.1)
        assert min(of.values()) < 60
    part = tracks(client.get("/quotas/?tenant=vision").content.decode())
    assert part
    assert part == {name: whole[name] for name in part}


def test_what_was_typed_is_saved_whatever_the_page_shows_by_now(as_user):
    client = as_user("operator")
    answer = client.post("/quotas/?tenant=search&gpu=H100", sheet(vision="120"))
    assert (answer.status_code, answer["Location"]) == (302, "/quotas/?tenant=search&gpu=H100")
    assert guaranteed("vision") == 120
    answer = client.post("/quotas/?tenant=search&gpu=H100", sheet(vision="many"))
    assert "Write a number of GPUs" in note(answer, "vision")


def test_a_page_of_many_quotas_is_bounded(as_user):
    """Bound the bytes of a page with 60 tenants and 12 GPU types."""
    GpuType.objects.bulk_create(GpuType(name=f"NVIDIA-MANY-{i:02}-80GB") for i in range(12))
    for i in range(60):
        Tenant.objects.create(name=f"tenant-{i:02}")
    Quota.objects.bulk_create(
        Quota(tenant=tenant, gpu_type=kind, guaranteed_milli=8000)
        for tenant in Tenant.objects.filter(name__startswith="tenant-")
        for kind in GpuType.objects.filter(name__startswith="NVIDIA-MANY")
    )
    assert len(as_user("operator").get("/quotas/").content) < 150_000


def test_a_reason_is_asked_for(as_user):
    answer = as_user("vera").post("/quotas/", sheet("  ", vision="120"))
    assert answer.status_code == 422
    assert "Say why" in answer.content.decode()
    assert guaranteed("vision") == 128


def test_somebody_faster_is_shown_and_overwritten_only_on_purpose(as_user):
    data = sheet(vision="120")
    Quota.objects.filter(pk=quota("vision").pk).update(guaranteed_milli=100_000, version=2)
    answer = as_user("vera").post("/quotas/", data)
    assert answer.status_code == 422
    assert "Somebody set it to 100 meanwhile; you wrote 120." in note(answer, "vision")
    assert guaranteed("vision") == 100
    sent = version_sent(answer, "vision")
    as_user("vera").post("/quotas/", {**data, f"v-{key('vision')}": sent})
    assert guaranteed("vision") == 120


@pytest.mark.parametrize(
    ("typed", "field"),
    paired(["1_000", "٣٢", "１２", "1,200", "1e3"], ["guaranteed", "borrow_limit", "lend_limit"]),
)
def test_the_page_of_one_quota_takes_plain_digits_alone(as_user, field, typed):
    form = {"guaranteed": "120", "mode": "shared", "version": "1", "reason": "Typed", field: typed}
    answer = as_user("vera").post("/quotas/vision/H200/", form)
    assert answer.status_code == 422
    assert re.search("without a separator|digits 0 to 9", answer.content.decode())
    assert quota("vision").version == 1


def test_a_conflict_says_who_was_faster_and_why(as_user):
    vera = sheet(vision="120", nlp="90")
    form = {"guaranteed": "120", "mode": "shared", "version": "1", "reason": "Mine"}
    as_user("operator").post("/quotas/", sheet("Fewer <cameras>", vision="100"))
    for fewer in ("84", "80"):
        as_user("operator").post("/quotas/", sheet("A & B", nlp=fewer))
    client = as_user("vera")
    for path in ("/quotas/check/", "/quotas/"):
        answer = client.post(path, vera)
        told = html.unescape(note(answer, "vision"))
        assert "operator set it to 100 meanwhile (“Fewer <cameras>”); you wrote 120." in told
        told = html.unescape(note(answer, "nlp"))
        assert "operator set it to 80 meanwhile (“A & B”); you wrote 90." in told
        assert "It was 96 when you began." in told
        assert "Take theirs</button>" in answer.content.decode()
    alone = html.unescape(client.post("/quotas/vision/H200/", form).content.decode())
    assert "operator changed this quota meanwhile (“Fewer <cameras>”)" in alone
    assert "Guaranteed: theirs 100, yours 120, 128 when you began." in alone
    assert (guaranteed("vision"), guaranteed("nlp")) == (100, 80)


def test_a_conflict_about_a_quota_that_came_or_went_says_so(as_user):
    there, new = quota("vision"), key("speech")
    quota("speech").delete()
    data = sheet(vision="120") | {f"q-{new}": "1", f"v-{new}": "0"}
    operator = as_user("operator")
    operator.post("/quotas/", {"reason": "For tests", f"q-{new}": "2", f"v-{new}": "0"})
    url, reason = "/api/v1/quotas/vision/H200", "?reason=Over"
    assert (
        operator.delete(url + reason, headers={"If-Match": f'"{there.version}"'}).status_code == 204
    )
    checked = as_user("vera").post("/quotas/check/", data)
    assert "operator removed it meanwhile (“Over”); you wrote 120. It was 128" in note(
        checked, "vision"
    )
    assert "There was no quota when you began." in note(checked, "speech")


def test_a_check_after_the_sign_in_is_over_does_not_reload_the_page(client, played):
    answer = client.post("/quotas/check/", sheet(vision="1"), headers={"HX-Request": "true"})
    assert answer.status_code == 401
    assert "HX-Refresh" not in answer


def test_the_warning_of_somebody_faster_stays_while_other_cells_are_edited(as_user):
    data = sheet(vision="120")
    Quota.objects.filter(pk=quota("vision").pk).update(guaranteed_milli=100_000, version=2)
    client = as_user("vera")
    for more in ({}, sheet(nlp="90")):
        data = {**more, **data}
        checked = client.post("/quotas/check/", data)
        assert "Saving asks before it overwrites" in note(checked, "vision")
        assert "somebody else changed the marked cells" in checked.content.decode()
        data[f"v-{key('vision')}"] = version_sent(checked, "vision")
    saved = client.post("/quotas/", data)
    assert saved.status_code == 422
    assert "Save again to overwrite" in note(saved, "vision")
    assert (guaranteed("vision"), guaranteed("nlp")) == (100, 96)
    client.post("/quotas/", {**data, f"v-{key('vision')}": version_sent(saved, "vision")})
    assert (guaranteed("vision"), guaranteed("nlp")) == (120, 90)


@pytest.mark.parametrize("typed", ["", "  "])
def test_an_emptied_guarantee_is_asked_about(as_user, typed):
    client = as_user("vera")
    answer = client.post("/quotas/", sheet(vision=typed))
    assert answer.status_code == 422
    assert "Write 0 to guarantee none." in note(answer, "vision")
    form = {"guaranteed": typed, "mode": "shared", "version": "1", "reason": "Emptied"}
    alone = client.post("/quotas/vision/H200/", form)
    assert alone.status_code == 422
    assert "Write 0 to guarantee none." in alone.content.decode()
    assert guaranteed("vision") == 128


def test_cells_beyond_the_rights_of_the_reader_are_ignored(as_user):
    answer = as_user("vera").post("/quotas/", sheet(research="999", search="1"), follow=True)
    assert "Nothing was edited" in answer.content.decode()
    assert (guaranteed("research"), guaranteed("search")) == (320, 96)


def test_mode_and_limits_have_their_own_page(as_user):
    form = {
        "guaranteed": "120",
        "mode": "shared",
        "borrow_limit": "16",
        "lend_limit": "",
        "version": "1",
        "reason": "Bounded",
    }
    client = as_user("vera")
    wrong = client.post("/quotas/vision/H200/", {**form, "lend_limit": "500"})
    assert wrong.status_code == 422
    assert "Lend at most what is guaranteed" in wrong.content.decode()
    illegible = client.post("/quotas/vision/H200/", {**form, "borrow_limit": "lots"})
    assert "Write a number of GPUs" in illegible.content.decode()
    stale = client.post("/quotas/vision/H200/", {**form, "version": "7"})
    assert "Somebody changed this quota meanwhile" in stale.content.decode()
    assert quota("vision").borrow_limit_milli is None
    assert client.post("/quotas/vision/H200/", form)["Location"] == "/quotas/"
    assert quota("vision").borrow_limit_milli == 16_000
    assert "no limit" in client.get("/quotas/changes/").content.decode()
    assert as_user("erin").post("/quotas/vision/H200/", form).status_code == 422
    assert as_user("vik").get("/quotas/vision/H200/").status_code == 404
    assert as_user("vera").get("/quotas/vision/B200/").status_code == 404


def test_records_are_seen_by_those_who_administer(as_user):
    as_user("operator").post("/quotas/", sheet("Season", search="90"))
    for user, sees in (("piet", True), ("operator", True), ("vera", False), ("vik", False)):
        text = as_user(user).get("/quotas/changes/").content.decode()
        assert ("Season" in text) == sees
        assert ("No quota has been changed yet" in text) != sees


def test_a_record_tells_large_amounts_to_the_last_gpu(as_user):
    as_user("operator").post("/quotas/", sheet("Season", search="90"))
    record = AuditRecord.objects.get()
    change = {"guaranteed": 123456.789, "borrow_limit": 1_234_567}
    AuditRecord.objects.filter(pk=record.pk).update(after=record.after | change)
    text = as_user("operator").get("/quotas/changes/").content.decode()
    assert ">123,456.789<" in text
    assert ">1,234,567<" in text


def test_a_record_that_changed_nothing_says_so(as_user):
    as_user("operator").post("/quotas/", sheet("Season", search="90"))
    record = AuditRecord.objects.get()
    AuditRecord.objects.filter(pk=record.pk).update(after=record.before)
    text = as_user("operator").get("/quotas/changes/").content.decode()
    assert "none: saved without a change" in text


def test_pages_tell_who_borrows_from_whom(as_user):
    # A person who may see both tenants sees both; others are told of tenants they do not see.
    def text(reader, path):
        page = re.sub(r"<[^>]+>", " ", as_user(reader).get(path).content.decode())
        return re.sub(r"\s+", " ", page)

    client = as_user("operator")
    Quota.objects.filter(tenant__name="vision", gpu_type__name="H200").update(guaranteed_milli=8000)
    quota = client.get("/api/v1/quotas/vision/H200").json()
    assert quota["borrowed"] > 0
    for path in ("/tenants/vision/", "/quotas/", "/quotas/vision/H200/"):
        assert "from research " in text("operator", path)
        assert "from other tenants " in text("erin", path)
    # The page also shows what non-preemptible jobs hold of it.
    assert "Not preemptible" not in text("erin", "/quotas/vision/H200/")
    Job.objects.filter(tenant__name="vision").update(preemptible=False)
    assert "of it borrowed: nobody can take that back" in text("erin", "/quotas/vision/H200/")
    assert client.get("/api/v1/quotas/vision/H200").json()["non_preemptible"] > 8


def test_tenants_show_members_and_use(as_user):
    text = as_user("vera").get("/tenants/vision/").content.decode()
    for part in ("erin", "Engineer", "H200", "wait-000"):
        assert part in text
    assert as_user("vik").get("/tenants/vision/").status_code == 404
    assert "/tenants/search/" in as_user("vik").get("/tenants/").content.decode()


def test_a_tenant_admin_is_led_to_where_members_are_changed(as_user):
    link = '<a href="/tenants/vision/members/">Change</a>'
    assert link not in as_user("erin").get("/tenants/vision/").content.decode()
    admin = as_user("vera")
    assert link in admin.get("/tenants/vision/").content.decode()
    path = "/api/v1/tenants/vision/members/vik"
    answer = admin.put(path, {"role": "viewer"}, content_type="application/json")
    assert answer.status_code in (200, 201), answer.content


def test_a_tenant_counts_the_open_jobs_of_those_below_it_as_its_list_does(as_user):
    client = as_user("vera")
    count = Job.objects.filter(tenant__parent__name="research", ended_at=None).count()
    assert count > 2
    link = f'href="/jobs/?state=open&amp;tenant=research">{count}</a>'
    assert link in client.get("/tenants/").content.decode()
    page = client.get("/tenants/research/").content.decode()
    assert '<th scope="col">Tenant</th>' in page
    assert '<th scope="col">Tenant</th>' not in client.get("/tenants/vision/").content.decode()


def test_a_tenant_with_many_open_jobs_leads_to_all_of_them(as_user, monkeypatch):
    client = as_user("vera")
    page = "/jobs/?state=open&amp;tenant=vision"
    count = Job.objects.filter(tenant__name="vision", ended_at=None).count()
    assert f'<a href="{page}">All' not in client.get("/tenants/vision/").content.decode()
    monkeypatch.setattr(tenant_views, "JOBS_SHOWN", 2)
    assert f'<a href="{page}">All {count}</a>' in client.get("/tenants/vision/").content.decode()
    assert f'href="{page}">{count}</a>' in client.get("/tenants/").content.decode()


def test_changes_of_one_instant_are_all_on_some_page(as_user):
    tenant = Tenant.objects.get(name="vision")
    AuditRecord.objects.bulk_create(
        AuditRecord(
            action="quota.changed", tenant=tenant, subject="vision / H200",
            before={"guaranteed": i}, after={"guaranteed": i + 1}, reason=f"why-{i}", source="page",
        )
        for i in range(120)
    )  # fmt: skip
    AuditRecord.objects.update(at=timezone.now())
    client, url, seen = as_user("operator"), "/quotas/changes/", []
    while url:
        answer = client.get(url)
        seen += re.findall(r"why-\d+", answer.content.decode())
        older = answer.context["older"]
        url = f"/quotas/changes/?before={older}" if older else ""
    assert sorted(seen) == sorted(f"why-{i}" for i in range(120))


def test_a_preview_of_edits_tells_what_they_would_do_or_what_stands_against_them(as_user):
    vera = as_user("vera")
    answer = vera.post("/quotas/preview/", sheet(vision="120")).content.decode()
    assert "What this change would do" in answer
    assert guaranteed("vision") != 120
    assert (
        "Correct the marked cells"
        in vera.post("/quotas/preview/", sheet(vision="x")).content.decode()
    )
    vera.post("/quotas/discard/")
    assert "Nothing is edited" in vera.post("/quotas/preview/", sheet()).content.decode()
    at = f"/quotas/vision/{quota('vision').gpu_type.name}/preview/"
    fields = {"guaranteed": "120", "mode": "shared", "borrow_limit": "", "lend_limit": ""}
    fields["version"] = str(quota("vision").version)
    assert "What this would do to vision" in vera.post(at, fields).content.decode()
    refused = vera.post(at, fields | {"guaranteed": "1,000"}).content.decode()
    assert "without a separator" in refused
    assert as_user("erin").post(at, fields).content.decode().count("tenant admins") == 1


def test_the_csv_has_what_the_reader_may_see(as_user):
    def table(user: str) -> list[list[str]]:
        answer = as_user(user).get("/quotas/quotas.csv")
        assert answer["Content-Type"] == "text/csv"
        return [line.split(",") for line in answer.content.decode().splitlines()]

    rows = table("operator")
    assert rows[0] == ["tenant", *GpuType.objects.values_list("name", flat=True)]
    assert {row[0] for row in rows[1:]} == set(Tenant.objects.values_list("name", flat=True))
    by_name = {row[0]: dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[1:]}
    assert by_name["nlp"]["H200"] == str(guaranteed("nlp"))
    Quota.objects.filter(tenant__name="nlp", gpu_type__name="H200").delete()
    seen = table("vera")
    assert {row[0] for row in seen[1:]} == {"research", "vision", "speech", "nlp"}
    assert next(row for row in seen if row[0] == "nlp")[rows[0].index("H200")] == ""
    assert as_user("vera").post("/quotas/quotas.csv").status_code == 405
