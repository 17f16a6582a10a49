"""`manage.py bench preemption`: planning victims for a 16-node gang, and a plan that just misses.

- Growth: full clusters of low-priority jobs in which the gang has to make room for itself.
- Miss and hit: 500 nodes of one-GPU jobs; all but ten nodes hold a non-preemptible one. The gang
  asks for the ten nodes; for a miss, one of them holds such a job too, so it lacks one GPU. A small
  job that fits must start in the same cycle.
- Blocked: cycles of a full cluster in which a job has ended while 1,000 jobs wait that may preempt
  nobody, relative to the same without preemption.
- In vain: such cycles on 12,500 nodes while 16 gangs wait. By count enough could be taken for them,
  but no choice of victims makes room: every node keeps a GPU, half of each leaf its CPU.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from metrics.benches.naive import GPUS, cluster
from metrics.benches.queue_stage import MODEL, NOW, TENANTS, loaded, waiting
from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import (
    Device,
    JobRequest,
    Node,
    PodPlacement,
    PodSetSpec,
    Policy,
    PreemptionKind,
    QuotaSpec,
    TenantSpec,
)

SMALL, LARGE, MIDDLE = 1_000, 12_500, 500
REPEATS = 5
BLOCKED, ENDS = 1_000, 20
IN_VAIN, CHURN = 16, 5
POLICY = Policy(preemption=(PreemptionKind.PRIORITY,), min_runtime_s=0.0, max_preemptions=1_000)


def gang(nodes: int, name: str) -> JobRequest:
    pods = PodSetSpec("pods", nodes, GPUS, (MODEL,))
    return JobRequest(name, TENANTS[0], NOW, (pods,), priority=5)


def single(name: str, *, preemptible: bool = True) -> JobRequest:
    pods = PodSetSpec("pods", 1, 1, (MODEL,))
    return JobRequest(name, TENANTS[1], 0.0, (pods,), preemptible=preemptible)


def plan_seconds(state: SchedulerState, job: JobRequest, *, possible: bool) -> float:
    """Return the CPU seconds of the cycle that plans for the job; afterwards all victims are
    restored."""
    begin = time.process_time()
    result = run_cycle(state, [d.JobSubmitted(job)], NOW)
    spent = time.process_time() - begin
    if bool(result.preempted) != possible:
        raise RuntimeError(f"a preemption for {job.id} should be {possible}, not {not possible}")
    back: list[d.Delta] = [d.JobEnded(job.id)]
    back += [d.JobRequeued(victim.job_id, NOW) for victim in result.preempted]
    run_cycle(state, back, NOW)
    return spent


def planning(size: int) -> float:
    """Return the median seconds to plan for 16 nodes on a full cluster of `size` nodes."""
    state = loaded(cluster(size), policy=POLICY)
    fill = [replace(job, id=f"fill-{i}") for i, job in enumerate([gang(1, "")] * (size // 20))]
    run_cycle(state, [d.JobSubmitted(replace(job, priority=0)) for job in fill], 1.0)
    return median(
        plan_seconds(state, gang(16, f"gang-{i}"), possible=True) for i in range(REPEATS + 1)
    )


def nearly(missing: bool) -> SchedulerState:
    """Return 500 full nodes, of which the last ten, or nine, can be emptied; one more GPU is
    free."""
    devices = tuple(Device(i) for i in range(GPUS))
    facts: list[d.Delta] = [
        d.TenantsChanged(
            tuple(TenantSpec(name) for name in TENANTS),
            tuple(QuotaSpec(name, MODEL, MIDDLE * GPUS * 1_000) for name in TENANTS),
        )
    ]
    firm = MIDDLE - (9 if missing else 10)
    for n in range(MIDDLE + 1):
        leaf = (f"leaf-{n // 8}", f"spine-{n // 80}", "core")
        node = Node(f"node-{n:04d}", MODEL, devices, topology=leaf)
        facts.append(d.NodeChanged(node))
        for i in range(GPUS if n < MIDDLE else GPUS - 1):
            fixed = n == MIDDLE or (i == 0 and n < firm)
            place = PodPlacement(0, 0, node.name, (i,), 1_000)
            facts.append(
                d.JobRestored(single(f"run-{n}-{i}", preemptible=not fixed), (place,), float(n))
            )
    state = SchedulerState(policy=POLICY)
    run_cycle(state, facts, NOW)
    return state


def blocked_seconds(kinds: tuple[PreemptionKind, ...]) -> float:
    """Return the median seconds of a cycle in which one job has ended and nobody may preempt
    anybody."""
    state = loaded(cluster(SMALL), policy=replace(POLICY, preemption=kinds))
    fill = [replace(gang(1, f"fill-{i}"), priority=0) for i in range(SMALL)]
    run_cycle(state, [d.JobSubmitted(job) for job in fill], 1.0)
    alike = [replace(job, priority=0) for job in waiting(BLOCKED)]
    run_cycle(state, [d.JobSubmitted(job) for job in alike], NOW)
    spent = []
    for job_id in list(state.running)[:ENDS]:
        begin = time.process_time()
        result = run_cycle(state, [d.JobEnded(job_id)], NOW)
        spent.append(time.process_time() - begin)
        if result.preempted:
            raise RuntimeError("jobs of equal priority must not preempt each other")
    return median(spent)


def in_vain_seconds(kinds: tuple[PreemptionKind, ...]) -> float:
    """Return the median seconds of a cycle in which one job has ended, another starts in its place,
    and gangs wait for which no choice of victims makes room."""
    devices = tuple(Device(i) for i in range(GPUS))
    quotas = tuple(QuotaSpec(name, MODEL, LARGE * GPUS * 1_000) for name in TENANTS)
    facts: list[d.Delta] = [d.TenantsChanged(tuple(TenantSpec(name) for name in TENANTS), quotas)]
    parts = ((0,), (1, 2, 3), (4, 5, 6, 7))
    for n in range(LARGE):
        leaf = (f"leaf-{n // 8}", f"spine-{n // 80}", f"core-{n // 1600}")
        node = Node(f"node-{n:05d}", MODEL, devices, topology=leaf, cpu_milli=128_000)
        facts.append(d.NodeChanged(node))
        for i, part in enumerate(parts):
            # On every other node the remaining job holds nearly all CPU.
            cpu = 100_000 if i == 0 and n % 2 else 8_000
            pods = PodSetSpec("pods", 1, len(part), (MODEL,), cpu_milli=cpu)
            job = JobRequest(f"run-{n}-{i}", TENANTS[1 + i], 0.0, (pods,), preemptible=i > 0)
            facts.append(
                d.JobRestored(job, (PodPlacement(0, 0, node.name, part, 1_000),), n / LARGE)
            )
    state = SchedulerState(policy=replace(POLICY, preemption=kinds))
    run_cycle(state, facts, NOW)
    run_cycle(state, [d.JobSubmitted(job) for job in hopeless()], NOW)
    spent = []
    for i in range(CHURN):
        place = replace(state.jobs[f"run-{i * 97}-1"].job, id=f"next-{i}")
        begin = time.process_time()
        result = run_cycle(state, [d.JobEnded(f"run-{i * 97}-1"), d.JobSubmitted(place)], NOW + i)
        spent.append(time.process_time() - begin)
        if result.preempted or [start.job_id for start in result.started] != [place.id]:
            raise RuntimeError("only the job that fits may start, and nobody be preempted")
    return median(spent)


def hopeless() -> Iterator[JobRequest]:
    """Yield gangs of whole nodes, of one leaf, and of more CPU than remains next to non-victims."""
    for i in range(IN_VAIN):
        pods = (
            PodSetSpec("pods", 16 + i, GPUS, (MODEL,)),
            PodSetSpec("pods", 9 + i, 3, (MODEL,), required_level="leaf", max_per_node=1),
            PodSetSpec("pods", LARGE // 2 + 1 + i, 4, (MODEL,), cpu_milli=60_000),
        )[i % 3]
        yield JobRequest(f"hopeless-{i}", TENANTS[0], NOW, (pods,), priority=5)


def one_gpu_starts_beside(state: SchedulerState) -> None:
    """Check that a job that fits does not wait behind a preemption that misses."""
    facts = [d.JobSubmitted(gang(10, "large")), d.JobSubmitted(single("small"))]
    result = run_cycle(state, facts, NOW)
    if [start.job_id for start in result.started] != ["small"]:
        raise RuntimeError("a one-GPU job has to start while a larger one cannot preempt")


def run() -> dict[str, float]:
    """Return the figures named in the bars."""
    small, large = planning(SMALL), planning(LARGE)
    hit_state, miss_state = nearly(missing=False), nearly(missing=True)
    hit = median(
        plan_seconds(hit_state, gang(10, f"hit-{i}"), possible=True) for i in range(REPEATS)
    )
    miss = median(
        plan_seconds(miss_state, gang(10, f"miss-{i}"), possible=False) for i in range(REPEATS)
    )
    one_gpu_starts_beside(miss_state)
    kinds = (PreemptionKind.PRIORITY, PreemptionKind.RECLAIM)
    blocked, none = blocked_seconds(kinds), blocked_seconds(())
    in_vain, beside = in_vain_seconds(kinds), in_vain_seconds(())
    return {
        "growth": large / small,
        "ms_1000": small * 1e3,
        "ms_12500": large * 1e3,
        "miss_over_hit": miss / hit,
        "hit_ms": hit * 1e3,
        "miss_ms": miss * 1e3,
        "blocked_over_none": blocked / none,
        "blocked_ms": blocked * 1e3,
        "in_vain_over_none": in_vain / beside,
        "in_vain_ms": in_vain * 1e3,
    }
