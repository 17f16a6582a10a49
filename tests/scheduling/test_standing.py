"""Current loans between tenants and reasons for waiting, by REST and on pages."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduling.models import ClusterPolicy, Job
from tenants.models import Quota, User
from tests.scheduling.test_rehearsal import fleet, runs, waits  # noqa: F401 - a fixture

LOANS, PENDING = "/api/v1/loans", "/api/v1/pending"


@pytest.fixture
def lent(fleet):  # noqa: F811
    """law is guaranteed 16 H100 and holds 24: its later job borrows 8 from vision."""
    first = runs(fleet, ["h000", "h001"], user=fleet.users["lex"])
    later = runs(fleet, ["h002"], user=fleet.users["lex"])
    later.placements.update(intended_at=first.submitted_at + timedelta(minutes=2))
    return fleet


def loans(org, who="ops", **query):
    answer = org.client(who).get(LOANS, query)
    assert answer.status_code == 200, answer.json()
    return answer.json()["items"]


def test_the_latest_start_borrows_of_who_has_idle_guarantee(lent):
    (loan,) = loans(lent)
    assert (loan["borrower"], loan["lender"], loan["gpu_type"]) == ("law", "vision", "H100")
    assert (loan["gpus"], loan["wanted"]) == (8, 0)
    (job,) = loan["jobs"]
    assert (job["name"], job["tenant"], job["gpus"]) == ("runs-h002", "law", 8)
    assert loan["since"] == job["since"]


def test_who_wants_it_back_is_told_up_to_what_is_lent(lent):
    Quota.objects.filter(tenant__name="vision").update(guaranteed_milli=64_000)
    for count in (1, 2):
        answer = lent.client("eve").post(
            "/api/v1/jobs",
            {"name": "own", "tenant": "vision", "gpu_type": "H100", "gpus": 4, "replicas": count},
            format="json",
        )
        assert answer.status_code == 201, answer.json()
        assert loans(lent)[0]["wanted"] == (4 if count == 1 else 8)


def test_what_each_borrows_and_lends_is_summed_up(lent):
    def sums(who="ops", **query):
        found = lent.client(who).get(LOANS, query).json()["sums"]
        return [tuple(one.values()) for one in found]

    assert sums() == [("law", 8, 0, 0, 0), ("vision", 0, 0, 8, 0)]
    Quota.objects.filter(tenant__name="vision").update(guaranteed_milli=64_000)
    own = {"name": "own", "tenant": "vision", "gpu_type": "H100", "gpus": 4}
    assert lent.client("eve").post("/api/v1/jobs", own, format="json").status_code == 201
    assert sums() == [("law", 8, 4, 0, 0), ("vision", 0, 0, 8, 4)]
    assert sums("eve") == [(None, 8, 4, 0, 0), ("vision", 0, 0, 8, 4)]
    assert sums(gpu_type="A100") == []
    Quota.objects.filter(tenant__name="vision").update(guaranteed_milli=0)
    assert sums() == [("law", 8, 0, 0, 0)]


def test_a_cut_quota_is_borrowed_of_nobody(lent):
    Quota.objects.filter(tenant__name="vision").update(guaranteed_milli=0)
    (loan,) = loans(lent)
    assert (loan["lender"], loan["gpus"]) == ("", 8)


def test_each_sees_its_end_of_a_loan(lent):
    (loan,) = loans(lent, "eve")
    assert (loan["borrower"], loan["lender"], loan["gpus"]) == (None, "vision", 8)
    assert [(j["job"], j["name"], j["tenant"]) for j in loan["jobs"]] == [(None, None, None)]
    assert loans(lent, "lex")[0]["lender"] is None
    assert loans(lent, tenant="vision") == loans(lent)
    assert loans(lent, tenant="ml") == []
    assert loans(lent, gpu_type="A100") == []


def test_whether_owners_take_back_by_preemption_is_told(lent):
    client = lent.client("ops")
    told = []
    for preemption in ([], ["reclaim"]):
        ClusterPolicy.objects.update_or_create(
            cluster=lent.cluster, defaults={"document": {"preemption": preemption}}
        )
        told.append(client.get(LOANS).json()["reclaiming"])
    assert told == [[], ["demo"]]


def test_statements_do_not_grow_with_the_jobs(lent):
    def statements():
        with CaptureQueriesContext(connection) as captured:
            loans(lent)
        return len(captured)

    before = statements()
    for _ in range(5):
        runs(lent, ["h003"], gpus=1)
    assert statements() == before


@pytest.mark.parametrize("path", [LOANS, PENDING])
@pytest.mark.parametrize(
    ("query", "said"),
    [({"tenant": "x"}, "no tenant “x”"), ({"gpu_type": "H"}, "H100"), ({"by": "x"}, "Unknown")],
)
def test_a_wrong_parameter_is_named(lent, path, query, said):
    answer = lent.client("ops").get(path, query)
    assert answer.status_code == 400
    assert said in answer.json()["detail"]


def test_pages_tell_the_same(lent, client):
    client.force_login(User.objects.get(username="ops"))
    page = client.get("/quotas/loans/").content.decode()
    assert "No owner asks for what is borrowed" in page
    assert "By tenant" in page
    assert "runs-h002" in page
    page = client.get("/quotas/loans/?gpu=A100").content.decode()
    assert "No loan matches" in page
    assert "guaranteed" not in page.partition("No loan matches")[2].partition("</div>")[0]
    assert "so nothing matches" in client.get("/quotas/loans/?tenant=x").content.decode()
    client.force_login(User.objects.get(username="eve"))
    page = client.get("/quotas/loans/").content.decode()
    assert "another tenant" in page
    assert "runs-h002" not in page


def test_what_waits_is_counted_by_reason_and_type(fleet, client):  # noqa: F811
    assert fleet.client("ops").get(PENDING).json() == {"items": []}
    for name, count in (("a", 1), ("b", 2), ("c", 3)):
        waits(fleet, count, name=name)
    Job.objects.filter(name="a").update(reason="WaitingForQuota")
    Job.objects.filter(name="b").update(reason="WaitingForQuota", held=True)
    Job.objects.filter(name="c").update(reason="ExceedsCapacity")
    found = fleet.client("ops").get(PENDING).json()["items"]
    told = [(one["reason"], one["gpu_type"], one["jobs"], one["gpus"]) for one in found]
    of_one = told[-1][3]
    assert told == [
        ("ExceedsCapacity", "H100", 1, 3 * of_one),
        ("OnHold", "H100", 1, 2 * of_one),
        ("WaitingForQuota", "H100", 1, of_one),
    ]
    assert [one["never"] for one in found] == [True, False, False]
    assert fleet.client("eve").get(PENDING).json()["items"] == []
    assert fleet.client("ops").get(PENDING, {"gpu_type": "A100"}).json()["items"] == []
    client.force_login(User.objects.get(username="ops"))
    page = client.get("/ops/").content.decode()
    assert "will never start" in page
    assert "?state=held&amp;gpu=H100" in page
    assert "?state=waiting&amp;reason=WaitingForQuota&amp;gpu=H100" in page
