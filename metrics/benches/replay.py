"""How long a replay of days on 8,000 GPUs takes, its memory, and the size of its result."""

import json
import math
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from argparse import ArgumentParser
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from metrics.benches import stage
from metrics.benches.simulate import DEFAULT, NODES, SEED
from metrics.models import MetricSample
from metrics.replays.services import create_replay
from metrics.simulate import results as simulation
from metrics.simulate.inputs import fleet_of
from scheduling.engine.decisions import Started
from scheduling.engine.placement.strategies.by_name import STRATEGIES
from scheduling.engine.states import JobEventKind
from scheduling.engine.types import JobRequest, Node, PodPlacement
from scheduling.models import (
    Cluster,
    ClusterPolicy,
    Job,
    JobEvent,
    NodeRecord,
    Placement,
    PodSet,
)
from scheduling.models.held import columns_of
from scheduling.policy.document import effective
from scheduling.simulator import workload
from scheduling.simulator.loop import Simulation
from scheduling.simulator.model import Settings
from scheduling.simulator.nodes import engine_nodes
from scheduling.simulator.observe import STATE_NAMES
from scheduling.simulator.run import RunOutcome
from tenants.models import GpuType, Quota, Tenant, User

DAYS = 2
ROWS = 2000  # per INSERT
SAMPLE = timedelta(minutes=10)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--days", type=int, default=DAYS, help=f"length of the period ({DAYS})")


def run(days: int) -> dict[str, Any]:
    """Simulate a period of the calibrated workload, write it as if it had happened, and run the
    process that the worker would start to replay it under backfill.

    Returns the `seconds` of that process from start to end, its `cpu_seconds` and `peak_mb`, and
    `result_kb`, the size of the document that it writes.
    """
    with tempfile.TemporaryDirectory(prefix="kant-bench-") as name, stage.own_database(Path(name)):
        cluster, until = Cluster.objects.create(name="bench"), timezone.now()
        jobs = write_period(cluster, until - timedelta(days=days), days)
        operator = User.objects.create_user("bench", is_operator=True)
        replay = create_replay(
            operator,
            cluster,
            since=until - timedelta(days=days),
            until=until,
            policy={"queueing": "backfill"},
        )
        begin = time.perf_counter()
        command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "carry_out_replays"]
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - begin
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        replay.refresh_from_db()
        if replay.result is None:
            raise RuntimeError(f"the replay is {replay.state}: {replay.message}")
        return {
            "seconds": round(seconds, 1),
            "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
            "peak_mb": used.ru_maxrss // 1024,
            "result_kb": len(json.dumps(replay.result)) // 1024,
            "jobs": jobs,
            "placements": Placement.objects.count(),
            "same_starts": replay.result["starts"]["same"],
        }


# --- the period -----------------------------------------------------------------------------------
class _Recorded(Simulation):
    """Records where each job was placed; under its policy no job is placed twice."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.places: dict[str, tuple[PodPlacement, ...]] = {}

    def _start(self, part: Started, now: float) -> None:
        super()._start(part, now)
        self.places[part.job_id] = part.placements


def write_period(cluster: Cluster, since: datetime, days: int) -> int:
    """Write the rows of this many days of a fleet of 1,000 nodes; return the number of jobs."""
    nodes = engine_nodes(fleet_of(f"{NODES}x8"))
    gpus, model = sum(len(node.devices) for node in nodes), nodes[0].gpu_model
    tenants, quotas = workload.tenants_of(gpus, model)
    arrivals = list(
        workload.generate(
            workload.Variant(), gpus=gpus, gpu_model=model, seed=SEED, hours=24.0 * days
        )
    )
    policy = simulation.policy_of(DEFAULT, list(STRATEGIES))
    end = days * 86400.0
    with simulation.no_collection():
        simulated = _Recorded(
            nodes,
            arrivals,
            policy=policy,
            tenants=tenants,
            quotas=quotas,
            settings=Settings(stop_s=end, sample_s=SAMPLE.total_seconds()),
        )
        outcome = simulated.run()
    rows = {t.id: Tenant.objects.create(name=t.id) for t in tenants}
    gpu_type = GpuType.objects.create(name=model)
    for quota in quotas:
        Quota.objects.create(
            tenant=rows[quota.tenant], gpu_type=gpu_type, guaranteed_milli=quota.guaranteed
        )
    strategies = {str(kind): name for kind, name in policy.strategies.items()}
    document = {"queueing": str(policy.queueing), "strategies": strategies, "preemption": []}
    ClusterPolicy.objects.create(cluster=cluster, document=effective(document))
    NodeRecord.objects.bulk_create((_node_row(cluster, node) for node in nodes), ROWS)
    _write_samples(cluster, outcome, since)
    requests = {arrival.job.id: arrival.job for arrival in arrivals}
    writer, columns = _Writer(cluster, rows, since), outcome.observer.jobs
    for i, job_id in enumerate(columns.ids):
        writer.add(
            requests[job_id.rstrip("+")],  # resubmitted because it failed
            STATE_NAMES[columns.state[i]],
            (columns.submitted[i], columns.started[i], columns.ended[i]),
            simulated.places.get(job_id, ()),
        )
    writer.flush()
    return len(columns)


def _node_row(cluster: Cluster, node: Node) -> NodeRecord:
    count = len(node.devices)
    facts = {"gpu_memory_mib": node.devices[0].memory_mib, "nics": len(node.nics)}
    return NodeRecord(
        cluster=cluster,
        name=node.name,
        gpu_model=node.gpu_model,
        gpus=count,
        healthy_gpus=count,
        free_gpus=count,
        leaf=node.topology[0],
        spine=node.topology[1],
        superspine=node.topology[2],
        cpu_milli=node.cpu_milli,
        memory_mib=node.memory_mib,
        facts={name: {"value": value, "source": "bench"} for name, value in facts.items()},
    )


def _write_samples(cluster: Cluster, outcome: RunOutcome, since: datetime) -> None:
    (book,) = outcome.pools.values()
    held = 0.0
    rows = []
    for i, (at, gar, gfr) in enumerate(
        zip(book.series.at, book.series.gar, book.series.gfr, strict=True)
    ):
        held += book.series.sor[i] * book.available * SAMPLE.total_seconds()
        rows.append(
            MetricSample(
                cluster=cluster,
                at=since + timedelta(seconds=at),
                available_milli=book.available,
                allocated_milli=round(gar * book.available),
                nodes=book.nodes,
                fragmented_nodes=round(gfr * book.nodes),
                allocated_milli_s=held,
                available_milli_s=book.available * at,
            )
        )
    MetricSample.objects.bulk_create(rows, ROWS)


class _Writer:
    """Writes, in bulk, all rows that Kant writes for jobs that start once."""

    def __init__(self, cluster: Cluster, tenants: dict[str, Tenant], since: datetime) -> None:
        self._cluster, self._tenants, self._since = cluster, tenants, since
        self._number = 0
        self._jobs: list[Job] = []
        self._sets: list[PodSet] = []
        self._events: list[JobEvent] = []
        self._places: list[Placement] = []

    def _at(self, seconds: float) -> datetime | None:
        return None if math.isnan(seconds) else self._since + timedelta(seconds=seconds)

    def add(
        self,
        request: JobRequest,
        state: str,
        times: tuple[float, float, float],
        places: tuple[PodPlacement, ...],
    ) -> None:
        """Add a job. `times`: submitted, started, ended, in seconds of the period; NaN = not yet.
        `places`: empty for a job that has not started."""
        submitted = self._since + timedelta(seconds=times[0])
        started, ended = map(self._at, times[1:])
        self._number += 1
        job = Job(
            id=uuid.uuid5(uuid.NAMESPACE_OID, str(self._number)),
            name=request.id,
            tenant=self._tenants[request.tenant],
            cluster=self._cluster,
            kind=str(request.kind),
            priority=request.priority,
            declared_s=request.declared_s and round(request.declared_s),
            state="PENDING" if state == "WAITING" else state,
            gpu_milli=request.gpu_milli,
            attempt=1 if started else 0,
            submitted_at=submitted,
            admitted_at=started,
            bound_at=started,
            running_at=started,
            ended_at=ended,
        )
        self._jobs.append(job)
        for index, one in enumerate(request.pod_sets):
            self._sets.append(
                PodSet(
                    job=job,
                    index=index,
                    name=one.name,
                    count=one.count,
                    gpu_models=list(one.gpu_models),
                    gpus=one.gpus,
                )
            )
        for at, kind, to in (
            (submitted, JobEventKind.SUBMITTED, "PENDING"),
            (submitted, JobEventKind.QUOTA_RESERVED, "QUOTA_RESERVED"),
            (started, JobEventKind.ADMITTED, "ADMITTED"),
            (started, JobEventKind.RUNNING, "RUNNING"),
            (ended, state, state),
        ):
            if at is not None:
                self._events.append(JobEvent(job=job, at=at, kind=kind, to_state=to))
        for number, place in enumerate(places):
            assert started is not None
            self._places.append(
                Placement(
                    job=job,
                    attempt=1,
                    namespace="kant-jobs",
                    pod_name=f"{request.id}-{number}",
                    gpu_model=request.pod_sets[place.pod_set].gpu_models[0],
                    **columns_of(place),
                    state="RUNNING" if ended is None else "SUCCEEDED",
                    intended_at=started,
                    bound_at=started,
                    held_from=started,
                    ended_at=ended,
                )
            )
        if len(self._jobs) >= ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the pending rows."""
        with transaction.atomic():
            Job.objects.bulk_create(self._jobs, ROWS)
            PodSet.objects.bulk_create(self._sets, ROWS)
            JobEvent.objects.bulk_create(self._events, ROWS)
            Placement.objects.bulk_create(self._places, ROWS)
        for rows in (self._jobs, self._sets, self._events, self._places):
            rows.clear()
