from collections.abc import Iterator

import pytest

from .harness import PODS, Sim


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Sim]:
    """One embedded cluster for the tests of a file; it must end cleanly and say nothing."""
    sim = Sim(tmp_path_factory.mktemp("sim"))
    yield sim
    assert sim.stop() == ""
    assert sim.process.returncode == 0


@pytest.fixture
def sim(cluster: Sim) -> Iterator[Sim]:
    """The cluster of the file, without pods and faults left by the test before."""
    yield cluster
    cluster.call("DELETE", "/sim/faults")
    cluster.call("DELETE", f"{PODS}?gracePeriodSeconds=0")
