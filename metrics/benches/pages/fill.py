"""An organisation with years of history, written at once: the rows that `bench pages` reads.

Everything follows from a seed and the instant of filling. The rows are what the scheduler and the
recorder would have written; nothing is scheduled.
"""

import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from metrics.models import MetricSample
from scheduling.models import (
    Cluster,
    Job,
    JobEvent,
    NodeRecord,
    Placement,
    PodSet,
    SchedulerLease,
)
from scheduling.models.jobs import PlacementState
from scheduling.services.common.bulk import Rows
from scheduling.session.pace import Pace
from tenants.models import GpuType, Membership, Quota, Role, Tenant, User

CLUSTER, OPERATOR, ENGINEER, TEAM = "bench-pages", "bench-operator", "bench-engineer", "team-00"
GPUS, USERS, SEED = 8, 40, 34
HISTORY = timedelta(days=90)
MODELS = tuple(f"NVIDIA-BENCH-{letter}-80GB" for letter in "ABCDEFGHIJKL")
ORGANISATIONS, DEPARTMENTS, TEAMS = 4, 8, 48  # 60 tenants
# GPUs of finished and of running jobs, each as often as listed.
ENDED_SIZES = (1,) * 10 + (2, 2, 4, 4, 8, 8, 8, 16, 16, 32, 64)
RUNNING_SIZES = (1, 1, 2, 4, 8, 8, 16, 16, 32, 64, 128)
WAITING_SIZES = (8, 8, 16, 16, 32, 64, 128)  # whole nodes, none of which is free
REASONS = ("InsufficientGpus", "QuotaExceeded", "BorrowLimit", "Fragmented")


@dataclass(frozen=True, slots=True)
class Size:
    """The numbers of rows that grow over time."""

    jobs: int = 200_000
    waiting: int = 5000
    running: int = 3000
    nodes: int = 12_500
    samples: int = 30_000  # per pool
    gang: int = 1024  # GPUs of the largest running one

    def times(self, scale: float) -> "Size":
        """Scale all numbers, but keep enough to have each kind."""
        gang = max(2 * GPUS, GPUS * round(self.gang * scale / GPUS))
        return Size(
            max(100, round(self.jobs * scale)),
            max(10, round(self.waiting * scale)),
            max(5, round(self.running * scale)),
            max(2 * len(MODELS) * gang // GPUS, round(self.nodes * scale)),
            max(60, round(self.samples * scale)),
            gang,
        )


class ForeignDatabase(RuntimeError):
    """The database contains data that no bench has written."""


def filled(size: Size) -> None:
    """Fill the database unless it is already filled; raise ForeignDatabase."""
    cluster = Cluster.objects.filter(name=CLUSTER).first()
    if cluster is None and (Tenant.objects.exists() or User.objects.exists()):
        raise ForeignDatabase(
            "DATABASE_URL names a database that holds other things; create an empty one for "
            "`bench pages` and name that"
        )
    if cluster is None:
        with transaction.atomic():
            cluster = _Filler(size, timezone.now()).fill()
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
    # Look as if a scheduler worked for as long as the bench asks.
    cluster.last_cycle_at = timezone.now() + timedelta(hours=1)
    cluster.save(update_fields=["last_cycle_at"])


class _Filler:
    def __init__(self, size: Size, now: datetime) -> None:
        self._size, self._now, self._random = size, now, random.Random(SEED)
        self._tables: dict[type[Any], tuple[Rows, list[Any]]] = {}
        self._numbers = count(1)
        self._held: Counter[tuple[Tenant, str]] = Counter()  # GPUs of running jobs

    def fill(self) -> Cluster:
        self._cluster = Cluster.objects.create(name=CLUSTER, title="Bench", connected=True)
        SchedulerLease.objects.create(
            cluster=self._cluster,
            holder="bench",
            token=1,
            expires_at=self._now + timedelta(days=3650),
            pace=Pace(passes=1000, seconds=20.0).document(),
        )
        self._types = {name: GpuType.objects.create(name=name) for name in MODELS}
        self._tenancy()
        self._free = self._nodes()
        self._jobs()
        self._quotas()
        self._samples()
        return self._cluster

    # --- people and tenants ---------------------------------------------------------------------
    def _tenancy(self) -> None:
        tops = [Tenant.objects.create(name=f"org-{i}") for i in range(ORGANISATIONS)]
        middle = [
            Tenant.objects.create(name=f"dept-{i}", parent=tops[i % ORGANISATIONS])
            for i in range(DEPARTMENTS)
        ]
        self._teams = [
            Tenant.objects.create(name=f"team-{i:02}", parent=middle[i % DEPARTMENTS])
            for i in range(TEAMS)
        ]
        User.objects.create(username=OPERATOR, is_operator=True)
        names = (ENGINEER, *(f"bench-user-{i}" for i in range(1, USERS)))
        self._users = User.objects.bulk_create(User(username=name) for name in names)
        Membership.objects.bulk_create(
            Membership(user=user, tenant=self._teams[i % TEAMS], role=Role.ENGINEER)
            for i, user in enumerate(self._users)
        )

    def _quotas(self) -> None:
        """Guarantee each tenant what it holds: any other would already have been reclaimed."""
        milli: Counter[tuple[Tenant, str]] = Counter()
        for (tenant, model), gpus in self._held.items():
            above: Tenant | None = tenant
            while above is not None:
                milli[above, model] += 1000 * gpus
                above = above.parent
        Quota.objects.bulk_create(
            Quota(tenant=tenant, gpu_type=kind, guaranteed_milli=milli[tenant, model])
            for tenant in Tenant.objects.all()
            for model, kind in self._types.items()
        )

    def _nodes(self) -> dict[str, list[str]]:
        """Return {GPU model: names of its nodes}. One node in ten is out of service; on another one
        in ten, pods of another scheduler hold a GPU."""
        rows, of_model = Rows(NodeRecord), dict[str, list[str]]()
        for i in range(self._size.nodes):
            model = MODELS[i * len(MODELS) // self._size.nodes]
            name = f"node-{i:05}"
            of_model.setdefault(model, []).append(name)
            facts = {"other_gpus": {"value": 1, "source": "bench"}} if i % 10 == 5 else {}
            row = NodeRecord(
                cluster=self._cluster, name=name, gpu_model=model, gpus=GPUS, healthy_gpus=GPUS,
                free_gpus=GPUS - len(facts), allocated_milli=1000 * len(facts),
                leaf=f"leaf-{i // 8:04}", spine=f"spine-{i // 288:03}", schedulable=i % 10 != 0,
                cpu_milli=192_000, memory_mib=2_097_152, labels={"bench": str(i % 7)}, facts=facts,
                updated_at=self._now,
            )  # fmt: skip
            rows.add(rows.prepare(row))
        rows.write()
        return of_model

    # --- jobs -----------------------------------------------------------------------------------
    def _jobs(self) -> None:
        size = self._size
        ended = size.jobs - size.waiting - size.running
        for i in range(ended):
            self._ended(i, self._now - HISTORY * ((ended - i) / ended))
        self._running(size.gang, MODELS[0], 0)
        for i in range(1, size.running - len(MODELS)):
            gpus = self._random.choice(RUNNING_SIZES)
            roomy = [model for model, nodes in self._free.items() if len(nodes) > _pods(gpus)]
            if roomy:
                self._running(gpus, roomy[i % len(roomy)], i)
        for i, (model, nodes) in enumerate(self._free.items()):
            self._running(GPUS * len(nodes), model, i)
        for i in range(size.waiting):
            self._waiting(i)
        self._write()

    def _ended(self, i: int, submitted: datetime) -> None:
        gpus, model = self._random.choice(ENDED_SIZES), self._random.choice(MODELS)
        begun = submitted + timedelta(seconds=self._random.expovariate(1 / 600))
        end = begun + timedelta(seconds=self._random.expovariate(1 / 7200))
        end = min(end, self._now - timedelta(seconds=1))
        job = self._job(
            i, gpus, model, submitted, state="SUCCEEDED", attempt=1, admitted_at=begun,
            bound_at=begun, running_at=begun, ended_at=end, version=5,
        )  # fmt: skip
        nodes = self._free[model]
        first = self._random.randrange(len(nodes))
        places = [nodes[(first + pod) % len(nodes)] for pod in range(_pods(gpus))]
        self._placed(job, gpus, model, begun, places, PlacementState.SUCCEEDED, end)
        self._happened(job, submitted, begun, end)

    def _running(self, gpus: int, model: str, i: int) -> None:
        begun = self._now - timedelta(hours=self._random.uniform(0.1, 40))
        job = self._job(
            i, gpus, model, begun - timedelta(minutes=5), state="RUNNING", attempt=1,
            admitted_at=begun, bound_at=begun, running_at=begun, version=4,
        )  # fmt: skip
        self._held[self._teams[i % TEAMS], model] += gpus
        places = [self._free[model].pop() for _ in range(_pods(gpus))]
        self._placed(job, gpus, model, begun, places, PlacementState.RUNNING, None)
        self._happened(job, begun - timedelta(minutes=5), begun, None)
        NodeRecord.objects.filter(cluster=self._cluster, name__in=places).update(
            allocated_milli=1000 * min(gpus, GPUS), free_gpus=GPUS - min(gpus, GPUS), pods=1
        )

    def _waiting(self, i: int) -> None:
        submitted = self._now - timedelta(minutes=self._random.uniform(1, 1400))
        reason = self._random.choice(REASONS)
        job = self._job(
            i, self._random.choice(WAITING_SIZES), self._random.choice(MODELS), submitted,
            state="PENDING", reason=reason, reason_at=self._now, held=i % 100 == 0,
            message="32 GPUs are asked for at once; 16 are free.",
            evidence={"requested_gpus": 32, "free_gpus": 16},
        )  # fmt: skip
        self._event(job, submitted, "SUBMITTED", "PENDING")
        self._event(job, self._now, "REASON", "PENDING", reason=reason)

    def _job(self, i: int, gpus: int, model: str, submitted: datetime, **more: Any) -> uuid.UUID:
        number = next(self._numbers)
        job_id = uuid.UUID(int=self._random.getrandbits(128), version=4)
        self._add(
            Job,
            lambda: Job(
                cluster=self._cluster, tenant=self._teams[0], submitted_at=self._now, name="x"
            ),
            id=job_id,
            name=f"job-{number}",
            tenant_id=self._teams[i % TEAMS].pk,
            user_id=self._users[i % USERS].pk,
            submitted_at=submitted,
            gpu_milli=1000 * gpus,
            **more,
        )
        self._add(
            PodSet,
            lambda: PodSet(index=0, name="worker", cpu_milli=1000, memory_mib=1024),
            job_id=job_id,
            count=_pods(gpus),
            gpus=min(gpus, GPUS),
            gpu_models=[model],
        )
        return job_id

    def _placed(
        self,
        job: uuid.UUID,
        gpus: int,
        model: str,
        begun: datetime,
        places: list[str],
        state: str,
        end: datetime | None,
    ) -> None:
        each = min(gpus, GPUS)
        for pod, node in enumerate(places):
            self._add(
                Placement,
                lambda: Placement(attempt=1, pod_set=0, namespace="kant-jobs"),
                job_id=job,
                ordinal=pod,
                pod_name=f"kant-{job.hex[:12]}-{pod}",
                node=node,
                gpu_model=model,
                devices=list(range(each)),
                held_milli=1000 * each,
                state=state,
                intended_at=begun,
                bound_at=begun,
                running_at=begun,
                held_from=begun,
                ended_at=end,
            )

    def _happened(
        self, job: uuid.UUID, submitted: datetime, begun: datetime, end: datetime | None
    ) -> None:
        self._event(job, submitted, "SUBMITTED", "PENDING")
        self._event(job, begun, "QUOTA_RESERVED", "QUOTA_RESERVED", from_state="PENDING")
        self._event(job, begun, "ADMITTED", "ADMITTED", from_state="QUOTA_RESERVED")
        self._event(job, begun, "RUNNING", "RUNNING", from_state="ADMITTED")
        if end is not None:
            self._event(job, end, "SUCCEEDED", "SUCCEEDED", from_state="RUNNING")

    def _event(self, job: uuid.UUID, at: datetime, kind: str, to: str, **more: str) -> None:
        self._add(JobEvent, JobEvent, job_id=job, at=at, kind=kind, to_state=to, **more)

    # --- what was recorded ----------------------------------------------------------------------
    def _samples(self) -> None:
        """Write samples as they are kept: every ten seconds for two days, before that one in ten
        minutes."""
        for model in ("", *MODELS):
            held = available = 0.0
            before = None
            milli = 1000 * self._size.nodes * GPUS // (len(MODELS) if model else 1)
            for at in self._instants():
                seconds = (at - before).total_seconds() if before is not None else 0.0
                held, available, before = (
                    held + 0.8 * milli * seconds,
                    available + milli * seconds,
                    at,
                )
                self._add(
                    MetricSample,
                    lambda: MetricSample(
                        cluster=self._cluster, at=self._now, available_milli=0, allocated_milli=0,
                        nodes=self._size.nodes, fragmented_nodes=10, free_by_node={"0": 9, "8": 1},
                        largest_gang_leaf=64, largest_gang_any=512, pending_jobs=400,
                        pending_milli=400_000,
                    ),
                    gpu_model=model,
                    at=at,
                    available_milli=milli,
                    allocated_milli=milli * 8 // 10,
                    allocated_milli_s=held,
                    available_milli_s=available,
                    told_milli_s=held,
                )  # fmt: skip
        self._write()

    def _instants(self) -> Iterator[datetime]:
        recent = self._size.samples * 17 // 30
        older = self._size.samples - recent
        start = self._now - timedelta(seconds=10 * recent)
        for i in range(older, 0, -1):
            yield start - timedelta(minutes=10 * i)
        for i in range(recent):
            yield start + timedelta(seconds=10 * i)

    # --- rows -----------------------------------------------------------------------------------
    def _add(self, model: type[Any], blank: Callable[[], Any], **values: Any) -> None:
        """Add a row like the table's first one, except for these values."""
        if model not in self._tables:
            table = Rows(model)
            self._tables[model] = table, table.prepare(blank())
        table, prepared = self._tables[model]
        table.add(prepared, **values)
        if len(table) >= 50_000:
            self._write()

    def _write(self) -> None:
        for model in (Job, PodSet, Placement, JobEvent, MetricSample):
            if model in self._tables:
                self._tables[model][0].write()


def _pods(gpus: int) -> int:
    return max(1, gpus // GPUS)
