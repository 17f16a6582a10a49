"""The bounds on fragmentation: floor and foresight."""

from dataclasses import replace

import pytest

from metrics.experiments.bounds.foresight import marks
from metrics.experiments.paper import inference as paper_inference
from metrics.experiments.runs import carry_out
from scheduling.engine.types import JobRequest, PodSetSpec
from scheduling.simulator import inference
from scheduling.simulator.model import Arrival


def replica(name, at, hours, gpus, milli=1000):
    pods = (PodSetSpec("replicas", 1, gpus, gpu_milli=milli),)
    return Arrival(JobRequest(name, "t", at * 3600.0, pods, gang=False), hours * 3600.0)


def test_foresight_joins_the_node_of_like_ends():
    """Two long replicas share a node and a short one runs alone, or the second node would stay
    partly used for ten hours. Without moves only the short hour is lost."""
    made = [
        replica("long", 0, 10, 4),
        replica("short", 0, 1, 8),
        replica("as long", 0, 10, 4),
        replica("later", 1, 9, 8),
    ]
    found = marks(made, 2, hours=10, warm_up_h=0)
    assert found == {"gfr_floor": 0.0, "gfr_foresight": 0.0}


def test_what_cannot_be_helped_is_counted():
    found = marks([replica("a", 0, 4, 5), replica("b", 2, 4, 8)], 2, hours=8, warm_up_h=2)
    # "a" alone leaves one of two nodes partly used until hour 4, of the six hours counted.
    assert found["gfr_floor"] == pytest.approx(2 / 6 / 2)
    assert found["gfr_foresight"] == pytest.approx(2 / 6 / 2)


def test_what_does_not_fit_waits():
    made = [replica("a", 0, 2, 8), replica("b", 0, 2, 4), replica("share", 0, 2, 1, 500)]
    found = marks(made, 1, hours=6, warm_up_h=0)
    assert found["gfr_foresight"] == pytest.approx(2 / 6)


def test_no_placement_goes_below_the_floor():
    cluster = inference.CLUSTERS["a10"]
    made = inference.generate(cluster, gpu_model="A10", seed=3, hours=24)
    found = marks(made, cluster.nodes, hours=24, warm_up_h=6)
    assert 0 < found["gfr_floor"] <= 1 / cluster.nodes
    assert found["gfr_floor"] <= found["gfr_foresight"] < 1


def test_the_study_stays_above_the_floor():
    plan = paper_inference.tasks({"hours": 12.0, "warm_up_h": 3.0})
    (task,) = (t for t in plan if (t.scenario, t.name) == ("a10", "e-spread"))
    found = carry_out(replace(task, seed=1))
    assert 0 < found["gfr_floor"] <= found["gfr_mean"]
    assert found["gfr_floor"] <= found["gfr_foresight"]
