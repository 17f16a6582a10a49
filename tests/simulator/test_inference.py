"""Generated inference clusters match their published shapes."""

import pytest

from scheduling.engine.types import JobKind
from scheduling.simulator import inference
from scheduling.simulator.inference import CLUSTERS, demand, figures, generate, services_of

HOURS = 96.0


@pytest.mark.parametrize("name", CLUSTERS)
def test_demand_is_near_the_stated_share_and_never_exceeds_it(name):
    cluster = CLUSTERS[name]
    made = generate(cluster, gpu_model="H100", seed=3, hours=HOURS)
    found = figures(cluster, made, HOURS)
    # With whole replicas on few nodes, no closer match is possible.
    assert inference.DEMAND - 8 / (8 * cluster.nodes) <= found["demand_mean"]
    assert found["demand_most"] <= inference.DEMAND + 1e-9
    assert found["largest_service"] <= inference.LARGEST_SHARE
    assert all(a.job.kind is JobKind.INFERENCE and not a.job.gang for a in made)


def test_services_swing_and_together_do_not():
    services = services_of(CLUSTERS["i7"], gpu_model="H100", seed=1)
    hours = [demand(services, 3600.0 * h, 1_000_000) for h in range(24)]
    totals = [sum(c * s.milli for c, s in zip(h, services, strict=True)) for h in hours]
    assert max(totals) - min(totals) <= 1000
    of_largest = [h[0] for h in hours]
    assert max(of_largest) / min(of_largest) == pytest.approx(inference.SWING, rel=0.1)


def test_sharing_asks_for_parts_of_gpus_and_seeds_repeat():
    cluster = CLUSTERS["i7"]
    first = generate(cluster, gpu_model="H100", seed=2, hours=24, sharing=True)
    assert first == generate(cluster, gpu_model="H100", seed=2, hours=24, sharing=True)
    assert first != generate(cluster, gpu_model="H100", seed=4, hours=24, sharing=True)
    assert 0.2 < figures(cluster, first, 24)["shared_pods"] < 0.7
    assert first == sorted(first, key=lambda a: (a.submitted_at, a.job.id))
