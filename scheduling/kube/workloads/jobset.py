"""JobSet: alone, or owned by a TrainJob (Kubeflow Trainer v2).

All replicated jobs are one gang. Jobs that are created only when others are ready or complete
(`dependsOn`, or the start-up order InOrder) are separate gangs, in the same order: no gang waits
for a later one. Source: jobset.x-k8s.io/v1alpha2 JobSetSpec.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from scheduling.kube.seam import GangGroup, PodFacts, Workload
from scheduling.kube.workloads.batch_job import pods_at_once
from scheduling.kube.workloads.contradiction import Contradicts
from scheduling.kube.workloads.reading import (
    Found,
    Rule,
    count_of,
    gang,
    list_of,
    minimum_of,
    part_of,
    suspended,
)

KIND = "JobSet"
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"


def read(pod: PodFacts, jobset: Found) -> Workload:
    spec = part_of(jobset, "spec")
    if spec.get("suspend"):
        return suspended(KIND, jobset)
    least = minimum_of(jobset)
    if least is not None:
        return gang(KIND, jobset, [GangGroup("", least)] if least > 1 else [], elastic=True)
    jobs = list_of(spec, "replicatedJobs")
    in_order = part_of(spec, "startupPolicy").get("startupPolicyOrder") == "InOrder"
    steps = {_name(job): i for i, job in enumerate(jobs)} if in_order else _steps(jobs)
    mine = pod.labels.get(REPLICATED_JOB, "")
    if mine not in steps:
        raise Contradicts(
            "spec.replicatedJobs", f"There is none named {mine!r}, as label {REPLICATED_JOB} says."
        )
    step = steps[mine]
    # Jobs that succeeded are not made again.
    statuses = {_name(s): s for s in list_of(part_of(jobset, "status"), "replicatedJobsStatus")}
    groups = [
        GangGroup(_name(job), _pods(job, statuses.get(_name(job), {})))
        for job in jobs
        if steps[_name(job)] == step
    ]
    part = f"{step + 1}" if max(steps.values()) else ""
    return gang(KIND, jobset, groups, group=mine, part=part)


def _name(job: Mapping[str, Any]) -> str:
    return str(job.get("name", ""))


def _pods(job: Mapping[str, Any], status: Mapping[str, Any]) -> int:
    jobs = count_of(job, "replicas", 1, f"spec.replicatedJobs[{_name(job)}].replicas")
    done = count_of(status, "succeeded", 0, f"status.replicatedJobsStatus[{_name(job)}].succeeded")
    return max(jobs - done, 0) * pods_at_once(part_of(job, "template", "spec"))


def _steps(jobs: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return, by name, after how many consecutive steps each job starts."""
    needs = {_name(j): [_name(d) for d in list_of(j, "dependsOn")] for j in jobs}
    steps: dict[str, int] = {}
    while len(steps) < len(needs):
        ready = [n for n, of in needs.items() if n not in steps and all(d in steps for d in of)]
        if not ready:
            left = ", ".join(sorted(needs.keys() - steps.keys()))
            raise Contradicts(
                "spec.replicatedJobs[].dependsOn", f"{left} can never start: each waits for others."
            )
        steps |= {n: 1 + max((steps[d] for d in needs[n]), default=-1) for n in ready}
    return steps


RULE = Rule("jobset.x-k8s.io", KIND, "jobsets", read)
