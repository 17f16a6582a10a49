"""Plans that empty partly used nodes: what moves where, what it costs, and who starts because of
it."""

from dataclasses import replace

from scheduling.engine.deltas import JobRestored, JobSubmitted, NodeChanged, PolicyChanged
from scheduling.engine.types import JobKind, PodPlacement, Policy
from scheduling.simulator.forecast.emptying import Goal, NodeFigures, plan_for
from scheduling.simulator.forecast.ground import ground_of
from scheduling.simulator.forecast.scene import scene_of
from tests.simulator.runs import machines
from tests.simulator.test_effects import tenancy
from tests.simulator.test_forecast import NOW, job

MODEL = "H100"


def runs(name, node, gpus, *, since=0.0, first=0, **wishes):
    """One pod on a node, on its GPUs from `first` on."""
    place = PodPlacement(
        0, 0, machines(node + 1)[node].name, tuple(range(first, first + gpus)), 1000
    )
    return JobRestored(job(name, gpus=gpus, declared_s=5000.0, **wishes), (place,), since)


def scene(*facts, nodes=4, change=lambda node: node, **gpus):
    fleet = [NodeChanged(change(node)) for node in machines(nodes)]
    return scene_of([PolicyChanged(Policy()), tenancy(a=64, b=64), *fleet, *facts], NOW)


def plan(at, enough=lambda: False, **goal):
    return plan_for(ground_of(at), Goal(MODEL, **goal), enough)


def test_the_node_that_costs_least_is_emptied_and_its_job_fits_elsewhere():
    at = scene(
        runs("old", 0, 4), runs("young", 1, 4, since=NOW - 60), runs("middle", 2, 4, since=NOW - 90)
    )
    found = plan(at, nodes=1)
    assert found.reached
    name = machines(2)[1].name
    assert found.nodes == (name,)
    (move,) = found.moves
    assert (move.job, move.pods, move.whole, move.lost_gpu_s) == ("young", 1, True, 240.0)
    assert move.targets[0] in {machines(3)[0].name, machines(3)[2].name}
    assert (found.before, found.after) == (NodeFigures(4, 1, 3), NodeFigures(4, 2, 1))
    assert (found.gained, found.starts, found.lost_gpu_s) == (1, (), 240.0)


def test_a_gang_that_waits_starts_and_replicas_that_move_for_it_lose_nothing():
    gang = JobSubmitted(job("gang", 500.0, pods=2, gpus=8, declared_s=1000.0, tenant="b"))
    web = {"kind": JobKind.INFERENCE, "gang": False}
    at = scene(runs("full", 0, 8), runs("web-1", 1, 2, **web), runs("web-2", 2, 2, **web), gang)
    assert plan(at, nodes=0).starts == ()
    found = plan(at, job="gang")
    assert found.reached
    assert found.starts == ("gang",)
    assert (len(found.nodes), found.lost_gpu_s) == (1, 0.0)
    assert found.after.fragmented == 1


def test_who_may_not_be_sent_away_keeps_its_node_and_what_fits_nowhere_is_not_moved():
    fixed = runs("fixed", 0, 4, preemptible=False)
    at = scene(fixed, runs("big", 1, 6), runs("small", 2, 2), nodes=3)
    found = plan(at, nodes=1)
    assert found.nodes == (machines(3)[2].name,)  # the small job moves beside one of the others
    none = plan(scene(fixed, runs("big", 1, 6), nodes=2), nodes=1)
    assert (none.reached, none.nodes, none.moves) == (False, (), ())


def test_where_one_leaf_has_to_hold_the_gang_the_nodes_of_one_leaf_are_emptied():
    def two_leaves(node):
        leaf = "left" if node.name in {n.name for n in machines(3)} else "right"
        return replace(node, topology=(leaf, "spine", ""))

    asked = job("gang", 500.0, pods=2, gpus=8, declared_s=1000.0, tenant="b")
    gang = JobSubmitted(replace(asked, required_level="leaf"))
    # The left side is cheap but has too few free nodes.
    at = scene(
        runs("l0", 0, 8), runs("l1", 1, 8), runs("l2", 2, 2, since=NOW - 10),
        runs("r0", 3, 8), runs("r1", 4, 2, since=NOW - 500), runs("r2", 5, 2, since=NOW - 900),
        gang, nodes=7, change=two_leaves,
    )  # fmt: skip
    found = plan(at, job="gang")
    assert found.reached
    assert found.nodes == (machines(5)[4].name,)


def test_where_time_is_short_one_plan_is_tried():
    at = scene(runs("a", 0, 6), runs("b", 1, 6), runs("c", 2, 2), nodes=3)
    found = plan(at, enough=lambda: True, nodes=1)
    assert (found.reached, found.gained) == (True, 1)
