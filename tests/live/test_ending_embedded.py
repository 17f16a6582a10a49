"""SIGTERM ends `serve` and all its children within five seconds, whatever they are doing."""

import json
import os
import signal
import sqlite3
import threading
import time
import urllib.request
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from metrics.benches import stage
from tests import cases
from tests.live.test_ending import BUSY_S, MOST_S, ends, quietly, running, said
from tests.live.test_production_shape import free_port

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at children in /proc"),
]
AT_REST = "Ctrl-C stops Kant"

# A line that `serve` runs before it starts: `hang` reports that it has got there.
CHILD = """
import os, signal
from scheduling.cluster_process import ClusterProcess as C
started = C.start
def stopped(self):
    started(self)
    os.kill(self._process.pid, signal.SIGSTOP)
    print("AT IT", flush=True)
"""
LISTS = """
from scheduling.kube.door.watch import Reflector
async def forever(*_, **__):
    import asyncio; print("AT IT", flush=True); await asyncio.sleep(600)
Reflector._round = forever
"""
COMPILES = """
from pathlib import Path
from kant import embedded
embedded.compiled.in_use = embedded.compiled.unwanted = lambda: False
embedded.compiled.ROOT = Path({root!r})
"""
# In place of the compilation, with a compiler of its own.
COMPILATION = """
import signal, subprocess, sys, time
{deaf}
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("AT IT", file=sys.stderr, flush=True)
time.sleep(600)
"""
STATES = {
    "at rest": ("", AT_REST),
    "its cluster says nothing": (
        "from scheduling.cluster_process import ClusterProcess as C; C._first_line = hang",
        "AT IT",
    ),
    "its cluster is stopped, and is connected to": (CHILD + "C.start = stopped", "AT IT"),
    "lists": (LISTS, "AT IT"),
    "writes its organisation": (
        "from kant.demo import organisation; organisation._tenants = hang",
        "AT IT",
    ),
    "mid-cycle": ("from scheduling.session import session; session.run_cycle = hang", "AT IT"),
}


def offspring(pid):
    """Return a process and all its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            for child in (task / "children").read_text().split():
                found += offspring(int(child))
    return found


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"  # its new parent has not noticed it yet


def all_end(process, lines):
    every, began = offspring(process.pid), time.monotonic()
    process.send_signal(signal.SIGTERM)
    try:
        while left := [pid for pid in every if process.poll() is None or alive(pid)]:
            took = time.monotonic() - began
            assert took < MOST_S + BUSY_S, f"{left} of {every} are left: {''.join(lines)}"
            time.sleep(0.02)
    finally:
        for pid in filter(alive, every):
            os.kill(pid, signal.SIGKILL)
    return every


@contextmanager
def serving(tmp_path, patch=""):
    env = {**os.environ, "KANT_VAR_DIR": str(tmp_path), "KANT_INTERPRETED": "1"}
    env["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    for name in ("DATABASE_URL", "REDIS_URL", "CELERY_BROKER_URL"):
        env.pop(name, None)
    fleet = stage.inventory(tmp_path / "fleet.yaml", 2)
    with running(["manage", "serve", "--port", "0", "--fleet", str(fleet)], env, patch) as found:
        yield found


@pytest.mark.parametrize("state", cases.some(STATES))
def test_serve(migrated_folder, state):
    patch, sign = STATES[state]
    with serving(migrated_folder, patch) as (process, lines):
        said(lines, sign)
        assert len(all_end(process, lines)) > 1


@pytest.mark.parametrize(
    "deaf", cases.some([True, False]), ids=lambda it: "deaf" if it else "hears"
)
def test_serve_while_it_compiles(migrated_folder, deaf):
    package = migrated_folder / "stand-in" / "scheduling"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" if deaf else ""
    (package / "compile_core.py").write_text(COMPILATION.format(deaf=ignore))
    patch = COMPILES.format(root=str(package.parent))
    with serving(migrated_folder, patch) as (process, lines):
        said(lines, AT_REST)
        said(lines, "AT IT")
        assert len(all_end(process, lines)) == 4  # the cluster, the compilation and its compiler


@pytest.mark.parametrize("meanwhile", cases.some(["cluster", "compilation"]))
def test_serve_with_a_stopped_child(migrated_folder, meanwhile):
    package = migrated_folder / "stand-in" / "scheduling"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "compile_core.py").write_text(COMPILATION.format(deaf=""))
    with serving(migrated_folder, COMPILES.format(root=str(package.parent))) as (process, lines):
        said(lines, AT_REST)
        said(lines, "AT IT")
        word = {"cluster": "scheduling.simcluster", "compilation": "scheduling.compile_core"}
        for pid in offspring(process.pid):
            if word[meanwhile] in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                os.kill(pid, signal.SIGSTOP)
        all_end(process, lines)


def test_serve_while_its_database_hangs(migrated_folder):
    """The disk seems to hang: another process locks the file and keeps it."""
    with closing(sqlite3.connect(migrated_folder / "kant.sqlite3", timeout=60)) as theirs:
        with serving(migrated_folder) as (process, lines):
            said(lines, AT_REST)
            theirs.execute("BEGIN EXCLUSIVE")
            time.sleep(3.0)
            all_end(process, lines)
        with serving(migrated_folder) as (process, lines):
            time.sleep(6.0)
            assert process.poll() is None, "".join(lines)
            all_end(process, lines)


# --- the embedded cluster alone -------------------------------------------------------------------
SPIN = """
from scheduling.simcluster import server
def spin(*_, **__):
    print("AT IT", flush=True)
    while True: pass
server.handle = spin
"""
CLUSTER_STATES = {
    "at rest": ("", "READY "),
    "opens its data": (
        "from scheduling.simcluster import cluster as c; c.EmbeddedCluster.__init__ = hang",
        "AT IT",
    ),
    "computes": (SPIN, "AT IT"),
    "answers slowly": ("", "READY "),
    "closes": (
        "from scheduling.simcluster.cluster import EmbeddedCluster; EmbeddedCluster.close = hang",
        "READY ",
    ),
}


@pytest.mark.parametrize("state", cases.some(CLUSTER_STATES))
def test_an_embedded_cluster(tmp_path, state):
    patch, sign = CLUSTER_STATES[state]
    fleet = stage.inventory(tmp_path / "fleet.yaml", 2)
    port = free_port()
    options = ["--fleet", str(fleet), "--state-dir", str(tmp_path), "--port", str(port)]
    with running(["scheduling.simcluster", *options], dict(os.environ), patch) as (process, lines):
        said(lines, "AT IT" if state == "opens its data" else "READY ")
        if state in ("computes", "answers slowly"):
            if state == "answers slowly":
                post(
                    port, "/sim/faults", {"fault": "slow-replies", "count": 0, "delay_ms": 600_000}
                )
            ask = partial(urllib.request.urlopen, f"http://127.0.0.1:{port}/api/v1/nodes")
            threading.Thread(target=quietly, args=(ask,), daemon=True).start()
            time.sleep(0.5)
        said(lines, sign)
        ends(process, lines)


def post(port, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
    urllib.request.urlopen(request, timeout=10).close()
