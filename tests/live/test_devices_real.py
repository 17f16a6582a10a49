"""Device claims on a real kube-apiserver; Kant has no rights but those of rbac.yaml."""

import pytest

from scheduling.models import Cluster, ClusterPolicy, Job
from tenants.models import GpuType, Quota, Tenant
from tests.live.conftest import drive
from tests.live.devices import (
    GPU,
    GROUP,
    conditional,
    gpus,
    of_class,
    publish,
    request,
    say,
    shared_gpus,
)
from tests.live.growing import GROUP as GROWS
from tests.live.test_real_apiserver import (  # noqa: F401  fixtures
    ANY,
    apiserver,
    grant_rights,
    make_node,
    scheduler,
    server,
)

pytestmark = [pytest.mark.live, pytest.mark.apiserver]
MODEL = "NVIDIA-H100-80GB-HBM3"
HERE = "/api/v1/namespaces/default/pods"
CLAIMS = f"{GROUP}/namespaces/default/resourceclaims"


class Real:
    """The server as the device helpers see it; only a driver provides GPUs on its one node."""

    def __init__(self, on):
        self.call = on.request
        make_node(on, "driver-1", {"disk": "by-driver"}, {})
        self.cluster = Cluster.objects.create(
            name="real", access=on.access("kant"), namespace_tenants=ANY
        )
        ClusterPolicy.objects.create(cluster=self.cluster)
        gpu_type = GpuType.objects.create(name=MODEL)
        tenant = Tenant.objects.create(name="team")
        Quota.objects.create(tenant=tenant, gpu_type=gpu_type, guaranteed_milli=16_000)

    def pod(self, name, *requests, **devices):
        """Create a pod with a claim of its own."""
        spec = {"devices": {"requests": requests, **devices}}
        self.call("POST", CLAIMS, {"metadata": {"name": name}, "spec": spec})
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}
        pod = {
            "metadata": {"name": name, "labels": {"kant.io/tenant": "team"}},
            "spec": {
                "schedulerName": "kant",
                "containers": [container],
                "resourceClaims": [{"name": "devices", "resourceClaimName": name}],
            },
        }
        return self.call("POST", HERE, pod)["metadata"]["uid"]

    def node_of(self, name):
        return self.call("GET", f"{HERE}/{name}")["spec"].get("nodeName")

    def claim(self, name):
        return self.call("GET", f"{CLAIMS}/{name}")


@pytest.fixture
def real(db, apiserver):  # noqa: F811
    grant_rights(apiserver)
    found = Real(apiserver)
    yield found
    for each in apiserver.request("GET", CLAIMS)["items"]:
        path = f"{CLAIMS}/{each['metadata']['name']}"
        each["status"], each["metadata"]["finalizers"] = {}, []
        each = apiserver.request("PUT", f"{path}/status", each)
        each["metadata"]["finalizers"] = []
        apiserver.request("PUT", path, each)
        apiserver.request("DELETE", path)
    for kind in ("resourceslices", "deviceclasses"):
        apiserver.request("DELETE", f"{GROUP}/{kind}")


def test_a_device_that_no_node_has_is_one_of_a_node_to_come(real, scheduler):  # noqa: F811
    def condition():
        found = real.call("GET", f"{HERE}/waits")["status"].get("conditions", ())
        return next((c.get("reason") for c in found if c["type"] == "PodScheduled"), None)

    of_class(real)
    real.pod("waits", request(2))
    drive(scheduler, real.cluster, lambda: condition() == "ClaimNotReady")
    groups = {"h100": {**GROWS, "gpu_type": MODEL, "max_nodes": 4}}
    Cluster.objects.update(node_groups=groups)
    drive(scheduler, real.cluster, lambda: condition() == "Unschedulable")
    publish(real, "driver-1", devices=gpus(2))
    drive(scheduler, real.cluster, lambda: real.node_of("waits"))
    assert real.node_of("waits") == "driver-1"


def test_pods_share_a_gpu(real, scheduler):  # noqa: F811
    of_class(real)
    publish(real, "driver-1", devices=shared_gpus(1, default="10Gi"))
    half = {"capacity": {"requests": {"memory": "35Gi"}}}
    for name, capacity in (("a", half), ("b", half), ("c", half), ("d", {})):
        real.pod(name, request(1, "gpu", GPU, **capacity))
    drive(scheduler, real.cluster, lambda: sum(bool(real.node_of(name)) for name in "abcd") == 3)
    assert real.node_of("d") == "driver-1"
    [waits] = (name for name in "abc" if not real.node_of(name))
    results = [
        each
        for name in "abcd"
        if name != waits
        for each in real.claim(name)["status"]["allocation"]["devices"]["results"]
    ]
    assert sorted(each["consumedCapacity"]["memory"] for each in results) == sorted(
        str(n * 2**30) for n in (10, 35, 35)
    )
    assert len({each["shareID"] for each in results}) == 3
    assert sorted(Job.objects.values_list("gpu_milli", flat=True)) == [125, 437, 437, 437]


def test_a_pod_is_bound_when_its_device_is_ready(real, scheduler):  # noqa: F811
    of_class(real)
    publish(real, "driver-1", devices=conditional(gpus(2)))
    real.pod("ready", request(1))
    real.pod("broken", request(1))

    def nominated(name):
        return real.call("GET", f"{HERE}/{name}")["status"].get("nominatedNodeName")

    drive(scheduler, real.cluster, lambda: all(map(nominated, ("ready", "broken"))))
    assert not any(map(real.node_of, ("ready", "broken")))
    [result] = real.claim("ready")["status"]["allocation"]["devices"]["results"]
    assert (result["bindingConditions"], result["bindingFailureConditions"]) == (
        ["Ready"],
        ["Broken"],
    )
    say(real, "ready", Ready=True)
    say(real, "broken", Broken=True)
    drive(scheduler, real.cluster, lambda: real.node_of("ready"))

    def given_back():
        status = real.claim("broken").get("status") or {}
        return not status.get("allocation") and not status.get("devices")

    drive(scheduler, real.cluster, given_back)
    assert real.node_of("broken") is None
    events = real.call("GET", "/api/v1/namespaces/default/events")["items"]
    notes = [e["message"] for e in events if e["involvedObject"]["name"] == "broken"]
    assert any("is Broken (Driver: it says so)" in note for note in notes)
