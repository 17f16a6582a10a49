"""The bound of paper-backfill: no decision of the engine can get more work done by then."""

from dataclasses import replace
from itertools import pairwise

import pytest

from metrics.experiments.bounds import arrived
from metrics.experiments.paper.backfill import tasks
from metrics.experiments.runs import drawn
from metrics.simulate.inputs import fleet_of
from scheduling.engine.states import JobState
from scheduling.simulator.nodes import engine_nodes
from tests.cases import some

HOURS, FLEET = 48.0, "40x8"


def plan(**fields):
    made = tasks({"hours": HOURS, "warm_up_h": 0.0})[:3]
    return [replace(task, fleet=FLEET, **fields) for task in made]


def by_hand(task):
    """Return the mean occupancy by small time steps: a loop with a queue of work, in
    GPU-seconds."""
    fleet = fleet_of(task.fleet)
    changes, todo = [], list(drawn(task, fleet.gpus, engine_nodes(fleet)[0]))
    while todo:
        job = todo.pop()
        ends = job.submitted_at + job.duration_s
        gpus = job.job.gpu_milli / 1000
        changes += [(job.submitted_at, gpus), (ends, -gpus)]
        if job.ends is JobState.FAILED and job.resubmit_after_s is not None:
            todo.append(job.again(ends + job.resubmit_after_s))
    asked = behind = done = 0.0
    stop = HOURS * 3600
    changes = [(min(at, stop), more) for at, more in sorted(changes)] + [(stop, 0.0)]
    for (at, more), (then, _) in pairwise([(0.0, 0.0), *changes]):
        asked += more
        behind += asked * (then - at)  # served at the end of the step, later than possible
        served = min(behind, fleet.gpus * (then - at))
        behind -= served
        done += served
    return done / (fleet.gpus * stop)


@pytest.mark.parametrize("seed", some([1, 2, 3]))
def test_no_order_has_more_work_done(seed):
    strict, best, backfill = plan(seed=seed)
    bound = arrived.run(strict)
    for task in (strict, best, backfill):
        assert task.run(task)["sor_net"] <= bound["sor_net"] + 1e-9
    assert bound["sor_mean"] == pytest.approx(by_hand(strict), rel=1e-3)
    assert bound["sor_mean"] == pytest.approx(bound["gar_mean"])


def test_what_is_left_of_the_warm_up_is_made_up_for_after_it():
    task = plan(seed=1)[0]
    whole, rest = arrived.run(task), arrived.run(replace(task, warm_up_h=24.0))
    first = arrived.run(replace(task, hours=24.0))
    # A shorter run draws fewer jobs, but the same ones while it lasts.
    assert whole["sor_mean"] == pytest.approx((first["sor_mean"] + rest["sor_mean"]) / 2)
