"""The live loop against a real embedded cluster: its own process, real HTTP, real watches."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from datetime import UTC, datetime

import pytest
import yaml
from django.conf import settings
from django.db import connection, transaction

from metrics.benches import stage
from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import JobEventKind, JobState
from scheduling.models import (
    Cluster,
    ClusterPolicy,
    Job,
    JobEvent,
    Placement,
    PodSet,
    SchedulerLease,
)
from scheduling.services.jobs.changes import change_job
from scheduling.services.jobs.submit import cancel_job
from scheduling.services.scheduler.cycle import Scheduler
from scheduling.session import session
from tenants.models import GpuType, Quota, Tenant, User
from tests import forked
from tests.kept import kept
from tests.live.growing import B200, GROUP
from tests.simcluster.forks import ForkedCluster

NODES = 4
WITHIN_S = 90.0  # of what surely comes: only a failure waits so long, however busy the machine is


def drive(scheduler, cluster, until, within=WITHIN_S, describe=lambda: "not reached"):
    """Run cycles until `until()` holds."""
    deadline = time.monotonic() + within
    while True:
        scheduler.run(cluster.pk, budget_s=0.2)
        if until():
            return
        assert time.monotonic() < deadline, describe()
        led = scheduler.led.get((cluster.pk, WHOLE))
        if led is not None:
            led.session.wait_for_news(0.05)
        else:
            time.sleep(0.01)


class ClusterApi:
    """The API of an embedded cluster, as clients other than Kant use it."""

    def __init__(self, kubeconfig):
        config = yaml.safe_load(kubeconfig.read_text())
        self._server = config["clusters"][0]["cluster"]["server"]
        self._token = config["users"][0]["user"].get("token", "")

    def call(self, method, path, body=None, kind="json"):
        request = urllib.request.Request(
            self._server + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self._token}",
                "Content-Type": f"application/{kind}",
            },
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.loads(reply.read() or b"null")

    def fault(self, name, **fields):
        return self.call("POST", "/sim/faults", {"fault": name, **fields})

    def pods(self):
        """Return {name: pod} of all pods."""
        items = self.call("GET", "/api/v1/pods")["items"]
        return {pod["metadata"]["name"]: pod for pod in items}

    def report(self, pod, phase, namespace="kant-jobs", **status):
        """Report a pod's status as its kubelet would; the pod is given by name."""
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/status"
        self.call("PATCH", path, {"status": {"phase": phase, **status}}, kind="merge-patch+json")

    def kill(self, pod):
        """End a pod of Kant's that is being deleted now, as by SIGKILL."""
        ended = {"name": "main", "state": {"terminated": {"exitCode": 143, "reason": "Error"}}}
        self.report(pod, "Failed", containerStatuses=[ended])
        path = f"/api/v1/namespaces/kant-jobs/pods/{pod}"
        self.call("DELETE", path, {"gracePeriodSeconds": 0})

    def audit(self):
        return self.call("GET", "/sim/audit")


class World(ClusterApi):
    """A small cluster, a tenant with quota for all of it, and a scheduler driven by hand."""

    def __init__(self, process):
        super().__init__(process.kubeconfig)
        self.process = process
        self.cluster = Cluster.objects.create(
            name="live",
            access={"kubeconfig": str(process.kubeconfig)},
            namespace_tenants={"default": ["*"]},
        )
        self.policy = ClusterPolicy.objects.create(
            cluster=self.cluster,
            # Tests do not wait for nodes that do not answer, unless they say so.
            document={
                "backoff_base_s": 0.2,
                "backoff_cap_s": 1.0,
                "node_loss_s": 0.0,
                "node_loss_saved_s": 0.0,
            },
        )
        self.tenant = Tenant.objects.create(name="team")
        self.user = User.objects.create_user("op", password="x", is_operator=True)
        gpu_type = GpuType.objects.create(name=stage.MODEL)
        Quota.objects.create(tenant=self.tenant, gpu_type=gpu_type, guaranteed_milli=1_000_000)
        self.scheduler = Scheduler()

    # --- jobs -----------------------------------------------------------------------------------
    @transaction.atomic
    def submit(
        self,
        name="job",
        *,
        pods=1,
        gpus=8,
        run_s=600.0,
        exit_code=0,
        saves_s=None,
        stop_s=None,
        **fields,
    ):
        """Write a job as `submit_job` does. After a notice its pods take `saves_s` seconds to
        save their work; after deletion they end within `stop_s` seconds."""
        names = ("gpu_milli", "gpu_models", "min_count", "node_affinity", "volumes")
        names += ("device_claims",)
        pod_fields = {n: fields.pop(n) for n in names if n in fields}
        pod_fields.setdefault("gpu_models", [stage.MODEL] if gpus else [])
        now = datetime.now(UTC)
        job = Job.objects.create(
            id=uuid.uuid4(),
            name=name,
            tenant=fields.pop("tenant", self.tenant),
            cluster=self.cluster,
            gpu_milli=pods * gpus * 1000,
            submitted_at=now,
            **fields,
        )
        notes = {"sim.kant.io/run-seconds": str(run_s), "sim.kant.io/exit-code": str(exit_code)}
        if saves_s is not None:
            notes["sim.kant.io/checkpoint-seconds"] = str(saves_s)
        if stop_s is not None:
            notes["sim.kant.io/stop-seconds"] = str(stop_s)
        PodSet.objects.create(
            job=job,
            index=0,
            name="worker",
            count=pods,
            gpus=gpus,
            cpu_milli=100,
            annotations=notes,
            **pod_fields,
        )
        self.event(job, JobEventKind.SUBMITTED)
        return job

    def set_policy(self, **fields):
        self.policy.document |= fields
        self.policy.version += 1
        self.policy.save()

    def event(self, job, kind):
        JobEvent.objects.create(job=job, at=datetime.now(UTC), kind=kind.value, to_state=job.state)

    def cancel(self, job):
        cancel_job(self.user, Job.objects.get(pk=job.pk))

    def resize(self, job, count, **more):
        row = Job.objects.get(pk=job.pk)
        sizes = [{"name": row.pod_sets.first().name, "count": count, **more}]
        change_job(self.user, row, {"pod_sets": sizes})

    def state(self, job):
        return JobState(Job.objects.values_list("state", flat=True).get(pk=job.pk))

    def kinds(self, job):
        rows = JobEvent.objects.filter(job=job).exclude(kind=JobEventKind.REASON)
        return [JobEventKind(k) for k in rows.values_list("kind", flat=True)]

    def placements(self, job, **where):
        return list(Placement.objects.filter(job=job, **where))

    # --- the loop -------------------------------------------------------------------------------
    def drive(self, until, within=WITHIN_S):
        drive(self.scheduler, self.cluster, until, within, self.describe)

    def drive_to(self, job, *states):
        self.drive(lambda: self.state(job) in states)

    def describe(self):
        """Tell the states of jobs and pods and all events, a line each: pytest cuts lists short."""
        jobs = Job.objects.values_list("name", "state", "reason", "message")
        pods = Placement.objects.values_list("pod_name", "node", "state", "message")
        events = JobEvent.objects.order_by("id")
        events = events.values_list("at", "job__name", "kind", "reason", "message")
        return "\n".join(" ".join(map(str, row)) for row in (*jobs, *pods, *events))

    def restart_scheduler(self):
        """Replace the scheduler by one without memory, as after kill -9."""
        for led in self.scheduler.keeper.held.values():
            led.session.stop()
        self.scheduler.keeper.stop()
        SchedulerLease.objects.update(expires_at=None)
        self.scheduler = Scheduler()

    # --- the cluster ----------------------------------------------------------------------------
    def finish(self, job):
        """Finish a job's running pods. With a run time of their own they could finish before
        anybody sees them run."""
        for placement in self.placements(job, state="RUNNING"):
            self.report(placement.pod_name, "Succeeded", placement.namespace)

    def free_gpus(self):
        session = self.scheduler.led[self.cluster.pk, WHOLE].session
        return session.state.cluster.free_milli(stage.MODEL)


class SchedulerProcess:
    """A scheduler process that can be killed. Its lease outlasts any pause of a process; to have
    the lease taken over, end the process."""

    def __init__(self, lease_s=60):
        self.process = forked.popen(
            [sys.executable, "-m", "metrics.benches.scheduler_process", "0.1"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "KANT_LEASE_SECONDS": str(lease_s)},
            text=True,
        )
        assert self.process.stdout.readline().strip() == "LEADING"

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)
        self.process.stdin.close()
        self.process.stdout.close()


def wait(condition, within=WITHIN_S):
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "not reached"
        time.sleep(0.02)


class Clock:
    """The clock by which sessions decide: `ahead` seconds fast, or fixed at `at`."""

    ahead, at = 0.0, None

    def time(self):
        return time.time() + self.ahead if self.at is None else self.at

    def perf_counter(self):
        return time.perf_counter()


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(session, "time", clock)
    return clock


@pytest.fixture
def inventory(tmp_path):
    """Return the fleet file of the cluster."""
    return stage.inventory(tmp_path / "fleet.yaml", NODES)


@pytest.fixture
def cluster_process(tmp_path, inventory):
    process = ForkedCluster(str(inventory), tmp_path / "cluster")
    process.start()
    yield process
    process.stop()


@pytest.fixture
def world(db, cluster_process):
    world = World(cluster_process)
    yield world
    world.scheduler.stop()
    assert world.audit()["double_holdings"] == []


def migrate(folder, **variables):
    """Create Kant's tables, in this folder unless the variables name another database."""
    env = {**os.environ, "KANT_VAR_DIR": str(folder)}
    for name in ("DATABASE_URL", "REDIS_URL", "CELERY_BROKER_URL"):
        env.pop(name, None)
    command = [sys.executable, "manage.py", "migrate", "-v0"]
    forked.run(command, env={**env, **variables}, cwd=settings.BASE_DIR, check=True)


# The history of migrations takes seconds.
@pytest.fixture(scope="session")
def migrated(tmp_path_factory):
    """Kant's folder with the tables of its first start; tests start on a copy of it."""
    return kept(tmp_path_factory, "migrated", migrate)


@pytest.fixture(scope="session")
def postgres_data(tmp_path_factory):
    """The data of a PostgreSQL server with Kant's tables; tests start on a copy of them."""
    from tests.live.test_production_shape import postgres  # that module imports this one

    def make(folder):
        with postgres(keep_in=folder / "data") as url:
            migrate(folder, DATABASE_URL=url)

    return kept(tmp_path_factory, "postgres", make) / "data"


@pytest.fixture
def migrated_folder(tmp_path, migrated):
    """Copy the migrated folder to the test's folder."""
    return shutil.copytree(migrated, tmp_path, dirs_exist_ok=True)


@pytest.fixture
def shared_world(transactional_db, cluster_process, monkeypatch, request):
    """A world whose database other processes can see: a file, where tests use SQLite in memory."""
    if connection.vendor == "sqlite":
        with stage.own_database(request.getfixturevalue("migrated_folder")):
            yield World(cluster_process)
        return
    settings = connection.settings_dict
    url = "postgres://{USER}:{PASSWORD}@{HOST}:{PORT}/{NAME}".format(**settings)
    monkeypatch.setenv("DATABASE_URL", url)
    yield World(cluster_process)


@pytest.fixture
def autoscaled(world):
    gpu_type = GpuType.objects.create(name=B200, memory_mib=192_000)
    Quota.objects.create(tenant=world.tenant, gpu_type=gpu_type, guaranteed_milli=16_000)
    Cluster.objects.update(node_groups={"b200": GROUP})
    return world
