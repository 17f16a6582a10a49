"""Pods that somebody else makes, and how fast a scheduler binds them: Kant, or kube-scheduler.

Both find an API server of their own with the same nodes, and the same pods, which differ in
`schedulerName` alone. Part of `manage.py bench binds --against kube-scheduler`.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from metrics.benches import stage
from metrics.benches.apiserver import ApiServer
from metrics.benches.bare_client import create
from scheduling.kube.translate.manifests import SCHEDULER_NAME, TENANT
from scheduling.models import Cluster, ClusterPolicy
from tenants.models import GpuType, Quota, Tenant

NAMESPACE = "default"
POLL_S = 0.2
GIVE_UP_S = 240.0


class Native(NamedTuple):
    """Pods bound a second from the first that is made to the last that is bound, CPU of the
    scheduler's process in ms a pod, and statements to the database a pod, None = it has none."""

    pods_per_s: float
    cpu_ms: float
    statements: float | None = None


def by_kant(folder: Path, nodes: int, pods: int) -> Native:
    """Kant's figures; its database is that of this process, and empty."""
    with ApiServer(folder) as apiserver:
        stage.create_nodes(apiserver.request, nodes)
        cluster = Cluster.objects.create(
            name=folder.name,
            access=apiserver.access("admin"),
            namespace_tenants={NAMESPACE: [folder.name]},
        )
        ClusterPolicy.objects.create(cluster=cluster)
        tenant = Tenant.objects.create(name=folder.name)
        gpu_type, _ = GpuType.objects.get_or_create(name=stage.MODEL)
        Quota.objects.create(tenant=tenant, gpu_type=gpu_type, guaranteed_milli=pods * 1000)
        with stage.scheduler() as figures:
            seconds = _bound(apiserver, SCHEDULER_NAME, folder.name, pods)
        Cluster.objects.update(is_active=False)
    return Native(pods / seconds, figures["cpu_s"] * 1e3 / pods, figures["statements"] / pods)


def by_kube_scheduler(folder: Path, nodes: int, pods: int) -> Native:
    """kube-scheduler's figures, with its own defaults but for the limit of its requests."""
    with ApiServer(folder) as apiserver:
        stage.create_nodes(apiserver.request, nodes)
        process = apiserver.start_scheduler()
        _wait(lambda: _bound_one(apiserver), "kube-scheduler bound no pod")
        before = _cpu_s(process)
        seconds = _bound(apiserver, "default-scheduler", "any", pods)
        return Native(pods / seconds, (_cpu_s(process) - before) * 1e3 / pods)


def _bound(apiserver: ApiServer, scheduler: str, tenant: str, pods: int) -> float:
    """Seconds until all these pods, made while they are being bound, have their nodes."""
    began = time.perf_counter()
    create(apiserver.access("admin"), [_pod(f"p-{n}", scheduler, tenant) for n in range(pods)])
    _wait(lambda: not _without_node(apiserver), f"not all of {pods} pods were bound")
    return time.perf_counter() - began


def _bound_one(apiserver: ApiServer) -> bool:
    """Whether a first pod, which is made where there is none, has its node: it is at work then."""
    found = apiserver.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    if not found:
        pod = _pod("first", "default-scheduler", "any")
        pod["spec"]["containers"][0]["resources"] = {}
        apiserver.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod)
        return False
    return bool(found[0]["spec"].get("nodeName"))


def _without_node(apiserver: ApiServer) -> bool:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?fieldSelector=spec.nodeName%3D&limit=1"
    return bool(apiserver.request("GET", path)["items"])


def _wait(until: Callable[[], bool], otherwise: str) -> None:
    """Raises RuntimeError."""
    deadline = time.perf_counter() + GIVE_UP_S
    while not until():
        if time.perf_counter() > deadline:
            raise RuntimeError(f"{otherwise} in {GIVE_UP_S:.0f} s")
        time.sleep(POLL_S)


def _pod(name: str, scheduler: str, tenant: str) -> dict[str, Any]:
    amounts = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    main = {
        "name": "main",
        "image": "busybox:stable",
        "resources": {"requests": amounts, "limits": {"nvidia.com/gpu": "1"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {TENANT: tenant}},
        "spec": {"schedulerName": scheduler, "containers": [main]},
    }


def _cpu_s(process: int) -> float:
    """CPU that a process of this machine has taken so far (proc(5))."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
