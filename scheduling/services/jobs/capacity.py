"""Refuse at once what a cluster could never run, by the projection of its nodes.

Only what is impossible even on the idle, healthy cluster is refused; everything subtler is left to
the engine. A cluster whose nodes are not known yet refuses nothing.
"""

from collections.abc import Mapping
from functools import cached_property
from itertools import chain, islice

from django.db.models import Count, Max, Sum

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.constraints import in_order
from scheduling.engine.demand.competing_pod_sets import compete, never_together
from scheduling.engine.placement import fits_when_empty
from scheduling.engine.types import CpuJobs, JobKind, JobRequest, PodSetSpec
from scheduling.engine.verdict import AMOUNT_WORDS, Reason, Verdict
from scheduling.kube.translate.node_groups import NodeGroup
from scheduling.models import NODES_WITHOUT_GPUS, Cluster, NodeRecord
from scheduling.policy.document import to_policy
from scheduling.queries.history import nodes_of
from scheduling.queries.nodes.installed import Pool, groups_to_come, pools_of
from scheduling.services.jobs.validation import JobSpec
from scheduling.services.policies.changes import policy_of
from tenants.errors import FieldError, Invalid, Path

# The first batch of nodes to read when checking whether pod sets fit together; each next batch is
# three times what was read so far.
FIRST_NODES = 64


class Installed:
    """What a cluster has, by the projection of its nodes; each part is read once, when needed.

    `pools`: GPU pools that were read before.
    """

    def __init__(self, cluster: Cluster, pools: Mapping[str, Pool] | None = None) -> None:
        self.cluster = cluster
        self._read = pools

    @cached_property
    def pools(self) -> dict[str, Pool]:
        """{GPU model: what is installed, or may come}; empty while the cluster is unknown."""
        return pools_of(self.cluster, self.to_come, self._read)

    @cached_property
    def to_come(self) -> list[tuple[NodeGroup, int]]:
        return groups_to_come(self.cluster)

    @cached_property
    def without_gpus(self) -> dict[str, int] | None:
        """How many nodes have no GPUs, and the maximum and sum of their amounts (Django's names).

        None if jobs without GPUs may use other nodes, too, or the cluster is unknown.
        """
        nodes = NodeRecord.objects.filter(cluster=self.cluster)
        allowed = to_policy(policy_of(self.cluster).document).cpu_jobs_on_gpu_nodes
        if allowed is not CpuJobs.NEVER or not nodes.exists():
            return None
        amounts = [how(name) for name in AMOUNT_WORDS for how in (Max, Sum)]
        found = nodes.filter(NODES_WITHOUT_GPUS).aggregate(Count("id"), *amounts)
        for group, count in self.to_come:
            if count and group.example.without_gpus:
                found["id__count"] += count
                for name in AMOUNT_WORDS:
                    each, most, total = getattr(group.example, name), f"{name}__max", f"{name}__sum"
                    found[most] = max(found[most] or 0, each)
                    found[total] = (found[total] or 0) + count * each
        return found


def refuse_what_never_fits(
    installed: Installed, spec: JobSpec, apart: str = "set gang to false"
) -> None:
    """Raise Invalid with code NoMatchingGpuType or ExceedsCapacity if the job can never run.

    `apart`: how to let the pods of a gang start one by one.
    """
    cluster = installed.cluster
    if not spec.gpu_milli:
        _check_without_gpus(installed, spec, apart)
        return
    pools = installed.pools
    if not pools:
        return
    for index, pod_set in enumerate(spec.pod_sets):
        if pod_set.gpus:
            _check_one(cluster, spec, index, _acceptable(pod_set, pools))
    if spec.job.gang:
        _check_sum(cluster, spec, pools, apart)
        _check_together(installed, spec, apart)


def _check_without_gpus(installed: Installed, spec: JobSpec, apart: str) -> None:
    """Raise Invalid if a job without GPUs does not fit the nodes without GPUs.

    Each pod must fit on one of them, and a gang on all of them together. If such jobs may use GPU
    nodes, too, the engine judges instead.
    """
    cluster, has = installed.cluster, installed.without_gpus
    if has is None:
        return
    if not has["id__count"]:
        raise _exceeds(
            spec.path(0, "gpus"),
            f"A job without GPUs runs on nodes without GPUs, and cluster “{cluster.name}” has "
            "none. Ask for a GPU, or ask an operator to add such a node.",
        )
    for name, words in AMOUNT_WORDS.items():
        most, total = has[f"{name}__max"], has[f"{name}__sum"]
        asked = [getattr(s, name) for s in spec.pod_sets]
        for index, amount in enumerate(asked):
            if amount > most:
                raise _exceeds(
                    spec.path(index, name),
                    f"A pod asks for {amount} {words}; the largest node without GPUs of cluster "
                    f"“{cluster.name}” has {most}. Ask for at most that per pod.",
                )
        at_once = sum(s.least * n for s, n in zip(spec.pod_sets, asked, strict=True))
        if spec.job.gang and at_once > total:
            raise _exceeds(
                (name,) if spec.short_form else ("pod_sets",),
                f"The job needs {at_once} {words} at once; the nodes without GPUs of cluster "
                f"“{cluster.name}” have {total}. Ask for less, or {apart}.",
            )


def _check_one(cluster: Cluster, spec: JobSpec, index: int, choices: Mapping[str, Pool]) -> None:
    """Raise Invalid if a pod fits on no node of its models."""
    pod_set = spec.pod_sets[index]
    names = _or(pod_set.gpu_models)
    if not choices:
        detail = f"Cluster “{cluster.name}” has no {names} GPU."
        fault = FieldError(spec.path(index, "gpu_type"), detail)
        raise Invalid.fields([fault], code=Reason.NO_MATCHING_GPU_TYPE)
    most = max(pool.per_node for pool in choices.values())
    if pod_set.gpus > most:
        detail = (
            f"A pod asks for {pod_set.gpus} GPUs; the largest such node of cluster "
            f"“{cluster.name}” has {most}. Ask for at most {most} GPUs per pod, and for more "
            "pods."
        )
        raise _exceeds(spec.path(index, "gpus"), detail)


def _check_sum(cluster: Cluster, spec: JobSpec, installed: Mapping[str, Pool], apart: str) -> None:
    """Raise Invalid if a gang needs more GPUs at once than there are, by models or in all."""
    needs: dict[frozenset[str], int] = {}
    for s in spec.pod_sets:
        # A share given as memory may be small; only its pod is judged here, not the sum.
        milli = 0 if s.gpu_memory_mib else s.least * s.milli_per_pod
        key = frozenset(_acceptable(s, installed)) if s.gpus else frozenset()
        needs[key] = needs.get(key, 0) + milli
    needs[frozenset(installed)] = sum(needs.values())
    for models, milli in needs.items():
        capacity = sum(installed[m].gpus for m in models)
        if milli > capacity * 1000:
            detail = (
                f"The job needs {milli / 1000:g} {_or(sorted(models))} GPUs at once; cluster "
                f"“{cluster.name}” has {capacity}. Ask for fewer, or {apart}."
            )
            raise _exceeds(("gpus",) if spec.short_form else ("pod_sets",), detail)


def _check_together(installed: Installed, spec: JobSpec, apart: str) -> None:
    """Raise Invalid if the pod sets of a gang do not fit together.

    Reads only as many nodes as it takes to find that they fit.
    """
    job = JobRequest(
        *("", spec.job.tenant, 0.0, spec.pod_sets),
        kind=JobKind(spec.job.kind),
        strategy=spec.job.strategy,
        required_level=spec.job.required_level,
    )
    if not compete(job):
        return
    come = (n for group, count in installed.to_come for n in group.to_come(group.most - count))
    empty, nodes, more = ClusterState(), chain(nodes_of(installed.cluster), come), FIRST_NODES
    verdict: Verdict | None = None
    while read := [in_order(node) for node in islice(nodes, more)]:
        for node in read:
            empty.upsert_node(node)
        verdict = never_together(job, empty, "binpack")
        if verdict is None:
            return
        more = 3 * len(empty.names)
    # If a pod set does not even fit alone, the scheduler says why, and what would help.
    if verdict is not None and all(fits_when_empty(empty, job, s) for s in job.pod_sets):
        detail = f"{verdict.summary} Ask for fewer or smaller pods, or {apart}."
        raise _exceeds(("pod_sets",), detail)


def _exceeds(path: Path, detail: str) -> Invalid:
    return Invalid.fields([FieldError(path, detail)], code=Reason.EXCEEDS_CAPACITY)


def _acceptable(s: PodSetSpec, installed: Mapping[str, Pool]) -> dict[str, Pool]:
    return {m: p for m, p in installed.items() if not s.gpu_models or m in s.gpu_models}


def _or(models: tuple[str, ...] | list[str]) -> str:
    return " or ".join(models)
