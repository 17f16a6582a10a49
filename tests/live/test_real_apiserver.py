"""One cycle on a real kube-apiserver: a job is submitted by REST, its pods are created and
bound."""

import json
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from urllib.error import HTTPError

import pytest
import yaml
from rest_framework.test import APIClient

from metrics.benches import stage
from scheduling.engine.states import JobState as S
from scheduling.models import Cluster, ClusterPolicy, Job, JobEvent, NodeRecord
from scheduling.services.jobs.submit import cancel_job
from scheduling.services.scheduler.cycle import Scheduler
from scheduling.session import changes
from tenants.models import GpuType, Quota, Tenant, User
from tenants.services.tokens import create_token
from tests import requirements
from tests.guide import guide_examples
from tests.live.conftest import drive

ROOT = Path(__file__).parents[2]
ANY = {"*": ["*"]}  # plain pods of any namespace may use any tenant
pytestmark = [pytest.mark.live, pytest.mark.apiserver]


RIGHTS = list(yaml.safe_load_all((ROOT / "scheduling" / "kube" / "rbac.yaml").read_text()))
RBAC = "/apis/rbac.authorization.k8s.io/v1"
KEPT = {"default", "kube-system", "kube-public", "kube-node-lease"}  # namespaces of the server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with requirements.apiserver(tmp_path_factory.mktemp("apiserver")) as server:
        yield server


@pytest.fixture
def apiserver(server):
    """The file's server with two nodes, without leftovers of the test before."""
    stage.create_nodes(server.request, 2)
    yield server
    empty(server.request)


def empty(call):
    """Delete what Kant and these tests made. No controller runs that would finish a namespace."""
    for plural in ("pods", "services"):
        for item in call("GET", f"/api/v1/{plural}")["items"]:
            meta = item["metadata"]
            if meta["name"] != "kubernetes":
                path = f"/api/v1/namespaces/{meta['namespace']}/{plural}/{meta['name']}"
                call("DELETE", path, {"gracePeriodSeconds": 0})
    call("DELETE", "/apis/events.k8s.io/v1/namespaces/default/events")
    call("DELETE", "/api/v1/nodes")
    for namespace in call("GET", "/api/v1/namespaces")["items"]:
        if (name := namespace["metadata"]["name"]) not in KEPT:
            ending = call("DELETE", f"/api/v1/namespaces/{name}")
            call("PUT", f"/api/v1/namespaces/{name}/finalize", {**ending, "spec": {}})
    for document in RIGHTS:
        with suppress(HTTPError):  # of an account without rights
            call("DELETE", f"{RBAC}/{document['kind'].lower()}s/{document['metadata']['name']}")


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

    def services():
        items = apiserver.request("GET", "/api/v1/namespaces/kant-jobs/services")["items"]
        return [service["metadata"]["name"] for service in items]

    drive(scheduler, cluster, lambda: services() == [f"job-{job.pk}"])
    assert {pod["spec"]["subdomain"] for pod in pods} == set(services())

    # The reports of a kubelet are enough to carry the job to its end.
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
    drive(scheduler, cluster, lambda: services() == [])


def grant_rights(apiserver, *, makes_namespaces=True):
    """Grant the rights of rbac.yaml to the account "kant"."""
    for document in deepcopy(RIGHTS):
        for rule in document.get("rules", ()):
            if rule["resources"] == ["namespaces"] and not makes_namespaces:
                rule["verbs"].remove("create")
        plural = f"{document['kind'].lower()}s"
        apiserver.request("POST", f"{RBAC}/{plural}", document)


def make_node(apiserver, name, labels, amounts):
    """Create a ready node with `amounts` beside its CPU and memory."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    apiserver.request("POST", "/api/v1/nodes", node)
    amounts = {"cpu": "192", "memory": "2Ti", "pods": "110", **amounts}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    apiserver.request("PUT", f"/api/v1/nodes/{name}/status", {**node, "status": status})


def test_tenants_have_their_pods_in_namespaces_of_their_own(apiserver, scheduler):
    """Kant may not create namespaces here: it uses the existing ones and says which one is
    missing."""
    grant_rights(apiserver, makes_namespaces=False)
    for name in ("kant-jobs", "vision-jobs"):
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        apiserver.request("POST", "/api/v1/namespaces", namespace)
    cluster = Cluster.objects.create(
        name="real", access=apiserver.access("kant"), namespace_tenants=ANY
    )
    ClusterPolicy.objects.create(cluster=cluster, document={"max_attempts": 1})
    gpu_type = GpuType.objects.create(name=stage.MODEL)
    user = User.objects.create_user("op", password="x", is_operator=True)
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {create_token(user, 'test').secret}")
    wanted = {"common": None, "vision": "vision-jobs", "absent": "no-such"}
    jobs = {}
    for name, own in wanted.items():
        tenant = Tenant.objects.create(name=name, namespace=own)
        Quota.objects.create(tenant=tenant, gpu_type=gpu_type, guaranteed_milli=16_000)
        body = {"name": name, "tenant": name, "gpu_type": stage.MODEL, "gpus": 1, "replicas": 2}
        answer = client.post("/api/v1/jobs", body, format="json")
        assert answer.status_code == 201, answer.json()
        jobs[name] = Job.objects.get(id=answer.json()["id"])

    def settled():
        bound = Job.objects.filter(bound_at__isnull=False).count()
        return bound == 2 and Job.objects.get(pk=jobs["absent"].pk).state == S.FAILED

    drive(scheduler, cluster, settled)
    message = Job.objects.get(pk=jobs["absent"].pk).message
    assert "does not allow Kant to create the namespace no-such" in message
    assert "grant that right to Kant's account" in message

    def names(kind):
        items = apiserver.request("GET", f"/api/v1/{kind}")["items"]
        ours = (i["metadata"] for i in items if "kant.io/job" in i["metadata"].get("labels", {}))
        return sorted((meta["namespace"], meta["labels"]["kant.io/job"]) for meta in ours)

    common, vision = ("kant-jobs", str(jobs["common"].pk)), ("vision-jobs", str(jobs["vision"].pk))
    assert names("pods") == sorted([common, common, vision, vision])
    drive(scheduler, cluster, lambda: names("services") == sorted([common, vision]))
    for name in ("common", "vision"):
        cancel_job(user, Job.objects.get(pk=jobs[name].pk))
    for pod in apiserver.request("GET", "/api/v1/pods")["items"]:  # there is no kubelet
        path = "/api/v1/namespaces/{namespace}/pods/{name}".format(**pod["metadata"])
        apiserver.request("DELETE", path, {"gracePeriodSeconds": 0})
    drive(scheduler, cluster, lambda: names("services") == [])


def test_jobs_on_amd_nodes_ask_for_their_gpus_and_nics_by_the_resources_of_the_node(
    apiserver, scheduler
):
    grant_rights(apiserver)
    amounts = {"amd.com/gpu": "8", "rdma/a": "4", "rdma/b": "4"}
    make_node(apiserver, "amd-0", {"amd.com/gpu.product-name": "MI300X"}, amounts)
    cluster = Cluster.objects.create(
        name="real", access=apiserver.access("kant"), namespace_tenants=ANY
    )
    ClusterPolicy.objects.create(cluster=cluster)
    tenant = Tenant.objects.create(name="team")
    for model in ("MI300X", stage.MODEL):
        gpu_type = GpuType.objects.create(name=model)
        Quota.objects.create(tenant=tenant, gpu_type=gpu_type, guaranteed_milli=16_000)
    user = User.objects.create_user("op", password="x", is_operator=True)
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {create_token(user, 'test').secret}")

    def submit(name, gpu_type, **fields):
        body = {"name": name, "tenant": "team", "gpu_type": gpu_type, **fields}
        answer = client.post("/api/v1/jobs", body, format="json")
        assert answer.status_code == 201, answer.json()
        return Job.objects.get(id=answer.json()["id"])

    amd = submit("amd", "MI300X", gpus=4, nics=5)
    share = submit("share", stage.MODEL, gpus=1, gpu_milli=500)
    whole = submit("whole", stage.MODEL, gpus=2)

    def done():
        placed = Job.objects.filter(id__in=(amd.pk, whole.pk), bound_at__isnull=False).count()
        share.refresh_from_db()
        return placed == 2 and share.reason

    drive(scheduler, cluster, done)
    pods = apiserver.request("GET", "/api/v1/namespaces/kant-jobs/pods")["items"]
    asked = {
        pod["metadata"]["labels"]["kant.io/job"]: pod["spec"]["containers"][0]["resources"]
        for pod in pods
    }
    assert asked.keys() == {str(amd.pk), str(whole.pk)}
    assert asked[str(amd.pk)]["limits"] == {"amd.com/gpu": "4", "rdma/a": "4", "rdma/b": "1"}
    assert asked[str(whole.pk)]["limits"] == {"nvidia.com/gpu": "2"}
    # A node with a stock device plugin cannot give a part of a GPU.
    assert (share.state, share.reason) == (S.PENDING, "ExceedsCapacity")
    assert "its device plugin must advertise kant.io/gpu-milli" in share.message


def test_plain_pods_get_the_gpus_of_the_resource_that_they_ask_for(apiserver, scheduler):
    """Each pod would also fit on the other's nodes: these are as large, and the names of the
    matching nodes sort last."""
    grant_rights(apiserver)
    make_node(apiserver, "a-amd", {"amd.com/gpu.product-name": "MI300X"}, {"amd.com/gpu": "8"})
    cluster = Cluster.objects.create(
        name="real", access=apiserver.access("kant"), namespace_tenants=ANY
    )
    ClusterPolicy.objects.create(cluster=cluster)
    tenant = Tenant.objects.create(name="team")
    for model in ("MI300X", stage.MODEL):
        gpu_type = GpuType.objects.create(name=model)
        Quota.objects.create(tenant=tenant, gpu_type=gpu_type, guaranteed_milli=16_000)
    drive(scheduler, cluster, lambda: NodeRecord.objects.filter(gpu_model="MI300X").exists())

    def make(name, limits, models=""):
        annotations = {"kant.io/gpu-models": models} if models else {}
        container = {"name": "main", "image": "busybox", "resources": {"limits": limits}}
        pod = {
            "metadata": {
                "name": name,
                "labels": {"kant.io/tenant": "team"},
                "annotations": annotations,
            },
            "spec": {"schedulerName": "kant", "containers": [container]},
        }
        apiserver.request("POST", "/api/v1/namespaces/default/pods", pod)

    amd, nvidia = {"amd.com/gpu": "1"}, {"nvidia.com/gpu": "1"}
    make("amd", amd)
    make("nvidia", nvidia)
    make("amd-named", amd, f"MI300X,{stage.MODEL}")
    make("wrong", amd, stage.MODEL)
    make("both", amd | nvidia)
    bound = ("amd", "nvidia", "amd-named")
    told = ("wrong", "both")

    def pods():
        found = apiserver.request("GET", "/api/v1/namespaces/default/pods")["items"]
        return {pod["metadata"]["name"]: pod for pod in found}

    def refusals():
        events = apiserver.request("GET", "/api/v1/namespaces/default/events")["items"]
        return {event["involvedObject"]["name"]: event["message"] for event in events}

    drive(
        scheduler,
        cluster,
        lambda: (
            all(pods()[name]["spec"].get("nodeName") for name in bound)
            and refusals().keys() >= set(told)
        ),
    )
    places = {name: pods()[name]["spec"].get("nodeName", "") for name in (*bound, *told)}
    assert places["amd"] == places["amd-named"] == "a-amd"
    assert places["nvidia"] not in ("", "a-amd")
    assert places["wrong"] == places["both"] == ""
    assert f"GPUs of {stage.MODEL} are requested by nvidia.com/gpu" in refusals()["wrong"]
    assert "only one of nvidia.com/gpu and amd.com/gpu" in refusals()["both"]


def test_a_preempted_plain_pod_is_marked_with_the_rights_of_rbac_yaml(apiserver, scheduler):
    """There is no kubelet, so the pods stay in deletion."""
    grant_rights(apiserver)
    cluster = Cluster.objects.create(
        name="real", access=apiserver.access("kant"), namespace_tenants=ANY
    )
    policy = {"preemption": ["priority"], "min_runtime_s": 0}
    ClusterPolicy.objects.create(cluster=cluster, document=policy)
    gpu_type = GpuType.objects.create(name=stage.MODEL)
    tenant = Tenant.objects.create(name="vision")
    Quota.objects.create(tenant=tenant, gpu_type=gpu_type, guaranteed_milli=16_000)

    def make(name, priority):
        limits = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
        notes = {"kant.io/priority": str(priority)}
        labels = {"kant.io/tenant": "vision"}
        return apiserver.request(
            "POST",
            "/api/v1/namespaces/default/pods",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": labels, "annotations": notes},
                "spec": {
                    "schedulerName": "kant",
                    "containers": [{"name": "main", "image": "busybox", **limits}],
                },
            },
        )["metadata"]["uid"]

    def of(name):
        return apiserver.request("GET", f"/api/v1/namespaces/default/pods/{name}")

    low = {name: make(name, 0) for name in ("low-0", "low-1")}
    drive(scheduler, cluster, lambda: Job.objects.filter(bound_at__isnull=False).count() == 2)
    for name in low:
        current = of(name)
        current["status"]["phase"] = "Running"
        apiserver.request("PUT", f"/api/v1/namespaces/default/pods/{name}/status", current)
    drive(scheduler, cluster, lambda: Job.objects.filter(state=S.RUNNING).count() == 2)
    make("high", 10)

    def going():
        return [name for name in low if of(name)["metadata"].get("deletionTimestamp")]

    drive(scheduler, cluster, going)
    [victim] = going()
    left = of(victim)["spec"]["nodeName"]
    drive(scheduler, cluster, lambda: of("high")["status"].get("nominatedNodeName") == left)
    [mark] = [c for c in of(victim)["status"]["conditions"] if c["type"] == "DisruptionTarget"]
    assert (mark["status"], mark["reason"]) == ("True", "PreemptionByScheduler")
    assert mark["message"] == "Kant preempted the pod to make room for another job"
    assert Job.objects.get(pk=low[victim]).reason == "Preempted"


def set_up(apiserver):
    """Set up the cluster with the rights of rbac.yaml, and tenant vision with quota for 16 GPUs."""
    grant_rights(apiserver)
    cluster = Cluster.objects.create(
        name="real", access=apiserver.access("kant"), namespace_tenants=ANY
    )
    ClusterPolicy.objects.create(cluster=cluster)
    tenant = Tenant.objects.create(name="vision")
    gpu_type = GpuType.objects.create(name=stage.MODEL)
    Quota.objects.create(tenant=tenant, gpu_type=gpu_type, guaranteed_milli=16_000)
    return cluster


def examples_of_guide():
    """Return the manifests of the operator guide by kind."""
    return {each["kind"]: each for each in guide_examples() if "apiVersion" in each}


def test_the_pods_of_the_guide_are_bound_with_the_rights_of_rbac_yaml(apiserver, scheduler):
    """The plain pod, the Deployment's pod, and a pod of a tenant that does not exist."""
    cluster, of_kind = set_up(apiserver), examples_of_guide()
    pod, deployment = of_kind["Pod"], of_kind["Deployment"]
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


def test_the_gangs_of_the_guide_are_bound_when_all_their_pods_have_come(
    apiserver, scheduler, monkeypatch
):
    """No controllers run, so the test makes the pods as they would."""
    monkeypatch.setattr(changes, "COUNT_S", 0.3)
    cluster, of_kind = set_up(apiserver), examples_of_guide()
    indexed, pytorch = of_kind["Job"], of_kind["PyTorchJob"]
    apiserver.request("POST", "/apis/batch/v1/namespaces/default/jobs?dryRun=All", indexed)
    pods = "/api/v1/namespaces/default/pods"

    def make(name, template, **labels):
        meta = template["metadata"]
        meta = {**meta, "name": name, "labels": {**meta["labels"], **labels}}
        pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": meta}
        return apiserver.request("POST", pods, pod)["metadata"]["uid"]

    def of(name):
        return apiserver.request("GET", f"{pods}/{name}")

    def scheduled(name):
        found = {c["type"]: c for c in of(name)["status"].get("conditions", ())}
        return found.get("PodScheduled", {})

    def run(job):
        for place in job.placements.all():
            current = of(place.pod_name)
            current["status"]["phase"] = "Running"
            apiserver.request("PUT", f"{pods}/{place.pod_name}/status", current)
        drive(scheduler, cluster, lambda: Job.objects.get(pk=job.pk).state == S.RUNNING)

    index = "batch.kubernetes.io/job-completion-index"
    template = indexed["spec"]["template"]
    uids = {"finetune-0": make("finetune-0", template, **{index: "0"})}
    text = "1 of 2 pods of gang finetune has come."
    drive(scheduler, cluster, lambda: scheduled("finetune-0").get("message") == text)
    assert scheduled("finetune-0")["reason"] == "GangIncomplete"
    assert not Job.objects.exists()
    uids["finetune-1"] = make("finetune-1", template, **{index: "1"})
    for role, spec in pytorch["spec"]["pytorchReplicaSpecs"].items():
        for number in range(spec["replicas"]):
            name = f"pretrain-{role.lower()}-{number}"
            labels = {"training.kubeflow.org/replica-type": role.lower()}
            uids[name] = make(name, spec["template"], **labels)
    drive(scheduler, cluster, lambda: Job.objects.filter(bound_at__isnull=False).count() == 2)
    first, second = (Job.objects.get(pod_gang=name) for name in ("finetune", "pretrain"))
    assert [first.placements.count(), second.placements.count()] == [2, 4]
    assert second.declared_s == 86_400
    held = []
    for place in (*first.placements.all(), *second.placements.all()):
        found = of(place.pod_name)
        assert found["metadata"]["uid"] == place.pod_uid == uids[place.pod_name]
        assert found["spec"]["nodeName"] == place.node
        assert scheduled(place.pod_name)["status"] == "True"
        devices = json.loads(found["metadata"]["annotations"]["kant.io/devices"])
        held += [(place.node, device) for device in devices]
    assert len(held) == len(set(held)) == 16

    run(first)
    current = of("finetune-1")
    current["status"]["phase"] = "Failed"
    ended = {"exitCode": 1, "reason": "Error"}
    of_container = {"name": "main", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    current["status"]["containerStatuses"] = [{**of_container, "state": {"terminated": ended}}]
    apiserver.request("PUT", f"{pods}/finetune-1/status", current)
    drive(scheduler, cluster, lambda: of("finetune-0")["metadata"].get("deletionTimestamp"))
    [mark] = [
        c for c in of("finetune-0")["status"]["conditions"] if c["type"] == "DisruptionTarget"
    ]
    assert (mark["status"], mark["reason"]) == ("True", "GangEnded")
    first.refresh_from_db()
    assert (first.state, first.reason) == (S.FAILED, "PodFailed")
    assert not of("finetune-1")["metadata"].get("deletionTimestamp")
