"""Faults at the published rates, for as long as a run lasts."""

from collections import Counter
from itertools import islice, takewhile
from statistics import median

import pytest

from scheduling.engine.types import Policy
from scheduling.simulator.faults import faults_of
from scheduling.simulator.model import HardwareFault, Settings
from scheduling.simulator.nodes import engine_nodes, sized
from scheduling.simulator.run import TraceError
from tests.simulator.runs import arrival, machines, rows, simulation

DAY, YEAR = 86400.0, 365 * 86400.0


def test_faults_have_the_published_shape_whatever_the_length_of_the_run():
    nodes = engine_nodes(sized("1000x8"))
    found = list(
        takewhile(lambda f: f.at < YEAR, faults_of(nodes, per_1000_node_days=6.5, seed=11))
    )
    assert [f.at for f in found] == sorted(f.at for f in found)
    events = Counter(f.at for f in found)
    assert len(events) / 365 == pytest.approx(6.5, rel=0.05)
    assert sum(n > 1 for n in events.values()) / len(events) == pytest.approx(0.04, abs=0.015)
    leaf_of = {n.name: n.topology[0] for n in nodes}
    for at in (at for at, n in events.items() if n > 1):
        assert len({leaf_of[f.node] for f in found if f.at == at}) == 1
    assert median(f.repair_s for f in found) == pytest.approx(4 * 3600, rel=0.1)
    # 2 % of the nodes have 0.2 / 1.18 of the faults.
    often = sum(n for _, n in Counter(f.node for f in found).most_common(20))
    assert often / len(found) == pytest.approx(0.2 / 1.18, abs=0.05)
    again = faults_of(nodes, per_1000_node_days=6.5, seed=11)
    assert list(islice(again, 50)) == found[:50]


def test_there_are_no_faults_at_a_rate_of_nothing():
    assert list(faults_of(machines(4), per_1000_node_days=0.0, seed=1)) == []


def test_nodes_go_on_failing_while_jobs_wait():
    # Ten days of work arrive at once; most of it finishes long after the last arrival.
    jobs = [arrival(f"j{i}", 0, DAY, pods=4) for i in range(10)]
    faults = faults_of(machines(4), per_1000_node_days=100.0, seed=3)
    out = simulation(jobs, nodes=4, faults=faults, settings=Settings(checkpoint_s=600.0)).run()
    assert all(state == "SUCCEEDED" for *_, state in rows(out).values())
    assert sum(out.observer.jobs.requeues[5:]) > 0
    assert out.ended_at > 10 * DAY


def test_a_run_rests_although_nodes_would_go_on_failing():
    # The only node is kept as a spare, so no job without access to spares can use it.
    jobs = [arrival("x", 0, 100)]
    faults = (HardwareFault(at=1000.0 * i, node="n000", repair_s=10) for i in range(1, 10**9))
    policy = Policy(spare_nodes={"H100": 1})
    out = simulation(jobs, nodes=1, policy=policy, faults=faults).run()
    assert (out.waiting, out.ended_at) == (1, 0)


def test_faults_out_of_order_are_refused():
    faults = [HardwareFault(at=at, node="n000", repair_s=1) for at in (20, 10)]
    with pytest.raises(TraceError, match="node n000: fails at 10 s, before the last fault at 20"):
        simulation([arrival("x", 0, 100)], faults=faults).run()


def test_of_a_service_only_the_pods_on_the_node_that_failed_are_placed_again():
    service = arrival("s", 0, 1000, pods=3, gang=False)
    faults = [HardwareFault(at=400.0, node="n001", repair_s=100.0)]
    sim = simulation([service], nodes=3, faults=faults)
    out = sim.run()
    jobs = out.observer.jobs
    assert rows(out) == {"s": (500.0, 1500.0, "SUCCEEDED")}  # the third pod restarted at 500
    assert jobs.requeues[0] == 1
    assert jobs.lost_milli_s[0] == 400.0 * 8000
    pool = out.pools["H100"]
    # Two pods ran 1,000 s; the third ran 400 s and then, anew, 1,000 s.
    assert pool.milli_s == (2 * 1000 + 400 + 1000) * 8000


def test_a_service_that_lost_all_its_pods_waits_again_as_a_whole():
    service = arrival("s", 0, 1000, pods=2, gang=False)
    faults = [HardwareFault(at=400.0, node=f"n00{i}", repair_s=100.0) for i in range(2)]
    out = simulation([service], nodes=2, faults=faults).run()
    assert rows(out) == {"s": (500.0, 1500.0, "SUCCEEDED")}
    assert out.observer.jobs.lost_milli_s[0] == 2 * 400.0 * 8000


def test_a_node_fault_throws_work_away_since_the_last_checkpoint():
    out = simulation(
        [arrival("x", 0, 100, pods=2)],
        faults=[HardwareFault(at=70, node="n001", repair_s=10)],
        settings=Settings(checkpoint_s=30.0, restart_s=5.0),
    ).run()
    # 60 s are saved at the fault; at 80 the restart takes 5 s, then the last 40 s run.
    assert rows(out)["x"] == (80, 125, "SUCCEEDED")
    jobs = out.observer.jobs
    assert jobs.requeues[0] == 1
    assert jobs.lost_milli_s[0] == 16_000 * (10 + 5)


def test_one_bad_gpu_takes_only_the_job_that_holds_it():
    out = simulation(
        [arrival("x", 0, 100, gpus=4), arrival("y", 0, 100, gpus=4)],
        nodes=1,
        faults=[HardwareFault(at=10, node="n000", repair_s=20, device=0)],
    ).run()
    ends = sorted(end for _, end, _ in rows(out).values())
    assert ends == [100, 130]


def test_two_faults_of_one_node_are_repaired_one_by_one():
    out = simulation(
        [arrival("x", 15, 10, gpus=8)],
        nodes=1,
        faults=[
            HardwareFault(at=0, node="n000", repair_s=20, device=0),
            HardwareFault(at=10, node="n000", repair_s=30, device=1),
        ],
    ).run()
    assert rows(out)["x"][0] == 40


def test_an_elastic_gang_goes_on_without_what_failed_and_gets_it_back():
    gang = arrival("g", 0, 1000, pods=3, min_count=2)
    first = arrival("f", 0, 100, pods=1)
    faults = [HardwareFault(at=400.0, node="n002", repair_s=100.0)]
    out = simulation([first, gang], nodes=3, faults=faults).run()
    jobs = out.observer.jobs
    at = jobs.ids.index("g")
    assert rows(out)["g"] == (0.0, 1000.0, "SUCCEEDED")
    assert jobs.requeues[at] == 1
    # Two nodes until the first job ends, then three, apart from the repair.
    held = 8 * (2 * 1000 + 900 - 100)
    assert out.pools["H100"].milli_s == pytest.approx((held + 8 * 100) * 1000)
