"""A real kube-apiserver and etcd on loopback, for the contract suite and for benches.

They are built once from the Go modules pinned in tests/kube/apiserver/go.mod into a cache outside
the tree (`~/.cache/kant/apiserver/<versions>`), or taken from the folder KUBEBUILDER_ASSETS. The
flags follow Kubernetes' own envtest: no kubelet, no controllers, static tokens, RBAC on.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

MODULE_DIR = Path(__file__).resolve().parents[2] / "tests" / "kube" / "apiserver"
PROGRAMS = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
}
# The Kubernetes controllers that tests need, in a program of the module's own.
CONTROLLERS = "controllers"
SCHEDULER = "kube-scheduler"
# Helm's engine, in a program of the module's own.
HELM = "helm"
READY_WITHIN_S = 180.0
TELL_EVERY_S = 15.0
# Below the ephemeral ports of Linux (from 32768) and macOS (from 49152).
_OWN_PORTS = range(10_000, 32_768)

# token: user, uid, groups; an administrator, Kant's service account, and one without any rights.
TOKENS = {
    "admin": ("admin", "system:masters"),
    "kant": (
        "system:serviceaccount:kant:kant",
        "system:serviceaccounts,system:serviceaccounts:kant,system:authenticated",
    ),
    "nobody": ("nobody", "system:authenticated"),
}


class ServerUnavailable(RuntimeError):
    """The programs are not available here; the text says what to install."""


# --- programs -------------------------------------------------------------------------------------
def programs(*, build: bool = True) -> dict[str, Path]:
    """Return the paths of etcd and kube-apiserver; build missing ones first if `build` is set.

    Concurrent processes wait for a single build. Raises ServerUnavailable.
    """
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    if assets:
        found = {name: Path(assets) / name for name in PROGRAMS}
        absent = [str(path) for path in found.values() if not os.access(path, os.X_OK)]
        if absent:
            raise ServerUnavailable(f"KUBEBUILDER_ASSETS is set, but {absent} cannot be run")
        return found
    folder = _cache_dir()
    found = {name: folder / name for name in PROGRAMS}
    if all(path.exists() for path in found.values()):
        return found
    if shutil.which("go") is None:
        raise ServerUnavailable(
            "neither Go (to build kube-apiserver and etcd) nor the folder KUBEBUILDER_ASSETS "
            "(with both programs) is there; install Go 1.26 or newer"
        )
    if not build:
        raise ServerUnavailable(
            "kube-apiserver and etcd are not built yet; `make test` does it, and so does "
            "`.venv/bin/python -m tests.kube.apiserver build`"
        )
    _build_those_missing(found)
    return found


def controllers(*, build: bool = True) -> Path:
    """Return the path of the Kubernetes controllers; build them first if missing and `build` is
    set. Raises ServerUnavailable."""
    return _own(CONTROLLERS, "the controllers of Kubernetes that tests need", build=build)


def helm(*, build: bool = True) -> Path:
    """Return the path of the program that renders charts with Helm's engine; build it first if
    missing and `build` is set. Raises ServerUnavailable."""
    return _own(HELM, "Helm's engine", build=build)


def _own(name: str, said: str, *, build: bool) -> Path:
    source = MODULE_DIR / name / "main.go"
    # The name contains a digest of its source, so that an outdated one in the cache is not used.
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    path = _cache_dir() / f"{name}-{digest}"
    if not path.exists() and not build:
        raise ServerUnavailable(
            f"{said} is not built yet; `make test` does it, and so does "
            "`.venv/bin/python -m tests.kube.apiserver build`"
        )
    if not path.exists():
        _build_those_missing({name: path})
    return path


def scheduler(*, build: bool = True) -> Path:
    """Return the path of kube-scheduler; build it first if missing and `build` is set. Raises
    ServerUnavailable."""
    path = _cache_dir() / SCHEDULER
    if not path.exists() and not build:
        raise ServerUnavailable(
            "kube-scheduler is not built yet; `make test` does it, and so does "
            "`.venv/bin/python -m tests.kube.apiserver build`"
        )
    if not path.exists():
        _build_those_missing({SCHEDULER: path})
    return path


def _build_those_missing(found: Mapping[str, Path]) -> None:
    folder = _cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name, path in found.items():
            if not path.exists():
                _build(name, path)


def _version(module: str) -> str:
    found = re.search(rf"^\t{re.escape(module)} (v\S+)$", (MODULE_DIR / "go.mod").read_text(), re.M)
    if not found:
        raise ServerUnavailable(f"{MODULE_DIR / 'go.mod'} does not name {module}")
    return found[1]


def _cache_dir() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache")
    versions = f"{_version('k8s.io/kubernetes')}-etcd-{_version('go.etcd.io/etcd/server/v3')}"
    return base / "kant" / "apiserver" / versions


def _build(name: str, path: Path) -> None:
    version = _version("k8s.io/kubernetes")
    major, minor = version.removeprefix("v").split(".")[:2]
    stamp = "-X k8s.io/component-base/version.git"
    # Without this, the server reports v0.0.0, and clients and feature gates misbehave.
    flags = f"-s -w {stamp}Version={version} {stamp}Major={major} {stamp}Minor={minor}"
    unfinished = path.with_suffix(".unfinished")
    print(f"Building {name} (once; minutes) ...", file=sys.stderr, flush=True)
    command = ["go", "build", "-mod=readonly", "-trimpath", "-v", "-ldflags", flags]
    others = {SCHEDULER: f"k8s.io/kubernetes/cmd/{SCHEDULER}"}
    package = (PROGRAMS | others).get(name, f"./{name}")
    building = subprocess.Popen(
        [*command, "-o", str(unfinished), package],
        cwd=MODULE_DIR,
        env={**os.environ, "CGO_ENABLED": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,  # -v: one line per package
        text=True,
    )
    said = _follow(building, name)
    if building.returncode:
        raise ServerUnavailable(f"go build of {name} failed:\n{said[-2000:]}")
    unfinished.rename(path)


def _follow(building: subprocess.Popen[str], name: str) -> str:
    """Report progress until the build ends; return all its output."""
    assert building.stderr is not None
    begun = told = time.monotonic()
    lines: list[str] = []
    for line in building.stderr:
        lines.append(line)
        if (now := time.monotonic()) >= told + TELL_EVERY_S:
            told = now
            text = f"  {name}: {len(lines):,} packages in {now - begun:.0f} s"
            print(text, file=sys.stderr, flush=True)
    building.wait()
    return "".join(lines)


# --- the running pair -----------------------------------------------------------------------------
class ApiServer:
    """etcd + kube-apiserver on free ports, with all files in `folder`. A context manager.

    On Linux both end with this process, however it ends. The programs must already exist
    (`programs`), because a build takes minutes, longer than a test may. Raises ServerUnavailable.
    """

    def __init__(self, folder: Path, *, flags: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self._programs = programs(build=False)
        self._flags = flags
        self._etcd_port, self._peer_port, self.port = free_ports(3)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._tls: ssl.SSLContext | None = None
        self.url = f"https://127.0.0.1:{self.port}"
        self.ca_file = folder / "pki" / "apiserver.crt"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start both and wait until they are ready; on failure nothing keeps running."""
        self._write_tokens()
        try:
            self._spawn("etcd", self._etcd_arguments())
            self.start_apiserver()
        except BaseException:
            self.stop()
            raise

    def freeze_etcd(self, *, frozen: bool) -> None:
        """Freeze or thaw etcd; while frozen, the API server answers nothing that needs it."""
        self._running["etcd"].send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def start_apiserver(self) -> None:
        self._spawn("kube-apiserver", self._apiserver_arguments())
        self._wait_ready()

    def stop_apiserver(self) -> None:
        """Kill only the API server, without a clean shutdown; etcd keeps the objects."""
        _end(self._running.pop("kube-apiserver"), signal.SIGKILL)

    def start_controllers(self, *flags: str) -> None:
        """Start the Kubernetes controllers as an administrator; they end with the server. Raises
        ServerUnavailable."""
        self._programs = {**self._programs, CONTROLLERS: controllers(build=False)}
        self._spawn(CONTROLLERS, [f"--kubeconfig={self.kubeconfig('admin')}", *flags])

    def stop_controllers(self) -> None:
        """End the controllers, if they were started."""
        if CONTROLLERS in self._running:
            _end(self._running.pop(CONTROLLERS), signal.SIGKILL)

    def start_scheduler(self, *flags: str) -> int:
        """Start kube-scheduler as an administrator without request limits, and return its process
        id. It ends with the server. Raises ServerUnavailable."""
        self._programs = {**self._programs, SCHEDULER: scheduler()}
        path = self.folder / "scheduler.json"
        client = {"kubeconfig": str(self.kubeconfig("admin")), "qps": 5000, "burst": 5000}
        document = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": client,
            "leaderElection": {"leaderElect": False},
        }
        path.write_text(json.dumps(document))  # JSON is YAML
        self._spawn(SCHEDULER, [f"--config={path}", "--secure-port=0", *flags])
        return self._running[SCHEDULER].pid

    def stop(self) -> None:
        for name in reversed(list(self._running)):
            _end(self._running.pop(name), signal.SIGTERM)

    def access(self, user: str = "kant") -> dict[str, str]:
        """Return a `Cluster.access` for one of TOKENS."""
        return {
            "server": self.url,
            "token_file": str(self.folder / f"{user}.token"),
            "ca_file": str(self.ca_file),
        }

    def kubeconfig(self, user: str = "kant") -> Path:
        """Write a kubeconfig for one of TOKENS."""
        path = self.folder / f"{user}.kubeconfig"
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": user,
            "clusters": [{"name": "test", "cluster": cluster}],
            "contexts": [{"name": user, "context": {"cluster": "test", "user": user}}],
            "users": [{"name": user, "user": {"token": f"{user}-token"}}],
        }
        path.write_text(json.dumps(document))  # JSON is YAML
        return path

    def request(self, method: str, path: str, body: Any = None, user: str = "admin") -> Any:
        """Make one call; return the decoded JSON reply. Raises urllib.error.HTTPError."""
        with self._asked(method, path, body, user, timeout_s=10.0) as reply:
            text = reply.read()
        return json.loads(text) if text.startswith(b"{") else text

    def stream(self, path: str, user: str = "admin") -> Iterator[bytes]:
        """Yield the lines of a watch as they come, until it or the server ends. Raises as
        `request`."""
        return iter(self._asked("GET", path, None, user, timeout_s=None))

    # --- pieces -------------------------------------------------------------------------------

    def _asked(self, method: str, path: str, body: Any, user: str, timeout_s: float | None) -> Any:
        request = urllib.request.Request(
            self.url + path,
            # Compact JSON, as other clients write: the server keeps spaces inside opaque parts, and
            # would see a change as soon as anybody else writes the object.
            data=json.dumps(body, separators=(",", ":")).encode() if body is not None else None,
            headers={"Authorization": f"Bearer {user}-token", "Content-Type": "application/json"},
            method=method,
        )
        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=str(self.ca_file))
        return urllib.request.urlopen(request, context=self._tls, timeout=timeout_s)

    def _write_tokens(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        rows = []
        for number, (name, (user, groups)) in enumerate(TOKENS.items()):
            rows.append(f'{name}-token,{user},{number},"{groups}"')
            (self.folder / f"{name}.token").write_text(f"{name}-token")
        (self.folder / "tokens.csv").write_text("\n".join(rows) + "\n")

    def _etcd_arguments(self) -> list[str]:
        client = f"http://127.0.0.1:{self._etcd_port}"
        peer = f"http://127.0.0.1:{self._peer_port}"
        return [
            "--name=node0",
            f"--data-dir={self.folder / 'etcd'}",
            "--unsafe-no-fsync=true",
            "--quota-backend-bytes=8589934592",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=node0={peer}",
        ]

    def _apiserver_arguments(self) -> list[str]:
        pki = self.folder / "pki"
        # The self-signed serving key also signs service account tokens: no other key is needed.
        key = pki / "apiserver.key"
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--cert-dir={pki}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=RBAC",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            f"--service-account-issuer={self.url}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            # No controllers run here that would create service accounts or remove the initial
            # taint.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--event-ttl=10m",
            *self._flags,
        ]

    def _spawn(self, name: str, arguments: list[str]) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self._running[name] = subprocess.Popen(
                [str(self._programs[name]), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                preexec_fn=die_with_parent(),
            )

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline:
            for name, process in self._running.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended at once:\n{self._log_tail(name)}")
            try:
                if self.ca_file.exists() and self.request("GET", "/readyz") == b"ok":
                    return
            except (OSError, urllib.error.URLError):
                pass  # not listening yet, or 500 until its post-start hooks are done
            time.sleep(0.1)
        raise RuntimeError(
            f"kube-apiserver was not ready in {READY_WITHIN_S:.0f} s:\n"
            f"{self._log_tail('kube-apiserver')}"
        )

    def _log_tail(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]


def free_ports(count: int) -> list[int]:
    """Return unused ports on loopback that no other program is likely to get before their servers,
    which take seconds to start, have bound them. Raises ServerUnavailable."""
    found: list[int] = []
    # Not `random`, which a program may seed: two at once would choose the same ports.
    for port in secrets.SystemRandom().sample(_OWN_PORTS, len(_OWN_PORTS)):
        if len(found) == count:
            break
        with socket.socket() as door, contextlib.suppress(OSError):
            door.bind(("127.0.0.1", port))
            found.append(port)
    if len(found) < count:
        raise ServerUnavailable(
            f"{count} free ports are needed from {_OWN_PORTS[0]} to {_OWN_PORTS[-1]}; end what "
            "uses them"
        )
    return found


def die_with_parent() -> Callable[[], None] | None:
    """For Popen's preexec_fn: the kernel kills the child when its parent dies (prctl(2))."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # before the fork, because little is allowed after it
    pdeathsig = 1

    def ask() -> None:
        prctl(pdeathsig, signal.SIGKILL)

    return ask


def _end(process: subprocess.Popen[bytes], signal_: int) -> None:
    process.send_signal(signal_)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
