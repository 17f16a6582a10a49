"""What rows say of a past instant matches what samples, pages and REST said then."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from metrics.samples import past
from metrics.services import record_sample
from scheduling.engine.states import JobEventKind as Kind
from scheduling.models import Job, JobEvent, Retention
from tenants.models import GpuType, Quota, Tenant, User
from tests.metrics import rows
from tests.metrics.rows import at

pytestmark = pytest.mark.django_db


def happened(job, *events):
    """Create events of the job: (second, kind, resulting state, reason)."""
    for second, kind, state, reason in events:
        JobEvent.objects.create(job=job, at=at(second), kind=kind, to_state=state, reason=reason)


@pytest.fixture
def cluster():
    """Two nodes. "ran" held one from 20 to 60, was preempted and then waits. "waits" waits from 10
    on, first for its turn, from 30 on for quota. "over" was cancelled at 40 while it waited."""
    where = rows.cluster(2)
    GpuType.objects.get_or_create(name="H100")
    ran = rows.job(where, "ran", submitted=0, bound=20, ended=60, nodes=("n000",))
    Job.objects.filter(pk=ran.pk).update(state="PENDING", ended_at=None)
    happened(
        ran,
        (0, Kind.SUBMITTED, "PENDING", ""),
        (20, Kind.ADMITTED, "ADMITTED", ""),
        (60, Kind.PREEMPTED, "PENDING", "Preempted"),
    )
    waits = rows.job(where, "waits", submitted=10)
    happened(
        waits,
        (10, Kind.SUBMITTED, "PENDING", ""),
        (12, Kind.REASON, "PENDING", "BehindInQueue"),
        (30, Kind.QUOTA_LOST, "PENDING", "WaitingForQuota"),
    )
    over = rows.job(where, "over", submitted=15, ended=40)
    happened(over, (15, Kind.SUBMITTED, "PENDING", ""), (40, Kind.CANCELLED, "CANCELLED", ""))
    return where


def told(cluster, second):
    return {job.name: job.told for job in past.waiting_then(cluster, at(second))}


def test_who_waited_and_why_is_told_as_it_was(cluster):
    assert told(cluster, 5) == {"ran": None}
    assert told(cluster, 16) == {"ran": None, "waits": "BehindInQueue", "over": None}
    assert told(cluster, 35) == {"waits": "WaitingForQuota", "over": None}
    assert told(cluster, 70) == {"ran": "Preempted", "waits": "WaitingForQuota"}
    assert past.waiting_then(cluster, at(35), "A100").count() == 0
    states = past.jobs_by_state_then(cluster, at(0), at(50))
    assert {state: count for state, count in states.items() if count} == {
        "ADMITTED": 1, "PENDING": 1, "CANCELLED": 1,
    }  # fmt: skip


def test_figures_of_then_are_those_that_were_sampled_then(cluster, client):
    client.force_login(User.objects.create_user("ops", is_operator=True))
    for second in (5, 25, 50, 70):
        (sample, *_) = record_sample(cluster, at(second))
        answer = client.get("/api/v1/metrics", {"at": at(second).isoformat(), "window": "1h"})
        body = answer.json()
        assert answer.status_code == 200, body
        assert body["allocated_gpus"] == sample.allocated_milli / 1000
        assert body["fragmented_nodes"] == sample.fragmented_nodes
        assert body["nodes"] == sample.nodes
        queue = past.queue_then(cluster, at(second))
        assert body["pending_jobs"] == queue.by_model[""].jobs


def test_nodes_and_queue_of_then_by_rest(cluster, client):
    client.force_login(User.objects.create_user("ops", is_operator=True))
    body = client.get("/api/v1/clusters/c1/past", {"at": at(35).isoformat()}).json()
    held = {node["name"]: node["allocated"] for node in body["nodes"]}
    assert held == {"n000": 8, "n001": 0}
    assert [(job["name"], job["reason"]) for job in body["waiting"]] == [
        ("waits", "WaitingForQuota"), ("over", ""),
    ]  # fmt: skip
    assert body["waiting_jobs"] == 2
    assert body["kept_from"].startswith(at(0).isoformat()[:16])


def test_an_instant_that_nothing_is_kept_of_is_refused_with_what_is(cluster, client):
    client.force_login(User.objects.create_user("ops", is_operator=True))
    for when, said in (
        (at(-100).isoformat(), "What is kept begins at"),
        ((timezone.now() + timedelta(hours=1)).isoformat(), "is not over yet"),
        ("soon", "Must be a time"),
    ):
        for path in ("/api/v1/metrics", f"/api/v1/clusters/{cluster.name}/past"):
            answer = client.get(path, {"at": when})
            assert answer.status_code == 400
            assert said in answer.json()["detail"]
        page = client.get("/ops/", {"at": when})
        assert page.status_code == 404
    Retention.objects.create(complete_from=at(30))
    assert past.kept_from(cluster) == at(30)
    missing = client.get(f"/api/v1/clusters/{cluster.name}/past")
    assert "Give a time, e.g." in missing.json()["detail"]


def test_the_page_of_then_shows_then_and_leads_back(cluster, client):
    client.force_login(User.objects.create_user("ops", is_operator=True))
    query = {"at": at(35).isoformat()}
    page = client.get("/ops/", query).content.decode()
    assert "As it was at 20" in page
    assert "Back to now" in page
    assert "Waiting for quota" in page
    assert "data-poll" not in page.split('id="ops-live"')[1]
    assert client.get("/ops/charts/gang-curve.json", query).status_code == 200
    stranded = client.get("/ops/charts/stranded.json", query).json()
    assert stranded["layout"]["meta"]["summary"].startswith("8 GPUs are free")
    tenant = Tenant.objects.create(name="guaranteed")
    Quota.objects.create(tenant=tenant, gpu_type=GpuType.objects.get(), guaranteed_milli=8000)
    of_quotas = "Quota: used, lent, borrowed"  # no history of these
    assert of_quotas not in page
    now = client.get("/ops/").content.decode()
    assert of_quotas in now
    assert "As it was at 20" not in now


def test_statements_do_not_grow_with_the_jobs(cluster, client):
    client.force_login(User.objects.create_user("ops", is_operator=True))

    def statements():
        with CaptureQueriesContext(connection) as captured:
            assert client.get("/ops/", {"at": at(35).isoformat()}).status_code == 200
        return len(captured)

    before = statements()
    for number in range(8):
        happened(rows.job(cluster, f"w{number}", submitted=11), (11, Kind.SUBMITTED, "PENDING", ""))
        rows.job(cluster, f"r{number}", submitted=0, bound=20, ended=60, nodes=("n001",), gpus=1)
    assert statements() == before
