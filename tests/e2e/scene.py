"""A day in the life of an organisation, written straight into the database for page tests."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random

from django.utils import timezone

from metrics import definitions
from metrics.models import MetricSample
from scheduling.engine.states import JobState
from scheduling.engine.verdict import Reason
from scheduling.models import Cluster, Job, JobEvent, NodeRecord, Placement, PodSet
from scheduling.models.jobs import PlacementState
from tenants.models import GpuType, Membership, Quota, Role, Tenant, User
from tests.e2e.site import PASSWORD

POOLS = (("H200", 64, 8), ("H100", 32, 8), ("L40S", 24, 4))  # GPU model, nodes, GPUs per node
LEAF = 8
TREE = {
    "research": (None, "Research"),
    "vision": ("research", "Computer vision"),
    "speech": ("research", "Speech"),
    "nlp": ("research", "Language models"),
    "products": (None, "Products"),
    "search": ("products", "Search"),
    "ads": ("products", "Ads"),
}
QUOTAS = {
    "research": (320, 160, 40),
    "vision": (128, 64, 8),
    "speech": (64, 32, 0),
    "nlp": (96, 48, 8),
    "products": (160, 64, 48),
    "search": (96, 32, 24),
    "ads": (48, 32, 16),
}
MEMBERS = (
    ("vera", "research", Role.TENANT_ADMIN),
    ("piet", "products", Role.TENANT_ADMIN),
    ("erin", "vision", Role.ENGINEER),
    ("vik", "search", Role.VIEWER),
)
REASONS = (
    (
        Reason.FRAGMENTED_CAPACITY,
        "Needs 8 whole H200 nodes in one leaf; the best leaf has 6.",
        {"requested_gpus": 64, "free_gpus": 118, "whole_free_nodes": 19, "largest_in_one_leaf": 48},
        ["Ask for 48 GPUs.", "Prefer one leaf instead of requiring it."],
    ),
    (
        Reason.WAITING_FOR_QUOTA,
        "Asks for 16 H100 GPUs; vision has 8 left of its 64 and nobody has idle quota to lend.",
        {"asked_gpus": 16, "left_gpus": 8},
        ["Ask for 8 GPUs.", "Ask a tenant admin of research for more quota."],
    ),
    (
        Reason.BEHIND_IN_QUEUE,
        "Two jobs of the same pool wait before it and keep their turn.",
        {"position": 3, "ahead_gpus": 192},
        [],
    ),
    (
        Reason.INSUFFICIENT_GPUS,
        "Needs 32 L40S GPUs; 20 are free.",
        {"requested_gpus": 32, "free_gpus": 20},
        ["Ask for 20 GPUs."],
    ),
    (
        Reason.EXCEEDS_MAX_QUOTA,
        "Asks for 512 H200 GPUs; vision can never hold more than 320.",
        {"asked_gpus": 512, "ceiling_gpus": 320},
        ["Ask for at most 320 GPUs."],
    ),
)


def play(now: datetime | None = None) -> None:
    """Write people, tenants, quotas, a cluster of 120 nodes, jobs in every state and a day of
    samples."""
    rng, now = Random(7), now or timezone.now()
    people = {"operator": User.objects.create_user("operator", password=PASSWORD, is_operator=True)}
    tenants: dict[str, Tenant] = {}
    for name, (parent, title) in TREE.items():
        tenants[name] = Tenant.objects.create(
            name=name, title=title, parent=tenants.get(parent or "")
        )
    for name, tenant, role in MEMBERS:
        people[name] = User.objects.create_user(name, password=PASSWORD)
        Membership.objects.create(user=people[name], tenant=tenants[tenant], role=role)
    types = [GpuType.objects.create(name=model) for model, _, _ in POOLS]
    for name, amounts in QUOTAS.items():
        for gpu_type, gpus in zip(types, amounts, strict=True):
            Quota.objects.create(
                tenant=tenants[name], gpu_type=gpu_type, guaranteed_milli=1000 * gpus
            )
    cluster = Cluster.objects.create(
        name="demo",
        title="Demo cluster",
        connected=True,
        last_cycle_at=now + timedelta(days=1),  # the scene has no scheduler
    )
    nodes = _nodes(cluster)
    rows = Rows()
    _running(rng, now, rows, cluster, tenants, people, nodes)
    _others(rng, now, rows, cluster, tenants, people)
    rows.write()
    for node in nodes:
        node.free_gpus = max(0, node.healthy_gpus - -(-node.allocated_milli // 1000))
    NodeRecord.objects.bulk_create(nodes)
    _samples(rng, now, cluster, nodes)


def _nodes(cluster: Cluster) -> list[NodeRecord]:
    nodes, number = [], 0
    for model, count, gpus in POOLS:
        for i in range(count):
            leaf = f"leaf-{number // LEAF:02d}"
            nodes.append(
                NodeRecord(
                    cluster=cluster,
                    name=f"node-{number:03d}",
                    gpu_model=model,
                    gpus=gpus,
                    healthy_gpus=gpus - (i == 5),
                    schedulable=i != 11,
                    leaf=leaf,
                    spine=f"spine-{number // (4 * LEAF)}",
                    superspine="core-0",
                    zone="inference" if model == "L40S" and i < 8 else "",
                    problems=["GPU 3 reports Xid 79; it is left out."] if i == 5 else [],
                    facts={
                        "gpu_model": {"value": model, "source": "nvidia.com/gpu.product"},
                        "gpus": {"value": gpus, "source": "status.allocatable[nvidia.com/gpu]"},
                        "leaf": {"value": leaf, "source": "network.topology.nvidia.com/leaf"},
                        "memory_mib": {"value": 2_064_384, "source": "status.allocatable[memory]"},
                    },
                )
            )
            number += 1
    return nodes


def _job(name: str, tenant: Tenant, cluster: Cluster, user: User, **more: object) -> Job:
    return Job(name=name, tenant=tenant, cluster=cluster, user=user, **more)


@dataclass
class Rows:
    """Rows to write at the end, one table at a time."""

    jobs: list[Job] = field(default_factory=list)
    pod_sets: list[PodSet] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)
    placements: list[Placement] = field(default_factory=list)

    def store(self, job: Job, model: str, pods: int, gpus: int) -> None:
        self.jobs.append(job)
        self.pod_sets.append(
            PodSet(job=job, index=0, name="worker", count=pods, gpus=gpus, gpu_models=[model])
        )

    def event(self, job: Job, at: datetime, kind: str, state: str, **more: str) -> None:
        self.events.append(JobEvent(job=job, at=at, kind=kind, to_state=state, **more))

    def write(self) -> None:
        Job.objects.bulk_create(self.jobs)
        PodSet.objects.bulk_create(self.pod_sets)
        JobEvent.objects.bulk_create(self.events)
        Placement.objects.bulk_create(self.placements)


def _running(
    rng: Random,
    now: datetime,
    rows: Rows,
    cluster: Cluster,
    tenants: dict[str, Tenant],
    people: dict[str, User],
    nodes: list[NodeRecord],
) -> None:
    """Put jobs on nodes as densely as a scheduler would: some leaves full, some fragmented."""
    leaves = [n for n in tenants if tenants[n].parent_id]
    cursor = {
        model: [n for n in nodes if n.gpu_model == model and n.schedulable] for model, *_ in POOLS
    }
    for number in range(46):
        model, _, per_node = POOLS[rng.choices((0, 1, 2), (6, 3, 2))[0]]
        size = rng.choice((1, 2, 4, 8, 8, 16, 32, 64) if per_node == 8 else (1, 2, 4))
        pods = max(1, size // per_node)
        gpus = min(size, per_node)
        places: list[tuple[NodeRecord, int]] = []
        for node in cursor[model]:
            start = node.allocated_milli // 1000
            if start + gpus <= node.healthy_gpus and (gpus < per_node or start == 0):
                places.append((node, start))
            if len(places) == pods:
                break
        if len(places) < pods:
            continue
        begun = now - timedelta(minutes=rng.randint(3, 900))
        wait = timedelta(seconds=rng.expovariate(1 / (20 * (1 + size / 4))))
        tenant = tenants[rng.choice(leaves)]
        job = _job(
            f"train-{number:03d}",
            tenant,
            cluster,
            people["erin"] if tenant.name == "vision" else people["vera"],
            state=JobState.RUNNING.value,
            attempt=1,
            gpu_milli=1000 * pods * gpus,
            submitted_at=begun - wait,
            admitted_at=begun,
            bound_at=begun,
            running_at=begun + timedelta(seconds=4),
            declared_s=rng.choice((None, 3600, 86400)),
        )
        rows.store(job, model, pods, gpus)
        for ordinal, (node, start) in enumerate(places):
            node.allocated_milli += 1000 * gpus
            rows.placements.append(
                Placement(
                    job=job,
                    attempt=1,
                    pod_set=0,
                    ordinal=ordinal,
                    namespace="kant-jobs",
                    pod_name=f"{job.name}-{str(job.id)[:8]}-1-worker-{ordinal}",
                    node=node.name,
                    gpu_model=model,
                    devices=list(range(start, start + gpus)),
                    nics=[start // 2],
                    state=PlacementState.RUNNING,
                    intended_at=begun,
                    bound_at=begun,
                    held_from=begun,
                    held_milli=1000 * gpus,
                )
            )
        rows.event(job, job.submitted_at, "SUBMITTED", "PENDING", actor=job.user.username)
        rows.event(job, begun, "QUOTA_RESERVED", "QUOTA_RESERVED")
        rows.event(job, begun, "ADMITTED", "ADMITTED", message=f"Placed on {pods} nodes.")
        rows.event(job, job.running_at, "RUNNING", "RUNNING")


def _others(
    rng: Random,
    now: datetime,
    rows: Rows,
    cluster: Cluster,
    tenants: dict[str, Tenant],
    people: dict[str, User],
) -> None:
    """Write waiting jobs, each with a different reason, and jobs that have ended."""
    for number, (reason, message, evidence, remedies) in enumerate(REASONS):
        at = now - timedelta(minutes=4 + 17 * number)
        job = _job(
            f"wait-{number:03d}",
            tenants["vision"],
            cluster,
            people["erin"],
            state=JobState.PENDING.value if number % 2 else JobState.QUOTA_RESERVED.value,
            gpu_milli=(64, 16, 8, 32, 512)[number] * 1000,
            submitted_at=at,
            reason=reason.value,
            message=message,
            evidence={**evidence, "remedies": remedies},
            reason_at=now - timedelta(seconds=2),
        )
        model = ("H200", "H100", "H200", "L40S", "H200")[number]
        rows.store(
            job,
            model,
            job.gpu_milli // (4000 if model == "L40S" else 8000),
            4 if model == "L40S" else 8,
        )
        rows.event(job, at, "SUBMITTED", "PENDING", actor="erin")
        rows.event(job, at, "REASON", job.state, reason=reason.value, message=message)
    ends = (JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
    for number in range(60):
        size = rng.choice((1, 1, 2, 4, 8, 16, 32, 64))
        begun = now - timedelta(hours=rng.uniform(0.5, 23))
        state = ends[number % 4]
        ended = min(now, begun + timedelta(minutes=rng.randint(1, 300)))
        job = _job(
            f"done-{number:03d}",
            tenants[rng.choice(list(tenants))],
            cluster,
            people["piet"],
            state=state.value,
            attempt=1,
            gpu_milli=1000 * size,
            submitted_at=begun - timedelta(seconds=rng.expovariate(1 / (10 * (1 + size)))),
            bound_at=begun,
            running_at=begun,
            ended_at=ended,
            message="Container main ended with exit code 1." if state == "FAILED" else "",
        )
        rows.store(job, POOLS[number % 3][0], max(1, size // 8), min(size, 8))
        rows.event(job, job.submitted_at, "SUBMITTED", "PENDING", actor="piet")
        rows.event(job, ended, state.value, state.value, message=job.message)


def _samples(rng: Random, now: datetime, cluster: Cluster, nodes: list[NodeRecord]) -> None:
    """Write a day of samples that end at what the nodes hold now."""
    for model in ("", *(m for m, _, _ in POOLS)):
        use = definitions.pool_use(
            definitions.NodeUse(
                n.gpu_model,
                n.gpus,
                n.healthy_gpus,
                n.free_gpus,
                n.allocated_milli,
                n.schedulable,
                n.leaf,
            )
            for n in nodes
            if model in ("", n.gpu_model)
        )
        share, held, there = 0.5, 0.0, 0.0
        rows = []
        for step in range(145):
            at = now - timedelta(minutes=10 * (144 - step))
            share = min(0.97, max(0.3, share + rng.uniform(-0.04, 0.045)))
            last = step == 144
            allocated = (
                use.allocated_milli if last else int(share * use.available_milli) // 1000 * 1000
            )
            rows.append(
                MetricSample(
                    cluster=cluster,
                    gpu_model=model,
                    at=at,
                    available_milli=use.available_milli,
                    allocated_milli=allocated,
                    excluded_milli=use.excluded_milli,
                    nodes=use.nodes,
                    fragmented_nodes=use.fragmented
                    if last
                    else int(use.nodes * rng.uniform(0.08, 0.2)),
                    free_by_node=use.free_by_node,
                    pending_jobs=5 if last else rng.randint(0, 9),
                    allocated_milli_s=held,
                    available_milli_s=there,
                )
            )
            held += allocated * 600.0
            there += use.available_milli * 600.0
        MetricSample.objects.bulk_create(rows)
