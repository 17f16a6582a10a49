"""GET /api/v1/jobs: visibility by role, filters, and pages that neither repeat nor lose a row."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from scheduling.engine.states import REASON_LENGTH
from scheduling.models import Job, PodSet
from scheduling.pages.jobs.filters import NEWEST
from scheduling.queries.selectors import visible_jobs
from tenants.database.keyset import cursor_of
from tests.plans import plan, query

URL = "/api/v1/jobs"
START = datetime(2030, 1, 1, tzinfo=UTC)


def job(org, tenant="vision", user="eve", i=0, model="H100", **fields):
    made = Job.objects.create(
        tenant=org.tenants[tenant],
        cluster=org.cluster,
        user=org.users[user],
        **{
            "name": f"job-{i}",
            "gpu_milli": 1000 * i,
            "submitted_at": START + timedelta(seconds=i),
            **fields,
        },
    )
    PodSet.objects.create(job=made, index=0, name="worker", count=1, gpus=i, gpu_models=[model])
    return made


def found(client, query=""):
    answer = client.get(f"{URL}?{query}")
    assert answer.status_code == 200, answer.json()
    return [j["name"] for j in answer.json()["items"]]


def test_only_jobs_of_ones_tenants(org):
    for i, tenant in enumerate(("ml", "vision", "vision-lab", "law")):
        job(org, tenant=tenant, i=i)
    assert found(org.client("eve")) == ["job-2", "job-1"]
    assert found(org.client("lex")) == ["job-3"]
    assert len(found(org.client("ops"))) == 4
    foreign = Job.objects.get(name="job-3")
    for part in ("", "/events", "/pods", "/explain"):
        assert org.client("eve").get(f"{URL}/{foreign.pk}{part}").status_code == 404


def test_a_tenant_that_may_not_be_seen_is_refused_as_one_that_does_not_exist(org):
    for i, tenant in enumerate(("vision", "law")):
        job(org, tenant=tenant, i=i)
    eve = org.client("eve")
    said = {}
    for name in ("nobody", "law", "ml"):  # of another tenant, and of the one above her own
        answer = eve.get(f"{URL}?tenant={name}")
        (error,) = answer.json()["errors"]
        assert (answer.status_code, error["parameter"]) == (400, "tenant")
        assert f"There is no tenant “{name}” that you may see." in error["detail"]
        body = {k: v for k, v in answer.json().items() if k != "request_id"}
        said[name] = str(body).replace(name, "NAME")
    assert len(set(said.values())) == 1, said
    assert found(eve, "tenant=vision") == ["job-0"]
    assert found(org.client("ops"), "tenant=ml") == ["job-0"]


def test_filters(org):
    first = job(org, i=1, state="RUNNING", model="A100")
    job(org, i=2, user="joe", reason="WaitingForQuota")
    long = "A" * REASON_LENGTH  # a kubelet's own pod
    job(org, i=3, tenant="vision-lab", kind="inference", name="serve", reason=long)
    ops = org.client("ops")
    assert found(ops, "tenant=vision") == ["serve", "job-2", "job-1"]
    assert found(ops, "tenant=vision-lab") == ["serve"]
    assert (found(ops, "name=job-2"), found(ops, "name=job")) == (["job-2"], [])
    assert found(ops, "user=joe") == ["job-2"]
    assert found(org.client("joe"), "user=me") == ["job-2"]
    assert found(ops, "state=RUNNING&state=FAILED") == ["job-1"]
    assert found(ops, "gpu_type=A100") == ["job-1"]
    assert found(ops, "gpu_type=T4") == []
    assert found(ops, "kind=inference") == ["serve"]
    assert found(ops, "reason=WaitingForQuota") == ["job-2"]
    assert found(ops, f"reason={long}") == ["serve"]
    assert found(ops, "min_gpus=1.5") == ["serve", "job-2"]
    assert found(ops, "max_gpus=2") == ["job-2", "job-1"]
    assert found(ops, "min_gpus=2&max_gpus=2") == ["job-2"]
    assert found(ops, "submitted_after=2030-01-01T00:00:02Z") == ["serve"]
    assert found(ops, "submitted_before=2030-01-01T01:00:02%2B01:00") == ["job-1"]
    assert found(ops, "q=serv") == ["serve"]
    assert found(ops, f"q={first.pk}") == ["job-1"]
    assert found(ops, f"q={str(first.pk)[:8]}") == ["job-1"]
    assert found(ops, "cluster=demo&state=PENDING") == ["serve", "job-2"]


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_pages_show_every_row_once_also_when_rows_come_and_go(org, limit):
    for i in range(7):
        # The times are equal: only the id orders them.
        job(org, i=i, submitted_at=START + timedelta(microseconds=i // 3))
    ops, seen, at = org.client("ops"), [], f"{URL}?limit={limit}"
    while at:
        page = ops.get(at).json()
        seen += [j["id"] for j in page["items"]]
        at = page["next"]
        job(org, i=50 + len(seen), submitted_at=START + timedelta(days=1))
    old = Job.objects.filter(submitted_at__lt=START + timedelta(days=1)).order_by(
        "-submitted_at", "-id"
    )
    assert seen == [str(j.pk) for j in old]


def test_a_page_costs_the_same_for_one_job_and_for_many(org, django_assert_num_queries):
    client = org.client("ops")
    client.get(URL)  # the last use of a token is written once a minute
    job(org, i=0)
    with django_assert_num_queries(3):
        client.get(URL)
    for i in range(1, 20):
        job(org, i=i)
    with django_assert_num_queries(3):
        assert len(client.get(URL).json()["items"]) == 20


def test_a_later_page_begins_at_its_row_in_the_index(org, client):
    """A page starts at its row in the index; starting at the newest job would read past all rows
    before."""
    for i in range(1, 5):
        job(org, i=i)
    ops = org.client("ops")
    following = ops.get(f"{URL}?limit=1").json()["next"]
    older = cursor_of(Job.objects.get(name="job-3"), NEWEST)
    client.force_login(org.users["ops"])
    for get in (lambda: ops.get(following), lambda: client.get("/jobs/", {"after": older})):
        sql = query(get, "SELECT", 'FROM "scheduling_job"', "ORDER BY")
        assert re.search(r"\(submitted_at\s*<", plan(sql)), plan(sql)


def test_the_first_page_of_a_tenant_is_read_from_its_index_in_order(org):
    job(org, tenant="law", i=1)
    # Without small tables: an empty PostgreSQL joins those in any order.
    rows = visible_jobs(org.users["lex"]).select_related(None).prefetch_related(None)
    found = plan(query(lambda: list(rows.order_by(*NEWEST)[:51]), "ORDER BY"))
    assert "scheduling__tenant__b281dd_idx" in found, found
    assert not re.search("TEMP B-TREE|Sort", found), found


def test_gpu_types_are_looked_up_job_by_job_until_a_page_is_full(org):
    job(org, i=1)
    ops = org.client("ops")
    sql = query(lambda: ops.get(f"{URL}?gpu_type=H100"), 'FROM "scheduling_job"', "ORDER BY")
    assert re.search(r"SubPlan|CORRELATED SCALAR SUBQUERY", plan(sql)), plan(sql)
