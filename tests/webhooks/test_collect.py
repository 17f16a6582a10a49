"""Events become deliveries: for each webhook those of its tenants, each once, none missed."""

import json
from datetime import timedelta

import pytest

from metrics.models import MetricSample
from scheduling.engine.states import JobEventKind, JobState
from scheduling.models import Job, JobEvent, PodSet
from tenants.models import Quota
from tenants.services.audit import Why
from tenants.services.quota_terms import QuotaChange, QuotaTerms
from tenants.services.quotas import change_quota
from webhooks.models import HookDelivery, HookEvent, HookOutbox, Webhook
from webhooks.outbox import collect as outbox
from webhooks.outbox.happened import LATE
from webhooks.services.hooks import change_hook, create_hook

K = JobEventKind
URL = "http://127.0.0.1:9/"


@pytest.fixture
def hook(org, hook_at, now):
    """A webhook for all events in vision and below."""
    events = [event for event in HookEvent.values if event != HookEvent.GFR]
    made = hook_at(URL, org.tenants["vision"], events)
    outbox.begin_at(now)
    return made


def job(org, now, tenant="vision", **more):
    more = {"name": "train", "submitted_at": now, "gpu_milli": 8000, **more}
    row = Job.objects.create(
        tenant=org.tenants[tenant], cluster=org.cluster, user=org.users["eve"], **more
    )
    PodSet.objects.create(job=row, index=0, name="w", count=1, gpu_models=["H100"], gpus=8)
    return row


def happens(row, at, kind, to="RUNNING", **more):
    return JobEvent.objects.create(job=row, at=at, kind=kind.value, to_state=to, **more)


def told(hook=None):
    rows = HookDelivery.objects.order_by("created_at", "key")
    return [row.event for row in (rows.filter(webhook=hook) if hook else rows)]


def documents():
    return [json.loads(row.body) for row in HookDelivery.objects.order_by("created_at", "key")]


def test_each_event_of_a_job_is_told(org, hook, now):
    row = job(org, now, running_at=now)
    for kind, to in (
        (K.SUBMITTED, "PENDING"), (K.ADMITTED, "ADMITTED"), (K.RUNNING, "RUNNING"),
        (K.PREEMPTED, "PENDING"), (K.SUCCEEDED, "SUCCEEDED"), (K.FAILED, "FAILED"),
        (K.CANCELLED, "CANCELLED"), (K.REASON, "PENDING"),
    ):  # fmt: skip
        happens(row, now, kind, to)
    happens(row, now, K.REASON, "RUNNING", reason="Preempted")  # some of its pods
    assert outbox.collect(now) == 6
    assert sorted(told()) == [
        "job.cancelled", "job.failed", "job.preempted", "job.preempted", "job.started",
        "job.succeeded",
    ]  # fmt: skip
    assert outbox.collect(now) == 0


def test_what_is_said_of_a_job(org, hook, now, settings):
    settings.KANT_PUBLIC_URL = "https://kant.example/"
    started = now + timedelta(seconds=90)
    row = job(org, now, running_at=started, state="FAILED")
    happens(row, now + timedelta(hours=1), K.FAILED, "FAILED", reason="PodFailed", message="Why.")
    outbox.collect(now + timedelta(hours=1))
    assert documents() == [
        {
            "type": "job.failed",
            "timestamp": (now + timedelta(hours=1)).isoformat().replace("+00:00", "Z"),
            "data": {
                "job": str(row.pk), "name": "train", "tenant": "vision", "cluster": "demo",
                "queue": "default", "user": "eve", "kind": "training", "priority": 0, "gpus": 8,
                "gpu_types": ["H100"], "state": "FAILED", "reason": "PodFailed",
                "message": "Why.",
                "at": (now + timedelta(hours=1)).isoformat().replace("+00:00", "Z"),
                "submitted_at": now.isoformat().replace("+00:00", "Z"),
                "waited_s": 90.0, "ran_s": 3510.0,
                "url": f"https://kant.example/jobs/{row.pk}/",
            },
        }
    ]  # fmt: skip
    assert HookDelivery.objects.get().subject == "vision / train"


def test_slack_is_told_in_a_sentence_in_which_nobody_can_write_markup(org, hook_at, now, settings):
    settings.KANT_PUBLIC_URL = "https://kant.example"
    hook_at(URL, format="slack", events=HookEvent.values)
    outbox.begin_at(now)
    outbox.HookOutbox.objects.update(read_to=0)
    row = job(org, now, running_at=now)
    happens(row, now, K.FAILED, "FAILED", message="<!channel> & more")
    outbox.collect(now)
    assert documents() == [
        {
            "text": "Job *train* of vision failed after 0 s (8 GPUs of H100 on demo, eve). "
            f"&lt;!channel&gt; &amp; more <https://kant.example/jobs/{row.pk}/|Open in Kant>"
        }
    ]


@pytest.mark.parametrize(
    ("of", "hears"),
    [
        (None, {"ml", "vision", "vision-lab", "law"}),
        ("ml", {"ml", "vision", "vision-lab"}),
        ("vision", {"vision", "vision-lab"}),
        ("vision-lab", {"vision-lab"}),
        ("law", {"law"}),
    ],
)
def test_a_webhook_hears_of_its_tenant_and_those_below(org, hook_at, now, of, hears):
    hook_at(URL, of and org.tenants[of], HookEvent.values)
    outbox.begin_at(now)
    for tenant in org.tenants:
        happens(job(org, now, tenant), now, K.RUNNING)
        change = QuotaChange(org.tenants[tenant], org.gpu_types["H100"], 0, "why", "api")
        change_quota(org.users["ops"], change, QuotaTerms(8000))
    outbox.collect(now)
    found = [(each["type"], each["data"]["tenant"]) for each in documents()]
    assert sorted(found) == sorted(
        (event, tenant) for tenant in hears for event in ("job.started", "quota.changed")
    )


def test_only_what_was_asked_for_is_told(org, hook_at, now):
    hook_at(URL, events=["job.failed"])
    outbox.begin_at(now)
    row = job(org, now)
    happens(row, now, K.RUNNING)
    happens(row, now, K.FAILED, "FAILED")
    outbox.collect(now)
    assert told() == ["job.failed"]


def test_a_change_of_a_quota_is_told_once_with_both_sides(org, hook, now):
    quota = Quota.objects.create(
        tenant=org.tenants["vision"], gpu_type=org.gpu_types["H100"], guaranteed_milli=8000
    )
    change = QuotaChange(quota.tenant, quota.gpu_type, 1, "More work", "api")
    change_quota(org.users["ops"], change, QuotaTerms(16000))
    for seconds in (0, 10, 20, 70):
        outbox.collect(now + timedelta(seconds=seconds))
    (document,) = documents()
    data = document["data"]
    assert (document["type"], data["tenant"], data["gpu_type"]) == (
        "quota.changed",
        "vision",
        "H100",
    )
    assert (data["before"]["guaranteed"], data["after"]["guaranteed"]) == (8, 16)
    assert (data["actor"], data["reason"]) == ("ops", "More work")


def test_what_happened_before_is_not_told(org, now):
    row = job(org, now)
    happens(row, now, K.RUNNING)
    values = {"name": "a", "url": "https://example.com", "events": ["job.started"]}
    first = create_hook(org.users["ops"], None, values, why=Why("", "api")).hook
    assert outbox.collect(now) == 0
    change_hook(org.users["ops"], first, {"is_on": False}, expected_version=1, why=Why("", "api"))
    happens(row, now + timedelta(seconds=1), K.RUNNING)
    assert outbox.collect(now) == 0
    change_hook(org.users["ops"], first, {"is_on": True}, expected_version=2, why=Why("", "api"))
    assert outbox.collect(now) == 0
    happens(row, now + timedelta(seconds=1), K.RUNNING)
    assert outbox.collect(now) == 1


def test_an_event_that_commits_late_is_told(org, hook, now):
    """Ids are assigned before transactions commit."""
    row = job(org, now)
    read_to = HookOutbox.objects.get().read_to
    happens(row, now, K.RUNNING, id=read_to + 4)
    assert outbox.collect(now) == 1
    assert [gap[0] for gap in HookOutbox.objects.get().gaps] == [read_to + i for i in (1, 2, 3)]
    happens(row, now, K.FAILED, "FAILED", id=read_to + 2)
    assert outbox.collect(now + timedelta(seconds=30)) == 1
    assert [gap[0] for gap in HookOutbox.objects.get().gaps] == [read_to + 1, read_to + 3]
    assert outbox.collect(now + LATE + timedelta(seconds=1)) == 0
    assert HookOutbox.objects.get().gaps == []
    assert told() == ["job.started", "job.failed"]


def test_of_two_that_read_at_once_one_writes(org, hook, now, monkeypatch):
    happens(job(org, now), now, K.RUNNING)
    really = outbox.job_news

    def meanwhile(*args):
        found = really(*args)
        monkeypatch.setattr(outbox, "job_news", really)
        assert outbox.collect(now) == 1
        return found

    monkeypatch.setattr(outbox, "job_news", meanwhile)
    assert outbox.collect(now) == 0
    assert told() == ["job.started"]


def test_nothing_is_read_without_webhooks_and_nothing_written_without_news(
    org, hook, now, django_assert_num_queries
):
    outbox.collect(now + timedelta(seconds=60))
    version = HookOutbox.objects.get().version
    outbox.collect(now + timedelta(seconds=61))
    assert HookOutbox.objects.get().version == version
    Webhook.objects.update(is_on=False)
    with django_assert_num_queries(1):
        outbox.collect(now)


def test_too_many_that_wait_are_counted_not_kept(org, hook, now, monkeypatch):
    monkeypatch.setattr(outbox, "MOST_WAITING", 3)
    row = job(org, now)
    for _ in range(5):
        happens(row, now, K.RUNNING)
    assert outbox.collect(now) == 3
    hook.refresh_from_db()
    assert hook.skipped == 2
    HookDelivery.objects.update(state="delivered")
    happens(row, now, K.RUNNING)
    assert outbox.collect(now) == 1


# --- waits ----------------------------------------------------------------------------------------
def test_a_job_that_waits_long_is_told_once_for_each_wait(org, hook, now):
    row = job(org, now, reason="InsufficientGpus", message="Needs 8 GPUs; 4 are free.")
    for minutes in (0, 30, 59):
        outbox.collect(now + timedelta(minutes=minutes))
    assert told() == []
    for minutes in (61, 62, 200):
        outbox.collect(now + timedelta(minutes=minutes))
    assert told() == ["job.pending_long"]
    (document,) = documents()
    assert document["data"]["waited_s"] == 3660
    assert document["data"]["message"] == "Needs 8 GPUs; 4 are free."
    # It ran, was preempted, and waits again.
    Job.objects.update(running_at=now + timedelta(minutes=210))
    happens(row, now + timedelta(minutes=300), K.PREEMPTED, "PENDING")
    outbox.collect(now + timedelta(minutes=301))
    assert told() == ["job.pending_long", "job.preempted"]
    outbox.collect(now + timedelta(minutes=361))
    assert told()[2:] == ["job.pending_long"]


@pytest.mark.parametrize(
    "change",
    [
        {"held": True},
        {"state": JobState.RUNNING},
        {"state": JobState.CANCELLED},
        {"start_not_before": timedelta(hours=3)},
    ],
)
def test_who_does_not_wait_for_a_turn_is_not_told(org, hook, now, change):
    at = {k: now + v if isinstance(v, timedelta) else v for k, v in change.items()}
    job(org, now, **at)
    outbox.collect(now + timedelta(hours=2))
    assert told() == []


def test_of_more_waits_than_a_step_tells_none_is_missed(org, hook, now, monkeypatch):
    monkeypatch.setattr("webhooks.outbox.watched.MOST_JOBS", 2)
    for i in range(5):
        job(org, now + timedelta(seconds=i), name=f"j{i}")
    for i in range(4):
        outbox.collect(now + timedelta(hours=1, minutes=1 + i))
    assert told() == ["job.pending_long"] * 5


def test_waits_that_were_long_before_the_webhook_are_not_told(org, hook_at, now):
    job(org, now - timedelta(hours=2))
    hook_at(URL, events=["job.pending_long"])
    outbox.begin_at(now)
    outbox.collect(now + timedelta(minutes=1))
    assert told() == []


# --- fragmentation --------------------------------------------------------------------------------
def sample(org, at, fragmented, nodes=100):
    MetricSample.objects.create(
        cluster=org.cluster, gpu_model="", at=at, available_milli=0, allocated_milli=0,
        nodes=nodes, fragmented_nodes=fragmented, free_by_node={}, largest_gang_leaf=0,
        largest_gang_any=0, pending_jobs=0, pending_milli=0, allocated_milli_s=0,
        available_milli_s=0,
    )  # fmt: skip


def test_a_fragmented_cluster_is_told_once_until_it_was_calm(org, hook_at, now):
    hook_at(URL, events=["gfr.high"])
    outbox.begin_at(now)
    history = [5, 9, 12, 14, 9, 11, 7, 12]
    at = now
    for percent in history:
        at += timedelta(minutes=10)
        sample(org, at - timedelta(minutes=1), percent)
        outbox.collect(at)
    found = [each["data"] for each in documents()]
    assert [each["gfr_percent"] for each in found] == [12, 12]  # told, and again after the calm
    assert found[0]["cluster"] == "demo"
    assert found[0]["threshold_percent"] == 10
