"""Quotas over REST: rights, sums, versions, warnings, the audit record."""

import pytest
from django.utils import timezone

from scheduling.models import Job, Placement
from tenants.models import AuditRecord, Quota

REASON = "more for the new model"
NEW, V1 = {"If-None-Match": "*"}, {"If-Match": '"1"'}


def url(tenant, gpu_type="H100"):
    return f"/api/v1/quotas/{tenant}/{gpu_type}"


def put(client, tenant, headers, gpu_type="H100", query="", **body):
    body = {"guaranteed": 8, "reason": REASON, **body}
    return client.put(url(tenant, gpu_type) + query, body, format="json", headers=headers)


@pytest.fixture
def ops(org):
    return org.client("ops")


@pytest.fixture
def root(org, ops):
    """Tenant admin of ml, which is guaranteed 24 of the 32 installed H100."""
    assert put(ops, "ml", NEW, guaranteed=24).status_code == 201
    return org.client("root")


def test_create_read_change(root):
    made = put(root, "vision", NEW, guaranteed=8.5, borrow_limit=4, lend_limit=0)
    assert made.status_code == 201, made.json()
    assert made["ETag"] == '"1"'
    assert (made.json()["guaranteed"], made.json()["borrow_limit"]) == (8.5, 4)
    read = root.get(url("vision"))
    assert read["ETag"] == '"1"'
    assert read.json()["lend_limit"] == 0
    changed = put(root, "vision", V1, guaranteed=16, mode="isolated")
    assert (changed.status_code, changed["ETag"]) == (200, '"2"')
    assert changed.json()["mode"] == "isolated"
    assert changed.json()["borrow_limit"] is None
    assert Quota.objects.get(tenant__name="vision").guaranteed_milli == 16000


def test_every_change_is_on_record(root, org):
    put(root, "vision", NEW)
    put(root, "vision", V1, guaranteed=4)
    record = AuditRecord.objects.order_by("-at").first()
    assert (record.actor_name, record.action, record.source) == ("root", "quota.changed", "api")
    assert record.reason == REASON
    assert (record.before["guaranteed"], record.after["guaranteed"]) == (8.0, 4.0)
    seen = org.client("ada").get("/api/v1/audit").json()["items"]
    assert [r["subject"] for r in seen] == ["vision / H100"] * 2
    assert org.client("eve").get("/api/v1/audit").json()["items"] == []


def test_what_is_so_already_is_no_change(root):
    put(root, "vision", NEW, guaranteed=8, borrow_limit=4)
    same = put(root, "vision", V1, guaranteed=8.0, borrow_limit=4)
    assert (same.status_code, same["ETag"]) == (200, '"1"')
    assert AuditRecord.objects.filter(subject="vision / H100").count() == 1
    assert put(root, "vision", V1, guaranteed=8, borrow_limit=None)["ETag"] == '"2"'


def test_versions(root):
    missing = put(root, "vision", {})
    assert (missing.status_code, missing.json()["code"]) == (428, "precondition-required")
    assert put(root, "vision", V1).status_code == 412
    assert put(root, "vision", NEW).status_code == 201
    assert put(root, "vision", NEW).status_code == 412
    assert put(root, "vision", V1, guaranteed=9).status_code == 200
    stale = put(root, "vision", V1, guaranteed=10)
    assert stale.status_code == 412
    assert (stale.json()["current_version"], stale["ETag"]) == (2, '"2"')
    assert stale.json()["current"]["guaranteed"] == 9.0
    assert put(root, "vision", {"If-Match": "two"}).status_code == 400
    assert put(root, "vision", {"If-None-Match": '"1"'}).status_code == 400


@pytest.mark.parametrize(
    ("body", "pointer", "words"),
    [
        ({"guaranteed": -1}, "/guaranteed", "negative"),
        ({"guaranteed": 0.0001}, "/guaranteed", "three decimals"),
        ({"guaranteed": 10**30}, "/guaranteed", "at most"),
        ({"guaranteed": "8"}, "/guaranteed", "number"),
        ({"guaranteed": None}, "/guaranteed", "null"),
        ({"guaranteed": 8, "lend_limit": 9}, "/lend_limit", "more than the guaranteed 8 GPUs"),
        ({"mode": "isolated", "borrow_limit": 1}, "/borrow_limit", "neither borrows nor lends"),
        ({"mode": "isolated", "lend_limit": 0}, "/lend_limit", "neither borrows nor lends"),
        ({"mode": "open"}, "/mode", "Choose one of shared, isolated."),
        ({"reason": "  "}, "/reason", "Say why"),
        ({"reason": None}, "/reason", "null"),
        ({"guaranteed": 25}, "/guaranteed", "25 GPUs would be promised, 24 GPUs are guaranteed"),
        ({"garanteed": 1}, "/garanteed", "Unknown field"),
    ],
)
def test_wrong_values(root, body, pointer, words):
    answer = put(root, "vision", NEW, **body)
    errors = {e["pointer"]: e["detail"] for e in answer.json()["errors"]}
    assert answer.status_code == 422
    assert words in errors[pointer]
    assert Quota.objects.count() == 1


def test_a_sum_does_not_name_a_tenant_above_those_one_sees(root, org):
    ada = org.client("ada")  # tenant admin of vision, which has no quota
    told = put(ada, "vision-lab", NEW, guaranteed=25).json()["errors"][0]["detail"]
    assert told == (
        "H100: 25 GPUs would be promised, 24 GPUs are guaranteed to a hidden tenant above them. "
        "Guarantee less below, or more to a hidden tenant."
    )
    assert "“ml”" in put(root, "vision-lab", NEW, guaranteed=25).json()["errors"][0]["detail"]


def test_sums(root, ops):
    assert put(root, "vision", NEW, guaranteed=16).status_code == 201
    below = put(root, "vision-lab", NEW, guaranteed=17)
    assert "guaranteed to “vision”" in below.json()["detail"]
    shrunk = put(ops, "ml", V1, guaranteed=15)
    assert "16 GPUs would be promised, 15 GPUs" in shrunk.json()["detail"]
    too_much = put(ops, "law", NEW, guaranteed=9)
    assert "33 GPUs would be promised, 32 GPUs are installed" in too_much.json()["detail"]
    over = put(ops, "law", NEW, query="?overcommit=true", guaranteed=9)
    assert over.status_code == 201
    assert over.json()["warnings"] == ["H100: 33 GPUs would be promised, 32 GPUs are installed."]
    assert put(root, "vision", V1, query="?overcommit=true").status_code == 403


def test_rights(org, root):
    ada = org.client("ada")
    own = put(ada, "vision", NEW)
    assert (own.status_code, own.json()["code"]) == (403, "not-allowed")
    put(root, "vision", NEW)
    assert put(ada, "vision-lab", NEW, guaranteed=4).status_code == 201
    assert put(org.client("eve"), "vision-lab", NEW, gpu_type="A100").status_code == 403
    assert put(org.client("lex"), "vision", V1).status_code == 404
    assert put(root, "ml", V1).status_code == 403
    assert [q["tenant"] for q in ada.get("/api/v1/quotas").json()["items"]] == [
        "vision",
        "vision-lab",
    ]
    assert ada.get(url("ml")).status_code == 404
    assert ada.get(url("vision", "T4")).status_code == 404
    assert ada.get(url("vision", "nope")).status_code == 404


def running(org, tenant, name, milli):
    now = timezone.now()
    job = Job.objects.create(
        name=name,
        tenant=org.tenants[tenant],
        cluster=org.cluster,
        state="RUNNING",
        submitted_at=now,
    )
    Placement.objects.create(
        job=job,
        attempt=1,
        pod_set=0,
        ordinal=0,
        pod_name=name,
        node="h000",
        gpu_model="H100",
        devices=[0],
        state="RUNNING",
        held_milli=milli,
        intended_at=now,
    )


def test_less_than_is_in_use_is_a_warning_that_names_the_jobs(org, root):
    put(root, "vision", NEW, guaranteed=16)
    running(org, "vision", "old", 4000)
    running(org, "vision-lab", "new", 8000)
    assert root.get(url("vision")).json()["used"] == 12
    answer = put(root, "vision", V1, guaranteed=10)
    assert answer.status_code == 200
    assert answer.json()["warnings"] == [
        "vision uses 12 GPUs of H100: 2 GPUs become borrowed and may be reclaimed (job new)."
    ]
    isolated = put(root, "vision", {"If-Match": '"2"'}, guaranteed=2, mode="isolated")
    assert "nothing new starts (jobs new, old)" in isolated.json()["warnings"][0]


def test_who_borrows_from_whom(org, root, ops):
    put(ops, "law", NEW, guaranteed=8)
    put(root, "vision", NEW, guaranteed=4)
    put(root, "vision-lab", NEW, guaranteed=2)
    running(org, "vision-lab", "big", 30_000)  # of these, 24 are guaranteed to ml

    def told(client, tenant):
        quota = client.get(url(tenant)).json()
        return [quota[name] for name in ("used", "borrowed", "borrowed_from", "lent", "lent_to")]

    above, law = {"tenant": "ml", "gpus": 26}, {"tenant": "law", "gpus": 6}
    assert told(ops, "vision") == [30, 26, [above], 0, []]
    assert told(ops, "ml") == [30, 6, [law], 0, []]
    assert told(ops, "law") == [0, 0, [], 6, [{"tenant": "ml", "gpus": 6}]]
    # Nobody learns of tenants that they may not see.
    assert told(root, "ml") == [30, 6, [{"tenant": None, "gpus": 6}], 0, []]
    assert told(org.client("lex"), "law") == [0, 0, [], 6, [{"tenant": None, "gpus": 6}]]
    listed = {q["tenant"]: q["borrowed"] for q in ops.get("/api/v1/quotas").json()["items"]}
    assert listed == {"ml": 6, "vision": 26, "vision-lab": 28, "law": 0}


def test_a_dry_run_tells_what_would_be_borrowed(org, root):
    put(root, "vision", NEW, guaranteed=4)
    running(org, "vision", "a", 10_000)
    assert root.get(url("vision")).json()["borrowed"] == 6
    answer = put(root, "vision", V1, query="?dry_run=true", guaranteed=8)
    assert (answer.json()["result"]["used"], answer.json()["result"]["borrowed"]) == (10, 2)
    assert root.get(url("vision")).json()["borrowed"] == 6


def test_dry_runs_change_nothing(root):
    answer = put(root, "vision", NEW, query="?dry_run=true", guaranteed=8)
    assert answer.status_code == 200
    assert answer.json()["would"] == "create"
    assert answer.json()["result"]["guaranteed"] == 8
    assert put(root, "vision", NEW, query="?dry_run=true", guaranteed=25).status_code == 422
    assert put(root, "vision", V1, query="?dry_run=true").status_code == 412
    assert Quota.objects.count() == 1
    assert AuditRecord.objects.count() == 1


def test_delete(root, org):
    put(root, "vision", NEW)
    at = url("vision")
    assert root.delete(f"{at}?reason=x").status_code == 428
    assert root.delete(at, headers=V1).status_code == 422
    assert root.delete(f"{at}?reason=x", headers={"If-Match": '"7"'}).status_code == 412
    assert root.delete(f"{at}?reason=x&dry_run=true", headers=V1).json()["would"] == "delete"
    assert root.delete(f"{at}?reason=x", headers=V1).status_code == 204
    assert root.get(at).status_code == 404
    assert AuditRecord.objects.filter(action="quota.deleted", reason="x").count() == 1


def revert(client, record, headers, query="", **body):
    path = f"/api/v1/audit/{record['id']}/revert{query}"
    return client.post(path, {"reason": "Too early", **body}, format="json", headers=headers)


def changes(client, query=""):
    return client.get(f"/api/v1/audit?action=quota{query}").json()["items"]


def test_a_change_is_taken_back(root, org):
    put(root, "vision", NEW, guaranteed=8)
    put(root, "vision", V1, guaranteed=12)
    record = changes(root)[0]
    assert [c["id"] for c in changes(root, f"&q={record['id'][:8]}")] == [record["id"]]
    version = {"If-Match": '"2"'}
    would = revert(root, record, version, "?dry_run=true").json()
    assert (would["would"], would["result"]["guaranteed"]) == ("update", 8)
    assert Quota.objects.get(tenant__name="vision").version == 2
    done = revert(root, record, version)
    assert (done.status_code, done["ETag"]) == (200, '"3"')
    assert done.json()["quota"]["guaranteed"] == 8
    newest = changes(root)[0]
    assert (newest["reverts"], newest["reason"], newest["source"]) == (
        record["id"],
        "Too early",
        "api",
    )
    again = revert(root, record, {"If-Match": '"3"'})
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    assert "already has its values from before this change" in again.json()["detail"]


def test_a_quota_that_was_given_is_withdrawn_by_its_revert_and_given_again(root):
    put(root, "vision", NEW, guaranteed=8)
    gone = revert(root, changes(root)[0], V1)
    assert (gone.status_code, gone.json()["quota"]) == (200, None)
    assert root.get(url("vision")).status_code == 404
    withdrawn = changes(root)[0]
    assert revert(root, withdrawn, NEW, "?dry_run=true").json()["would"] == "create"
    back = revert(root, withdrawn, NEW)
    assert (back["ETag"], back.json()["quota"]["guaranteed"]) == ('"1"', 8)


def test_who_may_not_change_a_quota_may_not_revert_its_changes(root, org, ops):
    put(root, "vision", NEW, guaranteed=8)
    record = changes(root)[0]
    assert revert(root, record, {}).status_code == 428
    assert revert(root, record, {"If-Match": '"7"'}).status_code == 412
    assert revert(root, record, V1, reason=" ").json()["errors"][0]["pointer"] == "/reason"
    assert revert(org.client("ada"), record, V1).status_code == 403
    assert revert(org.client("lex"), record, V1).status_code == 404
    policy = {"policy": {"queueing": "strict-fifo"}}
    ops.put("/api/v1/clusters/demo/policy", policy, format="json", headers=NEW)
    other = ops.get("/api/v1/audit?action=policy.changed").json()["items"][0]
    assert revert(ops, other, V1).status_code == 404
    assert Quota.objects.get(tenant__name="vision").version == 1
