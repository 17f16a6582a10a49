"""Runs the embedded cluster as a child process."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from django.conf import settings

# A large fleet on a busy machine takes minutes. A cluster that cannot start exits, which is
# noticed.
READY_WITHIN_S = 600.0
STOP_WITHIN_S = 1.0


class ClusterProcess:
    """The embedded cluster as a child process; its address is in its kubeconfig file."""

    def __init__(self, fleet: str, folder: Path) -> None:
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self.fleet = fleet
        self.url = ""
        self._process: subprocess.Popen[str] | None = None
        self._made: subprocess.Popen[str] | None = None  # the same, also while it is being stopped

    def start(self) -> None:
        """Start the cluster and wait until it answers; raises RuntimeError with its message."""
        self.folder.mkdir(parents=True, exist_ok=True)
        arguments = ["--fleet", self.fleet, "--port", "0", "--state-dir", str(self.folder)]
        self._process = self._launch([*arguments, "--kubeconfig", str(self.kubeconfig)])
        self._made = self._process
        line = self._first_line()
        if not line.startswith("READY "):
            self.stop()
            why = line.removeprefix("FAILED ").strip() or "no answer"
            raise RuntimeError(f"the embedded cluster did not start: {why}")
        self.url = line.removeprefix("READY ").strip()
        # The cluster wrote the kubeconfig itself, so the folder is allowed, wherever it is.
        settings.KANT_ACCESS_DIRS = [*settings.KANT_ACCESS_DIRS, str(self.folder)]

    def _launch(self, arguments: list[str]) -> subprocess.Popen[str]:
        # Make the package importable from any folder: changing the folder would make relative paths
        # to the fleet and the state directory wrong.
        paths = [str(settings.BASE_DIR), *filter(None, [os.environ.get("PYTHONPATH")])]
        # A session of its own: Ctrl-C reaches only Kant, which then ends the cluster last.
        return subprocess.Popen(
            [sys.executable, "-m", "scheduling.simcluster", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(paths)},
        )

    def _first_line(self) -> str:
        assert self._process is not None
        out = self._process.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], READY_WITHIN_S)
        return out.readline() if ready else ""

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def kill(self) -> None:
        """Kill the process without waiting for it; `stop` may be waiting."""
        if self._made is not None:
            self._made.kill()

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
