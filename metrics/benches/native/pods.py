"""Pods created by others, and how fast a scheduler binds them: Kant or kube-scheduler.

Each gets its own API server with the same nodes and the same pods, which differ only in
`schedulerName`. Part of `manage.py bench binds --against kube-scheduler`.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from django.conf import settings

from metrics.benches import stage
from metrics.benches.apiserver import ApiServer
from metrics.benches.bare_client import create
from metrics.benches.native.database import Postgres
from scheduling.kube.translate.manifests import SCHEDULER_NAME, TENANT

NAMESPACE, TENANT_NAME = "default", "bench"
MIGRATED = "migrated"  # a database without rows
UNBOUND = "SELECT 1 FROM scheduling_job WHERE bound_at IS NULL LIMIT 1"
BOUND = "SELECT extract(epoch FROM bound_at)::float8 FROM scheduling_job ORDER BY bound_at"
POLL_S = 0.2
GIVE_UP_S = 240.0
SLOWEST_PER_S = 40  # pods; the bench gives up below this rate


class Native(NamedTuple):
    """Pods bound per second, from the first creation to the last binding; and CPU of the
    scheduler's process and its database, in ms per pod."""

    pods_per_s: float
    cpu_ms: float


class NativeKant(NamedTuple):
    """The same for Kant; plus database statements per pod, the longest time without a binding over
    the median time for 1 % of the pods, and the process's peak memory in MB."""

    pods_per_s: float
    cpu_ms: float
    statements: float
    pause: float
    peak_mb: float


def by_kant(folder: Path, nodes: int, pods: int, postgres: Postgres) -> NativeKant:
    """Measure Kant, with a database of its own for this run."""
    name = folder.name.replace("-", "_")
    postgres.rows(f"CREATE DATABASE {name} TEMPLATE {MIGRATED}")
    with ApiServer(folder) as apiserver, stage.environment(folder, postgres.url(name)):
        stage.create_nodes(apiserver.request, nodes)
        access = json.dumps(apiserver.access("admin"))
        module = "metrics.benches.native.organisation"
        stage.run_python("-m", module, access, NAMESPACE, TENANT_NAME, str(pods))
        # As often as beat ticks; news arrives by the watch anyway.
        with stage.scheduler(settings.KANT_CYCLE_SECONDS) as figures:
            before = postgres.cpu_s(), postgres.statements(name)
            seconds = _bound(apiserver, SCHEDULER_NAME, pods)
            # What is not written yet is part of a pod's cost.
            wait_until(
                lambda: not postgres.rows(UNBOUND, name), f"not all of {pods} pods are in rows"
            )
            statements = postgres.statements(name) - before[1]
            bound = [at for (at,) in postgres.rows(BOUND, name)]
        cpu_s = figures["cpu_s"] + postgres.cpu_s() - before[0]
    return NativeKant(
        pods / seconds, cpu_s * 1e3 / pods, statements / pods, pause(bound), figures["peak_mb"]
    )


def pause(bound: Sequence[float]) -> float:
    """Return the longest time between two bindings over the median time in which 1 % of the pods
    was bound. `bound`: times of the bindings in seconds, ascending, at least two."""
    step = max(1, len(bound) // 100)
    bins = [later - earlier for earlier, later in pairwise(bound[::step])]
    return max(later - earlier for earlier, later in pairwise(bound)) / median(bins)


def migrated(postgres: Postgres, folder: Path) -> None:
    """Create the database that is copied for each run."""
    postgres.rows(f"CREATE DATABASE {MIGRATED}")
    with stage.environment(folder, postgres.url(MIGRATED)):
        stage.run_python("manage.py", "migrate", "-v0")


def by_kube_scheduler(folder: Path, nodes: int, pods: int) -> Native:
    """Measure kube-scheduler with its defaults, except for its request limits."""
    with ApiServer(folder) as apiserver, stage.environment(folder):
        stage.create_nodes(apiserver.request, nodes)
        process = apiserver.start_scheduler()
        wait_until(lambda: bound_one(apiserver), "kube-scheduler bound no pod")
        before = _cpu_s(process)
        seconds = _bound(apiserver, "default-scheduler", pods)
        return Native(pods / seconds, (_cpu_s(process) - before) * 1e3 / pods)


def _bound(apiserver: ApiServer, scheduler: str, pods: int) -> float:
    """Return the seconds until all these pods, which are bound while they are created, have
    nodes."""
    began = time.perf_counter()
    create(apiserver.access("admin"), [one_gpu_pod(f"p-{n}", scheduler) for n in range(pods)])
    wait_until(
        lambda: not _without_node(apiserver),
        f"not all of {pods} pods were bound",
        GIVE_UP_S + pods / SLOWEST_PER_S,
    )
    return time.perf_counter() - began


def bound_one(apiserver: ApiServer) -> bool:
    """Return whether a first pod has its node, creating one if needed: then the scheduler is
    working."""
    found = apiserver.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    if not found:
        pod = one_gpu_pod("first", "default-scheduler")
        pod["spec"]["containers"][0]["resources"] = {}
        apiserver.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod)
        return False
    return bool(found[0]["spec"].get("nodeName"))


def _without_node(apiserver: ApiServer) -> bool:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?fieldSelector=spec.nodeName%3D&limit=1"
    return bool(apiserver.request("GET", path)["items"])


def wait_until(until: Callable[[], bool], otherwise: str, within_s: float = GIVE_UP_S) -> None:
    """Wait for a condition; raise RuntimeError with `otherwise` after `within_s` seconds."""
    deadline = time.perf_counter() + within_s
    while not until():
        if time.perf_counter() > deadline:
            raise RuntimeError(f"{otherwise} in {within_s:.0f} s")
        time.sleep(POLL_S)


def one_gpu_pod(name: str, scheduler: str) -> dict[str, Any]:
    amounts = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    main = {
        "name": "main",
        "image": "busybox:stable",
        "resources": {"requests": amounts, "limits": {"nvidia.com/gpu": "1"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {TENANT: TENANT_NAME}},
        "spec": {"schedulerName": scheduler, "containers": [main]},
    }


def _cpu_s(process: int) -> float:
    """Return the CPU seconds of a process on this machine so far (proc(5))."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
