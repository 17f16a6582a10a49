"""A study on Celery workers, with a real broker and a real worker, has the same result as one in
local processes."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from celery import Celery

from tests import forked
from tests.live.test_production_shape import ROOT, WITHIN_S, free_port, redis, started

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]
STUDY = ["experiment", "fairness", "--hours", "2", "--seeds", "1-2", "--json"]


@pytest.fixture
def shape(tmp_path):
    """How the processes of a deployment are started, with its broker."""
    with redis(tmp_path) as broker:
        env = {**os.environ, "KANT_VAR_DIR": str(tmp_path), "REDIS_URL": broker}
        env.pop("CELERY_BROKER_URL", None)
        yield {"env": env, "cwd": ROOT, "text": True}


def worker(shape):
    command = [sys.executable, "-m", "celery", "-A", "kant", "worker", "--queues", "work"]
    return started([*command, "--concurrency", "2", "--hostname", "work@test"], **shape)


def manage(shape, *command, **options):
    return forked.run(
        [sys.executable, "manage.py", *command],
        capture_output=True,
        timeout=WITHIN_S,
        **shape,
        **options,
    )


def decided(text):
    """Return the document without the parts that depend on the clock."""
    document = json.loads(text)
    del document["made_at"]

    def without(value):
        if isinstance(value, dict):
            return {k: without(v) for k, v in value.items() if k != "cpu_seconds"}
        return [without(v) for v in value] if isinstance(value, list) else value

    return without(document)


@contextmanager
def inspected(shape):
    """Return what the broker's workers report; `celery inspect` would import all of Kant each
    time."""
    with Celery(broker=shape["env"]["REDIS_URL"]) as app:
        yield app.control.inspect()


def wait_for_worker(shape):
    deadline = time.monotonic() + WITHIN_S
    with inspected(shape) as workers:
        while not workers.ping():
            assert time.monotonic() < deadline, "the worker did not start"


def test_workers_give_the_result_of_local_processes(shape):
    alone = manage(shape, *STUDY, "--celery")
    assert "no worker serves the queue work; start `celery -A kant worker" in alone.stderr
    assert alone.returncode == 1
    local = manage(shape, *STUDY)
    assert local.returncode == 0, local.stderr
    with worker(shape):
        wait_for_worker(shape)
        spread = manage(shape, *STUDY, "--celery")
        assert spread.returncode == 0, spread.stderr
        assert decided(spread.stdout) == decided(local.stdout)
        assert decided(local.stdout)["summary"]["reclamation"]["seeds"] == 2

        wrong = manage(shape, "experiment", "fairness", "--hours", "0", "--celery")
        assert "--hours must be more than 0" in wrong.stderr

        long = ["experiment", "paper-binpack", "--seeds", "1", "--json", "--celery"]
        process = forked.popen(
            [sys.executable, "manage.py", *long],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **shape,
        )  # fmt: skip
        wait_until_busy(shape)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=WITHIN_S)
        assert json.loads(out)["partial"], err
        wait_until_idle(shape)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at children in /proc")
def test_a_run_whose_worker_was_killed_is_not_waited_for_for_ever(shape):
    study = ["experiment", "paper-binpack", "--seeds", "1", "--celery"]
    with worker(shape) as process:
        wait_for_worker(shape)
        with forked.popen(
            [sys.executable, "manage.py", *study], stderr=subprocess.PIPE, **shape
        ) as running:
            wait_until_busy(shape)
            every = [process.pid, *children(process.pid)]
            for pid in every:
                os.kill(pid, signal.SIGKILL)
            _, told = running.communicate(timeout=WITHIN_S)
    assert running.returncode == 1
    assert "--celery: run 0 is lost: no worker has it" in told


def children(pid):
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until_busy(shape, busy=True):
    deadline = time.monotonic() + WITHIN_S
    with inspected(shape) as workers:
        while (found := workers.active()) is None or any(found.values()) != busy:
            assert time.monotonic() < deadline, f"{found} runs"


def wait_until_idle(shape):
    """Wait: the runs of an interrupted study must end on the workers too."""
    wait_until_busy(shape, busy=False)


def test_a_broker_that_is_not_there_is_named(shape):
    none = manage({**shape, "env": {**shape["env"], "REDIS_URL": ""}}, *STUDY, "--celery")
    assert "--celery: there is no broker; set REDIS_URL" in none.stderr
    host = f"127.0.0.1:{free_port()}/0"
    gone = f"redis://:secret@{host}"
    away = manage({**shape, "env": {**shape["env"], "REDIS_URL": gone}}, *STUDY, "--celery")
    assert f"@{host} does not answer" in away.stderr
    assert "secret" not in away.stderr
    assert len(away.stderr.strip().splitlines()) == 1
