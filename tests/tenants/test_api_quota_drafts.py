"""Drafts of quota changes over REST: rights by role, what drafts keep, and applying all or
nothing."""

from datetime import timedelta

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from tenants import tasks
from tenants.models import AuditRecord, DraftCell, GpuType, Quota, QuotaDraft, Tenant
from tenants.services.drafts.edits import KEPT, MOST_CELLS, DraftEdit, PageWrite, edit_draft
from tenants.services.orders.placing import changed_milli
from tenants.services.quota_terms import TITLES
from tenants.services.tokens import create_token

LIST = "/api/v1/quota-drafts"


def url(who):
    return f"{LIST}/{who}"


def cell(tenant, guaranteed, gpu_type="H100", **more):
    return {"tenant": tenant, "gpu_type": gpu_type, "guaranteed": guaranteed, **more}


def write(client, who, *cells, **more):
    return client.patch(url(who), {"cells": cells, **more}, format="json")


def apply(client, who, version, query="", **body):
    body = {"reason": "Season", **body}
    headers = {"If-Match": f'"{version}"'}
    return client.post(f"{url(who)}/apply{query}", body, format="json", headers=headers)


def guaranteed(tenant, gpu_type="H100"):
    row = Quota.objects.filter(tenant__name=tenant, gpu_type__name=gpu_type).first()
    return row.guaranteed_milli / 1000 if row else None


def change(org, tenant, milli, by="ops"):
    """Let another person be faster."""
    quota = Quota.objects.get(tenant__name=tenant, gpu_type__name="H100")
    answer = org.client(by).put(
        f"/api/v1/quotas/{tenant}/H100",
        {"guaranteed": milli / 1000, "reason": "Theirs"},
        format="json",
        headers={"If-Match": f'"{quota.version}"'},
    )
    assert answer.status_code == 200, answer.json()


@pytest.fixture
def quotas(org):
    """ml is guaranteed 24 H100; vision has 8 of these, vision-lab 2 of vision's."""
    for tenant, gpus in (("ml", 24), ("vision", 8), ("vision-lab", 2)):
        Quota.objects.create(
            tenant=org.tenants[tenant],
            gpu_type=org.gpu_types["H100"],
            guaranteed_milli=1000 * gpus,
        )


@pytest.fixture
def root(org, quotas):
    return org.client("root")


def test_a_draft_is_kept_and_changes_no_quota(root, org):
    made = write(root, "root", cell("vision", 12), reason="Season")
    assert made.status_code == 200, made.json()
    told = made.json()
    assert (told["author"], told["reason"], made["ETag"]) == ("root", "Season", '"2"')
    (one,) = told["cells"]
    assert (one["tenant"], one["guaranteed"], one["typed"], one["now"]) == ("vision", 12, "12", 8)
    assert (one["version"], one["now_version"], one["overtaken"]) == (1, 1, None)
    assert told["kept_until"] > told["updated_at"]
    more = write(root, "root", cell("vision-lab", 3), cell("vision", None))
    assert [c["tenant"] for c in more.json()["cells"]] == ["vision-lab"]
    read = root.get(url("root"))
    assert (read["ETag"], read.json()["cells"]) == ('"3"', more.json()["cells"])
    assert (guaranteed("vision"), guaranteed("vision-lab")) == (8, 2)
    assert not AuditRecord.objects.exists()
    # A repeated value is no new version.
    assert write(root, "root", cell("vision-lab", 3))["ETag"] == '"3"'


def test_a_draft_is_applied_as_a_whole_and_is_empty_then(root, org):
    write(root, "root", cell("vision", 16), cell("vision-lab", 4), cell("vision", 1, "A100"))
    version = root.get(url("root")).json()["version"]
    # No tenant above has A100 to promise.
    refused = apply(root, "root", version)
    assert (refused.status_code, guaranteed("vision")) == (200, 16), refused.json()
    assert guaranteed("vision", "A100") == 1
    assert root.get(url("root")).status_code == 404
    assert root.get(LIST).json()["items"] == []
    records = AuditRecord.objects.all()
    assert {(r.actor_name, r.reason, r.source) for r in records} == {("root", "Season", "api")}
    assert {r.subject for r in records} == {"vision / H100", "vision-lab / H100", "vision / A100"}


def test_what_is_wrong_is_told_by_cell_and_nothing_is_changed(root, org):
    write(root, "root", cell("vision", 4), cell("vision-lab", 5))
    refused = apply(root, "root", 2)
    assert refused.status_code == 422
    (error,) = refused.json()["errors"]
    assert error["pointer"] == "/cells/1/guaranteed"
    assert "are guaranteed to “vision” above them" in error["detail"]
    assert (guaranteed("vision"), guaranteed("vision-lab")) == (8, 2)
    assert len(root.get(url("root")).json()["cells"]) == 2


def test_who_was_faster_is_told_with_theirs_mine_and_before(root, org):
    write(root, "root", cell("vision", 12), cell("vision-lab", 3))
    change(org, "vision", 10_000)
    one = root.get(url("root")).json()["cells"][0]
    assert (one["guaranteed"], one["now"], one["version"], one["now_version"]) == (12, 10, 1, 2)
    fields = [{"field": "guaranteed", "mine": "12", "theirs": "10", "base": "8"}]
    assert one["overtaken"] == {"by": "ops", "reason": "Theirs", "before": 8, "conflicts": fields}
    refused = apply(root, "root", 2)
    assert refused.status_code == 409
    (error,) = refused.json()["errors"]
    assert error["pointer"] == "/cells/0/version"
    told = "ops set it to 10 meanwhile (“Theirs”); you wrote 12. It was 8 when you began."
    assert error["detail"] == f"vision / H100: {told}"
    assert (guaranteed("vision"), guaranteed("vision-lab")) == (10, 2)
    # Writing the number again does not overwrite by accident; naming the version does.
    write(root, "root", cell("vision", 13))
    assert apply(root, "root", 3).status_code == 409
    write(root, "root", cell("vision", 13, version=2))
    assert apply(root, "root", 4).status_code == 200
    assert (guaranteed("vision"), guaranteed("vision-lab")) == (13, 3)


@pytest.mark.parametrize(
    ("mine", "theirs", "told"),
    [
        (
            {"borrow_limit": 4},
            {"borrow_limit": 2, "lend_limit": 3},
            "ops changed this quota meanwhile (“Theirs”). Guaranteed: theirs 8, yours 12, 8 when "
            "you began. May borrow: theirs 2, yours 4, no limit when you began. Lends: theirs 3, "
            "you left it, no limit when you began.",
        ),
        (
            {"mode": "isolated"},
            {"guaranteed": 10, "borrow_limit": 2},
            "ops set it to 10 meanwhile (“Theirs”); you wrote 12. It was 8 when you began. Mode: "
            "theirs Shared, yours Isolated, Shared when you began. May borrow: theirs 2, yours no "
            "limit, no limit when you began.",
        ),
        (
            {},
            {"guaranteed": 10, "mode": "isolated"},
            "ops set it to 10 meanwhile (“Theirs”); you wrote 12. It was 8 when you began. Mode: "
            "theirs Isolated, you left it, Shared when you began.",
        ),
    ],
)
def test_a_conflict_names_every_field(root, org, mine, theirs, told):
    write(root, "root", cell("vision", 12, **mine))
    quota = Quota.objects.get(tenant__name="vision", gpu_type__name="H100")
    answer = org.client("ops").put(
        "/api/v1/quotas/vision/H100", {"guaranteed": 8, **theirs, "reason": "Theirs"},
        format="json", headers={"If-Match": f'"{quota.version}"'},
    )  # fmt: skip
    assert answer.status_code == 200, answer.json()
    (error,) = apply(root, "root", 2).json()["errors"]
    assert error["detail"] == f"vision / H100: {told}"
    fields = root.get(url("root")).json()["cells"][0]["overtaken"]["conflicts"]
    assert [one["field"] for one in fields] == [
        name for name, title in TITLES.items() if f"{title}:" in told or name == "guaranteed"
    ]


def test_only_what_was_read_is_applied(root):
    write(root, "root", cell("vision", 12))
    write(root, "root", cell("vision", 20))
    stale = apply(root, "root", 2)
    assert (stale.status_code, stale.json()["current_version"]) == (412, 3)
    assert guaranteed("vision") == 8
    missing = root.post(f"{url('root')}/apply", {"reason": "x"}, format="json")
    assert missing.status_code == 428


@pytest.mark.parametrize(
    ("reason", "kept", "code"),
    [("", "", 422), (None, "", 422), (None, "Kept", 200), ("Given", "Kept", 200)],
)
def test_the_reason_is_that_of_the_draft_or_of_the_call(root, reason, kept, code):
    version = write(root, "root", cell("vision", 12), reason=kept).json()["version"]
    body = {} if reason is None else {"reason": reason}
    answer = root.post(
        f"{url('root')}/apply", body, format="json", headers={"If-Match": f'"{version}"'}
    )
    assert answer.status_code == code
    if code == 200:
        assert AuditRecord.objects.get().reason == (reason or kept)


def test_a_dry_run_tells_effects_and_changes_nothing(root):
    tried = write(root, "root", cell("vision", 12))
    dry = root.patch(f"{url('root')}?dry_run=true", {"cells": [cell("vision", 1)]}, format="json")
    assert (dry.status_code, dry.json()["would"]) == (200, "update")
    told = apply(root, "root", 2, "?dry_run=true").json()
    assert [q["guaranteed"] for q in told["result"]["quotas"]] == [12]
    assert "starts" in told["effects"]
    assert root.delete(f"{url('root')}?dry_run=true").json()["would"] == "delete"
    assert root.get(url("root")).json() == tried.json()
    assert guaranteed("vision") == 8


def test_a_draft_is_discarded(root):
    write(root, "root", cell("vision", 12))
    assert root.delete(url("root")).status_code == 204
    assert root.get(url("root")).status_code == 404
    assert root.delete(url("root")).status_code == 204
    assert guaranteed("vision") == 8


# Tenants ml ─ vision ─ vision-lab, and law: who may write which quota into a draft, and who sees it
# in others' drafts.
ROLES = {
    "ops": {"ml", "vision", "vision-lab", "law"},
    "root": {"vision", "vision-lab"},
    "ada": {"vision-lab"},
    "eve": set(),
    "vic": set(),
    "lex": set(),
}


@pytest.mark.parametrize("who", ROLES)
def test_rights_of_each_role(org, quotas, who):
    client = org.client(who)
    for tenant in ROLES["ops"]:
        answer = write(client, who, cell(tenant, 1, "A100"))
        assert (answer.status_code == 200) == (tenant in ROLES[who]), (tenant, answer.json())
        assert answer.status_code in (200, 403, 422)
    QuotaDraft.objects.all().delete()
    everything = [cell(tenant, 1) for tenant in sorted(ROLES["ops"])]
    ops = org.client("ops")
    assert write(ops, "ops", *everything, reason="Mine").status_code == 200
    seen = client.get(url("ops"))
    listed = [d["author"] for d in client.get(LIST).json()["items"]]
    if not ROLES[who]:
        assert (seen.status_code, listed) == (404, [])
    else:
        assert {c["tenant"] for c in seen.json()["cells"]} == ROLES[who]
        assert listed == ["ops"]
    if who == "ops":
        return
    expected = 403 if ROLES[who] else 404
    assert write(client, "ops", cell("vision-lab", 2)).status_code == expected
    assert client.delete(url("ops")).status_code == expected
    assert apply(client, "ops", 2).status_code == expected
    assert DraftCell.objects.count() == 4


def test_rights_that_are_lost_are_asked_again_when_it_is_applied(root, org):
    write(root, "root", cell("vision", 12))
    org.users["root"].memberships.all().delete()
    answer = apply(root, "root", 2)
    assert answer.status_code in (403, 404)
    assert guaranteed("vision") == 8
    assert root.delete(url("root")).status_code == 204


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, None),
        ({"cells": [cell("nobody", 1)]}, "/cells/0/tenant"),
        ({"cells": [cell("vision", 1), cell("vision", 1, "B200")]}, "/cells/1/gpu_type"),
        ({"cells": [cell("vision", "many")]}, "/cells/0/guaranteed"),
        ({"cells": [cell("vision", -1)]}, "/cells/0/guaranteed"),
        ({"cells": [cell("vision", 1, version=-1)]}, "/cells/0/version"),
        ({"cells": [{"tenant": "vision", "gpu_type": "H100"}]}, "/cells/0/guaranteed"),
        ({"cells": [cell("vision", 1)] * (MOST_CELLS + 1)}, "/cells"),
        ({"reason": "x" * 2001}, "/reason"),
    ],
)
def test_what_cannot_be_written_is_told(root, body, pointer):
    answer = root.patch(url("root"), body, format="json")
    assert answer.status_code == 422
    if pointer:
        assert answer.json()["errors"][0]["pointer"] == pointer
    assert not DraftCell.objects.exists()


def test_a_draft_has_a_size(root, org):
    kinds = GpuType.objects.bulk_create(GpuType(name=f"K{i}") for i in range(MOST_CELLS))
    write(root, "root", *(cell("vision", 1, kind.name) for kind in kinds))
    full = write(root, "root", cell("vision", 12))
    assert full.status_code == 422
    assert f"at most {MOST_CELLS}" in full.json()["detail"]
    assert DraftCell.objects.count() == MOST_CELLS


def test_what_a_draft_is_about_may_go(root, org):
    write(root, "root", cell("vision-lab", 3), cell("vision", 3, "T4"))
    Tenant.objects.get(name="vision-lab").delete()
    GpuType.objects.get(name="T4").delete()
    assert root.get(url("root")).status_code == 404


def test_old_drafts_are_deleted(root, org):
    write(root, "root", cell("vision", 12))
    write(org.client("ops"), "ops", cell("vision", 13))
    old = timezone.now() - KEPT - timedelta(minutes=1)
    QuotaDraft.objects.filter(author=org.users["root"]).update(updated_at=old)
    tasks.forget_old_drafts()
    assert QuotaDraft.objects.get().author.username == "ops"


def test_of_one_page_the_later_write_wins_in_whatever_order_they_arrive(root, org):
    """Two checks of a half-typed number overtake each other."""
    actor, kind = org.users["root"], org.gpu_types["H100"]

    def typed(text, tab, stamp):
        edit = DraftEdit(org.tenants["vision"], kind, text, 1)
        edit_draft(actor, [edit], write=PageWrite(tab, stamp))
        return DraftCell.objects.get().typed

    assert typed("48", "a", 2) == "48"
    assert typed("4", "a", 1) == "48"
    assert typed("5", "b", 1) == "5"
    # Nor does it return after the draft was applied.
    assert apply(root, "root", QuotaDraft.objects.get().version).status_code == 200
    edit_draft(actor, [DraftEdit(org.tenants["vision"], kind, "50", 1)], write=PageWrite("b", 1))
    assert not DraftCell.objects.exists()


def test_drafts_are_found_by_author(root, org):
    write(root, "root", cell("vision", 12))
    write(org.client("ops"), "ops", cell("vision", 13))
    assert [d["author"] for d in root.get(LIST).json()["items"]] == ["ops", "root"]
    assert [d["author"] for d in root.get(f"{LIST}?author=ops").json()["items"]] == ["ops"]
    assert root.get(f"{LIST}?author=nobody").status_code == 400


def test_a_token_for_one_tenant_tells_and_applies_nothing_of_others(root, org):
    edits = [
        DraftEdit(org.tenants["vision"], org.gpu_types["H100"], "many"),
        DraftEdit(org.tenants["vision-lab"], org.gpu_types["H100"], "3"),
    ]
    edit_draft(org.users["root"], edits)
    secret = create_token(org.users["root"], "lab", tenant="vision-lab").secret
    lab = APIClient(HTTP_AUTHORIZATION=f"Bearer {secret}")
    assert [c["tenant"] for c in lab.get(url("root")).json()["cells"]] == ["vision-lab"]
    answer = apply(lab, "root", 2)
    assert answer.status_code == 403
    assert "this token does not cover" in answer.json()["detail"]
    assert write(lab, "root", cell("vision", 9)).status_code in (403, 422)
    assert write(lab, "root", cell("vision-lab", 4)).status_code == 200


def test_a_draft_sets_mode_and_limits_too(root, org):
    body = write(root, "root", cell("vision", 8, borrow_limit=4, lend_limit=None)).json()
    (seen,) = body["cells"]
    assert seen["terms"] == {"borrow_limit": "4", "lend_limit": ""}
    # Writing only the guarantee leaves them as they are.
    body = write(root, "root", cell("vision", 9)).json()
    assert body["cells"][0]["terms"] == {"borrow_limit": "4", "lend_limit": ""}
    answer = apply(root, "root", body["version"], "?dry_run=true")
    assert answer.json()["result"]["quotas"][0]["borrow_limit"] == 4
    quota = Quota.objects.get(tenant__name="vision", gpu_type__name="H100")
    assert quota.borrow_limit_milli is None
    assert apply(root, "root", body["version"]).status_code == 200
    quota.refresh_from_db()
    assert (quota.guaranteed_milli, quota.borrow_limit_milli) == (9000, 4000)
    # A quota that becomes isolated loses its limits, and gets them back later.
    body = write(root, "root", cell("vision", 9, mode="isolated")).json()
    until = (timezone.now() + timedelta(hours=1)).isoformat()
    order = apply(root, "root", body["version"], ends_at=until).json()["order"]
    assert order["cells"][0]["terms"] == {"mode": "isolated"}
    quota.refresh_from_db()
    assert (quota.mode, quota.borrow_limit_milli) == ("isolated", None)
    url = f"/api/v1/quota-orders/{order['id']}/end"
    assert root.post(url, {"reason": "Over"}, format="json").status_code == 200
    quota.refresh_from_db()
    assert (quota.mode, quota.borrow_limit_milli) == ("shared", 4000)


@pytest.mark.parametrize(
    ("terms", "field"),
    [
        ({"mode": "isolated", "borrow_limit": 3}, "borrow_limit"),
        ({"lend_limit": 100}, "lend_limit"),
    ],
)
def test_terms_that_cannot_be_are_told_by_cell(root, terms, field):
    body = write(root, "root", cell("vision", 8, **terms)).json()
    answer = apply(root, "root", body["version"])
    assert answer.status_code == 422
    assert [e["pointer"] for e in answer.json()["errors"]] == [f"/cells/0/{field}"]
    assert write(root, "root", cell("vision", 8, mode="odd")).status_code == 422


def text(tenant, typed, gpu_type="H100", **more):
    return {"tenant": tenant, "gpu_type": gpu_type, "typed": typed, **more}


def test_cells_of_a_table_are_written_as_they_are_typed(root, org):
    made = write(root, "root", text("vision", "9 shared borrow 4"), text("vision-lab", "2 isolatd"))
    assert made.status_code == 200, made.json()
    seen, wrong = made.json()["cells"]
    assert (seen["guaranteed"], seen["typed"]) == (9, "9 shared borrow 4")
    assert (seen["terms"], seen["fault"]) == ({"mode": "shared", "borrow_limit": "4"}, "")
    assert (wrong["guaranteed"], wrong["typed"], wrong["terms"]) == (None, "2 isolatd", {})
    assert "8 shared borrow 4 lend any" in wrong["fault"]
    refused = apply(root, "root", 2)
    assert refused.status_code == 422
    (error,) = refused.json()["errors"]
    assert error["pointer"] == "/cells/1/guaranteed"
    assert error["detail"] == wrong["fault"]
    write(root, "root", text("vision-lab", "1 isolated"))
    assert apply(root, "root", 3).status_code == 200
    mode = {q.tenant.name: (q.guaranteed_milli, q.mode, q.borrow_limit_milli, q.lend_limit_milli)
            for q in Quota.objects.select_related("tenant")}  # fmt: skip
    assert mode["vision"] == (9000, "shared", 4000, None)
    assert mode["vision-lab"] == (1000, "isolated", None, None)
    # Fields that a cell does not name stay; fields that a later text drops leave the draft.
    write(root, "root", text("vision", "9 lend 1"), text("vision-lab", "1 borrow 2"))
    impossible = apply(root, "root", root.get(url("root")).json()["version"])
    assert [e["pointer"] for e in impossible.json()["errors"]] == ["/cells/1/borrow_limit"]
    body = write(root, "root", text("vision", "10"), text("vision-lab", "1")).json()
    assert [c["terms"] for c in body["cells"]] == [{}, {}]
    applied = apply(root, "root", body["version"]).json()["quotas"]
    (only,) = applied  # the other one states the current quota
    assert (only["guaranteed"], only["borrow_limit"], only["lend_limit"]) == (10, 4, None)


def test_a_text_replaces_the_terms_that_it_names_and_no_others(root):
    write(root, "root", cell("vision", 8, mode="shared", borrow_limit=4, lend_limit=2))
    (seen,) = write(root, "root", text("vision", "8 borrow any")).json()["cells"]
    assert seen["terms"] == {"mode": "shared", "borrow_limit": "", "lend_limit": "2"}
    (seen,) = write(root, "root", text("vision", "8 isolated")).json()["cells"]
    assert seen["terms"] == {"mode": "isolated"}


def test_a_text_of_a_cell_counts_for_approval(root, org):
    """A change typed with mode and limits is as large as one of the number alone."""
    for typed in ("108", "108 isolated", "108 lend 2"):
        write(root, "root", text("vision", typed))
        assert changed_milli(QuotaDraft.objects.get()) == 100_000


@pytest.mark.parametrize(
    ("more", "field"),
    [({"guaranteed": 8}, "guaranteed"), ({"guaranteed": None}, "guaranteed"),
     ({"mode": "shared"}, "mode"), ({"lend_limit": None}, "lend_limit"), ({"typed": ""}, "typed"),
     ({"typed": "8" * 65}, "typed"), ({"typed": 8}, "typed")],
)  # fmt: skip
def test_a_text_stands_for_all_of_a_cell(root, more, field):
    refused = write(root, "root", {**text("vision", "8"), **more})
    assert refused.status_code == 422
    assert [e["pointer"] for e in refused.json()["errors"]] == [f"/cells/0/{field}"]


def test_a_table_that_cannot_be_read_is_refused_as_a_whole_where_asked(root):
    good = {"tenant": "vision", "gpu_type": "H100", "typed": "12 shared borrow 4"}
    bad = {"tenant": "vision-lab", "gpu_type": "H100", "typed": "1 2x"}
    refused = write(root, "root", good, bad, refuse_unreadable=True)
    assert refused.status_code == 422
    assert [one["pointer"] for one in refused.json()["errors"]] == ["/cells/1/typed"]
    assert not DraftCell.objects.exists()
    assert write(root, "root", good, refuse_unreadable=True).status_code == 200
    assert write(root, "root", bad).json()["cells"][1]["fault"]
