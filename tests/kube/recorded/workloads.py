"""What was submitted to the controllers whose pods are recorded."""

from typing import Any, NamedTuple


class Workload(NamedTuple):
    controller: str
    pods: int  # that it makes before any of them runs
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


def jobset(name: str, *jobs: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": list(jobs)},
    }


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
}
