"""The commands of the manifests run side by side as their pods run them: with the environment of
ConfigMap and Secret alone, without privileges, on read-only files."""

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import ExitStack

import pytest

from metrics.benches import stage
from tests import requirements
from tests.cases import NIGHTLY, some
from tests.deploy.image import environment, made, path_of, stages
from tests.deploy.manifests import command, config, deployments
from tests.deploy.test_apiserver import apply_all
from tests.live.test_production_shape import (
    LEASE,
    WITHIN_S,
    call,
    free_port,
    postgres,
    redis,
    value,
    wait_for_port,
)
from tests.requirements import missing

pytestmark = [pytest.mark.live, pytest.mark.apiserver, pytest.mark.timeout(1800)]
TOKEN = "/api/v1/namespaces/kant/serviceaccounts/kant/token"
BOUND = "SELECT count(*) FROM scheduling_job WHERE bound_at IS NOT NULL"
SAMPLES = "SELECT count(*) FROM metrics_metricsample"  # beat sends them, the worker writes them
SETUP = """
import sys
import django; django.setup()
from tenants.models import GpuType, Quota, Tenant, User
from tenants.services.tokens import create_token
gpu_type, tenant = GpuType.objects.create(name=sys.argv[1]), Tenant.objects.create(name="team")
Quota.objects.create(tenant=tenant, gpu_type=gpu_type, guaranteed_milli=16_000)
user = User.objects.create_user("op", is_operator=True)
print(create_token(user, "test").secret)
"""


def without_rights():
    """Return the command prefix that drops all capabilities: even root then obeys file modes."""
    if os.getuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        missing("setpriv", "apt-get install util-linux")
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]


def answer(port, path, **headers):
    """Return status and text."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=WITHIN_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def until(reached):
    """Wait for a condition that will certainly hold. One check may start a process."""
    deadline = time.monotonic() + WITHIN_S
    while not reached():
        assert time.monotonic() < deadline, "not reached"
        time.sleep(1.0)


class Pods:
    """The pods of all Deployments, as processes on this machine."""

    def __init__(self, home, tmp, secret):
        self._shape = {
            "cwd": home,
            "env": {
                **environment(stages()[-1]),
                **config(),
                "KANT_ACCESS_DIRS": "/tmp",  # the files of clusters are not mounted here
                **secret,
                "PATH": path_of(home),
            },
        }
        self._before = without_rights()
        self._tmp = tmp
        self.running = {}  # (Deployment, number): process

    def run(self, *argv):
        return subprocess.run(
            [*self._before, *argv], check=True, capture_output=True, text=True, **self._shape
        ).stdout

    def start(self, argv, **options):
        # In place of the emptyDir, whose path all processes of this machine share.
        argv = [each.replace("/tmp/", f"{self._tmp}/") for each in argv]
        return subprocess.Popen([*self._before, *argv], **self._shape, **options)

    def migrate(self):
        """Run all init containers at once (two of them by day); return the output of each."""
        pods = [pod for pod in deployments().values() for _ in range(pod["spec"]["replicas"])]
        pods = some(pods)
        assert len(pods) > 1
        started = [
            self.start(
                command(pod["spec"]["template"]["spec"]["initContainers"][0]),
                stdout=subprocess.PIPE,
                text=True,
            )
            for pod in pods
        ]
        said = [process.communicate(timeout=WITHIN_S)[0] for process in started]
        assert [process.returncode for process in started] == [0] * len(pods)
        return said

    def start_all(self):
        """Start all replicas (one of each by day); return the ports of the web replicas once
        they listen."""
        ports = []
        for name, deployment in deployments().items():
            [main] = deployment["spec"]["template"]["spec"]["containers"]
            for number in range(deployment["spec"]["replicas"] if NIGHTLY else 1):
                variables = [f"{each['name']}={each['value']}" for each in main.get("env", ())]
                argv = ["env", *variables, *command(main)]
                if name == "web":
                    ports.append(free_port())
                    argv = [str(ports[-1]) if each == "8000" else each for each in argv]
                self.running[name, number] = self.start(argv)
        for number, port in enumerate(ports):
            wait_for_port(port, self.running["web", number])
        return ports

    def probed(self, name):
        """Return whether the probe command of the Deployment's pods succeeds."""
        [main] = deployments()[name]["spec"]["template"]["spec"]["containers"]
        asked = main["livenessProbe"]["exec"]["command"]
        return self.start(asked, stdout=subprocess.DEVNULL).wait(WITHIN_S) == 0

    def end(self, name):
        """Send SIGTERM; no SIGKILL is needed within the Deployment's grace period."""
        pod = deployments()[name]["spec"]["template"]["spec"]
        hook = pod["containers"][0].get("lifecycle", {}).get("preStop", {}).get("sleep", {})
        within = pod["terminationGracePeriodSeconds"] - hook.get("seconds", 0)
        ending = [each for (of, _), each in self.running.items() if of == name]
        for process in ending:
            assert process.poll() is None, f"{name} ended by itself"
            process.send_signal(signal.SIGTERM)
        # uvicorn re-raises the signal after its shutdown.
        code = -signal.SIGTERM if name == "web" else 0
        ended = [process.wait(within) for process in ending]
        # If Python takes too long to dismantle itself, the kernel cleans up the rest.
        assert set(ended) <= {code, -signal.SIGALRM}, f"{name}: {ended}"

    def kill(self):
        for process in self.running.values():
            process.kill()
            process.wait()


@pytest.fixture
def apiserver(tmp_path):
    with requirements.apiserver(tmp_path / "apiserver") as server:
        apply_all(server)
        stage.create_nodes(server.request, 2)
        yield server


@pytest.fixture
def access(apiserver, tmp_path):
    """Connect as the service account of the manifests, with a token as pods get it."""
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = tmp_path / "token"
    token.write_text(apiserver.request("POST", TOKEN, asked)["status"]["token"])
    return {**apiserver.access(), "token_file": str(token)}


def test_from_an_empty_database_to_a_bound_job_and_the_end_of_all_processes(access, tmp_path):
    home = made()
    files = sorted(home.rglob("*"))
    with ExitStack() as stack:
        server = stack.enter_context(ExitStack())
        database = server.enter_context(postgres())
        secret = {
            "DATABASE_URL": database,
            "REDIS_URL": stack.enter_context(redis(tmp_path)),
            "KANT_SECRET_KEY": "only for this test",
        }
        pods = Pods(home, tmp_path, secret)
        stack.callback(pods.kill)

        with pytest.raises(subprocess.CalledProcessError) as refused:
            pods.run("python", "-c", "open('kant/written', 'w')")
        assert "Permission denied" in refused.value.stderr
        with pytest.raises(subprocess.CalledProcessError) as refused:
            pods.run("env", "KANT_KEEP_DAYS=0", "python", "manage.py", "migrate")
        assert "kant.E006" in refused.value.stderr
        said = pods.migrate()
        assert sum("Applying scheduling.0001_" in each for each in said) == 1
        assert sum("No migrations to apply" in each for each in said) == len(said) - 1

        assert not pods.probed("scheduler")
        ports = pods.start_all()
        until(lambda: pods.probed("scheduler"))
        by_address = {"Host": "10.1.2.3:8000"}  # as a kubelet does
        for port in ports:
            assert answer(port, "/readyz", **by_address) == (200, "The database answers.\n")
            assert answer(port, "/healthz", **by_address)[0] == 200
            status, page = answer(port, "/login/", Host="kant.example.com")
            assert status == 200
            assert answer(port, "/login/", **by_address)[0] == 400
            style = page.partition('rel="stylesheet" href="')[2].partition('"')[0]
            assert answer(port, style, Host="localhost")[0] == 200

        setup = ["python", "-c", SETUP, stage.MODEL]
        token = pods.run("env", "DJANGO_SETTINGS_MODULE=kant.settings", *setup).strip()
        rest = f"http://localhost:{ports[0]}/api/v1"
        call(f"{rest}/clusters", token, {"name": "home", "access": access})
        job = {"name": "gang", "tenant": "team", "gpu_type": stage.MODEL, "gpus": 4, "replicas": 3}
        for _ in range(2):  # the second one does not fit
            call(f"{rest}/jobs", token, job)
        until(lambda: value(database, BOUND) == 1)
        until(lambda: call(f"{rest}/clusters/home", token)["connected"])
        until(lambda: value(database, SAMPLES))

        # The address of the next page must be the one that a client uses through an Ingress.
        _, text = answer(
            ports[0],
            "/api/v1/jobs?limit=1",
            Authorization=f"Bearer {token}",
            Host="kant.example.com",
            **{"X-Forwarded-Proto": "https"},
        )
        assert json.loads(text)["next"].startswith("https://kant.example.com/api/v1/jobs?")

        assert value(database, LEASE) is not None
        for name in ("beat", "scheduler", "worker"):
            pods.end(name)
        assert value(database, LEASE) is None, "a standby would have to wait"

        server.close()
        for port in ports:
            assert answer(port, "/readyz") == (503, "The database does not answer.\n")
            assert answer(port, "/healthz")[0] == 200
        pods.end("web")
    assert sorted(home.rglob("*")) == files
