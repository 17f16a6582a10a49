"""batch/v1 Job: alone, or owned by a CronJob, a workflow, or a kind that Kant does not read.

An Indexed Job that runs all its completions at once is one program in several pods; by this rule
Kubernetes 1.36 itself makes a PodGroup for a Job (KEP-5547). The pods of other Jobs share a list of
work, and each is useful alone. Source: batch/v1 JobSpec.
"""

from scheduling.kube.seam import GangGroup, PodFacts, Workload
from scheduling.kube.workloads.reading import (
    Found,
    Rule,
    count_of,
    gang,
    minimum_of,
    one_by_one,
    part_of,
    suspended,
)

KIND = "Job"


def read(_: PodFacts, job: Found) -> Workload:
    spec = part_of(job, "spec")
    if spec.get("suspend"):
        return suspended(KIND, job)
    least = minimum_of(job)
    if least is not None:
        return gang(KIND, job, [GangGroup("", least)] if least > 1 else [], elastic=True)
    if spec.get("completionMode") != "Indexed" or pods_at_once(spec) < 2:
        return one_by_one(KIND, job)
    completions = count_of(spec, "completions", 0, "spec.completions")
    if completions != count_of(spec, "parallelism", 1, "spec.parallelism"):
        return one_by_one(KIND, job)
    # Pods that succeeded are not made again.
    done = count_of(part_of(job, "status"), "succeeded", 0, "status.succeeded")
    return gang(KIND, job, [GangGroup("", max(completions - done, 1))])


def pods_at_once(spec: Found) -> int:
    """Return how many pods of a Job with this spec exist at once."""
    parallelism = count_of(spec, "parallelism", 1, "spec.parallelism")
    return min(parallelism, count_of(spec, "completions", parallelism, "spec.completions"))


RULE = Rule("batch", KIND, "jobs", read)
