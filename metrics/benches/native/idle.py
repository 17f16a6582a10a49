"""How soon Kant, and kube-scheduler, bind a pod that arrives alone, on one API server."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from django.conf import settings

from metrics.benches import stage
from metrics.benches.apiserver import ApiServer
from metrics.benches.native.database import Postgres
from metrics.benches.native.pods import (
    MIGRATED,
    NAMESPACE,
    TENANT_NAME,
    bound_one,
    one_gpu_pod,
    wait_until,
)
from scheduling.kube.translate.manifests import SCHEDULER_NAME

PODS, EVERY_S = 40, 1.0  # per scheduler
PODS_PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"
BOUND_WITHIN_S = 30.0


class Idle(NamedTuple):
    """Medians, in seconds from the watch event of a new pod to that of its node."""

    kant_s: float
    other_s: float


def idle(folder: Path, nodes: int, postgres: Postgres) -> Idle:
    """Measure both schedulers side by side, with pods for each in turn, so that other load on the
    machine slows both. Raises RuntimeError."""
    name = folder.name.replace("-", "_")
    postgres.rows(f"CREATE DATABASE {name} TEMPLATE {MIGRATED}")
    with ApiServer(folder) as apiserver, stage.environment(folder, postgres.url(name)):
        stage.create_nodes(apiserver.request, nodes)
        apiserver.start_scheduler()
        wait_until(lambda: bound_one(apiserver), "kube-scheduler bound no pod")
        access = json.dumps(apiserver.access("admin"))
        module = "metrics.benches.native.organisation"
        stage.run_python("-m", module, access, NAMESPACE, TENANT_NAME, str(nodes * stage.GPUS))
        with stage.scheduler(settings.KANT_CYCLE_SECONDS):
            watch = _PodWatch(apiserver)
            took: dict[str, list[float]] = {SCHEDULER_NAME: [], "default-scheduler": []}
            for number in range(PODS):
                for scheduler, seconds in took.items():
                    pod = one_gpu_pod(f"idle-{scheduler}-{number}", scheduler)
                    began = time.perf_counter()
                    apiserver.request("POST", PODS_PATH, pod)
                    seconds.append(watch.bound_after(pod["metadata"]["name"]))
                    pause = EVERY_S / len(took) - (time.perf_counter() - began)
                    time.sleep(max(pause, 0.0))
    # The first ones find empty caches and unloaded code.
    kant, other = (median(seconds[PODS // 10 :]) for seconds in took.values())
    return Idle(kant, other)


class _PodWatch:
    """Records when each pod first appeared, and when it had a node."""

    def __init__(self, apiserver: ApiServer) -> None:
        self._changed = threading.Condition()
        self._seen: dict[str, float] = {}
        self._bound: dict[str, float] = {}
        version = apiserver.request("GET", PODS_PATH)["metadata"]["resourceVersion"]
        lines = apiserver.stream(f"{PODS_PATH}?watch=1&resourceVersion={version}")
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def bound_after(self, name: str) -> float:
        """Return the seconds from the pod's appearance to its node, waiting for that. Raises
        RuntimeError."""
        with self._changed:
            if not self._changed.wait_for(lambda: name in self._bound, BOUND_WITHIN_S):
                raise RuntimeError(f"{name} was not bound in {BOUND_WITHIN_S:.0f} s")
            return self._bound[name] - self._seen[name]

    def _read(self, lines: Iterator[bytes]) -> None:
        with suppress(OSError, HTTPException):  # the server has ended
            for line in lines:
                self._note(json.loads(line)["object"], time.perf_counter())

    def _note(self, pod: dict[str, Any], at: float) -> None:
        name = pod["metadata"]["name"]
        with self._changed:
            self._seen.setdefault(name, at)
            if pod["spec"].get("nodeName"):
                self._bound.setdefault(name, at)
                self._changed.notify()
