"""ProvisioningRequests on a real kube-apiserver: a gang without their definition, with it, and
when its nodes come."""

import pytest
from rest_framework.test import APIClient

from scheduling.engine.states import JobState as S
from scheduling.models import Cluster, ClusterPolicy, Job
from tenants.models import GpuType, Quota, Tenant, User
from tests.kube.test_contract_provisioning import CLASS, DEFINITION, DEFINITIONS
from tests.live.conftest import drive
from tests.live.growing import B200, GROUP
from tests.live.test_real_apiserver import apiserver, grant_rights, make_node, scheduler, server

pytestmark = [pytest.mark.live, pytest.mark.apiserver]
REQUESTS = "/apis/autoscaling.x-k8s.io/v1/namespaces/kant-jobs/provisioningrequests"
PODS = "/api/v1/namespaces/kant-jobs/pods"
__all__ = ["apiserver", "scheduler", "server"]


def test_pods_stand_in_until_requests_can_be_made(apiserver, scheduler):
    grant_rights(apiserver)
    cluster = Cluster.objects.create(
        name="real",
        access=apiserver.access("kant"),
        node_groups={"b200": GROUP},
        provisioning_class=CLASS,
    )
    ClusterPolicy.objects.create(cluster=cluster)
    tenant, gpu_type = Tenant.objects.create(name="team"), GpuType.objects.create(name=B200)
    Quota.objects.create(tenant=tenant, gpu_type=gpu_type, guaranteed_milli=16_000)
    client = APIClient()
    client.force_authenticate(User.objects.create_user("op", password="x", is_operator=True))
    body = {"name": "gang", "tenant": "team", "gpu_type": B200, "gpus": 8, "replicas": 2}
    answer = client.post("/api/v1/jobs", body, format="json")
    assert answer.status_code == 201, answer.json()
    job = Job.objects.get(id=answer.json()["id"])

    def says(text):
        return text in Job.objects.get(pk=job.pk).message

    def names(path):
        return [each["metadata"]["name"] for each in apiserver.request("GET", path)["items"]]

    drive(scheduler, cluster, lambda: len(names(PODS)) == 2)
    assert says("No ProvisioningRequest asks for them: the cluster does not serve Provisioning")

    for class_name, words in (("", False), (CLASS, True)):
        Cluster.objects.update(provisioning_class=class_name)
        drive(scheduler, cluster, lambda words=words: says("No ProvisioningRequest") is words)

    apiserver.request("POST", DEFINITIONS, DEFINITION)
    drive(scheduler, cluster, lambda: says("(ProvisioningRequest gang-"), 90)
    drive(scheduler, cluster, lambda: names(PODS) == [])
    [name] = names(REQUESTS)
    told = client.get(f"/api/v1/jobs/{job.pk}/explain").json()["summary"]
    assert told.endswith(
        f"for 2 pods on nodes of b200 (ProvisioningRequest {name}): no answer yet."
    )

    for node in ("b200-a", "b200-b"):
        labels = {"nvidia.com/gpu.product": B200, "nvidia.com/gpu.count": "8"}
        make_node(apiserver, node, labels, {"nvidia.com/gpu": "8"})
    drive(scheduler, cluster, lambda: Job.objects.get(pk=job.pk).state == S.ADMITTED)
    drive(scheduler, cluster, lambda: names(REQUESTS) == [])
    assert names("/api/v1/namespaces/kant-jobs/podtemplates") == []
    assert len(names(PODS)) == 2
