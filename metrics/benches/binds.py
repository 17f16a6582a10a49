"""How fast a full queue is created and bound, against a bare client on the same server."""

import tempfile
import time
import uuid
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from django.db import transaction
from django.utils import timezone

from metrics.benches import stage
from metrics.benches.apiserver import SCHEDULER, ApiServer, programs
from metrics.benches.bare_client import BarePod, create_and_bind
from metrics.benches.native.database import Postgres
from metrics.benches.native.idle import idle
from metrics.benches.native.pods import Native, NativeKant, by_kant, by_kube_scheduler, migrated
from scheduling.cluster_process import ClusterProcess
from scheduling.engine.states import JobEventKind, JobState
from scheduling.kube.translate import manifests
from scheduling.models import Cluster, ClusterPolicy, Job, JobEvent, PodSet
from tenants.models import GpuType, Quota, Tenant

PODS, NODES, ROUNDS = 4000, 500, 3
BARE_NAMESPACE = "kant-bench-bare"
POLL_S = 0.05
GIVE_UP_S = 50.0


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--server", choices=("kube-apiserver", "embedded"), default="embedded")
    parser.add_argument(
        "--against",
        choices=(SCHEDULER,),
        help="compare pods that others make; with --server kube-apiserver",
    )
    parser.add_argument("--nodes", type=int, default=NODES, help="with --against")
    parser.add_argument("--pods", type=int, default=PODS, help="with --against")


def run(
    server: str, against: str | None = None, nodes: int = NODES, pods: int = PODS
) -> dict[str, Any]:
    """Create and bind 4,000 one-GPU jobs on 500 nodes.

    Returns pods/s of Kant, of a bare client, and their ratio; and per pod, the CPU and database
    statements of Kant's scheduler.
    """
    if against is not None:
        if server == "embedded":
            raise RuntimeError(f"{against} needs --server kube-apiserver")
        if not 0 < pods <= nodes * stage.GPUS:
            raise RuntimeError(f"--pods: {nodes} nodes have {nodes * stage.GPUS} GPUs")
        return _compared(nodes, pods)
    with tempfile.TemporaryDirectory(prefix="kant-bench-") as name:
        folder = Path(name)
        with stage.own_database(folder):
            # Each side gets a fresh server, unaffected by what the other has left.
            with _server(server, folder / "bare") as access:
                bare = _bare(access)
            with _server(server, folder / "kant") as access:
                kant, of_process = _kant(access)
    return {
        "kant_per_s": round(kant, 1),
        "bare_per_s": round(bare, 1),
        "ratio": round(kant / bare, 3),
        "statements_a_pod": round(of_process["statements"] / PODS, 3),
        "cpu_ms": round(of_process["cpu_s"] * 1e3 / PODS, 2),
        "peak_mb": of_process["peak_mb"],
        "server": server,
    }


def _compared(nodes: int, pods: int) -> dict[str, Any]:
    """Return medians over rounds in which both take turns, so that other load slows both; and how
    soon a pod that arrives alone is bound."""
    programs()
    kant, other = list[NativeKant](), list[Native]()
    with tempfile.TemporaryDirectory(prefix="kant-bench-") as name, Postgres() as postgres:
        folder = Path(name)
        migrated(postgres, folder)
        for number in range(ROUNDS):
            kant.append(by_kant(folder / f"kant-{number}", nodes, pods, postgres))
            other.append(by_kube_scheduler(folder / f"kube-{number}", nodes, pods))
        alone = idle(folder / "idle", nodes, postgres)
    rate, cpu = _median(kant, "pods_per_s"), _median(kant, "cpu_ms")
    other_rate, other_cpu = _median(other, "pods_per_s"), _median(other, "cpu_ms")
    return {
        "native_per_s": round(rate, 1),
        "native_cpu_ms": round(cpu, 2),
        "native_statements": round(_median(kant, "statements"), 3),
        "native_pause_ratio": round(_median(kant, "pause"), 2),
        "native_peak_mb": max(one.peak_mb for one in kant),
        "kube_scheduler_per_s": round(other_rate, 1),
        "kube_scheduler_cpu_ms": round(other_cpu, 2),
        "ratio": round(rate / other_rate, 3),
        "cpu_ratio": round(cpu / other_cpu, 3),
        "idle_p50_ms": round(alone.kant_s * 1e3, 2),
        "kube_scheduler_idle_p50_ms": round(alone.other_s * 1e3, 2),
        "idle_ratio": round(alone.kant_s / alone.other_s, 2),
        "nodes": nodes,
        "pods": pods,
        "rounds": ROUNDS,
    }


def _median(found: Sequence[Native | NativeKant], figure: str) -> float:
    return median(getattr(one, figure) for one in found)


@contextmanager
def _server(kind: str, folder: Path) -> Iterator[dict[str, str]]:
    folder.mkdir()
    if kind == "embedded":
        cluster = ClusterProcess(str(stage.inventory(folder / "fleet.yaml", NODES)), folder)
        cluster.start()
        try:
            yield {"kubeconfig": str(cluster.kubeconfig)}
        finally:
            cluster.stop()
        return
    programs()
    with ApiServer(folder) as apiserver:
        stage.create_nodes(apiserver.request, NODES)
        yield apiserver.access("admin")


def _bare(access: dict[str, str]) -> float:
    nodes = stage.node_names(access, BARE_NAMESPACE)
    template = manifests.PodTemplate(
        namespace=BARE_NAMESPACE,
        job_id=str(uuid.uuid4()),
        tenant="bench",
        attempt=1,
        pod_set=0,
        image="busybox:stable",
        gpus=1,
        cpu_milli=1000,
        memory_mib=1024,
    )
    pods = [
        BarePod(
            manifests.pod_manifest(template, f"bench-{template.job_id[:8]}-{i}", i),
            nodes[i % NODES],
            manifests.binding_annotations((i // NODES,), 1000),
        )
        for i in range(PODS)
    ]
    return create_and_bind(access, pods).per_second


def _kant(access: dict[str, str]) -> tuple[float, dict[str, Any]]:
    """Return (pods/s from a full queue to all bound, figures of the scheduler's process)."""
    cluster = Cluster.objects.create(name="bench", access=access)
    ClusterPolicy.objects.create(cluster=cluster)
    tenant = Tenant.objects.create(name="bench")
    gpu_type = GpuType.objects.create(name=stage.MODEL)
    Quota.objects.create(tenant=tenant, gpu_type=gpu_type, guaranteed_milli=PODS * 1000)
    with stage.scheduler() as figures:
        _fill_queue(cluster, tenant)
        started = time.perf_counter()
        while Job.objects.filter(bound_at=None).exists():
            if time.perf_counter() - started > GIVE_UP_S:
                left = Job.objects.filter(bound_at=None).count()
                raise RuntimeError(f"{left} of {PODS} jobs were not bound in {GIVE_UP_S:.0f} s")
            time.sleep(POLL_S)
        seconds = time.perf_counter() - started
    return PODS / seconds, figures


def _fill_queue(cluster: Cluster, tenant: Tenant) -> None:
    """Create all jobs in one transaction, as if they had waited; with the rows that `submit_job`
    writes."""
    now = timezone.now()
    jobs = [
        Job(
            name=f"bench-{i:04}",
            tenant=tenant,
            cluster=cluster,
            submitted_at=now,
            gpu_milli=1000,
            state=JobState.PENDING.value,
        )
        for i in range(PODS)
    ]
    sets = [
        PodSet(
            job=job,
            index=0,
            name="worker",
            count=1,
            gpus=1,
            cpu_milli=1000,
            memory_mib=1024,
            annotations={"sim.kant.io/run-seconds": "600"},
        )
        for job in jobs
    ]
    events = [
        JobEvent(job=job, at=now, kind=JobEventKind.SUBMITTED.value, to_state=job.state)
        for job in jobs
    ]
    with transaction.atomic():
        Job.objects.bulk_create(jobs)
        PodSet.objects.bulk_create(sets)
        JobEvent.objects.bulk_create(events)
