"""The bound of walltime: EASY backfill on one machine, worked out by hand."""

import pytest

from metrics.experiments import runs, walltime


def trace(jobs):
    """Jobs in the Standard Workload Format, from (submit, run, declared, GPUs)."""
    lines = (
        f"{i} {submit} -1 {run} {gpus} -1 -1 {gpus} {declared} -1 1 1 1 -1 1 -1 -1 -1\n"
        for i, (submit, run, declared, gpus) in enumerate(jobs)
    )
    return "; Version: 2.2\n" + "".join(lines)


RUNS = (0, 100, 100, 6)  # two of eight GPUs are free until 100


@pytest.mark.parametrize(
    ("jobs", "waits"),
    [
        # The head takes all GPUs at 100: jobs that end by then go before it, the others behind.
        ([RUNS, (1, 50, 60, 8), (2, 90, 95, 2), (3, 10, 300, 2)], [0, 99, 0, 147]),
        # The head leaves four GPUs to as many long jobs as they hold.
        ([RUNS, (1, 50, 60, 4), (2, 500, 500, 2), (3, 10, 300, 4)], [0, 99, 0, 147]),
        # A job ends sooner than declared: the head starts at once.
        ([(0, 40, 100, 6), (1, 50, 60, 8), (2, 20, 95, 2)], [0, 39, 0]),
    ],
)
def test_waits_are_those_of_one_reservation(tmp_path, jobs, waits):
    path = tmp_path / "trace.swf"
    path.write_text(trace(jobs))
    (task,) = [t for t in walltime.tasks({"hours": 1.0, "data": path}) if t.name == walltime.BOUND]
    assert task.fleet == "1x8"
    assert runs.carry_out(task)["mean_wait_s"] == pytest.approx(sum(waits) / len(waits))
