"""GPU time over REST: rows and CSV, who sees what, and the answer to a wrong question."""

import csv
import io
from datetime import timedelta

import pytest
from django.core.cache import cache
from django.utils import timezone

from metrics.gpu_time import usage
from metrics.gpu_time.accounting import account
from metrics.models import BorrowedDay, UsageDay, UsageLedger
from scheduling.models import Job, Placement
from tenants.models import Quota
from tests import organisation

URL = "/api/v1/usage"
USE = ["measured_gpu_hours", "idle_gpu_hours"]
MEASURES = ["gpu_hours", "lost_gpu_hours", "pods_started", "borrowed_gpu_hours", *USE]
GUARANTEED = (("ml", "H100", 16), ("ml", "A100", 8), ("vision", "H100", 2), ("law", "H100", 8))


def ran(org, tenant, who, *, hours=2.0, gpus=8, model="H100", ended_days_ago=1.0, kind="training"):
    """A pod that ran this long and ended this many days ago."""
    ended = timezone.now() - timedelta(days=ended_days_ago)
    begun = ended - timedelta(hours=hours)
    job = Job.objects.create(
        name="job", tenant=org.tenants[tenant], cluster=org.cluster, kind=kind,
        user=org.users[who] if who else None, state="SUCCEEDED", submitted_at=begun,
        ended_at=ended,
    )  # fmt: skip
    Placement.objects.create(
        job=job, attempt=1, pod_set=0, ordinal=0, pod_name="p", node="h000", gpu_model=model,
        held_milli=int(1000 * gpus), state="SUCCEEDED", intended_at=begun, held_from=begun,
        ended_at=ended,
    )  # fmt: skip


@pytest.fixture
def org(db):
    found = organisation.build()
    for tenant, model, gpus in GUARANTEED:
        Quota.objects.create(
            tenant=found.tenants[tenant],
            gpu_type=found.gpu_types[model],
            guaranteed_milli=1000 * gpus,
        )
    ran(found, "vision", "eve")
    ran(found, "vision", "joe", gpus=0.5)
    ran(found, "vision-lab", "eve", model="A100", ended_days_ago=40)
    ran(found, "law", "lex", kind="inference")
    ran(found, "law", None, hours=1, gpus=1)
    return found


@pytest.fixture(params=["open", "written"])
def ops(org, request):
    if request.param == "written":
        account(timezone.now())
    return org.client("ops")


def rows(answer, *names):
    assert answer.status_code == 200, answer.content
    return {tuple(item[n] for n in names): item["gpu_hours"] for item in answer.json()["items"]}


def test_rows_add_up_to_the_total(ops):
    answer = ops.get(f"{URL}?since=60d")
    body = answer.json()
    known = ["complete_from", "borrowed_from"]
    assert list(body) == ["since", "until", *known, "by", "items", "total"]
    assert body["by"] == ["tenant", "gpu_type"]
    assert rows(answer, "tenant", "gpu_type") == {
        ("law", "H100"): 17.0,
        ("vision", "H100"): 17.0,
        ("vision-lab", "A100"): 16.0,
    }
    assert body["total"] == dict.fromkeys(USE) | {
        "gpu_hours": 50.0, "lost_gpu_hours": 0.0, "pods_started": 5,
    }  # fmt: skip
    assert body["items"][0] == dict.fromkeys(USE) | {
        "tenant": "law", "gpu_type": "H100", "gpu_hours": 17.0, "lost_gpu_hours": 0.0,
        "pods_started": 2, "borrowed_gpu_hours": pytest.approx(1.0, abs=1e-3),
    }  # fmt: skip


def borrowed(answer, *names):
    """Return borrowed GPU-hours, rounded to hide the instants between successive calls of `ran`."""
    return {
        tuple(item[n] for n in names): item["borrowed_gpu_hours"]
        and round(item["borrowed_gpu_hours"], 2)
        for item in answer.json()["items"]
    }


def test_what_tenants_held_above_their_guarantee_is_borrowed(ops):
    answer = ops.get(f"{URL}?since=60d")
    assert borrowed(answer, "tenant", "gpu_type") == {
        ("law", "H100"): 1.0,
        ("vision", "H100"): 13.0,
        ("vision-lab", "A100"): 0.0,  # within the guarantee of ml above it
    }
    assert borrowed(ops.get(f"{URL}?since=60d&by=tenant&tenant=ml"), "tenant") == {
        ("vision",): 13.0,
        ("vision-lab",): 0.0,
    }
    # Borrowing is not counted by user, kind or cluster, nor for everything together.
    for query in ("by=user", "by=tenant,kind", "by=day", "by=tenant&cluster=demo"):
        assert {i["borrowed_gpu_hours"] for i in ops.get(f"{URL}?{query}").json()["items"]} <= {
            None
        }
    # The two children together hold more than ml has, though ml itself uses nothing.
    Quota.objects.filter(tenant__name="ml", gpu_type__name="H100").update(guaranteed_milli=8000)
    UsageDay.objects.all().delete()
    BorrowedDay.objects.all().delete()
    UsageLedger.objects.all().delete()
    cache.clear()
    (row,) = (i for i in ops.get(f"{URL}?since=60d").json()["items"] if i["tenant"] == "ml")
    assert row == dict.fromkeys(USE) | {
        "tenant": "ml", "gpu_type": "H100", "gpu_hours": 0.0, "lost_gpu_hours": 0.0,
        "pods_started": 0, "borrowed_gpu_hours": pytest.approx(1.0, abs=1e-3),
    }  # fmt: skip


def test_of_earlier_days_it_is_said_that_it_is_not_known(org):
    account(timezone.now())
    today = timezone.now().date()
    UsageLedger.objects.update(borrowed_from=today - timedelta(days=10))
    client = org.client("ops")
    body = client.get(f"{URL}?since=60d").json()
    assert body["borrowed_from"] == str(today - timedelta(days=10))
    assert {item["borrowed_gpu_hours"] for item in body["items"]} == {None}
    found = borrowed(client.get(f"{URL}?since=60d&by=tenant,day"), "tenant", "day")
    days = {day: hours for (tenant, day), hours in found.items() if tenant == "vision"}
    assert sum(days.values()) == pytest.approx(13.0)
    assert {h for (tenant, _), h in found.items() if tenant == "vision-lab"} == {None}
    text = client.get(f"{URL}?since=60d", headers={"Accept": "text/csv"}).content.decode()
    assert {row["borrowed_gpu_hours"] for row in csv.DictReader(io.StringIO(text))} == {""}


def test_what_is_asked_for_is_what_counts(ops):
    assert rows(ops.get(f"{URL}?since=30d&by=tenant"), "tenant") == {
        ("law",): 17.0,
        ("vision",): 17.0,
    }
    assert rows(ops.get(f"{URL}?since=60d&by=tenant&tenant=ml"), "tenant") == {
        ("vision",): 17.0,
        ("vision-lab",): 16.0,
    }
    assert rows(ops.get(f"{URL}?since=60d&by=user&gpu_type=A100"), "user") == {("eve",): 16.0}
    assert rows(
        ops.get(f"{URL}?since=60d&by=user,kind&cluster=demo&tenant=law"), "user", "kind"
    ) == {
        (None, "training"): 1.0,
        ("lex", "inference"): 16.0,
    }
    assert rows(ops.get(f"{URL}?since=60d&by=gpu_type&gpu_type=T4"), "gpu_type") == {}
    day = (timezone.now() - timedelta(days=40)).date()
    found = rows(ops.get(f"{URL}?since={day - timedelta(days=1)}&until={day}&by=day"), "day")
    assert sum(found.values()) == pytest.approx(16.0)
    month = rows(ops.get(f"{URL}?since=60d&by=month"), "month")
    assert sum(month.values()) == pytest.approx(50.0)
    assert all(len(text) == 7 for (text,) in month)


def test_csv_has_the_same_rows(ops):
    answer = ops.get(f"{URL}?since=60d&by=tenant,user", headers={"Accept": "text/csv"})
    assert answer["Content-Type"].startswith("text/csv")
    found = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert list(found[0]) == ["tenant", "user", *MEASURES]
    told = [(r["tenant"], r["user"], float(r["gpu_hours"])) for r in found]
    assert told == [
        ("law", "", 1.0),
        ("law", "lex", 16.0),
        ("vision", "eve", 16.0),
        ("vision", "joe", 1.0),
        ("vision-lab", "eve", 16.0),
    ]
    wrong = ops.get(f"{URL}?by=team", headers={"Accept": "text/csv"})
    assert (wrong.status_code, wrong["Content-Type"]) == (400, "application/problem+json")
    assert wrong.json()["errors"][0]["parameter"] == "by"
    assert ops.get(URL, headers={"Accept": "text/html"}).status_code == 406


@pytest.mark.parametrize(
    ("who", "seen"),
    [
        ("root", {"vision", "vision-lab"}),
        ("vic", {"vision", "vision-lab"}),
        ("lex", {"law"}),
    ],
)
@pytest.mark.parametrize("written", [False, True])
def test_members_see_their_tenants_and_those_below(org, who, seen, written):
    if written:
        account(timezone.now())
    client = org.client(who)
    assert {t for (t,) in rows(client.get(f"{URL}?since=60d&by=tenant"), "tenant")} == seen
    names = {u for (u,) in rows(client.get(f"{URL}?since=60d&by=user"), "user")}
    assert names == ({"lex", None} if who == "lex" else {"eve", "joe"})
    for name in {"ml", "vision", "law", "nobody"} - seen - ({"ml"} if who == "root" else set()):
        answer = client.get(f"{URL}?tenant={name}")
        assert (answer.status_code, answer.json()["errors"][0]["parameter"]) == (400, "tenant")


def test_who_belongs_to_no_tenant_sees_nothing(org):
    org.users["vic"].memberships.all().delete()
    body = org.client("vic").get(f"{URL}?since=60d").json()
    assert (body["items"], body["total"]["gpu_hours"]) == ([], 0)


def test_nobody_reads_it_without_signing_in(client, db):
    assert client.get(URL).status_code == 401


@pytest.mark.parametrize(
    ("query", "parameter", "told"),
    [
        ("since=soon", "since", "'soon' is not a date; write one like 2030-01-31, or"),
        ("since=2026-02-31", "since", "is not a date"),
        ("since=20261101", "since", "is not a date"),
        ("since=0d", "since", "is not a date"),
        ("since=9999-12-31", "since", "is in the future"),
        ("since=0001-01-01", "since", "the limit is 3,660 (ten years)"),
        ("since=3661d", "since", "The period has 3,661 days"),
        ("since=7d&until=2026-01-01", "since", "counts back from today"),
        ("until=tomorrow", "until", "'tomorrow' is not a date; write one like 2030-01-31."),
        ("since=2026-01-02&until=2026-01-01", "until", "2026-01-01 is before 2026-01-02"),
        ("until=2001-01-01", "until", "is before"),
        ("by=", "by", "'' is none of tenant, user"),
        ("by=tenant;user", "by", "separate several with commas"),
        ("by=user,user", "by", "“user” is given twice"),
        ("tenant=nobody", "tenant", "There is no tenant “nobody” that you may see."),
        ("gpu_type=H1000", "gpu_type", "There is no GPU type “H1000”, but there is “H100”."),
        ("cluster=nowhere", "cluster", "There is no cluster “nowhere”."),
        ("tenant=a%00b", "tenant", "NUL"),
        ("format=csv", "format", "Unknown parameter"),
    ],
)
def test_a_wrong_parameter_is_named(org, query, parameter, told):
    answer = org.client("ops").get(f"{URL}?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-query")
    (error,) = answer.json()["errors"]
    assert error["parameter"] == parameter
    assert told in error["detail"]


def test_more_rows_than_fit_are_refused_with_a_remedy(ops, monkeypatch):
    monkeypatch.setattr(usage, "MOST_ROWS", 2)
    assert ops.get(f"{URL}?since=60d&by=gpu_type").status_code == 200
    answer = ops.get(f"{URL}?since=60d&by=tenant")
    assert answer.json()["errors"][0]["parameter"] == "by"
    assert "shorter period" in answer.json()["detail"]


def test_no_more_rows_are_read_than_are_answered(org, monkeypatch):
    """Ten years by every dimension are millions of rows, which must be refused without reading them
    all."""
    first = timezone.now().date() - timedelta(days=300)
    UsageLedger.objects.create(until=first + timedelta(days=300))
    UsageDay.objects.bulk_create(
        UsageDay(
            day=first + timedelta(days=day), cluster_id=1, cluster_name="c", gpu_model="H100",
            tenant_id=org.tenants["law"].pk, tenant_name="law", user_name="", kind="training",
            held=3_600_000_000, lost=0, pods=1,
        )
        for day in range(300)
    )  # fmt: skip
    monkeypatch.setattr(usage, "MOST_ROWS", 20)
    read = []
    from_row = usage.Amount
    monkeypatch.setattr(usage, "Amount", lambda *a, **k: read.append(1) or from_row(*a, **k))
    ops = org.client("ops")
    assert ops.get(f"{URL}?since=310d&by=day").status_code == 400
    assert len(read) <= 2 * 21  # each row is read once and added once
    by_month = ops.get(f"{URL}?since=310d&by=month").json()
    assert len(by_month["items"]) in (10, 11)
    assert by_month["total"]["gpu_hours"] >= 300


def test_the_description_says_csv_too(client, db):
    document = client.get("/api/v1/openapi.json").json()
    answers = document["paths"][URL]["get"]["responses"]["200"]["content"]
    assert set(answers) == {"application/json", "text/csv"}
