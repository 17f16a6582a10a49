"""`kant usage` against a real Kant server."""

import csv
import io
import json
from datetime import timedelta

import pytest

from metrics.models import UsageDay, UsageLedger
from tenants.models import Quota, Tenant, User
from tests.metrics.test_api_usage import ran


@pytest.fixture
def root(kant):
    """Tenant admin of ml, with vision and vision-lab below it."""
    for tenant, model, gpus in (("ml", "H100", 16), ("vision", "H100", 2), ("ml", "A100", 1)):
        Quota.objects.create(
            tenant=kant.org.tenants[tenant],
            gpu_type=kant.org.gpu_types[model],
            guaranteed_milli=1000 * gpus,
        )
    ran(kant.org, "vision", "eve")
    ran(kant.org, "vision-lab", None, gpus=0.5, model="A100")
    ran(kant.org, "law", "lex")
    return kant.sign_in("root")


def test_hours_of_what_one_may_see_with_their_sum(now, root):
    code, out, told = root("usage", "--since", "30d")
    today = now.date()
    assert (code, [line.split() for line in out.splitlines()]) == (
        0,
        [
            ["TENANT", "TYPE", "GPU-HOURS", "LOST", "PODS", "BORROWED"],
            ["vision", "H100", "16.00", "0.00", "1", "12.00"],
            ["vision-lab", "A100", "1.00", "0.00", "1", "0.00"],
        ],
    )
    since = today - timedelta(days=29)
    assert told == f"17.00 GPU-hours from {since} to {today} (days in UTC).\n"
    out = root("usage", "--since", "30d", "--by", "user", "-t", "vision-lab")[1]
    assert out.splitlines()[1].split() == ["(no", "user)", "1.00", "0.00", "1"]
    assert "H100" not in root("usage", "--since", "30d", "-G", "A100", "-c", "demo")[1]


def test_programs_get_json_or_csv(root):
    code, out, told = root("usage", "--since", "30d", "--by", "user,kind", "-o", "json")
    body = json.loads(out)
    assert (code, told, body["by"]) == (0, "", ["user", "kind"])
    assert body["total"]["gpu_hours"] == 17
    code, out, told = root("usage", "--since", "30d", "--by", "user,kind", "-o", "csv")
    assert (code, told) == (0, "")
    assert list(csv.DictReader(io.StringIO(out))) == [
        {name: "" if value is None else str(value) for name, value in item.items()}
        for item in body["items"]
    ]


def test_a_csv_has_no_formulas(kant, root):
    User.objects.filter(username="eve").update(username="@SUM(1+1)")
    code, out, _ = root("usage", "--since", "30d", "--by", "user", "-o", "csv")
    assert code == 0
    assert "'@SUM(1+1)" in [row["user"] for row in csv.DictReader(io.StringIO(out))]


def test_what_is_wrong_is_told(root):
    for words, text in (
        (("--since", "soon"), "since: 'soon' is not a date"),
        (("--until", "7d"), "until: '7d' is not a date"),
        (("--by", "team"), "by: 'team' is none of tenant, user"),
        (("--tenant", "law"), "tenant: There is no tenant “law” that you may see"),
    ):
        for form in ("table", "csv"):
            code, out, told = root("usage", *words, "-o", form)
            assert (code, out) == (2, ""), told
            assert text in told


def test_nothing_and_what_is_not_known_is_said(now, root):
    code, out, told = root("usage", "--since", "2024-01-01", "--until", "2024-01-31")
    assert (code, out) == (0, "")
    assert told == "No GPU was allocated from 2024-01-01 to 2024-01-31 (days in UTC).\n"
    today = now.date()
    UsageLedger.objects.create(until=today, complete_from=today - timedelta(days=5))
    told = root("usage", "--since", "30d")[2]
    assert "borrowed" not in told
    assert f"Kant has no data for days before {today - timedelta(days=5)}." in told


def test_what_was_borrowed_is_not_known_of_earlier_days(now, root):
    known = now.date() - timedelta(days=5)
    UsageLedger.objects.create(until=known, borrowed_from=known)
    code, out, told = root("usage", "--since", "30d")
    assert (code, "BORROWED" in out) == (0, False)
    assert f"Borrowed GPU-hours are known from {known} on." in told
    # A day recorded without it, and the days since.
    vision = Tenant.objects.get(name="vision").pk
    UsageDay.objects.create(
        day=known - timedelta(days=1), cluster_id=1, tenant_id=vision, gpu_model="H100",
        kind="training", held=36 * 10**8, lost=0, pods=1,
    )  # fmt: skip
    lines = root("usage", "--since", "30d", "--by", "day,tenant", "-t", "vision")[1].splitlines()
    assert lines[1].split() == [
        str(known - timedelta(days=1)), "vision", "1.00", "0.00", "1", "not", "known",
    ]  # fmt: skip
    assert sum(float(line.split()[-1]) for line in lines[2:] if " vision " in line) == 12.0
    told = root("usage", "--since", str(known))[2]
    assert "borrowed" not in told
