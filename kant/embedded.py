"""Kant in one process: the threads beside the web server."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import Celery
from celery.beat import EmbeddedService
from celery.worker import WorkController

from scheduling import compiled
from scheduling.cluster_process import ClusterProcess

log = logging.getLogger(__name__)

READY_WITHIN_S = 600.0  # for a busy machine; a failing worker is noticed at once
STOP_WITHIN_S = 1.5
TIDY_WITHIN_S = 0.3


class Background:
    """Scheduler, worker and beat as threads: the same tasks, queues and schedule as elsewhere."""

    def __init__(self, app: Celery, folder: Path) -> None:
        self._app = app
        self._workers: list[WorkController] = []
        self._threads: list[threading.Thread] = []
        self._beat = EmbeddedService(app, thread=True, schedule_filename=str(folder / "beat"))

    def start(self) -> None:
        self._app.loader.import_default_modules()
        self._start_worker("sched", pool="solo")
        self._start_worker("work", pool="threads", concurrency=2)
        self._beat.start()

    def stop(self) -> None:
        """Stop everything within a bound; whatever is left ends with the process.

        A signal may have interrupted this thread while it held a lock that others wait for.
        """
        ending = threading.Thread(target=self._stop, name="stop", daemon=True)
        ending.start()
        ending.join(STOP_WITHIN_S)

    def _stop(self) -> None:
        if self._workers:
            self._beat.stop()
        for worker in self._workers:
            worker.stop()
        for thread in self._threads:
            thread.join(timeout=STOP_WITHIN_S)

    def _start_worker(self, queue: str, **options: Any) -> None:
        """Start a worker and wait until it listens.

        Celery keeps the choice of queues on the application, so a second worker must not be made
        before the first has read its own.
        """
        worker = WorkController(
            app=self._app,
            hostname=f"{queue}@embedded",
            queues=queue,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
            **options,
        )
        thread = threading.Thread(target=worker.start, name=f"worker-{queue}", daemon=True)
        self._workers.append(worker)
        self._threads.append(thread)
        thread.start()
        deadline = time.monotonic() + READY_WITHIN_S
        while getattr(worker.consumer, "task_consumer", None) is None:
            if time.monotonic() > deadline or not thread.is_alive():
                raise RuntimeError(f"the worker of queue {queue} did not start")
            time.sleep(0.01)


class Compilation:
    """Compiles the decision core in a child process while Kant runs interpreted."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the compilation, unless this process is compiled or was asked to interpret."""
        if compiled.in_use() or compiled.unwanted():
            return
        self._process = subprocess.Popen(
            [sys.executable, "-m", "scheduling.compile_core", "--beside"],
            cwd=compiled.ROOT,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that its compilers end with it
        )
        threading.Thread(target=self._watch, args=[self._process], daemon=True).start()

    def _watch(self, process: subprocess.Popen[str]) -> None:
        begun = time.monotonic()
        said, _ = process.communicate()
        if process.returncode == 0 and compiled.folder().is_dir():
            took = time.monotonic() - begun
            said = f"The decision core is compiled ({took:.0f} s); the next start uses it.\n"
        self._tell(said)

    def stop(self) -> None:
        """Stop the child; what it cannot clean up quickly, the next compilation removes."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TIDY_WITHIN_S)
            self.kill()

    def kill(self) -> None:
        """Kill the child and its compilers at once. Raises ProcessLookupError if none is left."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)


def stop_when_cluster_ends(cluster: ClusterProcess) -> None:
    """End this process, as Ctrl-C does, once the cluster that it depends on is gone."""

    def watch() -> None:
        while not cluster.ended:
            time.sleep(1.0)
            if cluster._process is None:
                return
        log.error("the embedded cluster ended; Kant stops")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="cluster-watch", daemon=True).start()
