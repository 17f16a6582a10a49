"""Kant in one process: the threads beside the web server, and the cluster's child process."""

import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from celery import Celery
from celery.beat import EmbeddedService
from celery.worker import WorkController

log = logging.getLogger(__name__)

READY_WITHIN_S = 60.0
STOP_WITHIN_S = 10.0


class Background:
    """Scheduler, worker and beat as threads: the same tasks, queues and schedule as elsewhere."""

    def __init__(self, app: Celery, folder: Path) -> None:
        app.loader.import_default_modules()
        common = {"without_gossip": True, "without_mingle": True, "without_heartbeat": True}
        self._workers = [
            WorkController(
                app=app, hostname="sched@embedded", pool="solo", queues="sched", **common
            ),
            WorkController(
                app=app,
                hostname="work@embedded",
                pool="threads",
                concurrency=2,
                queues="work",
                **common,
            ),
        ]
        self._threads = [
            threading.Thread(target=worker.start, name=worker.hostname, daemon=True)
            for worker in self._workers
        ]
        self._beat = EmbeddedService(app, thread=True, schedule_filename=str(folder / "beat"))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        self._beat.start()

    def stop(self) -> None:
        self._beat.stop()
        for worker in self._workers:
            worker.stop()
        for thread in self._threads:
            thread.join(timeout=STOP_WITHIN_S)


class ClusterProcess:
    """The embedded cluster as a child process; its address is in its kubeconfig file."""

    def __init__(self, fleet: str, folder: Path) -> None:
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self.fleet = fleet
        self.url = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start and wait until it answers; raises RuntimeError with what it said."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "scheduling.simcluster", "--fleet", self.fleet]
        command += ["--port", "0", "--state-dir", str(self.folder)]
        command += ["--kubeconfig", str(self.kubeconfig)]
        # A session of its own: Ctrl-C reaches Kant alone, which then ends the cluster last.
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        line = self._first_line()
        if not line.startswith("READY "):
            self.stop()
            raise RuntimeError(f"the embedded cluster did not start: {line or 'no answer'}")
        self.url = line.removeprefix("READY ").strip()

    def _first_line(self) -> str:
        assert self._process is not None
        out = self._process.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], READY_WITHIN_S)
        return out.readline() if ready else ""

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()


def stop_when_cluster_ends(cluster: ClusterProcess) -> None:
    """End this process like Ctrl-C does when the cluster it depends on has gone."""

    def watch() -> None:
        while not cluster.ended:
            time.sleep(1.0)
            if cluster._process is None:
                return
        log.error("the embedded cluster ended; Kant stops")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="cluster-watch", daemon=True).start()
