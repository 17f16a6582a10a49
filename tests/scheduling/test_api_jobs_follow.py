"""Following a job over REST: cancel, events, pods, explain."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from scheduling.models import ClusterPolicy, Job, JobEvent, Placement, SchedulerLease
from scheduling.services.jobs.submit import cancel_job
from tenants.models import Tenant

URL = "/api/v1/jobs"


def submit(client, **fields):
    document = {"name": "one", "tenant": "vision", "gpu_type": "H100", "gpus": 1, **fields}
    answer = client.post(URL, document, format="json")
    assert answer.status_code == 201, answer.json()
    return answer.json()["id"]


@pytest.fixture
def eve(org):
    return org.client("eve")


@pytest.mark.parametrize("state", ["PENDING", "QUOTA_RESERVED", "ADMITTED", "RUNNING"])
def test_cancel_ends_a_job_in_any_state(
    eve, org, state, monkeypatch, django_capture_on_commit_callbacks
):
    rings = []
    monkeypatch.setattr("scheduling.services.common.doorbell.ring", rings.append)
    job_id = submit(eve)
    Job.objects.update(state=state)
    with django_capture_on_commit_callbacks(execute=True):
        answer = eve.post(f"{URL}/{job_id}/cancel")
    assert answer.status_code == 200
    assert answer.json()["state"] == "CANCELLED"
    assert answer.json()["ended_at"]
    assert rings == [org.cluster.pk]
    last = JobEvent.objects.filter(job=job_id).last()
    assert (last.kind, last.from_state, last.actor) == ("CANCELLED", state, "eve")
    again = eve.post(f"{URL}/{job_id}/cancel")
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    assert "already cancelled" in again.json()["detail"]


def test_who_may_cancel(org, eve):
    job_id = submit(eve)
    for who, status in (("joe", 403), ("vic", 403), ("lex", 404)):
        assert org.client(who).post(f"{URL}/{job_id}/cancel").status_code == status
    rehearsal = org.client("ada").post(f"{URL}/{job_id}/cancel?dry_run=true")
    assert rehearsal.json()["result"]["state"] == "CANCELLED"
    assert Job.objects.get().state == "PENDING"
    assert org.client("ada").post(f"{URL}/{job_id}/cancel").status_code == 200
    assert eve.post(f"{URL}/{uuid.uuid4()}/cancel").status_code == 404


def test_a_cancel_meets_a_scheduler_that_was_faster(org, eve, meet_a_scheduler):
    submit(eve)
    job = Job.objects.get()
    meet_a_scheduler("ADMITTED")
    assert cancel_job(org.users["eve"], job).state == "CANCELLED"
    assert JobEvent.objects.last().from_state == "ADMITTED"
    assert Job.objects.get().version == 3


def test_events_and_pods(eve):
    job_id = submit(eve)
    eve.post(f"{URL}/{job_id}/cancel")
    page = eve.get(f"{URL}/{job_id}/events?limit=1").json()
    assert [e["kind"] for e in page["items"]] == ["SUBMITTED"]
    assert [e["kind"] for e in eve.get(page["next"]).json()["items"]] == ["CANCELLED"]
    for ordinal, state in enumerate(("RELEASED", "RUNNING")):
        Placement.objects.create(
            job_id=job_id,
            attempt=1,
            pod_set=0,
            ordinal=ordinal,
            namespace="vision-jobs",
            pod_name=f"one-{ordinal}",
            node="h000",
            gpu_model="H100",
            devices=[ordinal],
            state=state,
            intended_at=timezone.now(),
        )
    pods = eve.get(f"{URL}/{job_id}/pods").json()["items"]
    assert [(p["gpu_type"], p["devices"]) for p in pods] == [("H100", [0]), ("H100", [1])]
    assert {p["namespace"] for p in pods} == {"vision-jobs"}
    running = eve.get(f"{URL}/{job_id}/pods?state=RUNNING&attempt=1&node=h000").json()["items"]
    assert [p["ordinal"] for p in running] == [1]
    for attempt in ("1.5", "1_0", "one", "-1", "9" * 30):
        refused = eve.get(f"{URL}/{job_id}/pods?attempt={attempt}")
        assert refused.json()["errors"][0]["parameter"] == "attempt"


def test_explain_gives_the_reason_its_gate_and_who_is_before(org, eve):
    early = submit(eve, name="early")
    law = submit(org.client("lex"), name="secret", tenant="law", priority=5, gpus=4)
    mine = submit(eve, name="mine")
    now = timezone.now()
    for i, job_id in enumerate((early, law, mine)):
        Job.objects.filter(id=job_id).update(submitted_at=now + timedelta(seconds=i))
    Job.objects.filter(id=mine).update(
        state="QUOTA_RESERVED",
        reason="FragmentedCapacity",
        message="Needs 8 free GPUs on one node; the best node has 6.",
        evidence={"asked": 8, "best": 6, "remedies": ["Ask for 6 GPUs per pod."]},
    )
    said = eve.get(f"{URL}/{mine}/explain").json()
    assert (said["reason"], said["will_never_run"]) == ("FragmentedCapacity", False)
    assert said["evidence"] == {"asked": 8, "best": 6}
    assert said["remedies"] == ["Ask for 6 GPUs per pod."]
    assert [g["ok"] for g in said["gates"]] == [True, True, True, True, False]
    assert said["position"] == 3
    assert said["ahead"] == [
        {"job": None, "name": None, "tenant": None, "gpus": 4},
        {"job": early, "name": "early", "tenant": "vision", "gpus": 1},
    ]
    Job.objects.filter(id=mine).update(reason="ExceedsMaxQuota", state="PENDING")
    said = eve.get(f"{URL}/{mine}/explain").json()
    assert said["will_never_run"] is True
    assert [g["ok"] for g in said["gates"]] == [True, False, None, None, None]
    Job.objects.filter(id=mine).update(state="RUNNING", admitted_at=now, reason="")
    said = eve.get(f"{URL}/{mine}/explain").json()
    assert said["position"] is None
    assert all(g["ok"] for g in said["gates"])


def explained(client, job_id):
    return client.get(f"{URL}/{job_id}/explain").json()


def ahead(client, job_id):
    return [each["name"] for each in explained(client, job_id)["ahead"]]


def test_the_order_is_that_of_the_scheduler(org, eve):
    """Priority, then the shares of tenant and user where these count, then jobs that a fault
    stopped, then time."""
    tenants = {"vision": eve, "law": org.client("lex"), "vision-lab": eve}
    ids = {}
    for i, (name, tenant) in enumerate(
        [("v1", "vision"), ("v2", "vision"), ("lab", "vision-lab"), ("law", "law")]
    ):
        ids[name] = submit(tenants[tenant], name=name, tenant=tenant)
        at = timezone.now() + timedelta(seconds=i)
        Job.objects.filter(id=ids[name]).update(submitted_at=at)
    operator = org.client("ops")
    assert ahead(operator, ids["law"]) == ["v1", "v2", "lab"]
    Tenant.objects.update(parent=None)
    lease = SchedulerLease.objects.create(cluster=org.cluster, shares={"vision": 0.5, "law": 0.25})
    assert ahead(operator, ids["law"]) == ["lab"]
    assert ahead(operator, ids["lab"]) == []
    assert ahead(operator, ids["v2"]) == ["lab", "law", "v1"]
    Job.objects.filter(id=ids["v2"]).update(front=True)
    assert ahead(operator, ids["v2"]) == ["lab", "law"]
    assert explained(operator, ids["v2"])["position"] == 3
    assert ahead(operator, ids["v1"]) == ["lab", "law", "v2"]
    Job.objects.filter(id=ids["v1"]).update(priority=1)
    assert explained(operator, ids["v1"])["position"] == 1
    Job.objects.filter(id=ids["v1"]).update(priority=0)
    Job.objects.filter(id=ids["v2"]).update(front=False)
    joe = submit(org.client("joe"), name="joe", tenant="vision")
    Job.objects.filter(id=joe).update(submitted_at=timezone.now() + timedelta(seconds=60))
    eves = str(org.users["eve"].pk)
    lease.user_shares = {"vision": {eves: 0.5, str(org.users["joe"].pk): 0.25}, "law": {eves: 1.0}}
    lease.save()
    assert ahead(operator, ids["v2"]) == ["lab", "law", "joe", "v1"]
    assert ahead(operator, joe) == ["lab", "law"]
    assert ahead(operator, ids["law"]) == ["lab"]
    Job.objects.filter(id=ids["v1"]).update(user=None)  # nobody knows its owner
    assert ahead(operator, joe) == ["lab", "law", "v1"]
    lease.user_shares["vision"][""] = 0.375
    lease.save()
    assert ahead(operator, joe) == ["lab", "law"]
    assert ahead(operator, ids["v2"]) == ["lab", "law", "joe", "v1"]
    # A department is compared with its siblings first; its own jobs count among its members.
    Tenant.objects.filter(name="vision-lab").update(parent=Tenant.objects.get(name="vision"))
    lease.user_shares, lease.shares = {}, {"vision": 0.25, "vision-lab": 0.5, "law": 0.5}
    lease.save()
    assert ahead(operator, ids["law"]) == ["v1", "v2", "joe", "lab"]
    lease.shares |= {"vision/": 0.75}
    lease.save()
    assert ahead(operator, ids["law"]) == ["lab", "v1", "v2", "joe"]
    lease.shares |= {"vision": 0.75}
    lease.save()
    assert ahead(operator, ids["v2"]) == ["law", "lab", "v1"]
    # The job whose turn it is comes first within its priority.
    Job.objects.filter(id=ids["v2"]).update(evidence={"kept_nodes": 1})
    assert explained(operator, ids["v2"])["position"] == 1
    assert ahead(operator, ids["lab"]) == ["v2", "law"]
    Job.objects.filter(id=ids["v2"]).update(evidence={})
    lease.delete()
    Job.objects.filter(id=joe).delete()
    assert ahead(operator, ids["law"]) == ["v1", "v2", "lab"]
    # Jobs that are held, back off, depend on others or will never run block nobody.
    Job.objects.filter(id=ids["v1"]).update(reason="BackingOff")
    Job.objects.filter(id=ids["v2"]).update(reason="OnHold")
    Job.objects.filter(id=ids["lab"]).update(reason="ExceedsMaxQuota")
    assert explained(operator, ids["law"])["position"] == 1
    assert {explained(operator, ids[name])["position"] for name in ("v1", "v2", "lab")} == {None}


@pytest.mark.parametrize(
    ("row", "at", "basis", "words"),
    [
        ({"reason": "InsufficientGpus"}, None, "unknown", "makes no forecast"),
        ({"reason": "ExceedsCapacity"}, None, "never", "will not start"),
        ({"reason": "WaitingForQuota"}, None, "unknown", "waits for quota"),
        ({"reason": "BorrowLimitReached"}, None, "unknown", "waits for quota"),
        ({"reason": "OnHold", "held": True}, None, "held", "until it is released."),
        ({"reason": "OnHold", "held": True, "after": ["x"]}, None, "held", "what it waits for"),
        ({"reason": "OnHold"}, None, "held", "When the jobs before it have ended."),
        (
            {"reason": "OnHold", "evidence": {"jobs": 1, "in_the_way": "x"}},
            None,
            "held",
            "have ended; a job that it waits for has to be released or changed first.",
        ),
        ({"reason": "WaitingForVolume"}, None, "held", "volumes can be mounted"),
        ({"reason": "WaitingForPreemption"}, None, "promised", "places are reserved"),
        (
            {"reason": "BackingOff", "evidence": {"not_before": 1893456000.5}},
            "2030-01-01T00:00:00.500000Z",
            "earliest",
            "Kant does not try it earlier",
        ),
        (
            {"reason": "ReservedForHead", "evidence": {"starts_at": 1893456000}},
            "2030-01-01T00:00:00Z",
            "earliest",
            "job ahead",
        ),
        ({"reason": "ReservedForHead", "evidence": {"ahead": "x"}}, None, "unknown", "forecast"),
        (
            {"reserved_start": datetime(2030, 1, 1, tzinfo=UTC), "reserved_nodes": ["a", "b"]},
            "2030-01-01T00:00:00Z",
            "reservation",
            "on 2 nodes",
        ),
    ],
)
def test_what_is_known_of_the_start_and_no_more(eve, row, at, basis, words):
    job_id = submit(eve)
    Job.objects.filter(id=job_id).update(**row)
    start = explained(eve, job_id)["start"]
    assert (start["at"], start["basis"]) == (at, basis)
    assert words in start["text"]
    Job.objects.filter(id=job_id).update(state="RUNNING")
    assert explained(eve, job_id)["start"] is None


def test_under_backfill_it_says_which_jobs_get_a_forecast(org, eve):
    ClusterPolicy.objects.update_or_create(
        cluster=org.cluster, defaults={"document": {"queueing": "backfill"}}
    )
    said = explained(eve, submit(eve))["start"]
    assert (said["basis"], said["at"]) == ("unknown", None)
    assert "first blocked job" in said["text"]


def test_who_waits_for_a_job_that_will_never_run_reads_so(eve):
    first, second = submit(eve), submit(eve)
    job_id = submit(eve, after=[first], after_ok=[second])
    Job.objects.filter(id=job_id).update(reason="OnHold")
    Job.objects.filter(id=first).update(reason="InsufficientGpus")
    assert explained(eve, job_id)["start"]["text"] == "When the jobs before it have ended."
    Job.objects.filter(id=first).update(reason="ExceedsMaxQuota")
    said = explained(eve, job_id)["start"]["text"]
    assert "one of them can never run and has to be changed or cancelled." in said
    Job.objects.filter(id=second).update(reason="Misconfigured")
    assert "2 of them can never run" in explained(eve, job_id)["start"]["text"]
    Job.objects.filter(id__in=[first, second]).update(state="CANCELLED")
    assert explained(eve, job_id)["start"]["text"] == "When the jobs before it have ended."
