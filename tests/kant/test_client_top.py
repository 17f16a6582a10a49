"""`kant top` and GET /api/v1/holders show who holds GPUs and who waits for more; a real Kant
server."""

import csv
import io
import json
import time

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from scheduling.models import Job, NodeRecord, PodSet
from tests.scheduling.test_rehearsal import runs


def waits(org, name, tenant, user, models, gpus, count=1):
    job = Job.objects.create(
        name=name, tenant=org.tenants[tenant], cluster=org.cluster, user=org.users[user],
        submitted_at=timezone.now(), gpu_milli=1000 * gpus * count,
    )  # fmt: skip
    PodSet.objects.create(job=job, index=0, name="w", count=count, gpus=gpus, gpu_models=models)
    return job


@pytest.fixture
def busy(kant):
    """law holds 12 H100 on two nodes, vision 2; vision waits for 16 H100 and 1 GPU of any type."""
    org = kant.org
    runs(org, ["h000"], user=org.users["lex"])
    runs(org, ["h001"], gpus=4, user=org.users["lex"])
    runs(org, ["h002"], gpus=2, tenant="vision", user=org.users["eve"])
    waits(org, "big", "vision", "joe", ["H100", "A100"], 8, 2)
    waits(org, "any", "vision", "eve", [], 1)
    for name, milli in (("h000", 8000), ("h001", 4000), ("h002", 2000)):
        NodeRecord.objects.filter(name=name).update(allocated_milli=milli, free_gpus=0)
    return kant


def rows(out):
    return [line.split() for line in out.splitlines()]


def test_tenants_users_jobs_and_nodes_by_what_is_held(busy):
    code, out, told = busy.sign_in("ops")("top")
    assert (code, told) == (0, "")
    assert rows(out) == [
        ["A100:", "0", "of", "8", "GPUs", "held"],
        ["H100:", "14", "of", "32", "GPUs", "held"],
        ["TENANT", "TYPE", "HELD", "ASKED", "SHARE"],
        ["law", "H100", "12", "0", "37.5%"],
        ["vision", "H100", "2", "16", "6.2%"],
        ["vision", "any", "0", "1", "-"],
    ]
    out = busy("top", "users", "-G", "H100", "--sort", "asked", "-c", "demo")[1]
    assert [line[:5] for line in rows(out)[2:]] == [
        ["vision", "joe", "H100", "0", "16"],
        ["law", "lex", "H100", "12", "0"],
        ["vision", "eve", "H100", "2", "0"],
    ]
    code, out, told = busy("top", "jobs", "-t", "law", "--limit", "1")
    assert (rows(out)[-1][1:], told) == (
        ["runs-h000", "law", "lex", "H100", "8", "0", "25.0%"], "The first 1 of 2.\n",
    )  # fmt: skip
    found = busy("top", "nodes", "--sort", "free", "-G", "H100")[1]
    assert [line[:6] for line in rows(found)] == [
        ["NODE", "TYPE", "GPUS", "HELD", "FREE", "SHARE"],
        ["h003", "H100", "8", "0", "8", "0.0%"],
        ["h002", "H100", "8", "2", "6", "25.0%"],
        ["h001", "H100", "8", "4", "4", "50.0%"],
        ["h000", "H100", "8", "8", "0", "100.0%"],
    ]


def test_programs_get_json_or_csv_of_what_one_may_see(busy):
    assert {line[0] for line in rows(busy("top")[1])[3:]} == {"vision"}  # the part that eve may see
    code, out, told = busy("top", "-t", "law")
    assert (code, out) == (2, "")
    assert "tenant: There is no tenant “law” that you may see" in told
    found = json.loads(busy("top", "jobs", "-o", "json")[1])
    assert {(row["name"], row["held"], row["asked"]) for row in found} == {
        ("runs-h002", 2, 0), ("big", 0, 16), ("any", 0, 1),
    }  # fmt: skip
    Job.objects.filter(name="big").update(name="=big")  # a name that a plain pod might have
    lines = list(csv.DictReader(io.StringIO(busy("top", "jobs", "-o", "csv")[1])))
    assert {row["name"] for row in lines} == {"runs-h002", "'=big", "any"}
    assert busy("top", "nodes", "-o", "csv")[1].startswith("node,gpu_type,gpus,held,free,share")


def test_it_looks_again_until_it_is_ended(busy, monkeypatch):
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    code, out, _ = busy("top", "--watch", "5s")
    assert (code, slept, out.count("TENANT")) == (130, [5, 5], 2)


def test_what_is_wrong_is_told(kant):
    for words, text in (
        (("nodes", "--sort", "asked"), "nodes are sorted by held, free, share, name."),
        (("jobs", "--sort", "free"), "jobs are sorted by held, asked, share, name."),
        (("nodes", "-t", "vision"), "Nodes belong to no tenant."),
        (("--limit", "0"), "--limit must be from 1 to 500."),
        (("--watch", "0"), "--watch must be at least 1s."),
        (("queues",), "invalid choice: 'queues'"),
        (("-G", "H1OO"), "gpu_type: There is no GPU type “H1OO”"),
        (("-c", "moon"), "cluster: There is no cluster “moon”"),
    ):
        code, out, told = kant("top", *words)
        assert (code, out, text in told) == (2, "", True), told


def test_rest_says_what_is_wrong_and_reads_no_more_for_more_jobs(busy):
    client = busy.org.client("ops")
    for query, text in (
        ("by=team", "'team' is none of tenant, user, job."),
        ("sort=size", "'size' is none of held, asked, share, name."),
        ("limit=501", "Must be a whole number from 1 to 500."),
        ("since=1d", "Unknown parameter."),
    ):
        answer = client.get(f"/api/v1/holders?{query}")
        assert (answer.status_code, text in answer.json()["detail"]) == (400, True), answer.json()

    def statements():
        with CaptureQueriesContext(connection) as done:
            assert client.get("/api/v1/holders?by=job").status_code == 200
        return len(done)

    waits(busy.org, "huge", "law", "lex", ["H100"], 8, 1_000_000)
    assert client.get("/api/v1/holders?sort=asked").json()["items"][0]["asked"] == 8_000_000
    statements()  # the first use of a token writes to the database
    before = statements()
    for at in range(20):
        waits(busy.org, f"more-{at}", "law", "lex", ["H100"], 1)
    assert statements() == before
