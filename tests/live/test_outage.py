"""The API server is away for longer than any step of a job may take."""

import time
from urllib.parse import urlsplit

import pytest
import yaml

from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.kube.door import settle
from scheduling.models import Cluster, Job, JobEvent
from tests.kube.proxy import Proxy
from tests.live.conftest import NODES

pytestmark = pytest.mark.live


@pytest.fixture
def line(world, tmp_path):
    """The connection between Kant and the cluster."""
    config = yaml.safe_load(world.process.kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    with Proxy(urlsplit(cluster["server"]).port) as proxy:
        cluster["server"] = f"http://127.0.0.1:{proxy.port}"
        path = tmp_path / "by-the-line"
        path.write_text(yaml.safe_dump(config))
        Cluster.objects.filter(pk=world.cluster.pk).update(access={"kubeconfig": str(path)})
        world.cluster.refresh_from_db()
        yield proxy
        proxy.refusing = False
        world.drive(lambda: connected(world))


def connected(world):
    led = world.scheduler.led.get((world.cluster.pk, WHOLE))
    return led is not None and led.session.connected


def drive_on(world, seconds):
    until = time.monotonic() + seconds
    world.drive(lambda: time.monotonic() > until)


def cut(world, line):
    line.refusing = True
    line.cut()
    world.drive(lambda: not connected(world))


def test_a_job_that_waits_meanwhile_has_not_failed_for_it(world, line):
    world.set_policy(max_attempts=2, backoff_base_s=0.05, backoff_cap_s=0.05)
    world.drive(lambda: connected(world))
    cut(world, line)
    job = world.submit()
    drive_on(world, 2)
    assert world.state(job) == S.PENDING
    line.refusing = False
    world.drive_to(job, S.RUNNING)
    assert (Job.objects.get(pk=job.pk).attempt, world.kinds(job)[0]) == (1, K.SUBMITTED)
    assert K.REQUEUED not in world.kinds(job)


def test_a_gang_that_was_being_bound_is_not_late_for_it(world, line):
    # When the connection breaks, only the server knows of these pods.
    world.fault("slow-replies", verb="bind", count=NODES, delay_ms=60_000)
    job = world.submit(pods=NODES)
    phases = ["Running"] * NODES
    world.drive(lambda: [p["status"]["phase"] for p in world.pods().values()] == phases)
    cut(world, line)
    world.set_policy(gang_timeout_s=2.0)
    drive_on(world, 3)
    line.refusing = False
    world.drive_to(job, S.RUNNING)
    assert K.REQUEUED not in world.kinds(job)


def test_a_server_that_takes_no_pods_ends_no_job(world, monkeypatch):
    monkeypatch.setattr(settle, "BUDGET_S", 0.0)
    world.set_policy(max_attempts=2, backoff_base_s=0.05, backoff_cap_s=0.05)
    world.fault("too-many-requests", verb="create", resource="pods", count=4, retry_after_s=0)
    job = world.submit()
    world.drive_to(job, S.RUNNING)
    told = JobEvent.objects.filter(job=job, kind=K.REQUEUED).values_list("reason", flat=True)
    assert list(told) == ["ApiServerFailed"] * 4
    row = Job.objects.get(pk=job.pk)
    assert (row.attempt, row.failures) == (5, 0)
