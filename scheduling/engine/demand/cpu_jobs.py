"""Jobs without GPUs run on nodes without GPUs, or on any node if the policy allows it.

If they are kept off GPU nodes, they compete only with each other, for a pool of their own under the
name NO_GPUS. Otherwise they block no other job, like the pods without GPUs of other jobs. They need
no quota and preempt nothing (docs/decisions/0038).
"""

from dataclasses import replace

from scheduling.engine.demand.pools import Pools
from scheduling.engine.types import NO_GPUS, CpuJobs, JobRequest
from scheduling.engine.verdict import AMOUNT_WORDS, Reason, Verdict, counted


def kept_off_gpus(job: JobRequest, allowed: CpuJobs = CpuJobs.NEVER) -> JobRequest:
    """Return the job as the engine decides about it; only jobs without GPUs change.

    Such a job preempts nothing, and avoids nodes with GPUs unless the policy allows it there.
    """
    if not job.without_gpus:
        return job
    models = (NO_GPUS,) if allowed is CpuJobs.NEVER else ()
    sets = tuple(replace(s, gpu_models=models) for s in job.pod_sets)
    return replace(job, pod_sets=sets, preempts=False)


def too_large_without_gpus(job: JobRequest, pools: Pools) -> Verdict | None:
    """Return why a job without GPUs could not start even if all nodes without GPUs were empty.

    It only looks at the number of these nodes and at the sums of their CPU and memory.
    """
    nodes, cpu, memory = pools.without_gpus()
    if not nodes:
        return Verdict(
            Reason.EXCEEDS_CAPACITY,
            "A job without GPUs runs on nodes without GPUs only, and the cluster has none.",
            {"nodes_without_gpus": 0},
            ("ask for a GPU", "ask an operator to add a node without GPUs"),
        )
    if not job.gang:
        return None
    for (resource, words), installed in zip(AMOUNT_WORDS.items(), (cpu, memory), strict=True):
        asked = sum(s.least * getattr(s, resource) for s in job.pod_sets)
        if asked > installed:
            has = counted(nodes, "node without GPUs has", "nodes without GPUs have")
            return Verdict(
                Reason.EXCEEDS_CAPACITY,
                f"Needs {asked} {words} at once; the {has} {installed}.",
                {"resource": resource, "asked": asked, "installed": installed},
                ("ask for fewer or smaller pods",),
            )
    return None
