"""Pods that operators make form gangs according to their owners and groups, on a real
kube-apiserver.

The tests make the operators' objects as their controllers would, with CustomResourceDefinitions
that define no more than their names. The Job controller is Kubernetes' own.
"""

import contextlib
import itertools
from urllib.error import HTTPError

import pytest

from metrics.benches import stage
from metrics.benches.apiserver import ServerUnavailable
from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import JobState as S
from scheduling.kube.door import owners
from scheduling.kube.workloads.pod_groups import VOLCANO_VERSION
from scheduling.kube.workloads.registry import RULES
from scheduling.models import Cluster, ClusterPolicy, Job
from scheduling.services.scheduler.cycle import Scheduler
from scheduling.session import changes
from tenants.models import GpuType, Quota, Tenant
from tests import requirements
from tests.live.conftest import drive
from tests.live.plain_pods import reference_to
from tests.live.test_real_apiserver import grant_rights

pytestmark = [pytest.mark.live, pytest.mark.apiserver]
NODES = 4
GATES = "--feature-gates=GenericWorkload=true"
# Kubernetes 1.36 serves its own PodGroups on request only.
FLAGS = (GATES, "--runtime-config=scheduling.k8s.io/v1alpha2=true")
INDEXED = {"completionMode": "Indexed", "parallelism": 3, "completions": 3}
VERSIONS = {
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
    "PyTorchJob": "kubeflow.org/v1",
    "RayCluster": "ray.io/v1",
    "PodGroup": "scheduling.x-k8s.io/v1alpha1",
}


DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TRACKING = "batch.kubernetes.io/job-tracking"
_numbers = itertools.count(1)


class Real:
    """A real API server, a namespace of its own, a tenant with quota for all of it, and a
    scheduler driven by hand."""

    def __init__(self, server):
        self.server = server
        self.ns = f"test-{next(_numbers)}"
        self.pods_path = f"/api/v1/namespaces/{self.ns}/pods"
        meta = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.ns}}
        self.call("POST", "/api/v1/namespaces", meta)
        self.cluster = Cluster.objects.create(
            name="real", access=server.access("kant"), namespace_tenants={"*": ["*"]}
        )
        self.policy = ClusterPolicy.objects.create(cluster=self.cluster)
        tenant = Tenant.objects.create(name="team")
        gpu_type = GpuType.objects.create(name=stage.MODEL)
        milli = NODES * 8000
        Quota.objects.create(tenant=tenant, gpu_type=gpu_type, guaranteed_milli=milli)
        self.scheduler = Scheduler()

    def drive(self, until, within=90.0):
        drive(self.scheduler, self.cluster, until, within, self.describe)

    def close(self):
        """Leave neither pods nor their makers to the next test."""
        self.scheduler.stop()
        self.server.stop_controllers()
        self.call("DELETE", f"/apis/batch/v1/namespaces/{self.ns}/jobs")
        for name, pod in self.pods().items():
            if pod["metadata"].get("finalizers"):
                del pod["metadata"]["finalizers"]
                self.call("PUT", f"{self.pods_path}/{name}", pod)
        self.call("DELETE", self.pods_path, {"gracePeriodSeconds": 0})

    def describe(self):
        return [*Job.objects.values_list("pod_gang", "state", "reason", "message"), self.said()]

    def call(self, method, path, body=None):
        return self.server.request(method, path, body)

    # --- objects ----------------------------------------------------------------------------------
    def define(self, kind, api_version="", *, subresource=False):
        """Define the kind so that every object is valid. `subresource`: its status is a
        subresource."""
        group, version = (api_version or VERSIONS[kind]).split("/")
        plural = RULES[group, kind].plural
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        of_version = {"name": version, "served": True, "storage": True}
        of_version |= {"subresources": {"status": {}}} if subresource else {}
        names = {"kind": kind, "plural": plural, "singular": kind.lower()}
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"{plural}.{group}",
                # The API server requires it for groups of Kubernetes' own communities.
                "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
            },
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": names,
                "versions": [{**of_version, "schema": {"openAPIV3Schema": schema}}],
            },
        }
        if self.condition_of(kind, group) is None:
            self.call("POST", DEFINITIONS, definition)
        self.drive(lambda: self.condition_of(kind, group) == "True")

    def undefine(self, kind):
        if self.condition_of(kind) is not None:
            self.call("DELETE", self.definition(kind))
            self.drive(lambda: self.condition_of(kind) is None)

    def definition(self, kind, group=""):
        group = group or VERSIONS[kind].split("/")[0]
        return f"{DEFINITIONS}/{RULES[group, kind].plural}.{group}"

    def condition_of(self, kind, group=""):
        """Return whether the kind is served according to its definition; None without a
        definition."""
        try:
            status = self.call("GET", self.definition(kind, group)).get("status", {})
        except HTTPError as error:
            if error.code != 404:
                raise
            return None
        found = {c["type"]: c["status"] for c in status.get("conditions", ())}
        return found.get("Established", "")

    def own(self, kind, name, spec, version="", owner=None):
        """Create an object that owns pods or groups them."""
        version = version or VERSIONS[kind]
        plural = RULES[version.split("/")[0], kind].plural
        meta = {"name": name, "ownerReferences": [reference_to(owner)] if owner else []}
        body = {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}
        return self.call("POST", f"/apis/{version}/namespaces/{self.ns}/{plural}", body)

    def job(self, name, spec, owner=None, labels=None, tolerations=()):
        """Create a batch Job; no controller runs unless a test starts one."""
        container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
        pod = {"schedulerName": "kant", "restartPolicy": "Never", "containers": [container]}
        pod["tolerations"] = list(tolerations)
        meta = {"labels": {"kant.io/tenant": "team", **(labels or {})}}
        template = {"metadata": meta, "spec": pod}
        return self.own("Job", name, {**spec, "template": template}, "batch/v1", owner)

    def pod(self, name, owner=None, labels=None, notes=None, gpus=4, **spec):
        amount = {"nvidia.com/gpu": str(gpus)} if gpus else {}
        requests = {"cpu": "100m", **amount}
        container = {
            "name": "c",
            "image": "i",
            "resources": {"requests": requests, "limits": amount},
        }
        meta = {
            "name": name,
            "labels": {"kant.io/tenant": "team", **(labels or {})},
            "annotations": notes or {},
            "ownerReferences": [reference_to(owner)] if owner else [],
        }
        spec = {"schedulerName": "kant", "containers": [container], **spec}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        return self.call("POST", self.pods_path, body)

    def taint(self, node, *taints):
        """Set exactly these taints, and wait until Kant has seen them."""
        path = f"/api/v1/nodes/{node}"
        found = self.call("GET", path)
        self.call("PUT", path, {**found, "spec": {**found["spec"], "taints": list(taints)}})
        facts = self.scheduler.led[self.cluster.pk, WHOLE].session.nodes.facts
        self.drive(lambda: len(facts[node].node.taints) == len(taints))

    # --- what is to be seen -----------------------------------------------------------------------
    def pods(self):
        return {pod["metadata"]["name"]: pod for pod in self.call("GET", self.pods_path)["items"]}

    def nodes_of(self):
        return {name: pod["spec"].get("nodeName") for name, pod in self.pods().items()}

    def said(self):
        """Return the reason and message of PodScheduled for each pod that is not scheduled."""
        found = {}
        for name, pod in self.pods().items():
            for condition in pod["status"].get("conditions", ()):
                if condition["type"] == "PodScheduled" and condition["status"] == "False":
                    found[name] = condition["reason"], condition["message"]
        return found

    def run(self):
        """Report the pods that have a node as running, as kubelets would."""
        for name, pod in self.pods().items():
            if pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending":
                pod["status"]["phase"] = "Running"
                self.call("PUT", f"{self.pods_path}/{name}/status", pod)


def condition(real, name):
    """Return status, reason and message of a PodGroup's condition; None = nothing yet."""
    path = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{real.ns}/podgroups/{name}"
    found = real.call("GET", path).get("status", {}).get("conditions", ())
    told = [c for c in found if c["type"] == "PodGroupScheduled"]
    return (told[0]["status"], told[0]["reason"], told[0]["message"]) if told else None


def gangs():
    return {job.pod_gang: S(job.state) for job in Job.objects.exclude(pod_gang="")}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("apiserver")
    with requirements.apiserver(folder, flags=FLAGS) as server:
        stage.create_nodes(server.request, NODES)
        grant_rights(server)
        yield server


@pytest.fixture
def real(db, server, monkeypatch):
    monkeypatch.setattr(changes, "COUNT_S", 0.3)
    real = Real(server)
    yield real
    real.close()


def comes_together(real, gang, pods, misses):
    """Create all pods but the last first: nothing starts before the last has come."""
    *first, last = pods
    for name, details in first:
        real.pod(name, **details)
    names = {name for name, _ in first}
    real.drive(lambda: names <= real.said().keys())
    real.drive(lambda: {real.said()[name][0] for name in names} == {"GangIncomplete"})
    assert misses in real.said()[first[0][0]][1]
    assert not any(real.nodes_of().values())
    name, details = last
    real.pod(name, **details)
    real.drive(lambda: all(real.nodes_of().values()))
    assert list(gangs()) == [gang]
    assert Job.objects.get().placements.count() == len(pods)


def test_an_indexed_job(real):
    job = real.job("tune", INDEXED)
    pods = [(f"tune-{n}", {"owner": job}) for n in range(3)]
    comes_together(real, "Job/tune", pods, "2 of 3 pods of gang Job/tune have come.")


def test_a_jobset_whose_last_job_depends_on_the_others(real):
    real.define("JobSet")

    def part(name, pods, *after):
        spec = {**INDEXED, "parallelism": pods, "completions": pods}
        depends = [{"name": other, "status": "Ready"} for other in after]
        return {"name": name, "replicas": 1, "template": {"spec": spec}, "dependsOn": depends}

    jobs = [part("driver", 1), part("workers", 2), part("report", 1, "workers")]
    jobset = real.own("JobSet", "train", {"replicatedJobs": jobs})
    pods = []
    for name, count in (("driver", 1), ("workers", 2)):
        labels = {
            "jobset.sigs.k8s.io/jobset-name": "train",
            "jobset.sigs.k8s.io/replicatedjob-name": name,
        }
        job = real.job(f"train-{name}-0", INDEXED, jobset, labels)
        for n in range(count):
            pods.append((f"train-{name}-0-{n}", {"owner": job, "labels": labels}))
    misses = "Of its group workers 1 is missing."
    comes_together(real, "JobSet/train/1", pods, misses)


def test_a_pytorch_job_whose_master_needs_no_gpu(real):
    real.define("PyTorchJob")
    replicas = {"Master": {"replicas": 1}, "Worker": {"replicas": 2}}
    job = real.own("PyTorchJob", "fit", {"pytorchReplicaSpecs": replicas})
    label = "training.kubeflow.org/replica-type"
    pods = [
        ("fit-master-0", {"owner": job, "labels": {label: "master"}, "gpus": 0}),
        *((f"fit-worker-{n}", {"owner": job, "labels": {label: "worker"}}) for n in range(2)),
    ]
    comes_together(real, "PyTorchJob/fit", pods, "Of its group worker 1 is missing.")


def test_a_replica_of_a_leader_worker_set(real):
    real.define("LeaderWorkerSet")
    spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 3}}
    real.own("LeaderWorkerSet", "serve", spec)
    prefix = "leaderworkerset.sigs.k8s.io/"

    def labels(worker):
        return {
            f"{prefix}name": "serve",
            f"{prefix}group-index": "1",
            f"{prefix}worker-index": str(worker),
        }

    pods = [
        ("serve-1", {"labels": labels(0)}),
        *((f"serve-1-{n}", {"labels": labels(n)}) for n in (1, 2)),
    ]
    comes_together(real, "LeaderWorkerSet/serve/1", pods, "Of its group worker 1 is missing.")


def test_a_ray_cluster(real):
    real.define("RayCluster")
    workers = {"groupName": "w", "replicas": 2, "minReplicas": 2, "maxReplicas": 4}
    ray = real.own("RayCluster", "rc", {"workerGroupSpecs": [workers]})
    group = "ray.io/group"
    pods = [
        *((f"rc-w-{n}", {"owner": ray, "labels": {group: "w"}}) for n in range(2)),
        ("rc-head", {"owner": ray, "labels": {group: "headgroup"}, "gpus": 0}),
    ]
    comes_together(real, "RayCluster/rc", pods, "Of its group headgroup 1 is missing.")


def test_a_pod_group_of_coscheduling(real):
    real.define("PodGroup")
    real.own("PodGroup", "g", {"minMember": 2})
    labels = {"scheduling.x-k8s.io/pod-group": "g"}
    pods = [(name, {"labels": labels}) for name in "ab"]
    comes_together(real, "PodGroup/g", pods, "1 of 2 pods of gang PodGroup/g has come.")


def test_a_pod_group_of_kueue(real):
    labels = {"kueue.x-k8s.io/pod-group-name": "pg"}
    notes = {"kueue.x-k8s.io/pod-group-total-count": "2"}
    pods = [(name, {"labels": labels, "notes": notes}) for name in "ab"]
    comes_together(real, "KueuePodGroup/pg", pods, "1 of 2 pods of gang KueuePodGroup/pg has")


def test_a_native_pod_group(real):
    version = "scheduling.k8s.io/v1alpha2"
    template = {"workload": {"workloadName": "w", "podGroupTemplateName": "t"}}
    policy = {"gang": {"minCount": 2}}
    workload = {
        "apiVersion": version,
        "kind": "Workload",
        "metadata": {"name": "w"},
        "spec": {"podGroupTemplates": [{"name": "t", "schedulingPolicy": policy}]},
    }
    real.call("POST", f"/apis/{version}/namespaces/{real.ns}/workloads", workload)
    spec = {"podGroupTemplateRef": template, "schedulingPolicy": policy}
    real.own("PodGroup", "g", spec, version)
    group = {"schedulingGroup": {"podGroupName": "g"}}
    pods = [(name, group) for name in "ab"]
    comes_together(real, "PodGroup/g", pods, "1 of 2 pods of gang PodGroup/g has come.")
    real.drive(lambda: condition(real, "g") == ("True", "Scheduled", "Pods: 2, on nodes: 1"))
    # Another group, larger than what is free now, shows the same message as its pods.
    real.own("PodGroup", "big", {**spec, "schedulingPolicy": {"gang": {"minCount": 4}}}, version)
    for n in range(3):
        real.pod(f"big-{n}", gpus=8, schedulingGroup={"podGroupName": "big"})
    real.drive(lambda: condition(real, "big") is not None)
    status, reason, message = condition(real, "big")
    assert (status, reason) == ("False", "GangIncomplete")
    assert message.startswith("3 of 4 pods of gang PodGroup/big have come.")
    real.pod("big-3", gpus=8, schedulingGroup={"podGroupName": "big"})
    real.drive(lambda: condition(real, "big")[1] == "WaitingForQuota")
    status, _, message = condition(real, "big")
    assert status == "False"
    assert message == real.said()["big-0"][1]
    assert condition(real, "g")[0] == "True"


@contextlib.contextmanager
def without_right(real, group):
    """Kant's role has no right to that API group."""
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/kant"
    role = real.call("GET", path)
    some = [rule for rule in role["rules"] if group not in rule["apiGroups"]]
    real.call("PUT", path, {**role, "metadata": {"name": "kant"}, "rules": some})
    try:
        yield
    finally:
        real.call("PUT", path, {**role, "metadata": {"name": "kant"}})


# --- owners that cannot be read, or go ------------------------------------------------------------
def test_a_right_that_is_missing_is_named_and_the_pods_wait_for_it(real):
    with without_right(real, "batch"):
        job = real.job("tune", INDEXED)
        for n in range(3):
            real.pod(f"tune-{n}", job)
        real.drive(lambda: real.said().keys() == {"tune-0", "tune-1", "tune-2"})
        real.drive(lambda: {reason for reason, _ in real.said().values()} == {"OwnerUnreadable"})
        text = real.said()["tune-0"][1]
        assert text.startswith(f"Job {real.ns}/tune decides which pods belong together.")
        assert "does not allow Kant to list and watch jobs.batch" in text
        alone = real.pod("alone", gpus=1)["metadata"]["name"]
        real.drive(lambda: real.nodes_of()[alone])  # nobody else waits for it
    real.drive(lambda: all(real.nodes_of().values()))
    assert list(gangs()) == ["Job/tune"]


def test_a_kind_that_is_not_there_is_named(real):
    real.undefine("PodGroup")
    labels = {"scheduling.x-k8s.io/pod-group": "g"}
    real.pod("a", labels=labels)
    real.drive(lambda: real.said().get("a", ("",))[0] == "OwnerUnreadable")
    assert "podgroups.scheduling.x-k8s.io" in real.said()["a"][1]
    real.define("PodGroup")
    real.own("PodGroup", "g", {"minMember": 1})
    real.drive(lambda: real.nodes_of()["a"])


def test_a_pod_group_that_is_deleted_under_its_pods(real, monkeypatch):
    monkeypatch.setattr(owners, "COMES_WITHIN_S", 0.3)
    real.define("PodGroup")
    real.own("PodGroup", "g", {"minMember": 3})
    labels = {"scheduling.x-k8s.io/pod-group": "g"}
    for name in "ab":
        real.pod(name, labels=labels)
    real.drive(lambda: {r for r, _ in real.said().values()} == {"GangIncomplete"})
    real.call("DELETE", f"/apis/{VERSIONS['PodGroup']}/namespaces/{real.ns}/podgroups/g")
    real.drive(lambda: {r for r, _ in real.said().values()} == {"OwnerGone"})
    real.pod("c", labels=labels)
    real.drive(lambda: real.said().get("c", ("",))[0] == "OwnerGone")
    assert not any(real.nodes_of().values())


@pytest.mark.parametrize(
    ("version", "subresource", "labels", "notes"),
    [
        (VERSIONS["PodGroup"], True, {"scheduling.x-k8s.io/pod-group": "g"}, {}),
        (VOLCANO_VERSION, False, {}, {"scheduling.k8s.io/group-name": "g"}),
    ],
)
def test_groups_that_count_their_pods(real, version, subresource, labels, notes):
    real.undefine("PodGroup")  # kinds of other tests, whose status is no subresource
    real.define("PodGroup", version, subresource=subresource)
    real.own("PodGroup", "g", {"minMember": 2, "queue": "q"}, version)
    path = f"/apis/{version}/namespaces/{real.ns}/podgroups/g"

    def told(*names):
        status = real.call("GET", path).get("status", {})
        return tuple(status.get(name) for name in names)

    real.pod("a", labels=labels, notes=notes)
    real.drive(lambda: told("phase") == ("Pending",))
    real.pod("b", labels=labels, notes=notes)
    real.drive(lambda: all(real.nodes_of().values()))
    real.run()
    real.drive(lambda: told("phase", "running", "failed") == ("Running", 2, 0))
    assert real.call("GET", path)["spec"] == {"minMember": 2, "queue": "q"}


# --- Kubernetes' own Job controller ---------------------------------------------------------------
def controllers(real, *flags):
    try:
        real.server.start_controllers(*flags)
    except ServerUnavailable as error:
        requirements.missing("the Job controller of Kubernetes", str(error))


def test_the_job_controller_makes_a_gang(real):
    controllers(real)
    real.job("tune", INDEXED)
    real.drive(lambda: gangs() == {"Job/tune": S.ADMITTED})
    real.drive(lambda: len([node for node in real.nodes_of().values() if node]) == 3)


def test_the_job_controller_makes_a_pod_group_of_kubernetes(real):
    """With the feature WorkloadWithJob, the controller makes Workload and PodGroup and its pods
    name them."""
    controllers(real, "--feature-gates=GenericWorkload=true,WorkloadWithJob=true")
    real.job("tune", INDEXED)
    real.drive(lambda: list(gangs().values()) == [S.ADMITTED])
    [gang] = gangs()
    assert gang.startswith("PodGroup/tune-")
    group = gang.partition("/")[2]
    named = {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in real.pods().values()}
    assert named == {group}


def ends(real, *names):
    """End the pods that were told to stop, as kubelets would."""
    for name, pod in real.pods().items():
        if name in names and pod["status"]["phase"] == "Running":
            pod["status"]["phase"] = "Failed"
            real.call("PUT", f"{real.pods_path}/{name}/status", pod)


def marks(pods):
    found = [c for pod in pods for c in pod["status"]["conditions"] if c["status"] == "True"]
    return {c["reason"] for c in found if c["type"] == "DisruptionTarget"}


@pytest.mark.parametrize("limit", [0, 6])
def test_a_preempted_gang_costs_its_job_no_retry(real, limit):
    """Eight pods go at once, more than the default limit, without a podFailurePolicy."""
    controllers(real)
    real.policy.document = {"preemption": ["priority"], "min_runtime_s": 0}
    real.policy.version += 1
    real.policy.save()
    wide = {**INDEXED, "parallelism": 8, "completions": 8, "backoffLimit": limit}
    real.job("low", wide)
    real.drive(lambda: gangs() == {"Job/low": S.ADMITTED})
    real.drive(lambda: real.run() or gangs() == {"Job/low": S.RUNNING})
    low = [name for name in real.pods() if name.startswith("low-")]
    real.pod("high", gpus=8, notes={"kant.io/priority": "10"})

    def going():
        return [
            p for n, p in real.pods().items() if n in low and p["metadata"].get("deletionTimestamp")
        ]

    real.drive(lambda: len(going()) == 8)
    assert marks(going()) == {"PreemptionByScheduler"}
    assert not any(TRACKING in pod["metadata"].get("finalizers", ()) for pod in going())
    ends(real, *low)
    path = f"/apis/batch/v1/namespaces/{real.ns}/jobs/low"

    def made_again():
        return len([n for n in real.pods() if n.startswith("low-") and n not in low]) == 8

    real.drive(made_again)
    status = real.call("GET", path)["status"]
    assert status.get("failed", 0) == 0
    assert not {c["type"] for c in status.get("conditions", ())} & {"Failed", "FailureTarget"}


def test_a_gang_whose_pod_fails_costs_its_job_one_retry(real):
    controllers(real)
    real.job("fit", {**INDEXED, "parallelism": 8, "completions": 8})
    real.drive(lambda: real.run() or gangs() == {"Job/fit": S.RUNNING})
    first = [name for name in real.pods() if name.startswith("fit-")]
    ends(real, first[0])
    path = f"/apis/batch/v1/namespaces/{real.ns}/jobs/fit"
    # When no pod is active any more, the controller has decided which deletions count as failures.
    real.drive(lambda: real.call("GET", path)["status"].get("active", 0) == 0)
    ends(real, *first)
    status = real.call("GET", path)["status"]
    assert status["failed"] == 1
    assert "Failed" not in {c["type"] for c in status.get("conditions", ())}


SILENT = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}


@pytest.mark.parametrize("seconds", [None, 0])
def test_a_node_that_does_not_answer(real, seconds):
    """For five minutes it costs a Job nothing. A gang that then loses pods with the node costs
    as many retries as it loses pods."""
    controllers(real)
    own = [] if seconds is None else [{**SILENT, "operator": "Exists", "tolerationSeconds": 0}]
    real.job("fit", {**INDEXED, "parallelism": 8, "completions": 8}, tolerations=own)
    real.drive(lambda: real.run() or gangs() == {"Job/fit": S.RUNNING})
    nodes = real.nodes_of()
    lost = nodes[min(nodes)]
    there = [name for name, node in nodes.items() if node == lost]
    real.taint(lost, SILENT)
    path = f"/apis/batch/v1/namespaces/{real.ns}/jobs/fit"
    try:
        if seconds is None:
            assert gangs() == {"Job/fit": S.RUNNING}
            found = real.pods().values()
            assert not any("deletionTimestamp" in pod["metadata"] for pod in found)
            return
        real.drive(lambda: gangs()["Job/fit"] == S.FAILED)
        real.drive(lambda: not tracked(real, nodes))
        status = real.call("GET", path)["status"]
        counting = status.get("uncountedTerminatedPods", {}).get("failed", ())
        assert status.get("failed", 0) + len(counting) <= len(there) == 2
        assert "Failed" not in {c["type"] for c in status.get("conditions", ())}
    finally:
        real.taint(lost)


def tracked(real, names):
    """Return those pods whose end the Job has yet to count."""
    pods = real.pods()
    return [n for n in names if n in pods and TRACKING in pods[n]["metadata"].get("finalizers", ())]
