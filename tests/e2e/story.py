"""Odd cases for pages: a deep tree of tenants; jobs that are held, preempted, have reservations
or dependencies, or came as an array; replays that are done, running and failed."""

import uuid
from datetime import datetime, timedelta

from django.utils import timezone

from metrics.models import GpuUseDay, Replay, ReplayState
from metrics.replays import process, services
from scheduling.engine.shards.division import WIDE
from scheduling.models import Cluster, Job, JobEvent, JobGpuUse, NodeRecord, Placement, PodSet
from scheduling.session.pace import Backlog, Pace
from tenants.models import Queue, Tenant, User
from tests.e2e import scene
from webhooks.models import Webhook

ARRAY = uuid.UUID("5a5a5a5a-0000-4000-8000-000000000001")
HOOK = uuid.UUID("6f0c2c1e-0000-4000-8000-000000000007")

LONG_MESSAGE = "The kubelet says: " + "cannot mount /data/a/very/long/path, " * 12
LONG_VOLUME = {
    "name": "data",
    "persistent_volume_claim": "data-sets-of-the-vision-group-as-of-last-november",
    "mount_path": "/data/of/the/vision/group",
    "read_only": True,
}
DEEPEST = 7  # the level of the deepest tenant; roots are at level 0


def _store(name: str, tenant: str, user: str, at: datetime, **more: object) -> Job:
    job = Job.objects.create(
        name=name,
        tenant=Tenant.objects.get(name=tenant),
        cluster=Cluster.objects.get(),
        user=User.objects.get(username=user),
        submitted_at=at,
        **{"gpu_milli": 8000, "state": "PENDING", **more},
    )
    PodSet.objects.create(job=job, index=0, name="worker", count=1, gpus=8, gpu_models=["H200"])
    JobEvent.objects.create(job=job, at=at, kind="SUBMITTED", to_state="PENDING", actor=user)
    return job


# What the record of a preemption contains about all victims together and about other choices.
PRICES = {
    "total_gpu_s": 9000.0,
    "alternatives": "other victims: +1800.0 GPU-s, 3 jobs",
    "alternative_gpu_s": 10800.0,
}


def tell_after_the_scene() -> None:
    scene.play()
    tell()


def tell(now: datetime | None = None) -> None:
    """Continue where `scene.play` ended."""
    now = now or timezone.now()
    parent = Tenant.objects.get(name="speech")
    for level in range(2, DEEPEST + 1):
        parent = Tenant.objects.create(name=f"speech-at-level-{level}", parent=parent)
    before = _store("prepare", "vision", "erin", now - timedelta(hours=3), state="SUCCEEDED")
    foreign = _store("urgent", "search", "vera", now - timedelta(hours=1))
    _store("held", "vision", "erin", now, held=True, declared_s=5400)
    head = _store(
        "head",
        "vision",
        "erin",
        now - timedelta(hours=2),
        state="QUOTA_RESERVED",
        attempt=1,
        after=[str(foreign.pk)],
        after_ok=[str(before.pk)],
        run_limit_s=7200,
        start_not_before=now + timedelta(hours=1),
        reserved_start=now + timedelta(minutes=25),
        reserved_nodes=[f"node-{i:03d}" for i in range(8)],
        reason="InsufficientGpus",
        message="Needs 8 H200 GPUs; 4 are free.",
    )
    head.pod_sets.update(
        service_account="trainer",
        image_pull_secrets=["registry.example.internal"],
        shm_mib=65536,
        volumes=[LONG_VOLUME],
        env_from_secrets={"WEIGHTS_AND_BIASES_API_KEY": {"secret": "wandb", "key": "api-key"}},
    )
    for kind, by, cost, more in (
        ("PREEMPTED", before, 5400.0, PRICES),
        ("REASON", foreign, 42.0, {}),
    ):
        JobEvent.objects.create(
            job=head,
            at=now,
            kind=kind,
            to_state="PENDING",
            reason="Preempted",
            message=f"Preempted (priority) to make room for job {by.pk}",
            evidence={
                "by": str(by.pk),
                "kind": "priority" if more else "reclaim",
                "pods": 2,
                "cost_gpu_s": cost,
                **more,
            },
        )
    gone = _store("gone", "vision", "erin", now, labels={"team": "vision"})
    gone.pod_sets.update(gpu_models=["V100", "A100"], tolerations=[{"operator": "Exists"}])
    victims = ",".join(str(job.pk) for job in (head, foreign))
    JobEvent.objects.create(
        job=before,
        at=now,
        kind="REASON",
        to_state="PENDING",
        reason="RoomMade",
        message="2 jobs make room (priority)",
        evidence={"jobs": 2, "pods": 3, "total_gpu_s": 9000.0, "victims": victims},
    )
    for index in range(4):
        _store(
            f"sweep-{index}",
            "vision",
            "erin",
            now + timedelta(microseconds=index),
            array_id=ARRAY,
            array_index=index,
            state="SUCCEEDED" if index == 0 else "PENDING",
        )
    Placement.objects.filter(job__name="train-000").update(message=LONG_MESSAGE)
    NodeRecord.objects.filter(name="node-005").update(
        facts={
            "unhealthy_gpus": {
                "value": [3],
                "source": "status.allocatable[nvidia.com/gpu], kant.io/unhealthy-gpus",
            }
        }
    )
    _queues(now)
    _webhook(now)
    _replay(now)


def lead(now: datetime | None = None) -> None:
    """Add the schedulers of two shards, one of them at its limit, and a wide scope that nobody
    leads."""
    now = now or timezone.now()
    ends, begun, cluster = now + timedelta(days=1), now.timestamp() - 900, Cluster.objects.get()
    for scope, busy in (("north", 0.8), ("south", 0.05)):
        pace = Pace()
        pace.mark(begun)
        for second in range(0, 900, 15):
            pace.effects["create_and_bind", "bound"] += 100 + second % 60
            pace.phases = {"decide": busy * second, "write": busy * second / 5}
            pace.took(busy * 15)
            pace.mark(begun + second)
        pace.effects["bind", "refused"] += 2
        pace.work.update(walks=900, asked=4000, remembered=80_000, attempts=5000, starts=3000)
        document = pace.document() | {"backlog": list(Backlog(12, 3))}
        cluster.leases.create(
            scope=scope, holder=f"kant-{scope}-7c9f:1:5a5a5a5a", expires_at=ends, token=2,
            pace=document,
        )  # fmt: skip
    cluster.leases.create(scope=WIDE)
    # Its nodes stay undivided, as its policy says: previews here do not know the nodes of a shard.


def measure(now: datetime | None = None) -> None:
    """Record how busy the GPUs of three tenants' jobs were today."""
    now = now or timezone.now()
    hour, cluster = 1000 * 3_600_000, Cluster.objects.get()
    for number, name in enumerate(("vision", "speech", "nlp")):
        tenant = Tenant.objects.get(name=name)
        GpuUseDay.objects.create(
            day=now.date(), cluster_id=cluster.pk, cluster_name=cluster.name, tenant_id=tenant.pk,
            tenant_name=name, gpu_model="H200", measured=400 * hour, idle=(30 + 90 * number) * hour,
        )  # fmt: skip
    for job in Job.objects.filter(state="RUNNING"):
        JobGpuUse.objects.create(job=job, until=now, measured=64 * hour, idle=20 * hour)


def _webhook(now: datetime) -> None:
    """Add a webhook whose receiver took one delivery and has been away since."""
    hook = Webhook.objects.create(
        pk=HOOK, name="on-call", url="https://example.com/kant", events=["job.failed"],
        maker_name="vera", tenant=Tenant.objects.get(name="vision"), since=now, pending_until=now,
        failing_since=now - timedelta(hours=1), last_ok_at=now - timedelta(hours=2),
    )  # fmt: skip
    taken = {"state": "delivered", "status": 200, "took_ms": 31, "outcome": "ok"}
    retried = {"outcome": "No answer within 10 seconds.", "next_at": now + timedelta(hours=1)}
    for key, more in (("a", taken), ("b", retried)):
        hook.deliveries.create(
            key=key, event="job.failed", subject="vision / train-000", body="{}", tries=3,
            created_at=now - timedelta(hours=1), **more,
        )  # fmt: skip


def _queues(now: datetime) -> None:
    """Add queues beside the default ones: held with jobs in it, limited below what runs,
    draining."""
    vision = Tenant.objects.get(name="vision")
    held = {"state": "held", "state_reason": "The file server moves", "state_by": "vera"}
    nightly = {"title": "Sweeps at night", "rank": -1, "max_running": 4, "max_gpus": {"H200": 16}}
    Queue.objects.create(tenant=vision, name="nightly", state_at=now, **held, **nightly)
    Queue.objects.create(
        tenant=vision, name="interactive", rank=1, kinds=["development"], max_gpus={"H200": 8}
    )
    draining = {"state": "draining", "state_reason": "Replaced", "state_by": "piet"}
    Queue.objects.create(
        tenant=Tenant.objects.get(name="search"), name="old", state_at=now, **draining
    )
    waits = {
        "queue": "nightly",
        "reason": "QueueHeld",
        "message": "Queue nightly is held: The file server moves.",
    }
    _store("retrain", "vision", "erin", now - timedelta(minutes=50), **waits)
    _store("retrain-2", "vision", "erin", now - timedelta(minutes=40), **waits)
    running = Job.objects.filter(tenant=vision, state="RUNNING").order_by("name")
    Job.objects.filter(pk__in=[job.pk for job in running[:3]]).update(queue="interactive")


def _replay(now: datetime) -> None:
    operator, cluster = User.objects.get(username="operator"), Cluster.objects.get()
    change = {"gpu_type": "H200", "gpus": 8, "change": 16}
    quota = {"tenant": "vision", "gpu_type": "H200", "guaranteed": 144_000, "mode": "isolated"}
    for _ in range(3):
        services.create_replay(
            operator,
            cluster,
            since=now - timedelta(hours=20),
            until=now,
            policy={"queueing": "backfill", "preemption": ["priority"], "consolidation": True},
            nodes=[change],
            quotas=[quota],
        )
    process.carry_out(services.take_next(), lambda _: None)
    services.fail(services.take_next(), services.LOST)
    services.is_alive(services.take_next(), 0.4)
    # Pages must not report that its process is silent.
    Replay.objects.filter(state=ReplayState.RUNNING).update(alive_at=now + timedelta(days=1))
