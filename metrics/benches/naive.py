"""The yardstick of the placement benches: plain objects and full scans, and the cluster itself.

The cluster is like production clusters where placement matters: about 90 % of the GPUs allocated;
82 % of the nodes full, 15.5 % partly used, 2.5 % idle, 0.5 % out of service; one in ten partly used
nodes out of CPU. Kant and the naive scheduler get the same nodes and pods. Deterministic: the
generator is seeded.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.cluster.constraints import blocking_taint, selected
from scheduling.engine.types import (
    MILLI,
    Device,
    JobRequest,
    Nic,
    Node,
    PodPlacement,
    PodSetSpec,
    Taint,
)

GPUS = 8
LEAF, SPINE, SUPERSPINE = 8, 80, 1600  # nodes in each
CPU, MEMORY = 192_000, 2_000_000


@dataclass
class NaiveDevice:
    index: int
    healthy: bool = True
    milli_free: int = MILLI


@dataclass
class NaiveNode:
    """A node with its free resources, in the form of schedulers that copy it every cycle.

    `free`, the number of wholly free GPUs, is kept too, so that the scan is no slower than
    necessary.
    """

    name: str
    facts: Node
    devices: list[NaiveDevice]
    cpu_milli: int
    memory_mib: int
    pods_left: int
    free: int
    pods: dict[str, PodPlacement] = field(default_factory=dict)


def naive_find(nodes: list[NaiveNode], pod_set: PodSetSpec) -> NaiveNode | None:
    """Binpack by scanning every node: filter, score, take the best; ties by name."""
    best: tuple[int, str] | None = None
    found: NaiveNode | None = None
    for node in nodes:
        facts = node.facts
        if not facts.schedulable or facts.gpu_model not in pod_set.gpu_models:
            continue
        if node.free < pod_set.gpus:
            continue
        if node.cpu_milli < pod_set.cpu_milli or node.memory_mib < pod_set.memory_mib:
            continue
        if node.pods_left < 1 or blocking_taint(facts.taints, pod_set.nodes.tolerations):
            continue
        if not selected(facts.labels, pod_set.nodes.node_selector):
            continue
        key = (node.free, node.name)
        if best is None or key < best:
            best, found = key, node
    return found


@dataclass(frozen=True)
class Fixture:
    """One cluster in three forms: for Kant, for the naive scheduler, and as plain facts."""

    state: ClusterState
    naive: list[NaiveNode]
    jobs: list[JobRequest]


def cluster(
    size: int, *, classes: int = 1, zone_share: float = 0.0, shares: bool = False
) -> Fixture:
    """Return `size` nodes of 8 GPUs, filled as described above.

    `classes`: number of kinds of nodes, by label and taint; `zone_share`: the part of each leaf row
    in the inference zone; `shares`: fractions hold single GPUs of the partly used nodes.
    """
    rng = random.Random(size)
    state = ClusterState()
    naive: list[NaiveNode] = []
    jobs: list[JobRequest] = []
    devices = tuple(Device(i, numa=i // 4, memory_mib=81_920) for i in range(GPUS))
    nics = tuple(Nic(i, numa=i // 4) for i in range(GPUS))
    zone_every = round(1 / zone_share) if zone_share else 0
    for i in range(size):
        kind = i % classes
        node = Node(
            f"node-{i:05d}",
            gpu_model="H800",
            devices=devices,
            nics=nics,
            topology=(f"leaf-{i // LEAF}", f"spine-{i // SPINE}", f"core-{i // SUPERSPINE}"),
            labels={"kind": f"kind-{kind}"},
            taints=(Taint("kind", f"kind-{kind}"),) if kind else (),
            cpu_milli=CPU,
            memory_mib=MEMORY,
            schedulable=rng.random() >= 0.005,
            link_model="nvswitch-8",
            zone="inference" if zone_every and (i // LEAF) % zone_every == 0 else "",
        )
        state.upsert_node(node)
        parts = [NaiveDevice(device.index) for device in devices]
        naive.append(NaiveNode(node.name, node, parts, CPU, MEMORY, 110, GPUS))
        _fill(state, naive[-1], jobs, rng, shares)
    state.index  # noqa: B018 - built before anything is timed
    return Fixture(state, naive, jobs)


def _fill(
    state: ClusterState,
    node: NaiveNode,
    jobs: list[JobRequest],
    rng: random.Random,
    shares: bool,
) -> None:
    """Add the pods of one node: full (mostly one whole-node pod), partly used, or idle."""
    draw = rng.random()
    if draw >= 0.975:
        return
    full = draw < 0.82
    left = GPUS if full else rng.randint(1, GPUS - 1)
    hungry = not full and rng.random() < 0.1
    at = 0
    while left:
        gpus = GPUS if full and at == 0 and rng.random() < 0.7 else min(left, rng.choice((1, 2, 4)))
        cpu = (CPU - 2_000) // max(left, 1) * gpus if hungry else 4_000 * gpus
        milli = 600 if shares and gpus == 1 and not full else MILLI
        pod_set = PodSetSpec(
            "pods", 1, gpus, gpu_milli=milli, cpu_milli=cpu, memory_mib=8_000 * gpus
        )
        job = JobRequest(f"job-{len(jobs)}", "tenant", 0.0, (pod_set,))
        p = PodPlacement(0, 0, node.name, tuple(range(at, at + gpus)), milli)
        jobs.append(job)
        state.book(job, p)
        take(node, job, p)
        at, left = at + gpus, left - gpus


def take(node: NaiveNode, job: JobRequest, p: PodPlacement) -> None:
    pod_set = job.pod_sets[p.pod_set]
    for index in p.devices:
        node.free -= node.devices[index].milli_free == MILLI
        node.devices[index].milli_free -= p.milli
    node.cpu_milli -= pod_set.cpu_milli
    node.memory_mib -= pod_set.memory_mib
    node.pods_left -= 1
    node.pods[job.id] = p


def give_back(node: NaiveNode, job: JobRequest) -> None:
    p = node.pods.pop(job.id)
    pod_set = job.pod_sets[p.pod_set]
    for index in p.devices:
        node.devices[index].milli_free += p.milli
        node.free += node.devices[index].milli_free == MILLI
    node.cpu_milli += pod_set.cpu_milli
    node.memory_mib += pod_set.memory_mib
    node.pods_left += 1


def seconds(work: Callable[[], object], *, rounds: int = 1, repeats: int = 7) -> float:
    """Return the CPU seconds of one call: the median of `repeats` timings of `rounds` calls
    each."""
    timings = []
    for _ in range(repeats):
        begin = time.process_time()
        for _ in range(rounds):
            work()
        timings.append((time.process_time() - begin) / rounds)
    return median(timings)
