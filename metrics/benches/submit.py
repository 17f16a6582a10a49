"""How soon a job submitted over REST is bound, on the idle demo cluster."""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from metrics.benches import stage
from tenants.models import User
from tenants.services.tokens import create_token

JOBS = 60
READY_WITHIN_S = 45.0
BOUND_WITHIN_S = 10.0
POLL_S = 0.01


def run() -> dict[str, Any]:
    """Submit jobs one by one and wait for each: seconds from the start of the request until the
    time at which Kant says that the job was bound."""
    with tempfile.TemporaryDirectory(prefix="kant-bench-") as name:
        folder = Path(name)
        with stage.own_database(folder), _kant() as url:
            operator = User.objects.filter(is_operator=True).first()
            if operator is None:
                raise RuntimeError("the demo organisation was not created")
            token = create_token(operator, "bench").secret
            _submit_to_bound(url, token)  # the first request of a process loads its code
            waits = sorted(_submit_to_bound(url, token) for _ in range(JOBS))
    return {
        "submit_to_bound_p50_s": round(statistics.median(waits), 4),
        "submit_to_bound_p99_s": round(waits[int(0.99 * (len(waits) - 1))], 4),
        "jobs": len(waits),
    }


@contextmanager
def _kant() -> Iterator[str]:
    """Run `manage.py serve` on a free port; yield its address."""
    manage = Path(__file__).resolve().parents[2] / "manage.py"
    process = subprocess.Popen(
        [sys.executable, str(manage), "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        yield _address(process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _address(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    too_late = threading.Timer(READY_WITHIN_S, process.kill)
    too_late.start()
    try:
        for line in process.stdout:
            if line.startswith("Kant is at "):
                return line.removeprefix("Kant is at ").strip().rstrip("/")
    finally:
        too_late.cancel()
    raise RuntimeError("Kant did not start; run `manage.py serve` to see why")


def _submit_to_bound(url: str, token: str) -> float:
    started = time.time()
    document = {
        "name": "bench",
        "tenant": "vision",
        "gpus": 1,
        "cpu_milli": 1000,
        "annotations": {"sim.kant.io/run-seconds": "1"},
    }
    job = _call("POST", f"{url}/api/v1/jobs", token, document)
    deadline = time.monotonic() + BOUND_WITHIN_S
    while job["bound_at"] is None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"job {job['id']} was not bound in {BOUND_WITHIN_S:.0f} s: {job}")
        time.sleep(POLL_S)
        job = _call("GET", f"{url}/api/v1/jobs/{job['id']}", token)
    return datetime.fromisoformat(job["bound_at"]).timestamp() - started


def _call(method: str, url: str, token: str, body: Any = None) -> Any:
    request = urllib.request.Request(
        url,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return json.loads(reply.read())
    except urllib.error.HTTPError as error:
        text = error.read()[:500].decode(errors="replace")
        raise RuntimeError(f"{method} {url}: {error.code} {text}") from error
