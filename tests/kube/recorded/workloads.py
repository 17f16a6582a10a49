"""The workloads that were submitted to the recorded controllers."""

from typing import Any, NamedTuple


class Workload(NamedTuple):
    controller: str
    pods: int  # made before any of them runs
    documents: list[dict[str, Any]]


def template(gpus: int) -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    container = {"name": "main", "image": "example.com/train:1", "resources": resources}
    return {
        "metadata": {"labels": {"kant.io/tenant": "team"}},
        "spec": {"schedulerName": "kant", "restartPolicy": "Never", "containers": [container]},
    }


def replicated(name: str, replicas: int, pods: int, gpus: int = 1, **more: Any) -> dict[str, Any]:
    job = {
        "parallelism": pods,
        "completions": pods,
        "backoffLimit": 0,
        "template": template(gpus),
    }
    return {"name": name, "replicas": replicas, "template": {"spec": job}, **more}


def jobset(name: str, *jobs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return made("jobset.x-k8s.io/v1alpha2", "JobSet", name, {"replicatedJobs": list(jobs), **more})


def made(version: str, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def serving(name: str, replicas: int, size: int, **more: Any) -> dict[str, Any]:
    templates = {"leaderTemplate": of_set(0), "workerTemplate": of_set(1)}
    spec = {"replicas": replicas, "leaderWorkerTemplate": {"size": size, **templates}, **more}
    return made("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", name, spec)


def of_set(gpus: int) -> dict[str, Any]:
    """Return a template without a restart policy: pods of a StatefulSet always restart."""
    found = template(gpus)
    del found["spec"]["restartPolicy"]
    return found


def roles(container: str = "main", **counts: int) -> dict[str, Any]:
    """Return replicas by type; leaders have no GPU. `container`: the name that the operator looks
    for."""
    found = {}
    for role, count in counts.items():
        pod = template(0 if role in ("Launcher", "PS") else 1)
        pod["spec"]["containers"][0]["name"] = container
        del pod["spec"]["restartPolicy"]
        found[role] = {"replicas": count, "restartPolicy": "Never", "template": pod}
    return found


def training(kind: str, name: str, field: str, of: dict[str, Any], **more: Any) -> dict[str, Any]:
    return made("kubeflow.org/v1", kind, name, {field: of, **more})


def mpi(name: str, **more: Any) -> dict[str, Any]:
    spec = {"mpiReplicaSpecs": roles(Launcher=1, Worker=2), **more}
    return made("kubeflow.org/v2beta1", "MPIJob", name, spec)


def ray(head_gpus: int = 0) -> dict[str, Any]:
    def workers(name: str, replicas: int, least: int, most: int, **more: Any) -> dict[str, Any]:
        sizes = {"replicas": replicas, "minReplicas": least, "maxReplicas": most, **more}
        return {"groupName": name, **sizes, "rayStartParams": {}, "template": of_ray(1)}

    def of_ray(gpus: int) -> dict[str, Any]:
        found = template(gpus)
        del found["spec"]["restartPolicy"]
        return found

    return {
        "rayVersion": "2.46.0",
        "headGroupSpec": {"rayStartParams": {}, "template": of_ray(head_gpus)},
        "workerGroupSpecs": [workers("small", 3, 2, 4), workers("hosts", 1, 1, 1, numOfHosts=2)],
    }


def runtime(name: str, policy: dict[str, Any], *jobs: str) -> dict[str, Any]:
    """Return a runtime of replicated jobs with these names. The trainer gives the first job one pod
    per node; for MPI, it does so for `node`."""
    label = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    found = []
    for index, job in enumerate(jobs):
        spec = {"backoffLimit": 0, "template": template(1)}
        spec["template"]["spec"]["containers"][0]["name"] = "node"
        meta = {} if index else {"labels": label}
        found.append({"name": job, "template": {"metadata": meta, "spec": spec}})
    spec = {"mlPolicy": policy, "template": {"spec": {"replicatedJobs": found}}}
    return made("trainer.kubeflow.org/v1alpha1", "TrainingRuntime", name, spec)


def train_job(name: str, of: str, nodes: int) -> dict[str, Any]:
    group = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": of}
    trainer = {"numNodes": nodes, "resourcesPerNode": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"runtimeRef": group, "trainer": trainer}
    return made("trainer.kubeflow.org/v1alpha1", "TrainJob", name, spec)


PYTORCH, TF = "pytorchReplicaSpecs", "tfReplicaSpecs"
WORKLOADS = {
    "jobset": Workload(
        "jobset", 5, [jobset("train", replicated("driver", 1, 1, 0), replicated("workers", 2, 2))]
    ),
    "jobset-depends-on": Workload(
        "jobset",
        1,
        [
            jobset(
                "steps",
                replicated("load", 1, 1, 0),
                replicated("fit", 1, 2, dependsOn=[{"name": "load", "status": "Complete"}]),
            )
        ],
    ),
    "jobset-in-order": Workload(
        "jobset",
        1,
        [
            jobset(
                *("order", replicated("driver", 1, 1, 0), replicated("workers", 1, 2)),
                startupPolicy={"startupPolicyOrder": "InOrder"},
            )
        ],
    ),
    "lws": Workload("lws", 6, [serving("serve", 2, 3)]),
    "lws-leader-ready": Workload("lws", 1, [serving("later", 1, 3, startupPolicy="LeaderReady")]),
    "pytorchjob": Workload(
        "training-operator",
        3,
        [training("PyTorchJob", "tune", PYTORCH, roles("pytorch", Master=1, Worker=2))],
    ),
    "pytorchjob-elastic": Workload(
        "training-operator",
        3,
        [
            training(
                *("PyTorchJob", "grow", PYTORCH, roles("pytorch", Worker=3)),
                elasticPolicy={"minReplicas": 2, "maxReplicas": 4, "rdzvBackend": "c10d"},
            )
        ],
    ),
    "tfjob-min-available": Workload(
        "training-operator",
        4,
        [
            training(
                *("TFJob", "fit", TF, roles("tensorflow", Chief=1, PS=1, Worker=2)),
                runPolicy={"schedulingPolicy": {"minAvailable": 3}},
            )
        ],
    ),
    "xgboostjob": Workload(
        "training-operator",
        3,
        [training("XGBoostJob", "boost", "xgbReplicaSpecs", roles("xgboost", Master=1, Worker=2))],
    ),
    "mpijob-of-training-operator": Workload(
        "training-operator",
        3,
        [training("MPIJob", "old", "mpiReplicaSpecs", roles("mpi", Launcher=1, Worker=2))],
    ),
    "paddlejob": Workload(
        "training-operator",
        3,
        [training("PaddleJob", "paddle", "paddleReplicaSpecs", roles("paddle", Worker=3))],
    ),
    "mpijob": Workload("mpi-operator", 3, [mpi("ring")]),
    "mpijob-waits": Workload(
        "mpi-operator", 2, [mpi("late", launcherCreationPolicy="WaitForWorkersReady")]
    ),
    "raycluster": Workload("kuberay", 6, [made("ray.io/v1", "RayCluster", "ray", ray())]),
    "rayservice": Workload(
        "kuberay",
        6,
        [made("ray.io/v1", "RayService", "chat", {"rayClusterConfig": ray(), "serveConfigV2": ""})],
    ),
    "rayjob": Workload(
        "kuberay",
        6,
        [made("ray.io/v1", "RayJob", "job", {"entrypoint": "true", "rayClusterSpec": ray()})],
    ),
    "trainjob": Workload(
        "trainer",
        2,
        [
            runtime("torch", {"numNodes": 1, "torch": {"numProcPerNode": "auto"}}, "node"),
            train_job("train", "torch", 2),
        ],
    ),
    "trainjob-mpi": Workload(
        "trainer",
        3,
        [
            runtime(
                *("mpi", {"numNodes": 1, "mpi": {"numProcPerNode": 1, "runLauncherAsNode": True}}),
                *("launcher", "node"),
            ),
            train_job("pi", "mpi", 3),
        ],
    ),
}
