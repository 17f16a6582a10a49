"""`manage.py serve` starts, starts again with the same data, ends all its children, and says in
one line what keeps it from starting."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from django.core.management.base import CommandError

from kant.management.commands import serve
from scheduling import compiled
from tests import forked
from tests.cases import some

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]
WITHIN_S = 180.0  # of what surely comes: only a failure waits so long, however busy the machine is
ROOT = Path(__file__).resolve().parents[2]


def command(folder, *options, **variables):
    env = {**os.environ, "KANT_VAR_DIR": str(folder), "PYTHONUNBUFFERED": "1"}
    for name in ("DATABASE_URL", "REDIS_URL", "CELERY_BROKER_URL"):
        env.pop(name, None)
    env |= variables
    if not compiled.in_use():
        env["KANT_INTERPRETED"] = "1"  # nothing compiles while a test runs
    return {"args": [sys.executable, "manage.py", "serve", *options], "env": env, "cwd": ROOT}


class Serving:
    def __init__(self, folder, stderr=None, popen=forked.popen):
        self.process = popen(
            **command(folder, "--port", "0"), stdout=subprocess.PIPE, stderr=stderr, text=True
        )
        too_late = threading.Timer(WITHIN_S, self.process.kill)
        too_late.start()
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line.strip())
            if line.startswith("Ctrl-C"):
                break
        too_late.cancel()
        assert any(line.startswith("Kant is at http://127.0.0.1:") for line in self.lines)
        self.url = next(x for x in self.lines if x.startswith("Kant is at")).split()[-1]

    def children(self):
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in text.split()]

    def end(self, how):
        children = self.children()
        assert children
        self.process.send_signal(how)
        assert self.process.wait(WITHIN_S) is not None
        self.process.stdout.close()
        deadline = time.monotonic() + WITHIN_S
        while any(Path(f"/proc/{pid}/stat").exists() for pid in children):
            assert time.monotonic() < deadline, "a child is left"
            time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at children in /proc")
def test_starts_ends_its_children_and_continues(tmp_path):
    """In interpreters of their own, as with `make run`."""
    first = Serving(tmp_path, popen=subprocess.Popen)
    assert [x.split()[0] for x in first.lines if "kant-demo" in x] == [
        "operator",
        "vera",
        "piet",
        "erin",
    ]
    with urllib.request.urlopen(f"{first.url}login/", timeout=WITHIN_S) as page:
        assert page.status == 200
        assert "Set-Cookie" in page.headers or page.read()
    first.end(signal.SIGINT)
    key = (tmp_path / "secret_key").read_text()
    second = Serving(tmp_path, popen=subprocess.Popen)
    second.end(signal.SIGTERM)
    assert (tmp_path / "secret_key").read_text() == key


def refused(folder, *options, **variables):
    done = forked.run(
        **command(folder, *options, **variables), capture_output=True, text=True, timeout=WITHIN_S
    )
    assert done.returncode != 0
    said = done.stderr.strip().splitlines()
    assert len(said) == 1, done.stderr
    return said[0]


def test_a_port_in_use(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} cannot be used" in refused(tmp_path, "--port", str(port))


def test_a_second_start_on_the_same_folder(migrated_folder):
    first = Serving(migrated_folder)
    try:
        line = refused(migrated_folder, "--port", "0", "--fleet", "paper")
        assert f"Kant already runs with its data in {migrated_folder}" in line
    finally:
        first.process.kill()
        first.process.wait(WITHIN_S)
        first.process.stdout.close()
    # A shell that starts it in the background has it ignore SIGINT; the first signal still ends it.
    deaf = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        serving = Serving(migrated_folder)
    finally:
        signal.signal(signal.SIGINT, deaf)
    serving.end(signal.SIGINT)


def test_an_address_that_a_client_claims_does_not_count(migrated_folder):
    serving = Serving(migrated_folder)

    def attempt(number):
        wrong = base64.b64encode(b"erin:wrong").decode()
        request = urllib.request.Request(
            f"{serving.url}api/v1/tokens",
            b"{}",
            {
                "Authorization": f"Basic {wrong}",
                "Content-Type": "application/json",
                "X-Forwarded-For": f"192.0.2.{number}",
            },
        )
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(request, timeout=WITHIN_S)
        return refusal.value.code

    try:
        assert {attempt(number) for number in range(10)} == {401}
        assert attempt(10) == 429
    finally:
        serving.end(signal.SIGINT)


def call(serving, path, body, authorization):
    headers = {"Authorization": authorization, "Content-Type": "application/json"}
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{serving.url}api/v1/{path}", data, headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def followed(serving, job, authorization):
    """The open answer, once the pod of the job has begun to print."""
    address = f"{serving.url}api/v1/jobs/{job}/logs?follow=true"
    request = urllib.request.Request(address, headers={"Authorization": authorization})
    deadline = time.monotonic() + 60
    while True:
        try:
            return urllib.request.urlopen(request, timeout=60)
        except urllib.error.HTTPError as error:
            if error.code != 409 or time.monotonic() > deadline:
                raise
        time.sleep(0.2)


@pytest.mark.parametrize("how", some([signal.SIGTERM, signal.SIGINT]))
def test_logs_that_are_followed_end_with_it(migrated_folder, how):
    said = migrated_folder / "stderr"
    with said.open("w") as stderr:
        serving = Serving(migrated_folder, stderr)
    basic = f"Basic {base64.b64encode(b'erin:kant-demo').decode()}"
    bearer = f"Bearer {call(serving, 'tokens', {'name': 'test'}, basic)['secret']}"
    document = {"name": "one", "tenant": "vision", "gpu_type": "NVIDIA-H100-80GB-HBM3", "gpus": 1}
    job = call(serving, "jobs", document, bearer)["id"]
    logs = [followed(serving, job, bearer) for _ in range(3)]
    for log in logs:
        assert log.readline().startswith(b"started main of one-")
    serving.end(how)
    for log in logs:  # an incomplete answer would raise IncompleteRead
        last = log.read().splitlines()[-1]
        assert last == b"Kant: the server is stopping; ask again for the rest"
    assert "Traceback" not in said.read_text()
    assert "graceful shutdown exceeded" not in said.read_text()


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    assert "set KANT_VAR_DIR" in refused(tmp_path / "file" / "var", "--port", "0")


def test_a_fleet_that_does_not_exist(migrated_folder):
    line = refused(migrated_folder, "--port", "0", "--fleet", "/no/such/fleet.yaml")
    assert "the embedded cluster did not start: /no/such/fleet.yaml: cannot be read" in line


def test_a_database_that_is_none(tmp_path):
    (tmp_path / "kant.sqlite3").write_text("garbage")
    line = refused(tmp_path, "--port", "0")
    assert (
        f"the database {tmp_path / 'kant.sqlite3'} cannot be used (file is not a database)" in line
    )
    assert "move it away" in line


@pytest.mark.parametrize("name", ["REDIS_URL", "CELERY_BROKER_URL"])
def test_a_redis_that_does_not_answer(tmp_path, name):
    """The workers would otherwise wait for Redis before they serve a page."""
    line = refused(tmp_path, "--port", "0", **{name: "redis://127.0.0.1:1/0"})
    assert "Redis does not serve (Error 111 connecting to 127.0.0.1:1. Connection refused)" in line
    assert "unset REDIS_URL" in line


def test_a_file_of_somebody_else(tmp_path, monkeypatch):
    other = tmp_path / "clusters" / "demo" / "journal"
    other.parent.mkdir(parents=True)
    other.touch()
    serve.writable(tmp_path)
    monkeypatch.setattr(serve.os, "access", lambda path, how: path != other)
    with pytest.raises(CommandError, match=f"^cannot read and write {other}, which belongs to "):
        serve.writable(tmp_path)
