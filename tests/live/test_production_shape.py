"""The shape of production: PostgreSQL, Redis, a scheduler, its standby, web and beat."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from metrics.benches import programs
from tests import forked
from tests.live.conftest import ClusterApi
from tests.requirements import installed

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]
WITHIN_S = 180.0  # of what surely comes: only a failure waits so long, however busy the machine is
FROZEN_S = 15.0  # until a request gets the error that the database is away
ROOT = Path(__file__).resolve().parents[2]
SETUP = """
import sys
from pathlib import Path
import django; django.setup()
from kant.demo import organisation as demo
from tenants.models import User
from tenants.services.tokens import create_token
demo.seed("live", Path(sys.argv[1]))
print(create_token(User.objects.get(username="operator"), "test").secret)
"""


SIGNED_IN = """
import django; django.setup()
from django.conf import settings
from django.test import Client
from tenants.models import User
client = Client()
client.force_login(User.objects.get(username="operator"))
print(f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}")
"""


RESERVED = []  # sockets


def free_port():
    """Return a port on which nobody listens and that nobody else gets while this process lives.
    The port stays bound; a server that sets SO_REUSEADDR can still use it, as nobody listens."""
    RESERVED.append(socket.socket())
    RESERVED[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    RESERVED[-1].bind(("127.0.0.1", 0))
    return RESERVED[-1].getsockname()[1]


@contextmanager
def started(command, **options):
    process = forked.popen(command, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_port(port, process):
    deadline = time.monotonic() + WITHIN_S
    while True:
        assert process.poll() is None, f"ended: {process.args}"
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, f"nothing listens on {port}: {process.args}"
            time.sleep(0.05)


@contextmanager
def postgres(copied=None, keep_in=None):
    """Start a PostgreSQL server of its own. It refuses to run as root, so root runs it as user
    postgres, in a folder outside pytest's: each start of pytest makes that one private to root.

    `copied`: the data to begin with. `keep_in`: where to keep the data at the end.
    """
    initdb = installed(programs.postgres_program, "initdb")
    as_user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
    with tempfile.TemporaryDirectory(prefix="kant-postgres-", ignore_cleanup_errors=True) as folder:
        data = Path(folder, "data")
        if as_user:
            shutil.chown(folder, "postgres")
        if copied:
            subprocess.run(["cp", "-a", copied, data], check=True)
        else:
            command = [*as_user, initdb, "-D", str(data), "-U", "kant", "--auth=trust", "-N"]
            made = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
            assert made.returncode == 0, made.stderr
        with _serving([*as_user, str(Path(initdb).with_name("postgres"))], data) as url:
            yield url
        if keep_in:
            subprocess.run(["cp", "-a", data, keep_in], check=True)


@contextmanager
def _serving(server, data):
    port = free_port()
    server = [*server, "-D", str(data), "-p", str(port), "-c", "fsync=off"]
    options = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={data.parent}"]
    with started([*server, *options], cwd="/", stderr=subprocess.DEVNULL) as process:
        wait_for_port(port, process)
        yield f"postgres://kant@127.0.0.1:{port}/postgres"


def send(pids, number):
    for pid in pids:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, number)


@contextmanager
def stopped(pids):
    try:
        send(pids, signal.SIGSTOP)
        yield
    finally:
        send(pids, signal.SIGCONT)


@contextmanager
def frozen_postgres(url):
    """Freeze the whole server, beginning with the process that starts the others."""
    with psycopg.connect(url) as connection:
        folder = connection.execute("SHOW data_directory").fetchone()[0]
    main = int((Path(folder) / "postmaster.pid").read_text().split()[0])
    # `runuser` stops together with its child; while stopped it reacts to no signal, not even to
    # end.
    parent = int(Path(f"/proc/{main}/stat").read_text().rpartition(")")[2].split()[1])
    try:
        with stopped([main]):
            children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
            with stopped([int(child) for child in children]):
                yield
    finally:
        send([parent], signal.SIGCONT)


@contextmanager
def redis(folder, port=None):
    port = port or free_port()
    command = [installed(programs.redis_program), "--port", str(port), "--save", ""]
    command += ["--dir", str(folder)]
    with started([*command, "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL) as process:
        wait_for_port(port, process)
        yield f"redis://127.0.0.1:{port}/0"


CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
OWN_CLOCK = "SELECT pace->>'own_clock' FROM scheduling_schedulerlease"
LEASE = "SELECT expires_at FROM scheduling_schedulerlease"


def value(database, query):
    with psycopg.connect(database) as connection:
        return connection.execute(query).fetchone()[0]


def call(url, token, body=None):
    request = urllib.request.Request(
        url,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=WITHIN_S) as reply:
        return json.loads(reply.read())


def static_files(shape):
    """Collect static files as an image has them: pages name them by their contents."""
    command = [sys.executable, "manage.py", "collectstatic", "--noinput"]
    forked.run(command, check=True, capture_output=True, **shape)


def operations_page(site, shape):
    """Return a function that reads that page as an operator, signing in once."""
    command = [sys.executable, "-c", SIGNED_IN]
    made = forked.run(command, check=True, capture_output=True, text=True, **shape)
    request = urllib.request.Request(f"{site}/ops/", headers={"Cookie": made.stdout.strip()})

    def read():
        with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:
            assert answer.url == f"{site}/ops/"
            return answer.read().decode()

    return read


def call_when_back(url, token, body):
    """Repeat a call after the database came back: until all connections are back, 503 is right."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            return call(url, token, body)
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def heard(log, words, seconds):
    deadline = time.monotonic() + seconds
    while words not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def run_until(url, token, states):
    deadline = time.monotonic() + WITHIN_S
    while (job := call(url, token))["state"] not in states:
        assert time.monotonic() < deadline, job
        time.sleep(0.25)  # each look keeps the web process busy for as long as a job's start
    return job


def test_a_job_from_rest_to_its_end_and_over_the_death_of_broker_and_leader(
    cluster_process, tmp_path, postgres_data
):
    with ExitStack() as stack:
        database = stack.enter_context(postgres(postgres_data))
        broker = stack.enter_context(ExitStack())
        address = broker.enter_context(redis(tmp_path))
        env = {
            **os.environ,
            "KANT_EMBEDDED": "false",
            "KANT_SECRET_KEY": "only for this test",
            "KANT_VAR_DIR": str(tmp_path),
            "KANT_LEASE_SECONDS": "5",
            "DATABASE_URL": database,
            "REDIS_URL": address,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
        }
        shape = {"env": env, "cwd": ROOT}
        setup = [sys.executable, "-c", SETUP, str(cluster_process.kubeconfig)]
        token = forked.run(
            setup, check=True, capture_output=True, text=True, **shape
        ).stdout.strip()
        static_files(shape)
        celery = [sys.executable, "-m", "celery", "-A", "kant"]
        worker = [*celery, "worker", "-Q", "sched", "-P", "solo", "--without-mingle", "-n"]
        said = stack.enter_context((tmp_path / "schedulers.log").open("w+"))
        schedulers = [
            stack.enter_context(started([*worker, f"{name}@test"], stderr=said, **shape))
            for name in "ab"
        ]
        beat = [*celery, "beat", "-s", str(tmp_path / "beat")]
        ticking = stack.enter_context(started(beat, **shape))
        port = free_port()
        web = [sys.executable, "-m", "uvicorn", "kant.asgi:application", "--port", str(port)]
        process = stack.enter_context(
            started([*web, "--lifespan", "off", "--no-access-log"], **shape)
        )
        wait_for_port(port, process)

        jobs = f"http://127.0.0.1:{port}/api/v1/jobs"
        document = {"name": "gang", "tenant": "vision", "gpus": 8, "replicas": 1, "cpu_milli": 100}
        document["annotations"] = {"sim.kant.io/run-seconds": "0.5"}
        with ThreadPoolExecutor(16) as clients:
            list(clients.map(lambda _: call(f"{jobs}?limit=1", token), range(100)))
        assert value(database, CONNECTIONS) < 30

        first = call(jobs, token, document)
        job = run_until(f"{jobs}/{first['id']}", token, {"SUCCEEDED"})
        assert job["attempt"] == 1

        broker.close()
        meanwhile = call(jobs, token, document)
        broker.enter_context(redis(tmp_path, urlsplit(address).port))
        run_until(f"{jobs}/{meanwhile['id']}", token, {"SUCCEEDED"})

        del document["annotations"]
        second = call(jobs, token, document)
        run_until(f"{jobs}/{second['id']}", token, {"RUNNING"})
        schedulers[0].kill()  # whether it leads or stands by, the other one goes on
        schedulers[0].wait()
        api = ClusterApi(cluster_process.kubeconfig)
        [pod] = [name for name, p in api.pods().items() if p["status"]["phase"] == "Running"]
        api.report(pod, "Succeeded")
        job = run_until(f"{jobs}/{second['id']}", token, {"SUCCEEDED"})
        assert job["attempt"] == 1

        page = operations_page(f"http://127.0.0.1:{port}", shape)
        deadline = time.monotonic() + WITHIN_S
        for told in ("false", "true"):  # with beat ticking, and without it
            while value(database, OWN_CLOCK) != told:
                assert time.monotonic() < deadline, f"not told: own clock {told}"
                time.sleep(0.1)
            assert ("Celery beat sends no ticks." in page()) == (told == "true")
            if told == "false":
                ticking.terminate()
        document["annotations"] = {"sim.kant.io/run-seconds": "0.5"}
        third = call(jobs, token, document)
        run_until(f"{jobs}/{third['id']}", token, {"SUCCEEDED"})

        with frozen_postgres(database):
            began = time.monotonic()
            for url in (f"http://127.0.0.1:{port}/readyz", f"{jobs}?limit=1"):
                with pytest.raises(urllib.error.HTTPError) as refused:
                    call(url, token)
                assert refused.value.code == 503
            assert int(refused.value.headers["Retry-After"]) > 0
            assert time.monotonic() - began < 2 * FROZEN_S
            heard(tmp_path / "schedulers.log", "The database does not serve (", FROZEN_S)
        fourth = call_when_back(jobs, token, document)
        run_until(f"{jobs}/{fourth['id']}", token, {"SUCCEEDED"})
        heard(tmp_path / "schedulers.log", "The database serves again", WITHIN_S)

        assert value(database, LEASE) is not None
        schedulers[1].terminate()
        schedulers[1].wait(WITHIN_S)
        assert value(database, LEASE) is None, "a standby would have to wait"
