"""A dry run predicts from the rows: quota, start, reason, alternatives."""

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from scheduling.engine.deltas import QueuesChanged
from scheduling.engine.types import Policy, PreemptionKind, QueueSpec
from scheduling.models import Cluster, ClusterPolicy, Job, JobEvent, NodeRecord, Placement, PodSet
from scheduling.models.jobs import PlacementState
from scheduling.queries.quota_use import use_of
from scheduling.session.memory import load
from scheduling.session.memory.look import look
from scheduling.session.memory.queues import queues
from tenants.models import Queue, Quota, Tenant

URL = "/api/v1/jobs?dry_run=true"
HELLO = {"name": "hello", "tenant": "vision", "gpu_type": "H100", "gpus": 8}


@pytest.fixture
def fleet(org):
    """Four nodes of 8 H100 and two of 4 A100, all idle; vision has 16 H100 and 8 A100, law 16
    H100."""
    heard = timezone.now() + timedelta(hours=1)  # however long a test takes
    Cluster.objects.update(connected=True, last_cycle_at=heard)
    for tenant, gpu_type, gpus in (
        ("vision", "H100", 16),
        ("vision", "A100", 8),
        ("law", "H100", 16),
    ):
        Quota.objects.create(
            tenant=org.tenants[tenant],
            gpu_type=org.gpu_types[gpu_type],
            guaranteed_milli=1000 * gpus,
        )
    return org


def runs(org, nodes, *, tenant="law", gpus=8, **fields):
    """Run a job with a pod on each of these nodes."""
    now = timezone.now() - timedelta(minutes=5)
    job = Job.objects.create(
        name=f"runs-{nodes[0]}", tenant=org.tenants[tenant], cluster=org.cluster, submitted_at=now,
        state="RUNNING", attempt=1, admitted_at=now, gpu_milli=1000 * gpus * len(nodes), **fields,
    )  # fmt: skip
    PodSet.objects.create(
        job=job, index=0, name="w", count=len(nodes), gpus=gpus, gpu_models=["H100"]
    )
    for at, node in enumerate(nodes):
        Placement.objects.create(
            job=job, attempt=1, pod_set=0, ordinal=at, pod_name=f"{job.name}-{at}", node=node,
            gpu_model="H100", devices=list(range(gpus)), state=PlacementState.RUNNING,
            intended_at=now, held_from=now, held_milli=1000 * gpus,
        )  # fmt: skip
    return job


def waits(org, replicas, **fields):
    answer = org.client("lex").post(
        "/api/v1/jobs", HELLO | {"tenant": "law", "replicas": replicas, **fields}, format="json"
    )
    assert answer.status_code == 201
    return answer.json()["id"]


def ask(org, who="eve", **fields):
    answer = org.client(who).post(URL, HELLO | fields, format="json")
    assert answer.status_code == 200, answer.json()
    return answer.json()


def test_a_job_that_would_start_is_told_so_with_its_quota(fleet):
    body = ask(fleet, replicas=2)
    said = body["rehearsal"]
    assert (said["outlook"], said["summary"]) == (
        "starts",
        "It would start now: 2 pods on 2 nodes in 1 leaf.",
    )
    assert said["places"] == {"pods": 2, "nodes": 2, "leaves": 1}
    assert (body["warnings"], said["position"], said["start"]) == ([], 1, None)
    assert said["quota"] == [
        {"tenant": "vision", "gpu_type": "H100", "guaranteed": 16, "used": 0, "most": 32,
         "asked": 16, "left": 16, "borrows": 0}
    ]  # fmt: skip
    assert ask(fleet, replicas=3)["rehearsal"]["quota"][0]["borrows"] == 8
    assert not Job.objects.exists()


def test_what_quota_can_never_allow_is_a_warning(fleet):
    Quota.objects.filter(tenant__name="law").delete()
    body = ask(fleet, replicas=3)
    said = body["rehearsal"]
    assert (said["outlook"], said["reason"]) == ("never", "ExceedsMaxQuota")
    assert body["warnings"] == [said["summary"]]
    assert "vision can never hold more than 16 H100 GPUs" in said["summary"]
    assert said["remedies"]
    assert [other["text"] for other in said["alternatives"]] == [
        "With fewer pods: 2 pods on 2 nodes in 1 leaf."
    ]
    # Also if nothing else can be said.
    Cluster.objects.update(connected=False)
    body = ask(fleet, replicas=3)
    assert (body["rehearsal"]["outlook"], len(body["warnings"])) == ("never", 1)
    body = ask(fleet)
    assert (body["rehearsal"]["outlook"], body["warnings"]) == ("unknown", [])
    assert "has no connection to cluster demo." in body["rehearsal"]["summary"]


def test_who_would_wait_hears_why_behind_whom_until_when_and_what_would_start(fleet):
    ClusterPolicy.objects.create(cluster=fleet.cluster, document={"preemption": []})
    runs(fleet, ["h000", "h001", "h002"], declared_s=3600)
    first = waits(fleet, 2)
    said = ask(fleet, gpus=4, replicas=3)["rehearsal"]
    assert (said["outlook"], said["reason"]) == ("waits", "InsufficientGpus")
    assert (said["evidence"]["asked"], said["evidence"]["free"]) == (12, 8)
    # For a tenant that the reader may not see, only the size is shown.
    assert (said["position"], said["ahead"]) == (
        2,
        [{"job": None, "name": None, "tenant": None, "gpus": 16}],
    )
    assert said["start"]["basis"] == "forecast"
    assert first not in str(said)
    assert [(o["gpu_type"], o["count"], o["places"]["pods"]) for o in said["alternatives"]] == [
        (None, 2, 2)
    ]
    said = ask(fleet, gpus=4, replicas=2, gpu_type="A100", gpu_types=None)["rehearsal"]
    assert said["outlook"] == "starts"
    said = ask(fleet, gpus=4, replicas=4, min_count=3)["rehearsal"]
    assert [(o["min_count"], o["text"]) for o in said["alternatives"]] == [
        (2, "With min_count 2: 2 of 4 pods on 1 node in 1 leaf.")
    ]
    runs(fleet, ["h003"], tenant="ml")
    said = ask(fleet, gpus=4, replicas=2)["rehearsal"]
    assert [(o["gpu_type"], o["text"]) for o in said["alternatives"]] == [
        ("A100", "On A100: 2 pods on 2 nodes in 1 leaf.")
    ]


SAME = ("outlook", "summary", "reason", "evidence", "remedies", "quota", "alternatives", "position")


@pytest.mark.parametrize(
    "fields",
    [
        {"gpus": 4, "replicas": 3},
        {"gpus": 4, "replicas": 4, "min_count": 3},
        {"replicas": 4, "gang": False, "gpus": 8},
        {"replicas": 2, "node_selector": {"zone": "mars"}},
        {"replicas": 1, "held": True},
        {"replicas": 1, "not_before": "2099-01-01T00:00:00Z"},
    ],
    ids=lambda it: " ".join(it),
)
@pytest.mark.parametrize("queueing", ["best-effort-fifo", "backfill", "strict-fifo"])
def test_what_was_told_before_a_job_was_submitted_is_told_while_it_waits(fleet, queueing, fields):
    policy = {"queueing": queueing, "preemption": []}
    ClusterPolicy.objects.create(cluster=fleet.cluster, document=policy)
    runs(fleet, ["h000", "h001", "h002"], declared_s=3600)
    if "gang" not in fields:
        waits(fleet, 2)
    else:
        runs(fleet, ["h003"], declared_s=60)
    before = ask(fleet, **fields)["rehearsal"]
    eve = fleet.client("eve")
    job = eve.post("/api/v1/jobs", HELLO | fields, format="json").json()["id"]
    answer = eve.get(f"/api/v1/jobs/{job}/outlook")
    assert answer.status_code == 200, answer.content
    told = answer.json()
    assert {name: told[name] for name in SAME} == {name: before[name] for name in SAME}
    assert (told["start"] or {}).get("basis") == (before["start"] or {}).get("basis")
    assert Job.objects.get(pk=job).reason == "PendingEvaluation"  # looking decides nothing


def test_a_job_that_does_not_wait_has_no_outlook(fleet):
    job = runs(fleet, ["h000"], tenant="vision")
    answer = fleet.client("eve").get(f"/api/v1/jobs/{job.pk}/outlook")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert fleet.client("lex").get(f"/api/v1/jobs/{job.pk}/outlook").status_code == 404


def test_numbers_behind_a_reason_are_told_as_data_and_as_text(fleet):
    runs(fleet, ["h000", "h001", "h002", "h003"])
    said = ask(fleet, gpus=4, replicas=3)["rehearsal"]
    assert [number["name"] for number in said["numbers"]] == list(said["evidence"])
    job = Job.objects.create(
        name="told", tenant=fleet.tenants["vision"], cluster=fleet.cluster, gpu_milli=500,
        submitted_at=timezone.now(), state="PENDING", reason="InsufficientGpus",
        evidence={"asked_milli": 500, "starts_at": 1767225600, "share": 0.25, "nodes": 12500,
                  "missing_label": "zone=mars", "remedies": ["wait"]},
    )  # fmt: skip
    body = fleet.client("eve").get(f"/api/v1/jobs/{job.pk}/explain").json()
    # In any order: PostgreSQL does not keep the order of an object's names.
    assert {it["label"]: it["text"] for it in body["numbers"]} == {
        "Asked GPUs": "0.5",
        "Starts at": "2026-01-01 00:00:00 UTC",
        "Share": "0.25",
        "Nodes": "12,500",
        "Missing label": "zone=mars",
    }
    assert body["evidence"]["asked_milli"] == 500


def test_an_elastic_gang_that_would_start_small_is_told_why(fleet):
    runs(fleet, ["h000", "h001", "h002"])
    said = ask(fleet, replicas=2, min_count=1)["rehearsal"]
    assert (said["outlook"], said["places"]["pods"]) == ("starts", 1)
    assert said["summary"] == (
        "It would start now: 1 of 2 pods on 1 node in 1 leaf. Why no more: 0 of the 8 H100 GPUs "
        "that its next pod needs are free."
    )


def test_the_forecast_of_a_head_is_its_reservation(fleet):
    job = runs(fleet, ["h000", "h001", "h002", "h003"], declared_s=3600)
    policy = {"queueing": "backfill", "preemption": []}
    ClusterPolicy.objects.create(cluster=fleet.cluster, document=policy)
    said = ask(fleet)["rehearsal"]
    assert said["start"]["basis"] == "reservation"
    assert (
        said["start"]["at"][:19]
        == ((job.admitted_at + timedelta(hours=1)).isoformat().replace("+00:00", "")[:19])
    )
    assert len(said["reservation"]["nodes"]) == 1


@pytest.mark.parametrize("queueing", ["backfill", "best-effort-fifo"])
def test_a_start_that_is_overdue_is_no_time(fleet, queueing):
    policy = {"queueing": queueing, "preemption": []}
    ClusterPolicy.objects.create(cluster=fleet.cluster, document=policy)
    runs(fleet, ["h000", "h001", "h002", "h003"], declared_s=60)  # for five minutes already
    start = ask(fleet)["rehearsal"]["start"]
    assert (start["at"], start["basis"]) == (None, "unknown")
    assert start["text"].startswith("It starts when jobs end that have run longer than they")
    # The scheduler's reservations for a waiting job remain in the answer.
    eve = fleet.client("eve")
    job = eve.post("/api/v1/jobs", HELLO, format="json").json()["id"]
    told = timezone.now() - timedelta(minutes=4)
    Job.objects.filter(pk=job).update(reserved_start=told, reserved_nodes=["h000"])
    start = eve.get(f"/api/v1/jobs/{job}/outlook").json()["start"]
    if queueing == "backfill":
        assert start["basis"] == "reservation"
        assert start["at"][:19] == told.isoformat()[:19]


def test_pods_that_start_one_by_one_start_as_far_as_there_is_room(fleet):
    runs(fleet, ["h000", "h001"])
    said = ask(fleet, replicas=4, gang=False)["rehearsal"]
    assert (said["outlook"], said["places"]["pods"]) == ("starts", 2)
    assert said["summary"].startswith("It would start now: 2 of 4 pods on 2 nodes in 1 leaf. Why")
    assert said["reason"] in ("InsufficientGpus", "WaitingForQuota")


def test_others_make_room_as_the_policy_lets_them(fleet):
    runs(fleet, ["h000", "h001", "h002", "h003"])  # borrows 16
    ClusterPolicy.objects.create(cluster=fleet.cluster, document={"preemption": ["reclaim"]})
    said = ask(fleet)["rehearsal"]
    assert (said["outlook"], said["preempts"]) == ("makes-room", 1)
    assert said["summary"] == "It would start as soon as 1 job has made room for it."
    assert said["start"]["basis"] == "promised"
    # It began five minutes ago.
    Tenant.objects.filter(name="law").update(min_runtime_s=600)
    said = ask(fleet)["rehearsal"]
    assert (said["outlook"], said["reason"]) == ("waits", "InsufficientGpus")
    assert said["evidence"]["protected_until"] == pytest.approx(time.time() + 300, abs=60)
    assert "in their minimum run time" in said["summary"]
    Tenant.objects.filter(name="law").update(min_runtime_s=299)
    assert ask(fleet)["rehearsal"]["outlook"] == "makes-room"
    later = {"preemption": ["reclaim"], "preempt_after_s": 600}
    ClusterPolicy.objects.update(document=later)
    said = ask(fleet)["rehearsal"]
    assert (said["outlook"], said["reason"]) == ("waits", "InsufficientGpus")
    assert said["evidence"]["preempts_from"] == pytest.approx(time.time() + 600, abs=60)
    assert "It may preempt others once it has waited for 600 seconds." in said["summary"]
    # Its pods are leaving already: they are no victims, and their places are not free yet.
    Job.objects.update(state="PENDING")
    assert ask(fleet)["rehearsal"]["outlook"] == "waits"


@pytest.mark.parametrize(
    ("kind", "ago_s", "known"),
    [("RELEASED", 10, True), ("REQUEUED", 10, True), ("PREEMPTED", 10, True),
     ("RELEASED", 70, False), ("CHANGED", 10, False)],
)  # fmt: skip
def test_a_scheduler_is_told_who_came_back_to_the_queue_a_moment_ago(fleet, kind, ago_s, known):
    waits(fleet, 4)
    runs(fleet, ["h000"])
    at = timezone.now() - timedelta(seconds=ago_s)
    for job in Job.objects.all():
        JobEvent.objects.create(job=job, kind="RELEASED", at=at - timedelta(minutes=1))
        JobEvent.objects.create(job=job, kind=kind, at=at)
    jobs, _ = load.jobs(load.waiting_or_holding(fleet.cluster.pk, ""))

    def told(**policy):
        histories = load.histories(fleet.cluster.pk, "", jobs, Policy(**policy))
        return {history.job_id: history.back_at for history in histories}

    kinds = (PreemptionKind.RECLAIM,)
    waiting = str(Job.objects.get(state="PENDING").pk)
    found = {waiting: at.timestamp()} if known else {}
    assert told(preemption=kinds, preempt_after_s=60) == found
    assert told(preemption=kinds) == {}
    assert told(preempt_after_s=60) == {}


def test_whose_tenant_held_less_in_the_past_goes_first(fleet):
    held = runs(fleet, ["h000", "h001"])
    over = timezone.now() - timedelta(minutes=1)
    Job.objects.filter(pk=held.pk).update(state="SUCCEEDED", ended_at=over)
    Placement.objects.update(state=PlacementState.SUCCEEDED, ended_at=over)
    # No share counts for these jobs here: what ml holds would count for vision below it.
    fleet.tenants["bio"] = Tenant.objects.create(name="bio")
    runs(fleet, ["h002", "h003"], tenant="bio")
    waits(fleet, 3)
    fair = {"queueing": "strict-fifo", "fair_share": True}
    policy = ClusterPolicy.objects.create(cluster=fleet.cluster, document=fair)
    said = ask(fleet)["rehearsal"]
    assert (said["outlook"], said["reason"]) == ("waits", "BehindInQueue")
    policy.document["usage_half_life_s"] = 600
    policy.save()
    assert ask(fleet)["rehearsal"]["outlook"] == "starts"
    # In a shard in which it holds nothing, too.
    policy.document["shards"] = [{"name": "one", "groups": ["leaf-a"]}, {"name": "rest"}]
    policy.save()
    NodeRecord.objects.update(scope="rest")
    Job.objects.update(scope="rest")
    Job.objects.filter(pk=held.pk).update(scope="one")
    assert ask(fleet)["rehearsal"]["outlook"] == "starts"
    # GPUs held elsewhere now count likewise.
    Job.objects.filter(pk=held.pk).update(state="RUNNING")
    Placement.objects.filter(job=held).update(state="RUNNING", held_milli=1000, ended_at=None)
    policy.document["usage_half_life_s"] = 0
    policy.save()
    assert ask(fleet)["rehearsal"]["outlook"] == "starts"


@pytest.mark.parametrize(
    ("fields", "reason", "basis"),
    [
        ({"held": True}, "OnHold", "held"),
        ({"not_before": "2099-01-01T00:00:00Z"}, "BackingOff", "earliest"),
    ],
)
def test_a_job_that_may_not_start_yet(fleet, fields, reason, basis):
    said = ask(fleet, **fields)["rehearsal"]
    assert (said["outlook"], said["reason"], said["position"]) == ("waits", reason, None)
    assert (said["start"]["basis"], said["alternatives"]) == (basis, [])


def test_a_job_after_others_waits_for_them(fleet):
    other = waits(fleet, 1)
    Job.objects.update(tenant=fleet.tenants["vision"])
    said = ask(fleet, after_ok=[other])["rehearsal"]
    assert (said["reason"], said["evidence"]["jobs"]) == ("OnHold", 1)
    Job.objects.update(state="SUCCEEDED")
    assert ask(fleet, after_ok=[other])["rehearsal"]["outlook"] == "starts"


def test_of_an_array_the_first_job_is_asked_about(fleet):
    body = ask(fleet, array={"count": 50})
    assert (body["result"]["count"], body["rehearsal"]["places"]["pods"]) == (50, 1)


def test_a_divided_cluster_is_asked_in_the_shard_of_the_job(fleet):
    shards = [{"name": "one", "groups": ["leaf-0"]}, {"name": "rest"}]
    ClusterPolicy.objects.create(cluster=fleet.cluster, document={"shards": shards})
    NodeRecord.objects.update(scope="rest")
    NodeRecord.objects.filter(leaf="leaf-0").update(scope="one")
    runs(fleet, ["h000", "h001"], scope="one")
    said = ask(fleet, gpu_type="H100", replicas=2)["rehearsal"]
    assert (said["outlook"], said["places"]["nodes"]) == ("starts", 2)
    said = ask(fleet, replicas=4)["rehearsal"]
    assert said["outlook"] == "unknown"
    assert "fits in no single shard" in said["summary"]


def test_a_rehearsal_costs_few_queries_however_many_nodes_and_jobs(
    fleet, django_assert_max_num_queries
):
    eve = fleet.client("eve")
    for node in ("h000", "h001", "h002"):
        runs(fleet, [node])
    for _ in range(5):
        waits(fleet, 2)
    with django_assert_max_num_queries(41):
        assert eve.post(URL, HELLO | {"replicas": 2}, format="json").status_code == 200


def test_where_lenders_reclaim_a_job_that_stays_is_told_that_it_borrows_nothing(fleet):
    stays = {"replicas": 3, "preemptible": False}
    row = ClusterPolicy.objects.create(cluster=fleet.cluster, document={"preemption": []})
    assert ask(fleet, **stays)["rehearsal"]["outlook"] == "starts"  # nothing is reclaimed here
    row.document = {"preemption": ["reclaim"]}
    row.save()
    assert ask(fleet, replicas=3)["rehearsal"]["outlook"] == "starts"
    said = ask(fleet, **stays)["rehearsal"]
    assert (said["outlook"], said["reason"]) == ("never", "ExceedsMaxQuota")
    assert "is not preemptible" in said["summary"]
    assert said["remedies"][0] == "submit it as preemptible"
    assert (said["quota"][0]["most"], said["quota"][0]["left"]) == (16, 16)
    held = runs(fleet, ["h000"], tenant="vision", preemptible=False)
    said = ask(fleet, replicas=2, preemptible=False)["rehearsal"]
    assert (said["outlook"], said["reason"]) == ("waits", "WaitingForQuota")
    assert (said["evidence"]["non_preemptible"], said["evidence"]["guaranteed"]) == (8, 16)
    # A leaving job is no victim, but still holds what it held.
    Job.objects.filter(pk=held.pk).update(preemptible=True, state="PENDING")
    assert ask(fleet, replicas=2, preemptible=False)["rehearsal"]["outlook"] == "starts"
    Cluster.objects.update(connected=False)
    said = ask(fleet, **stays)["rehearsal"]
    assert said["outlook"] == "never"
    assert said["summary"] == (
        "It asks for 24 H100 GPUs; tenant vision can never hold more than 16 H100 GPUs, by jobs "
        "that are not preemptible."
    )
    assert ask(fleet, replicas=2, preemptible=False)["rehearsal"]["outlook"] == "unknown"


def test_what_stays_in_other_clusters_counts_against_the_guarantee(fleet):
    runs(fleet, ["h000"], tenant="vision", preemptible=False)
    runs(fleet, ["h001"], tenant="vision")
    other = Cluster.objects.create(name="other", access={"kubeconfig": "/nowhere"})
    elsewhere = load.used_elsewhere(other.pk, None)
    assert elsewhere == (("vision", "H100", 16_000, 8_000),)
    assert load.used_elsewhere(fleet.cluster.pk, None) == ()


def test_a_quota_tells_what_cannot_be_preempted(fleet):
    runs(fleet, ["h000", "h001", "h002"], tenant="vision", preemptible=False)
    runs(fleet, ["h003"], gpus=4)
    told = fleet.client("eve").get("/api/v1/quotas/vision/H100").json()
    assert (told["used"], told["non_preemptible"], told["borrowed"]) == (24, 24, 8)
    use = use_of("vision", "H100")
    assert use is not None
    assert (use.fixed, use.stuck) == (24_000, 8_000)
    law = use_of("law", "H100")
    assert law is not None
    assert (law.used, law.fixed, law.stuck) == (4000, 0, 0)


def test_a_job_in_a_held_queue_or_at_the_limit_of_its_queue_is_told_so(fleet):
    night = Queue.objects.create(
        tenant=fleet.tenants["vision"],
        name="night",
        state="held",
        state_reason="New racks.",
        state_by="ada",
    )
    said = ask(fleet, queue="night")["rehearsal"]
    assert (said["outlook"], said["reason"], said["position"]) == ("waits", "QueueHeld", None)
    assert "New racks (by ada)." in said["summary"]
    assert said["start"]["basis"] == "held"
    assert said["evidence"] == {"tenant": "vision", "queue": "night"}
    assert ask(fleet)["rehearsal"]["outlook"] == "starts"
    Queue.objects.filter(pk=night.pk).update(state="open", max_gpus={"H100": 4})
    said = ask(fleet, queue="night")["rehearsal"]
    assert (said["outlook"], said["reason"]) == ("waits", "QueueLimitReached")
    assert (said["evidence"]["asked"], said["evidence"]["max_gpus"]) == (8.0, 4.0)
    assert ask(fleet, queue="night", gpus=4)["rehearsal"]["outlook"] == "starts"


def test_what_queues_are_to_the_engine(fleet):
    """The engine is not told of tenants that have only a plain queue."""
    assert queues(fleet.cluster.pk) == QueuesChanged(())
    vision = fleet.tenants["vision"]
    Queue.objects.create(
        tenant=vision, name="night", rank=-1, weight=2.0, order="fair-users", max_running=3
    )
    Queue.objects.filter(tenant=fleet.tenants["law"]).update(max_gpus={"H100": 8})
    runs(fleet, ["n1"], gpus=2)
    told = queues(fleet.cluster.pk)
    assert told.queues == (
        QueueSpec("vision", "default"),
        QueueSpec("vision", "night", 2.0, -1, fair_users=True, max_running=3),
        QueueSpec("law", "default", max_milli={"H100": 8000}),
    )
    assert (told.jobs_elsewhere, told.held_elsewhere) == ((), ())
    elsewhere = queues(fleet.cluster.pk + 1)
    assert elsewhere.jobs_elsewhere == (("law", "default", 1),)
    assert elsewhere.held_elsewhere == (("law", "default", "H100", 2000),)


def test_a_change_of_a_queue_is_news(fleet):
    before = look(fleet.cluster.pk).settings
    Queue.objects.filter(tenant=fleet.tenants["law"]).update(state="held", version=2)
    assert look(fleet.cluster.pk).settings != before
