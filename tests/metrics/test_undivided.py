"""The bound of paper-binpack: a fleet of one node is one machine, on which the engine decides."""

import pytest

from metrics.experiments.bounds import undivided
from metrics.experiments.runs import Task, policy, training
from scheduling.simulator.workload import VARIANTS


@pytest.mark.parametrize("seed", [1, 2])
def test_on_one_node_it_is_what_the_engine_does(seed):
    task = Task(
        run=training,
        scenario="",
        name="",
        policy=policy("best-effort-fifo", "binpack"),
        seed=seed,
        hours=2000.0,
        warm_up_h=500.0,
        fleet="1x8",
        variant=VARIANTS["load-1.05"],
    )
    engine, bound = training(task), undivided.run(task)
    assert bound["wait_mean_s"]["all"] > 600
    for same in ("gar_mean", "gar_median", "sor_mean", "sor_median", "wait_mean_s", "jobs"):
        assert bound[same] == pytest.approx(engine[same]), same
    assert bound["waiting_jobs"] == engine["waiting_jobs"]
    assert bound["offered_load"] == engine["offered_load"]


def test_on_more_nodes_no_placement_has_more_gpus_at_work():
    task = Task(
        run=training,
        scenario="",
        name="",
        policy=policy("best-effort-fifo", "e-binpack"),
        seed=3,
        hours=96.0,
        warm_up_h=24.0,
        fleet="100x8",
        variant=VARIANTS["load-1.05"],
    )
    assert undivided.run(task)["gar_mean"] >= training(task)["gar_mean"]
