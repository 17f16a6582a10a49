"""Pods that leave drained nodes when their drain is due.

A job that wants a warning gets it early: its time to save work ends when the drain is due. A gang
leaves whole or not at all: it stays while a disruption budget lets only a part of it go.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from scheduling.engine.states import HOLDING
from scheduling.session.memory.live import OVER, LiveJob, LivePod
from scheduling.session.memory.orders import Cordon

Key = tuple[str, int, int]  # job, pod set and ordinal of a pod


class Drained(NamedTuple):
    """Pods of a job that are to leave these nodes, and the text that says why."""

    job: LiveJob
    pods: list[LivePod]
    nodes: tuple[str, ...]
    text: str


def drained(
    cordons: Mapping[str, Cordon],
    jobs: Mapping[str, LiveJob],
    pods_on: Callable[[str], Iterable[Key]],
    now: float,
) -> Iterator[Drained]:
    """Yield the pods whose drain is due, job by job."""
    found: dict[str, dict[str, list[LivePod]]] = {}
    for name, cordon in sorted(cordons.items()):
        if not cordon.drains or cordon.evict_at is None:
            continue
        for job_id, *where in pods_on(name):
            job = jobs.get(job_id)
            pod = job.pods.get((where[0], where[1])) if job is not None else None
            if job is None or pod is None or job.leaving is not None or job.state not in HOLDING:
                continue
            if pod.leaving is not None or pod.lost or pod.state in OVER:
                continue
            if cordon.evict_at - job.notice_s <= now:
                found.setdefault(job_id, {}).setdefault(name, []).append(pod)
    for job_id, by_node in found.items():
        first = cordons[next(iter(by_node))]
        where_from = ", ".join(by_node)
        text = f"{first.by} drains node {where_from}: {first.reason}"
        pods = [pod for here in by_node.values() for pod in here]
        yield Drained(jobs[job_id], pods, tuple(by_node), text)


def opened(cordons: Mapping[str, Cordon], is_empty: Callable[[str], bool], now: float) -> list[str]:
    """Return the nodes that take jobs again: their plan is done, or its time is up."""
    plans: dict[str, list[str]] = {}
    for name, cordon in cordons.items():
        if cordon.plan:
            plans.setdefault(cordon.plan, []).append(name)
    return [
        name
        for names in plans.values()
        if all(map(is_empty, names)) or any(cordons[name].opens_at <= now for name in names)
        for name in sorted(names)
    ]
