"""Which objects Kant reads to learn what a pod belongs to, and what follows from them. Pure.

Kant's own gang label takes precedence (`translate.plain_pods.GANG`). Next comes a group that the
pod names itself, then the pod's owners: the outermost that Kant knows.
"""

from collections.abc import Callable

import msgspec

from scheduling.kube.network.level_names import DEFAULT_NAMES, LevelNames
from scheduling.kube.seam import GangGroup, PodFacts, Reference, Unclear, Workload
from scheduling.kube.translate.plain_pods import GANG_SIZE
from scheduling.kube.workloads import (
    batch_job,
    jobset,
    kubeflow,
    leader_worker_set,
    pod_groups,
    ray,
)
from scheduling.kube.workloads.contradiction import Contradicts
from scheduling.kube.workloads.levels import with_levels
from scheduling.kube.workloads.reading import (
    CONTRADICTION,
    Found,
    Rule,
    controller_of,
    count_of,
)

RULES: dict[tuple[str, str], Rule] = {
    (rule.group, rule.kind): rule
    for rule in (
        batch_job.RULE,
        jobset.RULE,
        leader_worker_set.RULE,
        *kubeflow.RULES,
        ray.RULE,
        *pod_groups.RULES,
    )
}
# Kinds whose pods start one by one: replicas that serve alone, steps of a workflow, machines, the
# executors of a Spark driver. Kant need not read these objects.
ONE_BY_ONE = frozenset(
    {
        *(("", kind) for kind in ("Pod", "ReplicationController", "Node")),
        *(("apps", kind) for kind in ("ReplicaSet", "StatefulSet", "DaemonSet", "Deployment")),
        *(("apps.kruise.io", kind) for kind in ("CloneSet", "StatefulSet", "DaemonSet")),
        ("argoproj.io", "Workflow"),
        *(("tekton.dev", kind) for kind in ("TaskRun", "PipelineRun", "CustomRun")),
        ("kubevirt.io", "VirtualMachineInstance"),
        *(("sparkoperator.k8s.io", kind) for kind in ("SparkApplication", "SparkConnect")),
        ("spark.apache.org", "SparkApplication"),
        *(("kubeflow.org", kind) for kind in ("Notebook", "ScheduledWorkflow")),
        ("serving.knative.dev", "Revision"),
        ("workspace.devfile.io", "DevWorkspace"),
        ("machinelearning.seldon.io", "SeldonDeployment"),
    }
)
UNKNOWN_OWNER = (
    "Kant does not know {kind} {name} ({version}) and starts its pods one by one. If they must "
    "start together, set the annotation kant.io/gang-size of the pods to their number."
)
UNREAD_GROUP = (
    "{1} says that the pod is one of a group of {0}, which Kant does not support. Remove it, or "
    "name the gang with the label kant.io/gang."
)

# Labels of pods that such an owner creates; pods copied by hand have them without an owner.
MARKS = {
    "jobset.sigs.k8s.io/jobset-name": "JobSet",
    "training.kubeflow.org/job-name": "Kubeflow training job",
    "ray.io/cluster": "RayCluster",
    "volcano.sh/job-name": "Volcano job",
}

Find = Callable[[Reference], Found]


class Unknown(Exception):
    """Why an object is not known."""

    def __init__(self, wait: Unclear) -> None:
        super().__init__(wait.text)
        self.wait = wait


def workload_of(pod: PodFacts, find: Find, names: LevelNames = DEFAULT_NAMES) -> Workload | None:
    """Return what a waiting pod belongs to; None if it names nothing.

    `find` returns an object or raises Unknown. An annotation of the pod or the object may set how
    many pods start together. `names`: what others call the network levels.
    """
    workload = _by_objects(pod, find)
    if workload is None or workload.wait is not None:
        return workload
    try:
        workload = with_levels(workload, names)
    except Contradicts as wrong:
        bare = msgspec.structs.replace(workload, asked=(), asked_of_group=())
        wait = _contradiction(workload.kind, workload.name, wrong)
        return msgspec.structs.replace(bare, wait=wait)
    said = pod.annotations.get(GANG_SIZE, workload.notes.get(GANG_SIZE))
    if said is None:
        return workload
    try:
        size = count_of({"n": said}, "n", 0, f"annotation {GANG_SIZE}")
    except Contradicts as wrong:
        wait = _contradiction(workload.kind, workload.name, wrong)
        return msgspec.structs.replace(workload, wait=wait)
    groups = (GangGroup("", size),) if size > 1 else ()
    return msgspec.structs.replace(workload, groups=groups, elastic=True, advice="")


def _by_objects(pod: PodFacts, find: Find) -> Workload | None:
    assert pod.plain is not None
    named = pod_groups.named_by(pod)
    try:
        if named is None and (workload := pod_groups.without_object(pod)) is not None:
            return workload
    except Contradicts as wrong:
        name = pod.labels[pod_groups.KUEUE]
        return Workload(
            pod_groups.KUEUE_KIND, name, wait=_contradiction(pod_groups.KUEUE_KIND, name, wrong)
        )
    named = named or leader_worker_set.named_by(pod)
    if named is not None:
        return _read(pod, named, find, follow=False)
    if (other := pod_groups.unread(pod)) is not None:
        return _refused(f"{other[0]} group", other[2], UNREAD_GROUP.format(*other))
    owner = pod.plain.owner
    if owner is None:
        return _marked(pod)
    if (owner.group, owner.kind) in RULES:
        return _read(pod, owner, find, follow=True)
    if (owner.group, owner.kind) in ONE_BY_ONE:
        return Workload(owner.kind, owner.name)
    advice = UNKNOWN_OWNER.format(kind=owner.kind, version=owner.api_version, name=owner.name)
    return Workload(owner.kind, owner.name, advice=advice)


def _marked(pod: PodFacts) -> Workload | None:
    """Judge a pod without owner: one with the label of an owner must not start alone."""
    for label, kind in MARKS.items():
        if label in pod.labels:
            text = (
                f"Label {label} says that the pod is one of a {kind}, but none owns it. Remove "
                "the label, or name its gang with the label kant.io/gang."
            )
            return _refused(kind, pod.labels[label], text)
    return None


def _refused(kind: str, name: str, text: str) -> Workload:
    return Workload(kind, name, wait=Unclear(CONTRADICTION, text, is_answer=True))


def _read(pod: PodFacts, first: Reference, find: Find, *, follow: bool) -> Workload:
    """Return what an object says; `follow`: take the outermost known owner of it.

    A group that the pod names itself takes precedence over the group's owners.
    """
    chain = [first]
    try:
        found = find(first)
        while follow and (above := controller_of(found)) is not None and above not in chain:
            if (above.group, above.kind) not in RULES:
                break
            chain.append(above)
            found = find(above)
        return RULES[chain[-1].group, chain[-1].kind].read(pod, found)
    except Unknown as unknown:
        return Workload(chain[-1].kind, chain[-1].name, wait=unknown.wait)
    except Contradicts as wrong:
        kind, name = chain[-1].kind, chain[-1].name
        return Workload(kind, name, wait=_contradiction(kind, name, wrong))


def _contradiction(kind: str, name: str, wrong: Contradicts) -> Unclear:
    return Unclear(CONTRADICTION, f"{kind} {name}: {wrong}", is_answer=True)
