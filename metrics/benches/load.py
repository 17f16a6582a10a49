"""How long a scheduler takes to list and index a large cluster, and how much memory it needs."""

import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from metrics.benches import stage
from scheduling.cluster_process import ClusterProcess
from scheduling.models import Cluster, ClusterPolicy, NodeRecord


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--fleet", default="large")


def run(fleet: str) -> dict[str, Any]:
    """Measure from the scheduler's start until it leads, has indexed every node and written its
    row."""
    with tempfile.TemporaryDirectory(prefix="kant-bench-") as name:
        folder = Path(name)
        cluster = ClusterProcess(fleet, folder / "cluster")
        cluster.start()
        try:
            with stage.own_database(folder):
                access = {"kubeconfig": str(cluster.kubeconfig)}
                row = Cluster.objects.create(name="bench", access=access)
                ClusterPolicy.objects.create(cluster=row)
                started = time.perf_counter()
                with stage.scheduler() as figures:
                    seconds = time.perf_counter() - started
                nodes = NodeRecord.objects.count()
        finally:
            cluster.stop()
    return {"load_s": round(seconds, 2), "nodes": nodes, "peak_mb": figures["peak_mb"]}
