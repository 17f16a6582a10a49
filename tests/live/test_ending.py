"""SIGTERM ends every process within five seconds, whatever it is doing."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import pytest

from metrics.benches import stage
from tests import cases, forked
from tests.live.conftest import wait
from tests.live.test_production_shape import (
    LEASE,
    ROOT,
    SETUP,
    WITHIN_S,
    call,
    free_port,
    frozen_postgres,
    postgres,
    redis,
    value,
    wait_for_port,
)
from tests.simcluster.forks import ForkedCluster

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]
MOST_S = 5.0
BUSY_S = 40.0  # extra time on a machine without a free core; the tasks themselves take ten minutes
CELERY = [sys.executable, "-m", "celery", "-A", "kant"]
SCHEDULER = [*CELERY, "worker", "-Q", "sched", "-P", "solo", "--without-mingle", "-n", "s@test"]
# For each process a line to run before it starts, and the output that says it is at its task.
SLOW = """
import sys, time, threading, runpy
import django; django.setup()
def hang(*_, **__):
    print("AT IT", flush=True)
    time.sleep(600)
{patch}
sys.argv = {argv}
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


@contextmanager
def running(argv, env, patch=""):
    """Start a process and yield it with its lines as they come; `argv` without the interpreter's
    `-m`."""
    module, *rest = argv
    code = SLOW.format(patch=patch, argv=[module, *rest], module=module)
    process = forked.popen(
        [sys.executable, "-c", code],
        env={**env, "PYTHONUNBUFFERED": "1"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []

    def read():
        for line in process.stdout:
            lines.append(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield process, lines
    finally:
        process.kill()
        process.wait()
        reader.join(10)


def said(lines, text):
    wait(lambda: any(text in line for line in lines), WITHIN_S)


def ends(process, lines):
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    finally:
        took = time.monotonic() - began
    assert took < MOST_S + BUSY_S, f"{took:.1f} s: {''.join(lines)}"


@pytest.fixture(scope="module")
def env(tmp_path_factory, postgres_data):
    """The environment for all tests of this file; each test ends what it started."""
    folder = tmp_path_factory.mktemp("ending")
    cluster = ForkedCluster(str(stage.inventory(folder / "fleet.yaml", 4)), folder)
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start()
        env = {
            **os.environ,
            "KANT_EMBEDDED": "false",
            "KANT_INTERPRETED": "1",
            "KANT_SECRET_KEY": "only for this test",
            "KANT_VAR_DIR": str(folder),
            "DATABASE_URL": stack.enter_context(postgres(postgres_data)),
            "REDIS_URL": stack.enter_context(redis(folder)),
            "DJANGO_SETTINGS_MODULE": "tests.settings",
        }
        shape = {"env": env, "cwd": ROOT, "check": True}
        setup = [sys.executable, "-c", SETUP, str(cluster.kubeconfig)]
        made = forked.run(setup, capture_output=True, text=True, **shape)
        env["TOKEN"] = made.stdout.strip()
        yield env


@contextmanager
def silent():
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listener:
        yield listener.getsockname()[1]


SCHEDULES = ["celery", *SCHEDULER[3:]]
STATES = {
    "at rest": "",
    "reads rows": "from scheduling.session.memory import load; load.jobs = hang",
    "restores": "from scheduling.session.session import Session; Session.restore = hang",
    "mid-cycle": "from scheduling.session import session; session.run_cycle = hang",
    "writes": "from scheduling.services.scheduler import projection; projection.write_nodes = hang",
    "lists": (
        "from scheduling.kube.door.gateway import Gateway\n"
        "async def forever(*_, **__):\n"
        "    import asyncio; print('AT IT', flush=True); await asyncio.sleep(600)\n"
        "from scheduling.kube.door.watch import Reflector; Reflector._round = forever"
    ),
    "connects": ("from scheduling.kube.door import client; client.load_endpoint = hang"),
}


def test_a_scheduler_ends_in_every_state_and_gives_its_lease_back(env):
    for state, patch in cases.some(STATES.items()):
        with running(SCHEDULES, env, patch) as (process, lines):
            said(lines, "AT IT" if patch else "leading cluster")
            ends(process, lines)
            assert value(env["DATABASE_URL"], LEASE) is None, f"{state}: a standby would wait"
    with running(SCHEDULES, env) as (process, lines):
        said(lines, "leading cluster")
        with frozen_postgres(env["DATABASE_URL"]):
            said(lines, "The database does not serve")
            ends(process, lines)


def test_a_process_in_which_no_python_runs_any_more():
    holds = "import ctypes; from kant.ending import ending as e; e.begin(); ctypes.PyDLL(None)."
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", holds + "sleep(60)"], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGALRM
    assert time.monotonic() - began < MOST_S + BUSY_S


@pytest.mark.parametrize("part", ["DATABASE_URL", "REDIS_URL"])
def test_without_database_or_redis(env, part, tmp_path):
    scheme = {"DATABASE_URL": "postgres://kant@127.0.0.1:{}/kant"}.get(part, "redis://127.0.0.1:{}")
    beat = ["celery", "-A", "kant", "beat", "-s", str(tmp_path / "beat")]
    worker = ["celery", "-A", "kant", "worker", "-Q", "work", "-c", "1", "-n", "w@test"]
    with silent() as port, ExitStack() as stack:
        away = {**env, part: scheme.format(port)}
        three = [stack.enter_context(running(a, away)) for a in (SCHEDULES, worker, beat)]
        time.sleep(8.0)
        for process, lines in three:
            assert process.poll() is None, "".join(lines)
            ends(process, lines)


def test_a_worker_at_work(env):
    patch = "import metrics.tasks; metrics.tasks.record_samples.run = hang"
    worker = ["celery", "-A", "kant", "worker", "-Q", "work", "-c", "1", "-n", "w@test"]
    with running(worker, env, patch) as (process, lines):
        said(lines, "[queues]")
        send = "import kant.celery; kant.celery.app.send_task('metrics.tasks.record_samples')"
        forked.run([sys.executable, "-c", f"import django; django.setup(); {send}"],
                   env=env, cwd=ROOT, check=True)  # fmt: skip
        said(lines, "AT IT")
        ends(process, lines)


def quietly(ask):
    with suppress(OSError, http.client.HTTPException):  # the process ends before it answers
        ask()


ANSWER = "from scheduling.api import jobs\njobs.JobsView.get = {}"
REQUESTS = {
    "computes": (
        "def spin(*_, **__):\n    print('AT IT', flush=True)\n    while True: pass\n"
        + ANSWER.format("spin")
    ),
    "waits": ANSWER.format("hang"),
    "at rest": "",
}


@pytest.mark.parametrize("lifespan", cases.some(["on", "off"]))
def test_a_web_process_whatever_a_request_does(env, lifespan):
    for patch in cases.some(REQUESTS.values()):
        port = free_port()
        argv = ["uvicorn", "kant.asgi:application", "--port", str(port), "--lifespan", lifespan]
        with running(argv, env, patch) as (process, lines):
            wait_for_port(port, process)
            if patch:
                ask = partial(call, f"http://127.0.0.1:{port}/api/v1/jobs", env["TOKEN"])
                threading.Thread(target=quietly, args=(ask,), daemon=True).start()
                said(lines, "AT IT")
            ends(process, lines)
