"""What a pod belongs to, kind by kind: pods and owners as their controllers write them."""

from pathlib import Path

import msgspec
import pytest
import yaml

from scheduling.kube.door.owners import KubeOwner, owner_facts
from scheduling.kube.seam import Unclear
from scheduling.kube.translate.objects import KubePod
from scheduling.kube.translate.pods import pod_translator
from scheduling.kube.workloads import pod_groups
from scheduling.kube.workloads.members import gang_of, is_short, members, missing
from scheduling.kube.workloads.registry import RULES, Unknown, workload_of

NS = "team-a"
JOBSET, LWS = "jobset.sigs.k8s.io/", "leaderworkerset.sigs.k8s.io/"
KUBEFLOW = "training.kubeflow.org/"
translate = pod_translator("kant")


def owner_of(version, kind, name, uid="u-1"):
    return {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": True}


def pod(name="p-0", owner=None, labels=None, notes=None, **spec):
    raw = {
        "metadata": {
            "name": name,
            "namespace": NS,
            "uid": f"uid-{name}",
            "labels": labels or {},
            "annotations": notes or {},
            "ownerReferences": [owner] if owner else [],
        },
        "spec": {"schedulerName": "kant", "containers": [{"name": "c"}], **spec},
        "status": {"phase": "Pending"},
    }
    return translate(msgspec.json.decode(msgspec.json.encode(raw), type=KubePod))


class Objects:
    """The objects of a cluster."""

    def __init__(self, *given):
        self.found = {(g["apiVersion"], g["kind"], g["metadata"]["name"]): g for g in given}
        self.asked = []

    def __call__(self, reference):
        self.asked.append(reference.kind)
        key = reference.api_version, reference.kind, reference.name
        if key not in self.found:
            raise Unknown(Unclear("OwnerGone", f"There is no {reference.kind}.", is_answer=True))
        return owner_facts(msgspec.convert(self.found[key], KubeOwner)).found


def made(version, kind, name, spec=None, owner=None, notes=None, status=None):
    meta = {"name": name, "namespace": NS, "uid": "u-1", "annotations": notes or {}}
    if owner:
        meta["ownerReferences"] = [owner]
    found = {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec or {}}
    return found | ({"status": status} if status else {})


def groups_of(workload):
    return {group.name: group.minimum for group in workload.groups}


# --- batch ----------------------------------------------------------------------------------------
def batch(spec, **more):
    return made("batch/v1", "Job", "tune", spec, **more)


INDEXED = {"completionMode": "Indexed", "parallelism": 4, "completions": 4}


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        (INDEXED, 4),
        ({**INDEXED, "parallelism": 2}, 0),
        ({**INDEXED, "parallelism": 1, "completions": 1}, 0),
        ({"parallelism": 4, "completions": 4}, 0),
        ({"parallelism": 4}, 0),
        ({}, 0),
    ],
)
def test_an_indexed_job_that_runs_all_its_completions_at_once_is_a_gang(spec, size):
    found = workload_of(pod(owner=owner_of("batch/v1", "Job", "tune")), Objects(batch(spec)))
    assert (found.size, found.kind, found.name) == (size, "Job", "tune")
    assert found.gang == ("Job/tune" if size else "")


def test_completions_that_are_done_are_not_waited_for():
    job = batch(INDEXED, status={"succeeded": 3})
    assert workload_of(pod(owner=owner_of("batch/v1", "Job", "tune")), Objects(job)).size == 1


def test_a_suspended_job_says_so():
    job = batch({**INDEXED, "suspend": True})
    wait = workload_of(pod(owner=owner_of("batch/v1", "Job", "tune")), Objects(job)).wait
    assert (wait.reason, wait.is_answer) == ("OwnerSuspended", True)


def test_a_job_of_a_cron_job_is_read_as_any_other():
    job = batch(INDEXED, owner=owner_of("batch/v1", "CronJob", "nightly"))
    objects = Objects(job)
    assert workload_of(pod(owner=owner_of("batch/v1", "Job", "tune")), objects).size == 4
    assert objects.asked == ["Job"]


def test_the_minimum_that_kai_reads_counts_too():
    job = batch({"parallelism": 8}, notes={"kai.scheduler/batch-min-member": "3"})
    found = workload_of(pod(owner=owner_of("batch/v1", "Job", "tune")), Objects(job))
    assert (groups_of(found), found.elastic) == ({"": 3}, True)


# --- JobSet ---------------------------------------------------------------------------------------
def replicated(name, replicas, pods, *after):
    spec = {"parallelism": pods, "completions": pods, "completionMode": "Indexed"}
    job = {"name": name, "replicas": replicas, "template": {"spec": spec}}
    depends = [{"name": other, "status": "Ready"} for other in after]
    return job | ({"dependsOn": depends} if depends else {})


def of_jobset(replicated_job, jobs, **spec):
    jobset = made("jobset.x-k8s.io/v1alpha2", "JobSet", "train", {"replicatedJobs": jobs, **spec})
    above = owner_of("jobset.x-k8s.io/v1alpha2", "JobSet", "train")
    job = batch(INDEXED, owner=above)
    objects = Objects(job, jobset)
    labels = {
        f"{JOBSET}jobset-name": "train",
        f"{JOBSET}replicatedjob-name": replicated_job,
        f"{JOBSET}job-index": "0",
    }
    return workload_of(pod(owner=owner_of("batch/v1", "Job", "tune"), labels=labels), objects)


def test_all_jobs_of_a_jobset_are_one_gang():
    found = of_jobset("workers", [replicated("driver", 1, 1), replicated("workers", 2, 4)])
    assert (found.gang, groups_of(found)) == ("JobSet/train", {"driver": 1, "workers": 8})
    assert (found.group, found.elastic) == ("workers", False)


def test_jobs_that_depend_on_others_are_not_waited_for():
    jobs = [
        replicated("init", 1, 2),
        replicated("driver", 1, 1, "init"),
        replicated("workers", 2, 4, "init"),
        replicated("report", 1, 1, "driver", "workers"),
    ]
    found = {name: of_jobset(name, jobs) for name in ("init", "driver", "workers", "report")}
    assert [f.gang for f in found.values()] == [
        "JobSet/train/1",
        "JobSet/train/2",
        "JobSet/train/2",
        "JobSet/train/3",
    ]
    assert [f.size for f in found.values()] == [2, 9, 9, 1]


def test_so_are_those_that_start_in_order():
    jobs = [replicated("driver", 1, 1), replicated("workers", 2, 4)]
    order = {"startupPolicy": {"startupPolicyOrder": "InOrder"}}
    assert of_jobset("driver", jobs, **order).size == 1
    assert of_jobset("workers", jobs, **order).size == 8


def test_jobs_that_wait_for_each_other_are_a_contradiction():
    wait = of_jobset("a", [replicated("a", 1, 1, "b"), replicated("b", 1, 1, "a")]).wait
    assert wait.reason == "WorkloadContradicts"
    assert "spec.replicatedJobs[].dependsOn: a, b can never start" in wait.text


def test_a_pod_of_a_job_that_the_jobset_does_not_have_is_a_contradiction():
    wait = of_jobset("old", [replicated("new", 1, 2)]).wait
    assert wait.text.startswith("JobSet train: spec.replicatedJobs: There is none named 'old'")


def test_a_jobset_of_a_train_job_is_read_and_the_train_job_is_not():
    above = owner_of("trainer.kubeflow.org/v1alpha1", "TrainJob", "train")
    jobset = made(
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        "train",
        {"replicatedJobs": [replicated("node", 1, 3)]},
        owner=above,
    )
    job = batch(INDEXED, owner=owner_of("jobset.x-k8s.io/v1alpha2", "JobSet", "train"))
    objects = Objects(job, jobset)
    labels = {f"{JOBSET}replicatedjob-name": "node"}
    found = workload_of(pod(owner=owner_of("batch/v1", "Job", "tune"), labels=labels), objects)
    assert (found.gang, found.size) == ("JobSet/train", 3)
    assert objects.asked == ["Job", "JobSet"]


# --- LeaderWorkerSet ------------------------------------------------------------------------------
def of_lws(replica, worker, **spec):
    lws = made("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "serve", spec)
    labels = {
        f"{LWS}name": "serve",
        f"{LWS}group-index": str(replica),
        f"{LWS}worker-index": str(worker),
    }
    by = owner_of("apps/v1", "StatefulSet", f"serve-{replica}")
    return workload_of(pod(owner=by, labels=labels), Objects(lws))


def test_each_replica_of_a_leader_worker_set_is_a_gang():
    spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 4}}
    assert of_lws(0, 0, **spec).gang == "LeaderWorkerSet/serve/0"
    assert of_lws(1, 3, **spec).gang == "LeaderWorkerSet/serve/1"
    assert groups_of(of_lws(1, 3, **spec)) == {"leader": 1, "worker": 3}
    assert groups_of(of_lws(0, 0, leaderWorkerTemplate={"size": 1})) == {"leader": 1}


def test_workers_that_are_made_when_their_leader_is_ready_are_not_waited_for():
    spec = {"startupPolicy": "LeaderReady", "leaderWorkerTemplate": {"size": 4}}
    leader, worker = of_lws(0, 0, **spec), of_lws(0, 2, **spec)
    assert (groups_of(leader), groups_of(worker)) == ({"leader": 1}, {"worker": 3})
    assert leader.gang != worker.gang


# --- Kubeflow -------------------------------------------------------------------------------------
def of_kubeflow(kind, replicas, spec, role="worker", version="kubeflow.org/v1", label=None):
    counts = {t: {"replicas": n, "template": {}} for t, n in replicas.pop("of").items()}
    job = made(version, kind, "fit", {replicas.pop("field"): counts, **spec})
    labels = {f"{KUBEFLOW}job-name": "fit", f"{KUBEFLOW}{label or 'replica-type'}": role}
    return workload_of(pod(owner=owner_of(version, kind, "fit"), labels=labels), Objects(job))


@pytest.mark.parametrize(
    ("kind", "field", "types"),
    [
        ("PyTorchJob", "pytorchReplicaSpecs", {"Master": 1, "Worker": 3}),
        ("TFJob", "tfReplicaSpecs", {"Chief": 1, "PS": 2, "Worker": 4, "Evaluator": 1}),
        ("XGBoostJob", "xgbReplicaSpecs", {"Master": 1, "Worker": 2}),
        ("JAXJob", "jaxReplicaSpecs", {"Worker": 4}),
        ("PaddleJob", "paddleReplicaSpecs", {"Master": 1, "Worker": 2}),
        ("MPIJob", "mpiReplicaSpecs", {"Launcher": 1, "Worker": 4}),
    ],
)
def test_all_replicas_of_a_training_job_are_one_gang(kind, field, types):
    found = of_kubeflow(kind, {"field": field, "of": types}, {})
    assert found.gang == f"{kind}/fit"
    assert groups_of(found) == {t.lower(): n for t, n in types.items()}
    assert (found.group, found.elastic) == ("worker", False)


def test_a_training_job_can_say_with_how_many_it_starts():
    types = {"field": "pytorchReplicaSpecs", "of": {"Master": 1, "Worker": 7}}
    policy = {"runPolicy": {"schedulingPolicy": {"minAvailable": 4}}}
    found = of_kubeflow("PyTorchJob", dict(types), policy)
    assert (groups_of(found), found.elastic) == ({"": 4}, True)
    elastic = {"elasticPolicy": {"minReplicas": 2, "maxReplicas": 7}}
    found = of_kubeflow("PyTorchJob", dict(types), elastic)
    assert (groups_of(found), found.elastic) == ({"master": 1, "worker": 2}, True)


def test_replicas_and_jobs_that_have_succeeded_are_not_waited_for():
    replicas = {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}
    status = {"replicaStatuses": {"Worker": {"succeeded": 1}, "Master": {"succeeded": 1}}}
    job = made(
        *("kubeflow.org/v1", "PyTorchJob", "fit", {"pytorchReplicaSpecs": replicas}), status=status
    )
    of = pod(owner=owner_of("kubeflow.org/v1", "PyTorchJob", "fit"))
    assert groups_of(workload_of(of, Objects(job))) == {"worker": 2}
    status = {"replicatedJobsStatus": [{"name": "workers", "succeeded": 1}]}
    jobs = [replicated("driver", 1, 1), replicated("workers", 2, 4)]
    jobset = made(
        *("jobset.x-k8s.io/v1alpha2", "JobSet", "train", {"replicatedJobs": jobs}), status=status
    )
    of = pod(
        owner=owner_of("jobset.x-k8s.io/v1alpha2", "JobSet", "train"),
        labels={f"{JOBSET}replicatedjob-name": "workers"},
    )
    assert groups_of(workload_of(of, Objects(jobset))) == {"driver": 1, "workers": 4}


def test_the_topology_that_kai_reads_of_an_owner_is_a_level_of_all_its_pods():
    notes = {"kai.scheduler/topology-required-placement": "network.topology.nvidia.com/spine"}
    found = workload_of(
        pod(owner=owner_of("batch/v1", "Job", "tune")), Objects(batch(INDEXED, notes=notes))
    )
    assert (found.required_level, found.preferred_level) == ("spine", "")
    notes = {"kai.scheduler/topology-required-placement": "example.com/rack"}
    job = batch(INDEXED, notes=notes)
    wait = workload_of(pod(owner=owner_of("batch/v1", "Job", "tune")), Objects(job)).wait
    assert "annotation kai.scheduler/topology-required-placement" in wait.text


def test_a_launcher_that_waits_for_its_workers_is_not_waited_for():
    types = {"field": "mpiReplicaSpecs", "of": {"Launcher": 1, "Worker": 4}}
    policy = {"launcherCreationPolicy": "WaitForWorkersReady"}
    found = {
        role: of_kubeflow(
            *("MPIJob", dict(types), policy, role, "kubeflow.org/v2beta1"), label="job-role"
        )
        for role in ("launcher", "worker")
    }
    assert groups_of(found["worker"]) == {"worker": 4}
    assert groups_of(found["launcher"]) == {"launcher": 1}
    assert found["launcher"].gang != found["worker"].gang


def test_the_launcher_of_an_mpi_job_is_found_through_its_job():
    mpi = made(
        "kubeflow.org/v2beta1",
        "MPIJob",
        "fit",
        {"mpiReplicaSpecs": {"Launcher": {"replicas": 1}, "Worker": {"replicas": 2}}},
    )
    launcher = made(
        *("batch/v1", "Job", "fit-launcher"),
        owner=owner_of("kubeflow.org/v2beta1", "MPIJob", "fit"),
    )
    labels = {f"{KUBEFLOW}job-role": "launcher"}
    of = pod(owner=owner_of("batch/v1", "Job", "fit-launcher"), labels=labels)
    found = workload_of(of, Objects(mpi, launcher))
    assert (found.gang, found.size, found.group) == ("MPIJob/fit", 3, "launcher")


# --- Ray, Spark, and those that start one by one --------------------------------------------------
def test_a_ray_cluster_starts_with_its_head_and_the_least_of_each_group():
    workers = [
        {"groupName": "small", "replicas": 4, "minReplicas": 2, "maxReplicas": 8},
        {"groupName": "hosts", "replicas": 2, "numOfHosts": 4},
        {"groupName": "later", "replicas": 0, "minReplicas": 0, "maxReplicas": 8},
        {"groupName": "off", "replicas": 3, "suspend": True},
    ]
    ray = made(
        *("ray.io/v1", "RayCluster", "rc", {"workerGroupSpecs": workers}),
        owner=owner_of("ray.io/v1", "RayJob", "rj"),
    )
    by = owner_of("ray.io/v1", "RayCluster", "rc")
    labels = {"ray.io/cluster": "rc", "ray.io/group": "small", "ray.io/node-type": "worker"}
    found = workload_of(pod(owner=by, labels=labels), Objects(ray))
    assert groups_of(found) == {"headgroup": 1, "small": 2, "hosts": 8}
    assert (found.gang, found.group, found.elastic) == ("RayCluster/rc", "small", True)


@pytest.mark.parametrize(
    "by",
    [
        owner_of("apps/v1", "ReplicaSet", "chat-5d"),
        owner_of("apps/v1", "StatefulSet", "db"),
        owner_of("v1", "Pod", "spark-driver"),
        owner_of("sparkoperator.k8s.io/v1beta2", "SparkApplication", "etl"),
        owner_of("argoproj.io/v1alpha1", "Workflow", "flow"),
        owner_of("tekton.dev/v1", "TaskRun", "build"),
        owner_of("kubevirt.io/v1", "VirtualMachineInstance", "vm"),
    ],
)
def test_pods_of_these_start_one_by_one_and_nothing_is_read(by):
    objects = Objects()
    found = workload_of(pod(owner=by), objects)
    assert (found.size, found.gang, found.advice, objects.asked) == (0, "", "", [])


def test_an_unknown_owner_is_told_how_its_pods_become_a_gang():
    by = owner_of("example.com/v1", "Swarm", "s")
    found = workload_of(pod(owner=by), Objects())
    assert found.size == 0
    assert "Kant does not know Swarm s (example.com/v1)" in found.advice
    assert "kant.io/gang-size" in found.advice
    sized = workload_of(pod(owner=by, notes={"kant.io/gang-size": "3"}), Objects())
    assert (sized.gang, sized.size, sized.advice) == ("Swarm/s", 3, "")


@pytest.mark.parametrize("mark", pod_groups.UNREAD)
@pytest.mark.parametrize("where", ["labels", "notes"])
@pytest.mark.parametrize("owner", [None, owner_of("batch/v1", "Job", "tune")])
def test_a_group_that_kant_does_not_read_is_told_and_nothing_of_it_starts(mark, where, owner):
    found = workload_of(pod(owner=owner, **{where: {mark: "g"}}), Objects(batch({})))
    assert found.wait.is_answer
    assert found.wait.text.startswith(f"{mark} says that the pod is one of a group of ")
    assert found.wait.text.endswith("or name the gang with the label kant.io/gang.")


def test_a_pod_that_nobody_owns_belongs_to_nothing():
    assert workload_of(pod(), Objects()) is None


# --- group objects --------------------------------------------------------------------------------
GROUPS = {
    "native": (
        {"spec": {"schedulingGroup": {"podGroupName": "g"}}},
        made(
            *("scheduling.k8s.io/v1alpha2", "PodGroup", "g"),
            {"schedulingPolicy": {"gang": {"minCount": 3}}},
        ),
    ),
    "coscheduling": (
        {"labels": {"scheduling.x-k8s.io/pod-group": "g"}},
        made("scheduling.x-k8s.io/v1alpha1", "PodGroup", "g", {"minMember": 3}),
    ),
    "volcano": (
        {"notes": {"scheduling.k8s.io/group-name": "g"}},
        made("scheduling.volcano.sh/v1beta1", "PodGroup", "g", {"minMember": 3}),
    ),
    "kai": (
        {"notes": {"pod-group-name": "g"}},
        made("scheduling.run.ai/v2alpha2", "PodGroup", "g", {"minMember": 3, "queue": "q"}),
    ),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_a_pod_group_says_the_least_that_starts_together(kind):
    marks, group = GROUPS[kind]
    marks = {**marks, **marks.get("spec", {})}
    marks.pop("spec", None)
    objects = Objects(group, batch({**INDEXED, "parallelism": 8, "completions": 8}))
    found = workload_of(pod(owner=owner_of("batch/v1", "Job", "tune"), **marks), objects)
    assert (found.gang, found.size, found.elastic) == ("PodGroup/g", 3, True)
    assert objects.asked == ["PodGroup"]


def test_a_pod_group_that_a_job_owns_is_above_the_job():
    """Objects as the Job controller of Kubernetes 1.36 makes them."""
    marks, group = GROUPS["native"]
    owners = [owner_of("batch/v1", "Job", "tune")]
    group = {**group, "metadata": {**group["metadata"], "ownerReferences": owners}}
    of = pod(owner=owner_of("batch/v1", "Job", "tune"), **marks["spec"])
    assert workload_of(of, Objects(group, batch(INDEXED))).gang == "PodGroup/g"


def test_a_native_group_of_the_basic_policy_is_no_gang():
    marks, group = GROUPS["native"]
    group = {**group, "spec": {"schedulingPolicy": {"basic": {}}}}
    assert workload_of(pod(**marks["spec"]), Objects(group)).size == 0


def test_the_topology_of_a_group_is_a_network_level():
    marks, group = GROUPS["native"]
    keys = [{"key": "network.topology.nvidia.com/leaf"}]
    spec = {**group["spec"], "schedulingConstraints": {"topology": keys}}
    found = workload_of(pod(**marks["spec"]), Objects({**group, "spec": spec}))
    assert found.required_level == "leaf"
    spec["schedulingConstraints"] = {"topology": [{"key": "example.com/rack"}]}
    wait = workload_of(pod(**marks["spec"]), Objects({**group, "spec": spec})).wait
    assert "Kant knows no network level by the label example.com/rack" in wait.text


def test_sub_groups_of_kai_and_tasks_of_volcano_each_have_their_minimum():
    group = GROUPS["kai"][1]
    subs = [
        {"name": "all"},
        {"name": "decode", "minMember": 2, "parent": "all"},
        {"name": "prefill", "minMember": 1, "parent": "all"},
    ]
    topology = {"preferredTopologyLevel": "network.topology.nvidia.com/spine"}
    spec = {"minSubGroup": 1, "subGroups": subs, "topologyConstraint": topology}
    labels = {"kai.scheduler/subgroup-name": "decode"}
    of = pod(notes={"pod-group-name": "g"}, labels=labels)
    found = workload_of(of, Objects({**group, "spec": spec}))
    assert groups_of(found) == {"decode": 2, "prefill": 1}
    assert (found.group, found.preferred_level) == ("decode", "spine")

    group = GROUPS["volcano"][1]
    spec = {"minMember": 3, "minTaskMember": {"ps": 1, "worker": 2}}
    of = pod(notes={"scheduling.k8s.io/group-name": "g", "volcano.sh/task-spec": "ps"})
    found = workload_of(of, Objects({**group, "spec": spec}))
    assert (groups_of(found), found.group) == ({"ps": 1, "worker": 2}, "ps")


def test_a_pod_gang_of_grove_names_its_pods():
    parts = [
        {"name": "router", "minReplicas": 1, "podReferences": [{"namespace": NS, "name": "r-0"}]},
        {"name": "decode", "minReplicas": 2, "podReferences": [{"namespace": NS, "name": "p-0"}]},
    ]
    gang = made("scheduler.grove.io/v1alpha1", "PodGang", "d-0", {"podgroups": parts})
    by = owner_of("grove.io/v1alpha1", "PodClique", "d-0-decode")
    found = workload_of(pod(owner=by, labels={"grove.io/podgang": "d-0"}), Objects(gang))
    assert (found.gang, groups_of(found), found.group) == (
        "PodGang/d-0",
        {"router": 1, "decode": 2},
        "decode",
    )


def test_a_pod_group_of_kueue_is_on_its_pods_alone():
    labels = {"kueue.x-k8s.io/pod-group-name": "pg"}
    notes = {"kueue.x-k8s.io/pod-group-total-count": "3"}
    objects = Objects()
    found = workload_of(pod(labels=labels, notes=notes), objects)
    assert (found.gang, found.size, found.elastic) == ("KueuePodGroup/pg", 3, False)
    assert objects.asked == []
    wait = workload_of(pod(labels=labels), objects).wait
    assert "annotation kueue.x-k8s.io/pod-group-total-count" in wait.text


# --- bad input ------------------------------------------------------------------------------------
@pytest.mark.parametrize("wrong", [-1, 2.5, True, "many", {"a": 1}, 10**9])
def test_a_count_that_cannot_be_read_is_told_with_its_field(wrong):
    group = made("scheduling.x-k8s.io/v1alpha1", "PodGroup", "g", {"minMember": wrong})
    of = pod(labels={"scheduling.x-k8s.io/pod-group": "g"})
    wait = workload_of(of, Objects(group)).wait
    assert (wait.reason, wait.is_answer) == ("WorkloadContradicts", True)
    assert wait.text.startswith(f"PodGroup g: spec.minMember: It is {wrong!r}")


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: f"{rule.group}/{rule.kind}")
def test_an_object_that_says_nothing_is_read_too(rule):
    for spec in ({}, {"replicatedJobs": None, "workerGroupSpecs": 3, "podgroups": "x"}):
        found = made(f"{rule.group}/v1", rule.kind, "o", spec)
        facts = owner_facts(msgspec.convert(found, KubeOwner))
        workload = workload_of_rule(rule, facts.found)
        assert (workload.kind, workload.name) == (rule.kind, "o")


def workload_of_rule(rule, found):
    by = owner_of("batch/v1", "Job", "o")
    return (
        workload_of(pod(owner=by), lambda _: {**found})
        if rule.kind == "Job"
        else _read(rule, found)
    )


def _read(rule, found):
    if rule.kind == "JobSet":
        found = {**found, "spec": {"replicatedJobs": [{"name": ""}]}}
    return rule.read(pod(), found)


def test_annotations_of_an_owner_count_for_its_pods():
    job = batch(INDEXED, notes={"kant.io/required-level": "leaf", "other": "x"})
    found = workload_of(pod(owner=owner_of("batch/v1", "Job", "tune")), Objects(job))
    assert dict(found.notes) == {"kant.io/required-level": "leaf"}


def test_rbac_yaml_lets_kant_read_every_kind_that_decides():
    role, _ = yaml.safe_load_all(Path("scheduling/kube/rbac.yaml").read_text())
    allowed = {
        (group, resource)
        for rule in role["rules"]
        if {"get", "list", "watch"} <= set(rule["verbs"])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert {(rule.group, rule.plural) for rule in RULES.values()} <= allowed


# --- which pods are the gang ----------------------------------------------------------------------
def of_ray(name, group):
    workers = [{"groupName": "w", "replicas": 2}]
    ray = made("ray.io/v1", "RayCluster", "rc", {"workerGroupSpecs": workers})
    labels = {"ray.io/group": group}
    one = pod(name, owner=owner_of("ray.io/v1", "RayCluster", "rc"), labels=labels)
    plain = msgspec.structs.replace(one.plain, workload=workload_of(one, Objects(ray)))
    return msgspec.structs.replace(one, plain=plain)


def test_the_gang_takes_the_least_of_each_group_and_leaves_the_others():
    pods = [of_ray(f"w-{n}", "w") for n in (10, 9, 2)]
    assert is_short(pods)
    assert missing(pods) == {"headgroup": 1}
    pods.append(of_ray("head", "headgroup"))
    assert not is_short(pods)
    found = members(pods)
    assert sorted(p.name for p in found.gang) == ["head", "w-2", "w-9"]
    assert [p.name for p in found.others] == ["w-10"]
    assert gang_of(pods[0]) == "RayCluster/rc"
