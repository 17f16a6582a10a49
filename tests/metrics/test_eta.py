"""eta compares what waiting jobs are told with what then happens to them."""

import pytest

from metrics.experiments import eta, eta_looks, runs, walltime
from tests.metrics.test_easy import trace

JOBS = 60


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """A trace of whole-node jobs, one a minute, that run for two minutes: the queue grows."""
    for module in (eta, eta_looks):
        monkeypatch.setattr(module, "WARM", 10)
    monkeypatch.setattr(eta, "RUNS", 5)
    monkeypatch.setattr(walltime, "LOAD", 1.2)
    path = tmp_path / "trace.swf"
    path.write_text(
        trace([(60 * i, 100 + i % 3 * 20, 500, 8 if i != 30 else 16) for i in range(JOBS)])
    )
    return path


def looked(path, name):
    options = {"hours": 100.0, "data": path, "quick": True}
    (task,) = [t for t in eta.tasks(options) if t.name.startswith(name)]
    assert task.fleet == "2x8"
    return runs.carry_out(task)


def test_starts_are_told_truly_where_run_times_are_declared_exactly(queue):
    found = looked(queue, eta.EXACT)
    assert found["looks"] >= 20
    assert (found["told"], found["near"], found["near_slurm"]) == (1.0, 1.0, 1.0)
    assert (found["held"], found["uncertain"], found["held_uncertain"]) == (1.0, 0.0, None)
    assert found["near_average"] < 1.0
    assert found["cpu_per_look_s"] > 0


def test_it_learns_that_jobs_declare_twice_what_they_run(queue):
    found = looked(queue, eta.DOUBLE)
    assert found["near"] > 0.8
    assert found["near_slurm"] < found["near"]


def test_nothing_is_declared_and_bands_are_held_against_who_knows_all_distributions(queue):
    found = looked(queue, f"{eta.NONE}, strict")
    assert found["told"] == 1.0
    assert found["near_slurm"] is None
    assert found["held"] > 0.5
    assert 0.0 < found["uncertain"] <= 1.0
    certain = 1 - found["uncertain"]  # each of these may hold or not
    of_all = found["uncertain"] * found["held_uncertain"]
    assert of_all - 1e-9 <= found["held"] <= of_all + certain + 1e-9
    assert 0 < found["width_s"] < 4000
    assert found["width_ratio"] == pytest.approx(found["width_s"] / found["oracle_width_s"])


def test_bars_say_of_what_and_hold_or_not():
    row = {"told": 0.97, "near": 0.8, "held": 0.86, "width_ratio": 1.4}
    names = [f"{mode}, x" for mode in (eta.EXACT, eta.NONE)]
    bars = eta.bars({"trace": {"summary": dict.fromkeys(names, row)}})
    assert [(bar.value, bar.holds) for bar in bars] == [
        (0.97, True), (0.8, False), (0.97, True), (0.86, False), (1.4, True),
    ]  # fmt: skip


def test_before_so_many_jobs_have_ended_it_does_not_look(tmp_path):
    path = tmp_path / "trace.swf"
    path.write_text(trace([(i, 50, 60, 8) for i in range(9)]))
    options = {"hours": 1.0, "data": path, "quick": False}
    found = runs.carry_out(eta.tasks(options)[0])
    assert found["looks"] == 0
    assert found["told"] is None
    bars = eta.bars({"trace": {"summary": {eta.NONE: found}}})
    assert {bar.holds for bar in bars} == {None}
