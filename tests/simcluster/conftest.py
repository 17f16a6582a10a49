import ssl
from collections.abc import Iterator

import pytest

from metrics.benches.apiserver import ApiServer, ServerUnavailable
from tests.requirements import missing

from .harness import PODS, Sim


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Sim]:
    """One embedded cluster for the tests of a file; it must end cleanly and print no error."""
    sim = Sim(tmp_path_factory.mktemp("sim"))
    yield sim
    assert sim.stop() == ""
    assert sim.process.returncode == 0


@pytest.fixture
def sim(cluster: Sim) -> Iterator[Sim]:
    """The cluster of the file, without pods or faults from the test before."""
    yield cluster
    cluster.call("DELETE", "/sim/faults")
    cluster.call("DELETE", f"{PODS}?gracePeriodSeconds=0")


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    real = ApiServer(tmp_path_factory.mktemp("real"))
    try:
        real.start()
    except ServerUnavailable as error:
        missing("a real kube-apiserver", str(error))
    sim = Sim(tmp_path_factory.mktemp("sim"))
    trust = ssl.create_default_context(cafile=str(real.ca_file))
    yield (real.url, trust), (sim.url, None)
    sim.stop()
    real.stop()
