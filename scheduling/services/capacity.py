"""Tell at once what a cluster could never run, judged by the projection of its nodes.

Only what is impossible even on the idle, healthy cluster is refused; everything subtler is the
engine's verdict. A cluster whose nodes are not known yet refuses nothing.
"""

from collections.abc import Mapping
from typing import NamedTuple

from django.db.models import Max, Sum

from scheduling.engine.types import PodSet
from scheduling.engine.verdict import Reason
from scheduling.models import Cluster, NodeRecord
from scheduling.services.job_spec import JobSpec
from tenants.errors import FieldError, Invalid


class Pool(NamedTuple):
    """Installed GPUs of one model in a cluster, and the most on one node."""

    gpus: int
    per_node: int


def pools(cluster: Cluster) -> dict[str, Pool]:
    """{GPU model: what is installed}; empty while the cluster is unknown."""
    rows = (
        NodeRecord.objects.filter(cluster=cluster, gpus__gt=0)
        .order_by()
        .values_list("gpu_model")
        .annotate(Sum("gpus"), Max("gpus"))
    )
    return {model: Pool(total, most) for model, total, most in rows}


def refuse_what_never_fits(
    cluster: Cluster,
    spec: JobSpec,
    installed: Mapping[str, Pool],
    apart: str = "set gang to false",
) -> None:
    """Raises Invalid with code NoMatchingGpuType or ExceedsCapacity. `installed`: its pools;
    `apart`: how pods of a gang are made to start one by one."""
    if not spec.gpu_milli:
        _check_without_gpus(cluster, spec, apart)
        return
    if not installed:
        return
    for index, pod_set in enumerate(spec.pod_sets):
        if pod_set.gpus:
            _check_one(cluster, spec, index, _acceptable(pod_set, installed))
    if spec.gang:
        _check_sum(cluster, spec, installed, apart)


def _check_without_gpus(cluster: Cluster, spec: JobSpec, apart: str) -> None:
    """There must be nodes that pods may use which take nothing from GPUs: one on which each pod
    fits, and for a gang enough of them."""
    nodes = NodeRecord.objects.filter(cluster=cluster)
    if not nodes.exists():
        return
    nodes = nodes.filter(gpus=0).exclude(facts__has_key="gpu_parts")  # NodeRecord.without_gpus
    if not nodes.exists():
        detail = (
            f"A job without GPUs runs on nodes without GPUs, and cluster “{cluster.name}” has "
            "none. Ask for a GPU, or have an operator add such a node."
        )
        fault = FieldError(spec.path(0, "gpus"), detail)
        raise Invalid.fields([fault], code=Reason.EXCEEDS_CAPACITY)
    for name, words in (("cpu_milli", "milli-CPU"), ("memory_mib", "MiB of memory")):
        has = nodes.aggregate(most=Max(name), total=Sum(name))
        for index, s in enumerate(spec.pod_sets):
            if getattr(s, name) > has["most"]:
                detail = (
                    f"A pod asks for {getattr(s, name)} {words}; the largest node without GPUs of "
                    f"cluster “{cluster.name}” has {has['most']}. Ask for at most so much per pod."
                )
                fault = FieldError(spec.path(index, name), detail)
                raise Invalid.fields([fault], code=Reason.EXCEEDS_CAPACITY)
        asked = sum(s.least * getattr(s, name) for s in spec.pod_sets)
        if spec.gang and asked > has["total"]:
            detail = (
                f"The job needs {asked} {words} at once; the nodes without GPUs of cluster "
                f"“{cluster.name}” have {has['total']}. Ask for less, or {apart}."
            )
            fault = FieldError((name,) if spec.short_form else ("pod_sets",), detail)
            raise Invalid.fields([fault], code=Reason.EXCEEDS_CAPACITY)


def _check_one(cluster: Cluster, spec: JobSpec, index: int, choices: Mapping[str, Pool]) -> None:
    """One pod must fit on some node of its models."""
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
            f"“{cluster.name}” has {most}. Ask for at most {most} per pod, and for more pods."
        )
        fault = FieldError(spec.path(index, "gpus"), detail)
        raise Invalid.fields([fault], code=Reason.EXCEEDS_CAPACITY)


def _check_sum(cluster: Cluster, spec: JobSpec, installed: Mapping[str, Pool], apart: str) -> None:
    """A gang needs all its pods at once: per set of acceptable models, and in all."""
    needs: dict[frozenset[str], int] = {}
    for s in spec.pod_sets:
        # A share given by memory may be small; only its pod, not its sum, is judged here.
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
            fault = FieldError(("gpus",) if spec.short_form else ("pod_sets",), detail)
            raise Invalid.fields([fault], code=Reason.EXCEEDS_CAPACITY)


def _acceptable(s: PodSet, installed: Mapping[str, Pool]) -> dict[str, Pool]:
    return {m: p for m, p in installed.items() if not s.gpu_models or m in s.gpu_models}


def _or(models: tuple[str, ...] | list[str]) -> str:
    return " or ".join(models)
