"""What benches need around Kant: a separate database, servers, nodes, a scheduler process."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from django.conf import settings
from django.core.management import call_command
from django.db import connection

from scheduling.kube.door.gateway import Gateway
from scheduling.kube.seam import NodeSeen

READY_WITHIN_S = 60.0
GPUS = 8
MODEL = "NVIDIA-H100-80GB-HBM3"


@contextmanager
def own_database(folder: Path) -> Iterator[None]:
    """Use an empty SQLite database in `folder`, in this process and those it starts."""
    if connection.vendor != "sqlite":
        raise RuntimeError("benches use a SQLite database of their own; unset DATABASE_URL")
    name = connection.settings_dict["NAME"]
    # Set aside rather than closed: an in-memory database would vanish with its last connection.
    link, connection.connection = connection.connection, None
    connection.settings_dict["NAME"] = folder / "kant.sqlite3"
    try:
        with environment(folder):
            call_command("migrate", verbosity=0, interactive=False, run_syncdb=True)
            yield
    finally:
        connection.close()
        connection.settings_dict["NAME"] = name
        connection.connection = link


@contextmanager
def environment(folder: Path, database: str = "") -> Iterator[None]:
    """Set the environment of this process and of those started inside: clusters' access files are
    in the folder, child processes use it as their own, and `database` is their URL ("" = the
    database in the folder)."""
    new = {"KANT_VAR_DIR": str(folder), "KANT_ACCESS_DIRS": str(folder), "DATABASE_URL": database}
    new["REDIS_URL"] = ""
    kept = {name: os.environ.get(name) for name in new}
    os.environ.update(new)
    access_dirs, settings.KANT_ACCESS_DIRS = settings.KANT_ACCESS_DIRS, [str(folder)]
    try:
        yield
    finally:
        settings.KANT_ACCESS_DIRS = access_dirs
        for variable, value in kept.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value


def run_python(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Run this Python and return its output, with the given environment or this one. Raises
    RuntimeError if it fails."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=settings.BASE_DIR,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


@contextmanager
def scheduler(look_s: float = 0.1) -> Iterator[dict[str, Any]]:
    """Run a scheduler process that leads; the yielded dict gets its figures when it has ended.
    `look_s`: how often it checks the database when no news of the cluster wakes it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "metrics.benches.scheduler_process", str(look_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=settings.BASE_DIR,
        start_new_session=True,  # Ctrl-C is for this process, which then ends the scheduler
    )
    assert process.stdin is not None
    assert process.stdout is not None
    figures: dict[str, Any] = {}
    try:
        if process.stdout.readline().strip() != "LEADING":
            raise RuntimeError("the scheduler did not come to lead the cluster")
        yield figures
        process.stdin.close()
        figures.update(json.loads(process.stdout.readline()))
    finally:
        if process.poll() is None:
            process.stdin.close()
            process.wait(READY_WITHIN_S)
        process.stdout.close()


def node_names(access: dict[str, str], namespace: str) -> list[str]:
    """Return the names of the cluster's nodes; also creates the namespace."""
    gateway = Gateway(access, namespace=namespace, label_map={})
    gateway.start()
    try:
        gateway.wait_synced()
        return sorted(s.facts.node.name for s in gateway.drain() if isinstance(s, NodeSeen))
    finally:
        gateway.stop()


def inventory(path: Path, nodes: int, *, per_leaf: int = 8) -> Path:
    """Write an inventory file of equal nodes for the embedded cluster."""
    pool = {
        "name": "h100",
        "count": nodes,
        "gpu_model": MODEL,
        "gpus": GPUS,
        "gpu_memory_mib": 81559,
        "cpu_milli": 192_000,
        "memory_mib": 2_097_152,
        "link_model": "nvswitch-8",
        "nodes_per_leaf": per_leaf,
        "leaves_per_spine": 8,
    }
    document = {"name": "bench", "superspine": "superspine-1", "pools": [pool]}
    path.write_text(yaml.safe_dump(document))
    return path


def create_nodes(call: Callable[..., Any], nodes: int) -> None:
    """Create ready GPU nodes on an API server without kubelets."""
    for i in range(nodes):
        leaf = f"leaf-{i // 8}"
        labels = {
            "nvidia.com/gpu.product": MODEL,
            "nvidia.com/gpu.count": str(GPUS),
            "nvidia.com/gpu.memory": "81559",
            "network.topology.nvidia.com/leaf": leaf,
            "network.topology.nvidia.com/spine": f"spine-{i // 64}",
        }
        name = f"node-{i:04}"
        meta = {"name": name, "labels": labels}
        call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": meta})
        amounts = {"cpu": "192", "memory": "2Ti", "pods": "110", "nvidia.com/gpu": str(GPUS)}
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        }
        node = {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status}
        call("PUT", f"/api/v1/nodes/{name}/status", node)
