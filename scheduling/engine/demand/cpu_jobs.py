"""Jobs without GPUs: on nodes without GPUs, whose CPU and memory no GPU needs, or, where the policy
says so, on any node.

Where they are kept off GPU nodes they compete with each other alone, for a pool of their own under
the name NO_GPUS; else they are in nobody's way, as the pods without GPUs of other jobs. No quota is
asked for, and nobody is preempted for them (docs/decisions/0038).
"""

from dataclasses import replace

from scheduling.engine.demand.pools import Pools
from scheduling.engine.types import NO_GPUS, CpuJobs, JobRequest
from scheduling.engine.verdict import AMOUNT_WORDS, Reason, Verdict, counted


def kept_off_gpus(job: JobRequest, allowed: CpuJobs = CpuJobs.NEVER) -> JobRequest:
    """The job as it is decided about: one without GPUs avoids the nodes that have any if it is not
    allowed there, and preempts nobody; any other as it is."""
    if not job.without_gpus:
        return job
    models = (NO_GPUS,) if allowed is CpuJobs.NEVER else ()
    sets = tuple(replace(s, gpu_models=models) for s in job.pod_sets)
    return replace(job, pod_sets=sets, preempts=False)


def too_large_without_gpus(job: JobRequest, pools: Pools) -> Verdict | None:
    """Why a job without GPUs could not start though all nodes without GPUs were empty, as far as
    their number and sums tell."""
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
