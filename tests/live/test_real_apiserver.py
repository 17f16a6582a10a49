"""One cycle on a real kube-apiserver: submitted by REST, created and bound there."""

import json

import pytest
from rest_framework.test import APIClient

from metrics.benches import stage
from metrics.benches.apiserver import ApiServer, ServerUnavailable
from scheduling.engine.states import JobState as S
from scheduling.models import Cluster, ClusterPolicy, Job, JobEvent
from scheduling.services.cycle import Scheduler
from tenants.models import GpuType, Quota, Tenant, User
from tenants.services.tokens import create_token
from tests.live.conftest import drive
from tests.requirements import missing

pytestmark = [pytest.mark.live, pytest.mark.apiserver]


@pytest.fixture
def apiserver(tmp_path):
    try:
        server = ApiServer(tmp_path / "apiserver")
    except ServerUnavailable as error:
        missing("kube-apiserver", str(error))
    with server:
        stage.create_nodes(server.request, 2)
        yield server


@pytest.fixture
def scheduler(db):
    scheduler = Scheduler()
    yield scheduler
    scheduler.stop()


def test_submitted_by_rest_created_bound_with_devices_and_confirmed(apiserver, scheduler):
    cluster = Cluster.objects.create(name="real", access=apiserver.access("admin"))
    ClusterPolicy.objects.create(cluster=cluster)
    tenant, gpu_type = Tenant.objects.create(name="team"), GpuType.objects.create(name=stage.MODEL)
    Quota.objects.create(tenant=tenant, gpu_type=gpu_type, guaranteed_milli=16_000)
    user = User.objects.create_user("op", password="x", is_operator=True)
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {create_token(user, 'test').secret}")

    body = {"name": "gang", "tenant": "team", "gpu_type": stage.MODEL, "gpus": 4, "replicas": 3}
    answer = client.post("/api/v1/jobs", body, format="json")
    assert answer.status_code == 201, answer.json()
    job = Job.objects.get(id=answer.json()["id"])

    def bound():
        job.refresh_from_db()
        return job.bound_at is not None

    drive(scheduler, cluster, bound)
    assert job.state == S.ADMITTED  # nothing runs there: this server has no kubelets
    pods = apiserver.request("GET", "/api/v1/namespaces/kant-jobs/pods")["items"]
    held = []
    for pod in pods:
        notes = pod["metadata"]["annotations"]
        held += [(pod["spec"]["nodeName"], d) for d in json.loads(notes["kant.io/devices"])]
        assert pod["metadata"]["labels"]["kant.io/job"] == str(job.pk)
        scheduled = {c["type"]: c["status"] for c in pod["status"]["conditions"]}["PodScheduled"]
        assert scheduled == "True"
    assert len(pods) == 3
    assert len(held) == len(set(held)) == 12

    # What a kubelet would say is enough to carry the job to its end.
    for phase, state in (("Running", S.RUNNING), ("Succeeded", S.SUCCEEDED)):
        for pod in pods:
            path = f"/api/v1/namespaces/kant-jobs/pods/{pod['metadata']['name']}"
            current = apiserver.request("GET", path)
            current["status"]["phase"] = phase
            apiserver.request("PUT", f"{path}/status", current)

        def reached(state=state):
            job.refresh_from_db()
            return job.state == state

        drive(scheduler, cluster, reached)
    kinds = list(JobEvent.objects.filter(job=job).values_list("kind", flat=True))
    assert kinds[0] == "SUBMITTED"
    assert kinds[-3:] == ["ADMITTED", "RUNNING", "SUCCEEDED"]
