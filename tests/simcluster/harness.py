"""Start the embedded cluster as its users do and speak plain HTTP to it."""

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

# Two GPU models, parts of GPUs everywhere, one node without GPUs.
FLEET = """
name: tiny
superspine: core-1
pools:
  - name: gpu
    count: 4
    gpu_model: TestGPU-80GB
    gpus: 4
    gpu_memory_mib: 81920
    cpu_milli: 8000
    memory_mib: 65536
    max_pods: 6
    nics: 2
    link_model: pcie-4
    nodes_per_leaf: 2
    leaves_per_spine: 1
    nodes_per_hyper_node: 2
  - name: cpu
    count: 1
    cpu_milli: 4000
    memory_mib: 16384
    zone: inference
    labels: {disk: ssd}
    taints:
      - {key: dedicated, value: web, effect: NoSchedule}
"""


class Sim:
    """One embedded cluster; `restart` and `kill` keep its state directory."""

    def __init__(self, directory: Path, *arguments: str, fleet: str = "") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.state = directory / "state"
        if not fleet:
            path = directory / "fleet.yaml"
            path.write_text(FLEET)
            fleet = str(path)
        self.command = [
            sys.executable, "-m", "scheduling.simcluster", "--fleet", fleet,
            "--state-dir", str(self.state), "--start-delay", "0.02", "--stop-delay", "0.05",
            *arguments,
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("READY http://127.0.0.1:"):
            raise AssertionError(f"not ready: {line!r} {self.process.communicate()}")
        self.url = line.split()[1]
        self.port = int(self.url.rpartition(":")[2])

    def stop(self) -> str:
        """End it with SIGTERM; return what it wrote to stderr."""
        self.process.terminate()
        return self.process.communicate(timeout=60)[1]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)

    # --- requests -----------------------------------------------------------------------------
    def raw(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            given = {k.replace("_", "-"): v for k, v in headers.items()}
            connection.request(method, path, body, given)
            response = connection.getresponse()
            return response.status, dict(response.headers), response.read()
        finally:
            connection.close()

    def call(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        code, _, reply = self.raw(method, path, data, Content_Type=content_type)
        return code, json.loads(reply)

    def get(self, path: str) -> Any:
        code, body = self.call("GET", path)
        assert code == 200, body
        return body

    def post(self, path: str, body: Any) -> Any:
        code, reply = self.call("POST", path, body)
        assert code in (200, 201, 202), reply
        return reply

    def patch(self, path: str, body: Any, kind: str = "merge-patch+json") -> tuple[int, Any]:
        return self.call("PATCH", path, body, f"application/{kind}")

    def watch(self, path: str, timeout: float = 60) -> "WatchStream":
        return WatchStream(self.port, path, timeout)

    # --- pods ---------------------------------------------------------------------------------
    def bind(self, name: str, node: str, namespace: str = "default", **annotations: str) -> None:
        body = {
            "metadata": {
                "name": name,
                "annotations": {f"kant.io/{k}": v for k, v in annotations.items()},
            },
            "target": {"kind": "Node", "name": node},
        }
        self.post(f"{PODS.replace('default', namespace)}/{name}/binding", body)

    def run_pod(
        self, name: str, node: str, devices: str = "", milli: str = "", **spec: Any
    ) -> None:
        """Create a pod and bind it at once."""
        self.post(PODS, pod(name, **spec))
        chosen = {k: v for k, v in (("devices", devices), ("milli", milli)) if v}
        self.bind(name, node, **chosen)

    def wait(self, name: str, done: Callable[[dict[str, Any]], bool], seconds: float = 60) -> Any:
        """Return the pod as soon as `done` accepts it."""
        deadline = time.monotonic() + seconds
        while True:
            code, body = self.call("GET", f"{PODS}/{name}")
            if code == 200 and done(body):
                return body
            assert time.monotonic() < deadline, body
            time.sleep(0.02)

    def wait_phase(self, name: str, phase: str) -> Any:
        return self.wait(name, lambda p: p["status"]["phase"] == phase)

    def end_pod(self, path: str, exit_code: int = 0) -> None:
        """End the containers of a running pod now, in a later second than they started in."""
        statuses = self.get(path)["status"]["containerStatuses"]
        for each in statuses:
            started = each["state"]["running"]["startedAt"]
            next_second = datetime.fromisoformat(started) + timedelta(seconds=1)
            finished = max(datetime.now(UTC), next_second)
            each["state"] = {
                "terminated": {
                    "exitCode": exit_code,
                    "reason": "Error" if exit_code else "Completed",
                    "startedAt": started,
                    "finishedAt": f"{finished:%Y-%m-%dT%H:%M:%SZ}",
                }
            }
        phase = "Failed" if exit_code else "Succeeded"
        status = {"phase": phase, "containerStatuses": statuses}
        code, reply = self.patch(f"{path}/status", {"status": status})
        assert code == 200, reply

    def wait_gone(self, name: str) -> None:
        deadline = time.monotonic() + 60
        while self.call("GET", f"{PODS}/{name}")[0] != 404:
            assert time.monotonic() < deadline, f"{name} is still there"
            time.sleep(0.02)


class WatchStream:
    """Yield the lines of a watch as decoded events."""

    def __init__(self, port: int, path: str, timeout: float) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        self.connection.request("GET", path)
        self.response = self.connection.getresponse()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while line := self.response.readline():
            yield json.loads(line)

    def __enter__(self) -> "WatchStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def next(self) -> dict[str, Any]:
        return next(iter(self))


PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"


def pod(name: str, *, run: float | None = None, exit_code: int = 0, **spec: Any) -> dict[str, Any]:
    """Return a pod with these `limits` of its container and other fields of its spec."""
    limits = spec.pop("limits", {})
    annotations = {"sim.kant.io/exit-code": str(exit_code)}
    if run is not None:
        annotations["sim.kant.io/run-seconds"] = str(run)
    meta = {"name": name, "annotations": annotations, "labels": spec.pop("labels", {})}
    container = {"name": "main", "image": "example/train:1", "resources": {"limits": limits}}
    return {
        "metadata": meta,
        "spec": {
            "restartPolicy": "Never",
            "schedulerName": "kant",
            "containers": [container],
            **spec,
        },
    }
