"""The page of GPU-hours: visibility by role, numbers, chart and CSV file."""

import csv
import io
import re
from datetime import timedelta

import pytest
from django.utils import timezone

from metrics.gpu_time import usage
from metrics.models import UsageDay, UsageLedger
from scheduling.models import Placement
from tenants.models import AuditRecord, Quota, Tenant, User
from tests.plans import query

NONE_OTHER = 10**9  # no id beyond this is taken


def table(answer, who):
    """Return {name: (GPU-hours by model, shares by model)} from the page's table of tenants or
    users."""
    return {
        row.name: (
            {model: hours for model, hours, _, _ in row.cells},
            {model: share for model, _, share, _ in row.cells},
        )
        for row in answer.context[who]
    }


def one_pod(client_user, hours=4, gpus=8, tenant="vision"):
    """Make one pod the only one that ever ran, for this long, until a minute ago."""
    end = timezone.now() - timedelta(minutes=1)
    begun = end - timedelta(hours=hours)
    placement = Placement.objects.filter(gpu_model="H200").first()
    Placement.objects.exclude(pk=placement.pk).delete()
    job = placement.job
    job.tenant, job.user = Tenant.objects.get(name=tenant), client_user
    job.save()
    Placement.objects.update(
        held_from=begun, intended_at=begun, ended_at=end, held_milli=1000 * gpus, state="SUCCEEDED"
    )


def test_a_tenant_counts_with_all_below_it_and_shares_are_of_its_guarantee(as_user):
    client = as_user("vera")
    one_pod(User.objects.get(username="erin"))
    answer = client.get("/usage/?since=2d")
    found = table(answer, "tenants")
    assert list(found) == ["research", "nlp", "speech", "vision"]
    assert found["research"][0]["H200"] == found["vision"][0]["H200"] == "32.0"
    assert found["speech"][0]["H200"] == "0"
    elapsed = (timezone.now() - answer.context["chosen"].scope.period.end).total_seconds() / 3600
    guaranteed = 128 * (48 + elapsed)  # of vision since midnight two days ago
    assert found["vision"][1]["H200"] == pytest.approx(32 / guaranteed, rel=1e-3)
    assert found["research"][1]["H200"] == pytest.approx(32 / (guaranteed * 320 / 128), rel=1e-3)
    assert found["speech"][1]["L40S"] is None  # it has no quota for them
    assert list(table(answer, "users")) == ["erin"]
    text = answer.content.decode()
    assert "products" not in text
    assert 'aria-current="page">Usage' in text
    # A single tenant.
    answer = client.get("/usage/?since=2d&tenant=speech")
    assert answer.context["used"] is False
    assert "No GPU was allocated in this period" in answer.content.decode()


def test_large_counts_are_legible(as_user):
    client = as_user("operator")
    yesterday = timezone.now().date() - timedelta(days=1)
    UsageLedger.objects.create(until=yesterday + timedelta(days=1))
    names = {"cluster_id": 1, "cluster_name": "demo", "gpu_model": "H200", "kind": "training"}
    vision = Tenant.objects.get(name="vision")
    UsageDay.objects.create(
        day=yesterday, tenant_id=vision.pk, tenant_name="vision", held=10**15, lost=0, pods=41372,
        **names,
    )  # fmt: skip
    Placement.objects.all().delete()
    text = client.get("/usage/?since=2d").content.decode()
    assert "41,372" in text
    assert "41372" not in text


def test_what_is_held_above_the_guarantee_is_borrowed(as_user):
    client = as_user("vera")
    one_pod(User.objects.get(username="erin"), gpus=130.5)
    rows = client.get("/usage/?since=2d").context["tenants"]
    assert [(row.name, row.borrowed_hours) for row in rows] == [
        ("research", "0"), ("nlp", "0"), ("speech", "0"), ("vision", "10.0"),
    ]  # fmt: skip
    text = client.get("/usage/?since=2d&tenant=vision").content.decode()
    assert "10.0 borrowed</span>" in text
    assert "written up to" not in text  # no day is written yet
    answer = client.get("/usage/tenants.csv?since=2d")
    assert answer["Content-Disposition"].startswith('attachment; filename="usage-by-tenant-20')
    found = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert {(row["tenant"], row["gpu_type"]) for row in found} == {("vision", "H200")}
    assert sum(float(row["borrowed_gpu_hours"]) for row in found) == pytest.approx(10.0)


def test_what_is_not_known_is_no_zero(as_user):
    client = as_user("operator")
    one_pod(User.objects.get(username="erin"))
    today = timezone.now().date()
    UsageLedger.objects.create(until=today, borrowed_from=today)
    text = client.get("/usage/?since=2d").content.decode()
    assert f"Borrowed GPU-hours are known from {today} on: earlier days were" in text
    assert f'href="?since={today}&amp;until={today}"' in text
    assert "Borrowed</th>" not in text
    assert f"written up to {today - timedelta(days=1)}" in text
    text = client.get("/usage/?since=1d").content.decode()
    assert "What was borrowed" not in text
    assert "Borrowed</th>" in text


def test_what_was_guaranteed_before_a_change_counts_until_then(as_user):
    client = as_user("operator")
    one_pod(User.objects.get(username="erin"))
    now = timezone.now()
    day = now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=4)
    quota = Quota.objects.get(tenant__name="vision", gpu_type__name="H200")
    Quota.objects.exclude(pk=quota.pk).delete()
    for after, before, at in ((10, None, 24), (40, 10, 30), (None, 40, 36), (128, None, 42)):
        change = AuditRecord.objects.create(
            actor_name="ops", subject="vision / H200", source="api",
            action="quota.changed" if after else "quota.deleted",
            before=before and {"guaranteed": before}, after=after and {"guaranteed": after},
        )  # fmt: skip
        AuditRecord.objects.filter(pk=change.pk).update(at=day + timedelta(hours=at))
    answer = client.get(f"/usage/?since={day:%Y-%m-%d}&until={day + timedelta(days=1):%Y-%m-%d}")
    assert answer.status_code == 200
    (row,) = answer.context["tenants"]
    hours = usage.gpu_hours(row.guaranteed["H200"])
    assert hours == 10 * 6 + 40 * 6 + 128 * 6


def test_who_may_see_nothing_is_told_why(as_user):
    client = as_user("vik")
    answer = client.get("/usage/?tenant=vision")
    assert "There is no tenant “vision” that you may see" in answer.content.decode()
    assert answer.context["tenants"] == []
    for path in ("chart.json", "usage.csv"):
        assert client.get(f"/usage/{path}?tenant=vision").status_code == 404
    User.objects.get(username="vik").memberships.all().delete()
    assert "You belong to no tenant yet" in client.get("/usage/").content.decode()
    client.logout()
    assert client.get("/usage/").status_code == 302


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("since=soon", "is not a date"),
        ("since=2030-01-01", "is in the future"),
        ("since=2026-01-05&until=2026-01-01", "is before"),
        ("window=24h", "There is no filter “window” here; the filters are since, until, tenant"),
    ],
)
def test_what_is_wrong_in_the_address_is_told(as_user, query, text):
    client = as_user("operator")
    answer = client.get(f"/usage/?{query}")
    assert answer.status_code == 200
    assert text in answer.content.decode()
    assert client.get(f"/usage/chart.json?{query}").status_code == 404


def test_the_chart_has_every_day_of_the_period_and_of_long_ones_the_months(as_user):
    client = as_user("vera")
    one_pod(User.objects.get(username="erin"))
    figure = client.get("/usage/chart.json?since=30d").json()
    (series,) = figure["data"]
    assert (series["name"], len(series["x"]), len(series["y"])) == ("H200", 30, 30)
    assert sum(series["y"]) == pytest.approx(32.0, abs=1e-5)
    assert figure["layout"]["meta"]["table"]["columns"] == ["Day", "H200"]
    assert "32.0 GPU-hours" in figure["layout"]["meta"]["summary"]
    months = client.get("/usage/chart.json?since=366d").json()["data"][0]["x"]
    assert len(months) in (12, 13)
    none = client.get("/usage/chart.json?since=30d&tenant=speech").json()
    assert none["layout"]["meta"]["summary"] == "No GPU was allocated in this period."
    etag = client.get("/usage/chart.json?since=2020-01-01&until=2020-02-01")["ETag"]
    again = client.get(
        "/usage/chart.json?since=2020-01-01&until=2020-02-01", headers={"If-None-Match": etag}
    )
    assert again.status_code == 304


def test_the_csv_file_has_each_tenant_for_itself(as_user):
    client = as_user("vera")
    one_pod(User.objects.get(username="erin"))
    answer = client.get("/usage/usage.csv?since=2d")
    assert answer["Content-Disposition"].startswith('attachment; filename="usage-20')
    (row,) = csv.DictReader(io.StringIO(answer.content.decode()))
    assert (row["tenant"], row["user"], row["gpu_type"]) == ("vision", "erin", "H200")
    assert float(row["gpu_hours"]) == pytest.approx(32.0, abs=1e-5)


@pytest.mark.parametrize("file", ["usage", "tenants"])
def test_a_file_of_too_many_rows_is_refused_on_the_page_and_read_no_further(
    now, as_user, monkeypatch, file
):
    client, today, days = as_user("operator"), now.date(), 200
    Placement.objects.all().delete()
    UsageLedger.objects.create(until=today)
    UsageDay.objects.bulk_create(
        UsageDay(
            day=today - timedelta(days=1 + number), cluster_id=NONE_OTHER, cluster_name="old",
            tenant_id=NONE_OTHER, tenant_name="robotics", user_id=NONE_OTHER + number,
            user_name=f"u-{number}", gpu_model="H200", kind="training",
            held=10**9, lost=0, pods=1,
        )
        for number in range(days)
    )  # fmt: skip
    most = 20
    monkeypatch.setattr(usage, "MOST_ROWS", most)
    read, amount = [], usage.Amount
    monkeypatch.setattr(usage, "Amount", lambda *a, **k: read.append(a) or amount(*a, **k))
    answer = client.get(f"/usage/{file}.csv?since={days + 1}d")
    assert (answer.status_code, answer["Location"]) == (302, f"/usage/?since={days + 1}d")
    assert "Content-Disposition" not in answer
    assert len(read) <= 2 * (most + 1)  # one for each row, one for its sum
    told = client.get(answer["Location"]).content.decode()
    assert "There are more than 20 rows, which is the limit. Ask for a" in told
    assert "There are more than 20 rows" not in client.get(answer["Location"]).content.decode()
    # A link of the page may lead to a page, so no browser is told to save it.
    (link,) = re.findall(rf'<a [^>]*href="/usage/{file}[.]csv[^>]*>', told)
    assert " download" not in link
    monkeypatch.setattr(usage, "MOST_ROWS", days + 100)
    text = client.get(f"/usage/{file}.csv?since=9d").content.decode()
    assert [row["tenant"] for row in csv.DictReader(io.StringIO(text))] == ["robotics"] * 8


def test_what_is_deleted_is_told_to_operators_alone(now, as_user):
    client = as_user("operator")
    today = now.date()
    UsageLedger.objects.create(until=today)
    Placement.objects.all().delete()
    UsageDay.objects.create(
        day=today - timedelta(days=1), cluster_id=NONE_OTHER, cluster_name="old",
        tenant_id=NONE_OTHER, tenant_name="robotics", gpu_model="H200", kind="training",
        held=9 * 10**9, lost=0, pods=1,
    )  # fmt: skip
    answer = client.get("/usage/?since=2d")
    assert table(answer, "tenants")["robotics"][0]["H200"] == "2.5"
    text = answer.content.decode()
    assert 'robotics <span class="chip">deleted</span>' in text
    assert "no user</span>" in text
    assert "robotics" not in as_user("vera").get("/usage/?since=2d").content.decode()


def test_since_when_it_is_known_is_told_where_it_matters(now, as_user):
    client = as_user("operator")
    today = now.date()
    UsageLedger.objects.create(until=today, complete_from=today - timedelta(days=3))
    said = f"GPU-hours are known from {today - timedelta(days=3)} on"
    assert said in client.get("/usage/?since=7d").content.decode()
    assert said not in client.get("/usage/?since=3d").content.decode()


def test_what_holds_gpus_today_is_read_once_for_all_tables(as_user, django_assert_max_num_queries):
    client = as_user("operator")
    with django_assert_max_num_queries(29):
        assert client.get("/usage/").context["used"]
    query(lambda: client.get("/usage/"), 'FROM "scheduling_placement"', '"held_milli" > 0')
