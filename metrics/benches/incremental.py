"""`manage.py bench incremental`: deltas against copying the cluster (paper 3.4.3)."""

import copy
import tracemalloc
from functools import partial

from metrics.benches.naive import Fixture, NaiveNode, cluster, give_back, naive_find, seconds, take
from scheduling.engine.cluster.index import index_of
from scheduling.engine.placement import PlacementFailure, place_job
from scheduling.engine.statement import Statement
from scheduling.engine.types import JobRequest, PodPlacement, PodSetSpec

NODES, LARGE = 1_000, 12_500
EVENTS, DECISIONS = 100, 20


def run() -> dict[str, float]:
    """Return the figures named in the bars.

    `cycle_cpu_ratio`: a cycle that applies 100 events (50 pods end, 50 start elsewhere) and decides
    20 pods; incremental, relative to one that deep-copies the object model and scans it.
    """
    fixture = cluster(NODES)
    events = ended_and_booked(fixture)
    deltas = seconds(partial(apply, fixture, events))
    deepcopy = seconds(partial(copy.deepcopy, fixture.naive), repeats=5)
    asked = [
        JobRequest(f"ask-{i}", "tenant", 0.0, (PodSetSpec("pods", 1, 1 + i % 4, ("H800",)),))
        for i in range(DECISIONS)
    ]
    kant = seconds(partial(incremental_cycle, fixture, events, asked))
    naive = seconds(partial(copying_cycle, fixture.naive, events, asked), repeats=5)
    return {
        "deepcopy_over_deltas": deepcopy / deltas,
        "cycle_cpu_ratio": kant / naive,
        "index_mb": index_megabytes(cluster(LARGE)),
        "deltas_100_us": deltas * 1e6,
        "deepcopy_us": deepcopy * 1e6,
        "cycle_us": kant * 1e6,
        "copying_cycle_us": naive * 1e6,
        "whatif_copy_us": seconds(fixture.state.copy, rounds=20) * 1e6,
    }


def ended_and_booked(fixture: Fixture) -> list[tuple[JobRequest, PodPlacement]]:
    """Return 50 running pods; each pair of events ends one and books it again."""
    step = max(len(fixture.jobs) // (EVENTS // 2), 1)
    jobs = fixture.jobs[::step][: EVENTS // 2]
    return [(job, fixture.state.placements_of(job.id)[0]) for job in jobs]


def apply(fixture: Fixture, events: list[tuple[JobRequest, PodPlacement]]) -> None:
    for job, _ in events:
        fixture.state.release_job(job.id)
    for job, p in events:
        fixture.state.book(job, p)


def incremental_cycle(
    fixture: Fixture, events: list[tuple[JobRequest, PodPlacement]], asked: list[JobRequest]
) -> None:
    apply(fixture, events)
    statement = Statement(fixture.state)
    for job in asked:
        if isinstance(place_job(statement, job, strategy="binpack"), PlacementFailure):
            raise RuntimeError("the bench's pods have to fit")
    statement.rollback()


def copying_cycle(
    live: list[NaiveNode],
    events: list[tuple[JobRequest, PodPlacement]],
    asked: list[JobRequest],
) -> None:
    """Apply the same events to the live objects, then decide on a private copy."""
    by_name = {node.name: node for node in live}
    for job, p in events:
        give_back(by_name[p.node], job)
    for job, p in events:
        take(by_name[p.node], job, p)
    snapshot = copy.deepcopy(live)
    for job in asked:
        node = naive_find(snapshot, job.pod_sets[0])
        if node is None:
            raise RuntimeError("the bench's pods have to fit")
        free = [d.index for d in node.devices if d.milli_free == 1000][: job.pod_sets[0].gpus]
        take(node, job, PodPlacement(0, 0, node.name, tuple(free), 1000))


def index_megabytes(fixture: Fixture) -> float:
    """Return the memory of the free-capacity index, including its layout, measured while it is
    built."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    index = index_of(fixture.state)
    size = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    del index
    return size / 1e6
