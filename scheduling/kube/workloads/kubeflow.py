"""Kubeflow training jobs: PyTorchJob, TFJob, XGBoostJob, JAXJob, PaddleJob, MPIJob.

All replicas of all types are one gang. `runPolicy.schedulingPolicy.minAvailable`, or a PyTorchJob's
`elasticPolicy`, sets how many it needs to start. The launcher of an MPIJob that waits for its
workers (`launcherCreationPolicy: WaitForWorkersReady`) is a separate gang that comes after them.
Sources: kubeflow.org/v1 (training operator), kubeflow.org/v2beta1 (MPI operator).
"""

from functools import partial

from scheduling.kube.seam import GangGroup, PodFacts, Workload
from scheduling.kube.workloads.reading import (
    Found,
    Rule,
    count_of,
    gang,
    part_of,
    suspended,
)

# Labels with the replica type in lower case; the second is the MPI operator's.
TYPES = ("training.kubeflow.org/replica-type", "training.kubeflow.org/job-role")
LAUNCHER = "launcher"


def read(pod: PodFacts, job: Found, *, kind: str, replicas: str) -> Workload:
    spec = part_of(job, "spec")
    policy = part_of(spec, "runPolicy")
    if policy.get("suspend"):
        return suspended(kind, job)
    of_type, statuses = part_of(spec, replicas), part_of(job, "status", "replicaStatuses")
    groups = []
    for name in sorted(of_type):
        pods = count_of(part_of(of_type, name), "replicas", 1, f"spec.{replicas}.{name}")
        # Pods that succeeded are not made again.
        done = count_of(part_of(statuses, name), "succeeded", 0, f"status.replicaStatuses.{name}")
        groups.append(GangGroup(name.lower(), max(pods - done, 0)))
    mine = next((pod.labels[label].lower() for label in TYPES if label in pod.labels), "")
    least = part_of(policy, "schedulingPolicy").get("minAvailable")
    elastic = part_of(spec, "elasticPolicy")
    if least is not None:
        field = "spec.runPolicy.schedulingPolicy.minAvailable"
        least = count_of({"n": least}, "n", 0, field)
        if least < sum(group.minimum for group in groups):
            return gang(kind, job, [GangGroup("", least)], elastic=True)
    elif "minReplicas" in elastic:
        workers = count_of(elastic, "minReplicas", 1, "spec.elasticPolicy.minReplicas")
        groups = [GangGroup(g.name, workers) if g.name == "worker" else g for g in groups]
        return gang(kind, job, groups, group=mine, elastic=True)
    part = ""
    if spec.get("launcherCreationPolicy") == "WaitForWorkersReady":
        part = LAUNCHER if mine == LAUNCHER else "workers"
        groups = [group for group in groups if (group.name == LAUNCHER) == (mine == LAUNCHER)]
    return gang(kind, job, groups, group=mine, part=part)


RULES = tuple(
    Rule("kubeflow.org", kind, f"{kind.lower()}s", partial(read, kind=kind, replicas=replicas))
    for kind, replicas in (
        ("PyTorchJob", "pytorchReplicaSpecs"),
        ("TFJob", "tfReplicaSpecs"),
        ("XGBoostJob", "xgbReplicaSpecs"),
        ("JAXJob", "jaxReplicaSpecs"),
        ("PaddleJob", "paddleReplicaSpecs"),
        ("MPIJob", "mpiReplicaSpecs"),
    )
)
