"""One document describes the organisation. It can be exported, compared and applied, all or
nothing, in whatever order its changes need."""

import pytest

from scheduling.models import ClusterPolicy, Job
from scheduling.services.organisation.plan import plan
from tenants.models import AppliedDocument, AuditRecord, Membership, Queue, Quota, Tenant

URL = "/api/v1/organisation"


@pytest.fixture
def ops(org):
    return org.client("ops")


def put(client, document, query="", **more):
    body = {"document": document, "reason": "from Git", **more}
    return client.put(URL + query, body, format="json")


def applied(client, document, query="", **more):
    answer = put(client, document, query, **more)
    assert answer.status_code == 200, answer.json()
    return answer.json()


def changes(body):
    told = body.get("result", body)["changes"]
    return [(c["action"], c["kind"], *c["names"]) for c in told]


def refused(answer, *pointers, status=422):
    body = answer.json()
    assert answer.status_code == status, body
    assert {e["pointer"] for e in body["errors"]} == set(pointers), body
    return body["detail"]


def quotas(**cells):
    return {model: {"guaranteed": gpus} for model, gpus in cells.items()}


WHOLE = {
    "gpu_types": {"B200": {"memory_mib": 196608}, "H100": {}},
    "tenants": {
        "below": {"parent": "lab", "queues": {"nightly": {"max_running": 2, "state": "held"}}},
        "lab": {
            "title": "Lab",
            "max_waiting": 100,
            "members": {"joe": "tenant-admin"},
            "quotas": {"H100": {"guaranteed": 8, "borrow_limit": 4}},
            "queues": {"default": {"weight": 2}},
        },
    },
    "clusters": {"demo": {"title": "The demo", "policy": {"queueing": "backfill"}}},
}


def test_a_document_is_made_whatever_order_it_is_written_in(org, ops):
    body = applied(ops, WHOLE)
    assert set(changes(body)) == {
        ("create", "gpu-type", "B200"),
        ("create", "tenant", "lab"),
        ("create", "tenant", "below"),
        ("create", "member", "lab", "joe"),
        ("create", "quota", "lab", "H100"),
        ("create", "queue", "lab", "default"),
        ("create", "queue", "below", "nightly"),
        ("update", "cluster", "demo"),
        ("create", "policy", "demo"),
    }
    assert Tenant.objects.get(name="below").parent.name == "lab"
    assert Quota.objects.get().borrow_limit_milli == 4000
    assert Queue.objects.get(name="nightly").state == "held"
    assert ClusterPolicy.objects.get().document == {"queueing": "backfill"}
    assert set(AuditRecord.objects.exclude(reason="").values_list("reason", flat=True)) == {
        "from Git"
    }
    assert changes(applied(ops, WHOLE)) == []


def test_what_is_exported_changes_nothing_and_makes_the_same_elsewhere(org, ops):
    applied(ops, WHOLE)
    told = ops.get(URL).json()
    assert told["tenants"]["lab"]["quotas"] == {"H100": {"guaranteed": 8, "borrow_limit": 4}}
    assert told["tenants"]["vision"]["members"] == {
        "ada": "tenant-admin", "eve": "engineer", "joe": "engineer", "vic": "viewer"
    }  # fmt: skip
    assert changes(applied(ops, told, name="copy")) == []
    for name in ("below", "lab", "vision-lab", "vision", "ml", "law"):
        Tenant.objects.get(name=name).delete()
    ClusterPolicy.objects.all().delete()
    applied(ops, told, name="copy")
    assert ops.get(URL).json() == told


def test_a_dry_run_tells_all_and_changes_nothing(org, ops):
    body = applied(ops, WHOLE, "?dry_run=true")
    assert body["dry_run"]
    assert ("create", "tenant", "lab") in changes(body)
    assert not Tenant.objects.filter(name="lab").exists()
    assert not AppliedDocument.objects.exists()
    assert not AuditRecord.objects.exists()


def test_three_ways(org, ops):
    applied(ops, {"tenants": {"law": {"title": "Law firm", "weight": 3, "max_running": 5}}})
    Tenant.objects.filter(name="law").update(max_waiting=9, weight=4)
    body = applied(ops, {"tenants": {"law": {"title": "Law firm", "weight": 3}}})
    law = Tenant.objects.get(name="law")
    # Drift is corrected, omitted values return to their defaults, and things never mentioned stay.
    assert (law.weight, law.max_running, law.max_waiting) == (3, None, 9)
    assert body["changes"][0]["fields"] == [
        {"field": "max_running", "before": 5, "after": None},
        {"field": "weight", "before": 4.0, "after": 3.0},
    ]


def test_what_is_said_no_more_is_deleted_only_when_asked(org, ops):
    applied(ops, WHOLE)
    rest = {"tenants": {"lab": {"title": "Lab"}}}
    body = applied(ops, rest)
    assert {"kind": "tenant", "names": ["below"]} in body["kept"]
    assert Tenant.objects.filter(name="below").exists()
    body = applied(ops, rest, "?prune=true")
    gone = {("delete", "tenant", "below"), ("delete", "quota", "lab", "H100"),
            ("delete", "member", "lab", "joe"), ("delete", "queue", "below", "nightly"),
            ("delete", "gpu-type", "B200")}  # fmt: skip
    assert gone < set(changes(body))
    assert not Tenant.objects.filter(name="below").exists()
    assert Queue.objects.get(tenant__name="lab").weight == 1.0
    # Things that no document mentions are not touched.
    assert Tenant.objects.filter(name="vision").exists()
    assert Membership.objects.filter(tenant__name="vision").count() == 4


def test_two_documents_do_not_prune_each_other(org, ops):
    applied(ops, {"tenants": {"one": {}}}, name="first")
    applied(ops, {"tenants": {"two": {}}}, "?prune=true", name="second")
    applied(ops, {}, "?prune=true", name="second")
    assert Tenant.objects.filter(name="one").exists()
    assert not Tenant.objects.filter(name="two").exists()


def test_gpus_move_between_tenants_at_full_capacity(org, ops):
    def shares(vision, law):
        return {
            "tenants": {
                "ml": {"quotas": quotas(H100=vision)},
                "vision": {"quotas": quotas(H100=vision)},
                "law": {"quotas": quotas(H100=law)},
            }
        }

    applied(ops, shares(20, 12))  # all 32 that are installed
    for vision, law in ((8, 24), (28, 4)):
        applied(ops, shares(vision, law))
    found = Quota.objects.values_list("tenant__name", "guaranteed_milli")
    assert dict(found) == {"ml": 28_000, "vision": 28_000, "law": 4_000}
    at = "/document/tenants/{}/quotas/H100/guaranteed"
    detail = refused(put(ops, shares(30, 4)), at.format("ml"), at.format("vision"))
    assert "32 GPUs are installed" in detail
    assert Quota.objects.get(tenant__name="ml").guaranteed_milli == 28_000
    assert applied(ops, shares(30, 4), "?overcommit=true")["warnings"]


def test_a_tenant_moves_with_its_quota(org, ops):
    applied(ops, {"tenants": {
        "ml": {"quotas": quotas(H100=8)}, "vision": {"quotas": quotas(H100=8)},
        "law": {"quotas": quotas(H100=2)},
    }})  # fmt: skip
    applied(ops, {"tenants": {
        "ml": {"quotas": quotas(H100=0)}, "law": {"quotas": quotas(H100=10)},
        "vision": {"parent": "law", "quotas": quotas(H100=8)},
    }})  # fmt: skip
    assert Tenant.objects.get(name="vision").parent.name == "law"


def test_nothing_is_done_where_something_cannot_be(org, ops):
    Job.objects.create(name="old", tenant=org.tenants["law"], cluster=org.cluster,
                       state="COMPLETED", submitted_at=org.cluster.created_at)  # fmt: skip
    applied(ops, {"tenants": {"law": {"title": "x"}}})
    document = {"tenants": {"new": {}, "vision": {"parent": "vision-lab"}}}
    detail = refused(
        put(ops, document, "?prune=true"),
        "/document/tenants/law",
        "/document/tenants/vision",
    )
    assert "more" in detail
    assert not Tenant.objects.filter(name="new").exists()


@pytest.mark.parametrize(
    ("document", "pointers"),
    [
        ({"tenants": {"Bad Name": {}}}, ["/tenants/Bad Name"]),
        ({"tenants": {"a": {"parent": "nobody"}}}, ["/tenants/a/parent"]),
        ({"tenants": {"a": {"weight": 0}}}, ["/tenants/a/weight"]),
        ({"tenants": {"a": {"wait": 0}}}, ["/tenants/a/wait"]),
        ({"tenants": {"law": {"members": {"nobody": "viewer"}}}}, ["/tenants/law/members/nobody"]),
        ({"tenants": {"law": {"members": {"eve": "king"}}}}, ["/tenants/law/members/eve"]),
        ({"tenants": {"law": {"quotas": {"H100": {}}}}}, ["/tenants/law/quotas/H100/guaranteed"]),
        ({"tenants": {"law": {"quotas": quotas(X1=1)}}}, ["/tenants/law/quotas/X1"]),
        (
            {"tenants": {"law": {"quotas": quotas(H100=1, A100=-1)}}},
            ["/tenants/law/quotas/A100/guaranteed"],
        ),
        (
            {"tenants": {"law": {"quotas": {"H100": {"guaranteed": 1, "lend_limit": 2}}}}},
            ["/tenants/law/quotas/H100/lend_limit"],
        ),
        (
            {"tenants": {"law": {"queues": {"q": {"max_gpus": {"X1": 1}}}}}},
            ["/tenants/law/queues/q/max_gpus/X1"],
        ),
        ({"clusters": {"new": {}}}, ["/clusters/new/access"]),
        (
            {"clusters": {"demo": {"policy": {"queueing": "lifo"}}}},
            ["/clusters/demo/policy/queueing"],
        ),
        ({"gpu_types": {"a b": {}}}, ["/gpu_types/a b"]),
        ({"gpus": {}}, ["/gpus"]),
        ([], [""]),
        (
            {"tenants": {"a": {"parent": "b"}, "b": {"parent": "a"}}},
            ["/tenants/a/parent", "/tenants/b/parent"],
        ),
    ],
)  # fmt: skip
def test_each_fault_is_told_at_its_place(ops, document, pointers):
    refused(put(ops, document), *(f"/document{at}" for at in pointers))
    assert not AppliedDocument.objects.exists()


def test_a_reason_and_an_operator_are_needed(org, ops):
    refused(ops.put(URL, {"document": {}}, format="json"), "/reason")
    refused(put(ops, {}, reason=" "), "/reason")
    refused(put(ops, {}, name="No Name"), "/name")
    for who in ("root", "eve"):
        assert org.client(who).get(URL).status_code == 403
        assert put(org.client(who), {}).status_code == 403


def test_a_plan_is_empty_where_all_is_so():
    live = {("tenant", "a"): {"weight": 2.0}}
    assert plan({}, {}, live, prune=True).changes == ()
    assert plan({("tenant", "a"): {"weight": 2}}, {}, live, prune=True).changes == ()
    assert plan({}, {("tenant", "b"): ["title"]}, live, prune=True).changes == ()
