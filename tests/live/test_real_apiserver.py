"""One cycle on a real kube-apiserver: submitted by REST, created and bound there."""

import contextlib
import json
import re
import urllib.error
from pathlib import Path

import pytest
import yaml
from rest_framework.test import APIClient

from metrics.benches import stage
from metrics.benches.apiserver import ApiServer, ServerUnavailable
from scheduling.engine.states import JobState as S
from scheduling.models import Cluster, ClusterPolicy, Job, JobEvent
from scheduling.services.cycle import Scheduler
from scheduling.services.jobs import cancel_job
from tenants.models import GpuType, Quota, Tenant, User
from tenants.services.tokens import create_token
from tests.live.conftest import drive, wait
from tests.requirements import missing

ROOT = Path(__file__).parents[2]
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


def test_the_pods_of_the_guide_are_bound_with_the_rights_of_rbac_yaml(apiserver, scheduler):
    """The plain pod, that of the Deployment, and one whose namespace is another tenant's."""
    for document in yaml.safe_load_all((ROOT / "scheduling" / "kube" / "rbac.yaml").read_text()):
        plural = f"{document['kind'].lower()}s"
        apiserver.request("POST", f"/apis/rbac.authorization.k8s.io/v1/{plural}", document)
    cluster = Cluster.objects.create(name="real", access=apiserver.access("kant"))
    ClusterPolicy.objects.create(cluster=cluster)
    tenant = Tenant.objects.create(name="vision")
    gpu_type = GpuType.objects.create(name=stage.MODEL)
    Quota.objects.create(tenant=tenant, gpu_type=gpu_type, guaranteed_milli=16_000)
    guide = (ROOT / "docs" / "operator-guide.md").read_text()
    pod, deployment, policy = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", guide, re.S))
    template = deployment["spec"]["template"]
    template["metadata"]["name"] = "chat-0"
    wrong = {**pod, "metadata": {"name": "wrong", "labels": {"kant.io/tenant": "nobody"}}}
    pods = "/api/v1/namespaces/default/pods"
    for each in (pod, {"apiVersion": "v1", "kind": "Pod", **template}, wrong):
        apiserver.request("POST", pods, each)

    def of(name):
        return apiserver.request("GET", f"{pods}/{name}")

    def said():
        return next(iter(of("wrong")["status"].get("conditions", ())), None)

    drive(scheduler, cluster, lambda: Job.objects.filter(bound_at__isnull=False).count() == 2)
    for name, devices in (("notebook", 2), ("chat-0", 1)):
        found = of(name)
        job = Job.objects.get(pk=found["metadata"]["uid"])
        assert (job.pod_namespace, job.pod_name) == ("default", name)
        assert len(json.loads(found["metadata"]["annotations"]["kant.io/devices"])) == devices
        conditions = {c["type"]: c["status"] for c in found["status"]["conditions"]}
        assert conditions["PodScheduled"] == "True"
    drive(scheduler, cluster, said)
    assert (said()["type"], said()["status"]) == ("PodScheduled", "False")
    assert said()["reason"] == "UnknownTenant"
    events = apiserver.request("GET", "/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    assert {e["reason"] for e in events if e["regarding"]["name"] == "wrong"} == {"UnknownTenant"}

    cancel_job(User.objects.create_user("op", password="x", is_operator=True), job)
    drive(scheduler, cluster, lambda: of("chat-0")["metadata"].get("deletionTimestamp"))

    # Who may name which tenant, as the guide restricts it.
    admission = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    apiserver.request("POST", admission, policy)
    binding = {
        "apiVersion": policy["apiVersion"],
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "kant"},
        "spec": {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]},
    }
    apiserver.request("POST", admission.replace("policies", "policybindings"), binding)
    theirs = {"metadata": {"name": "theirs", "labels": {"kant.io/tenant": "search"}}}
    apiserver.request("POST", "/api/v1/namespaces", theirs)
    path = "/api/v1/namespaces/theirs/pods"

    def refused():
        with contextlib.suppress(urllib.error.HTTPError):
            apiserver.request("POST", f"{path}?dryRun=All", pod)
            return False
        return True

    wait(refused)
    mine = {**pod, "metadata": {"name": "mine", "labels": {"kant.io/tenant": "search"}}}
    assert apiserver.request("POST", path, mine)["metadata"]["uid"]
