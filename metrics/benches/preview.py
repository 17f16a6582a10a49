"""`manage.py bench preview`: what a change of two quotas would do, on 12,500 nodes.

2,000 jobs of two tenants run and 1,000 wait; GPUs move from one tenant to the other. Measures the
wall-clock time of a whole answer, with a process that keeps the state, and from a state built from
the rows.
"""

import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import NamedTuple

from django.db import connection, connections
from django.utils import timezone

from metrics.benches.stage import GPUS, MODEL, own_database
from scheduling.models import Cluster, Forecasting, Job, NodeRecord, Placement, PodSet
from scheduling.models.jobs import PlacementState
from scheduling.queries.effects import quota_effects
from scheduling.queries.quota_use import QuotaKey
from scheduling.queries.whatif import line
from scheduling.services.forecasts import process
from tenants.effects import Effects
from tenants.models import GpuType, Quota, Tenant, User

NODES, RUNNING, WAITING, REPEATS = 12_500, 2000, 1000, 3
KEPT_WITHIN_S = 300.0
TENANTS = ("one", "two")
MOVED = 800_000  # milli-GPU


def run() -> dict[str, float]:
    """Return wall-clock seconds, the caller's CPU seconds, and the predicted numbers. `again_s`:
    for the next question while nothing has changed."""
    with tempfile.TemporaryDirectory() as folder, own_database(Path(folder)):
        ops = User.objects.create(username="bench", is_operator=True)
        fill()
        quotas = list(Quota.objects.select_related("tenant", "gpu_type").order_by("pk"))
        quotas[0].guaranteed_milli -= MOVED
        quotas[1].guaranteed_milli += MOVED
        after = {(q.tenant.name, q.gpu_type.name): q for q in quotas}
        by_rows = [_asked(ops, after) for _ in range(REPEATS)]
        with keeper():
            first, *again = [_asked(ops, after) for _ in range(REPEATS + 1)]
    told = first.told
    assert told.until is not None
    return {
        "preview_s": first.clock_s,
        "preview_cpu_s": first.cpu_s,
        "again_s": median(one.clock_s for one in again),
        "looked_ahead_s": _ahead(told),
        "by_rows_s": median(one.clock_s for one in by_rows),
        "by_rows_cpu_s": median(one.cpu_s for one in by_rows),
        "by_rows_looked_ahead_s": median(_ahead(one.told) for one in by_rows),
        "starts": float(told.counts.starts),
        "stops": float(told.counts.stops),
        "shifts": float(told.counts.sooner + told.counts.later),
    }


class _Told(NamedTuple):
    told: Effects
    clock_s: float
    cpu_s: float


def _asked(viewer: User, after: Mapping[QuotaKey, Quota | None]) -> _Told:
    began, used = time.monotonic(), time.process_time()
    told = quota_effects(viewer, after)
    return _Told(told, time.monotonic() - began, time.process_time() - used)


def _ahead(told: Effects) -> float:
    assert told.until is not None
    return (told.until - told.as_of).total_seconds()


class Nothing:
    """A question that the process which keeps the state answers at once."""

    def answer(self, _kept: object) -> bool:
        return True


@contextmanager
def keeper() -> Iterator[float]:
    """Run a process that keeps the state of the only cluster; yield the seconds until it does."""
    connection.close()
    for each in connections.all():
        if hasattr(each, "close_pool"):
            each.close_pool()  # otherwise both processes would share its connections
    one = get_context("fork").Process(target=_keep, args=[os.getpid()], daemon=True)
    one.start()
    assert one.pid is not None
    try:
        yield _is_kept(Cluster.objects.get().pk)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGKILL)  # including its children
        one.join()
        Forecasting.objects.update(alive_at=None)  # or the next keeper would wait


def _keep(parent: int) -> None:
    os.setpgrp()
    process.keep(parent)


def _is_kept(cluster_id: int) -> float:
    began = time.monotonic()
    while time.monotonic() < began + KEPT_WITHIN_S:
        with suppress(line.Away, line.Crowded):
            if line.ask(cluster_id, Nothing()):
                return time.monotonic() - began
        time.sleep(0.2)
    raise RuntimeError(f"no state was kept within {KEPT_WITHIN_S:.0f} s")


def fill() -> None:
    now = timezone.now()
    model = GpuType.objects.create(name=MODEL)
    cluster = Cluster.objects.create(
        name="bench", connected=True, last_cycle_at=now + timedelta(hours=1)
    )
    NodeRecord.objects.bulk_create(
        NodeRecord(
            cluster=cluster, name=f"n{i:05}", gpu_model=MODEL, gpus=GPUS, healthy_gpus=GPUS,
            leaf=f"leaf-{i // 8}", spine=f"spine-{i // 288}", cpu_milli=192_000,
            memory_mib=2_097_152,
        )
        for i in range(NODES)
    )  # fmt: skip
    tenants = [Tenant.objects.create(name=name) for name in TENANTS]
    sizes = [6 + (at % 4 == 0) for at in range(RUNNING + WAITING)]  # running ones fill the nodes
    first = [0, *accumulate(sizes)]
    owners = [tenants[at % 3 == 0] for at in range(RUNNING + WAITING)]
    for tenant in tenants:  # what it holds, so that without the change there is nothing to decide
        held = sum(sizes[at] for at in range(RUNNING) if owners[at] is tenant)
        Quota.objects.create(tenant=tenant, gpu_type=model, guaranteed_milli=1000 * GPUS * held)
    jobs = [
        Job(
            name=f"job-{at}", tenant=owners[at], cluster=cluster,
            declared_s=3600 + 60 * at,
            submitted_at=now - timedelta(seconds=4000 - at), gpu_milli=1000 * GPUS * sizes[at],
            **({"state": "RUNNING", "attempt": 1, "admitted_at": now - timedelta(seconds=at)}
               if at < RUNNING else {"state": "PENDING"}),
        )
        for at in range(RUNNING + WAITING)
    ]  # fmt: skip
    Job.objects.bulk_create(jobs)
    PodSet.objects.bulk_create(
        PodSet(job=job, index=0, name="w", count=pods, gpus=GPUS, gpu_models=[MODEL])
        for job, pods in zip(jobs, sizes, strict=True)
    )
    Placement.objects.bulk_create(
        Placement(
            job=job, attempt=1, pod_set=0, ordinal=pod, pod_name=f"{job.name}-{pod}",
            node=f"n{first[at] + pod:05}", gpu_model=MODEL, devices=list(range(GPUS)),
            state=PlacementState.RUNNING, intended_at=now, held_from=now, held_milli=1000 * GPUS,
        )
        for at, job in enumerate(jobs[:RUNNING])
        for pod in range(sizes[at])
    )  # fmt: skip
