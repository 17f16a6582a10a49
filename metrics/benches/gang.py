"""`manage.py bench gang`: gangs of whole nodes against single decisions, and their growth."""

from functools import partial

from metrics.benches.decision import LARGE, SMALL, place_and_release
from metrics.benches.naive import Fixture, cluster, seconds
from scheduling.engine.placement import PlacementFailure, place_job
from scheduling.engine.statement import Statement
from scheduling.engine.types import JobRequest, PodSetSpec

WIDE = 256  # nodes: 2,048 GPUs


def gang_of(nodes: int, name: str = "bench") -> JobRequest:
    pods = PodSetSpec("pods", nodes, 8, gpu_models=("H800",), cpu_milli=32_000, memory_mib=64_000)
    return JobRequest(name, "tenant", 0.0, (pods,))


def fail(fixture: Fixture, job: JobRequest) -> None:
    """Plan a gang that cannot be placed, from scratch: the memory of infeasible shapes is
    cleared."""
    fixture.state.infeasible.clear()
    if not isinstance(
        place_job(Statement(fixture.state), job, strategy="e-binpack"), PlacementFailure
    ):
        raise RuntimeError("the gang of the infeasible case has to be too large")


def singles(fixture: Fixture, jobs: list[JobRequest]) -> None:
    """Make single whole-node decisions, all held at once, then release them."""
    for job in jobs:
        statement = Statement(fixture.state)
        if isinstance(place_job(statement, job, strategy="e-binpack"), PlacementFailure):
            raise RuntimeError("the cluster has to hold all single pods at once")
        statement.commit()
    for job in jobs:
        fixture.state.release_job(job.id)


def run() -> dict[str, float]:
    """Return the figures named in the bars, plus the microseconds behind them."""
    large, small = cluster(LARGE), cluster(SMALL)
    alone = [gang_of(1, f"single-{i}") for i in range(WIDE)]
    wide = seconds(partial(place_and_release, large, gang_of(WIDE), "e-binpack"), rounds=3)
    apart = seconds(partial(singles, large, alone), rounds=3)
    sixteen = {
        size: seconds(partial(place_and_release, fixture, gang_of(16), "e-binpack"), rounds=50)
        for size, fixture in ((SMALL, small), (LARGE, large))
    }
    infeasible = seconds(partial(fail, large, gang_of(5_000)), rounds=20)
    return {
        "gang_over_singles": wide / apart,
        "growth": sixteen[LARGE] / sixteen[SMALL],
        "infeasible_over_feasible": infeasible / wide,
        "gang_2048_gpus_us": wide * 1e6,
        "gang_16_nodes_us": sixteen[LARGE] * 1e6,
        "infeasible_us": infeasible * 1e6,
    }
