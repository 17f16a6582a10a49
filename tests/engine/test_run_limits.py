"""Run-time limits: a warning before, a notice once they have passed."""

from dataclasses import replace

from scheduling.engine import deltas as d
from scheduling.engine.decisions import RunLimit
from scheduling.engine.types import PodPlacement
from tests.engine.scenario import job, play


def test_a_job_is_warned_before_its_run_time_limit_and_told_when_it_has_passed() -> None:
    world = play("""
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, warn_before_s=10
        at 0
          + one a 1x1 H100 run_limit_s=100 -> starts
    """)
    assert world.cycle(89.0).run_limits == ()
    assert world.cycle(89.0).next_at == 90.0
    assert world.cycle(90.0).run_limits == (RunLimit("one", 100.0, False),)
    assert world.cycle(100.0).run_limits == (RunLimit("one", 100.0, True),)
    assert world.cycle(200.0).run_limits == ()


def test_a_run_time_limit_holds_in_a_state_that_begins_anew_and_when_it_is_changed() -> None:
    world = play("""
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, warn_before_s=10
        at 0
    """)
    place = PodPlacement(0, 0, "n0", (0,), 1000)
    one = job("one", "a", "1x1 H100", "run_limit_s=100")
    world.pending.append(d.JobRestored(one, (place,), 20.0))
    assert world.cycle(50.0).next_at == 110.0
    world.pending.append(d.JobSubmitted(replace(one, run_limit_s=200.0)))
    assert world.cycle(60.0).run_limits == ()
    assert world.cycle(120.0).run_limits == ()
    assert world.cycle(210.0).run_limits == (RunLimit("one", 220.0, False),)
    assert world.cycle(220.0).run_limits == (RunLimit("one", 220.0, True),)
    # A job that was warned is not warned again.
    world.pending.append(d.JobRestored(replace(one, id="two"), (place,), 125.0))
    assert world.cycle(221.0).run_limits == ()
    assert world.cycle(225.0).run_limits == (RunLimit("two", 225.0, True),)


def test_a_job_in_several_parts_is_warned_once() -> None:
    world = play("""
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, warn_before_s=10
        at 0
          + r   a 1x7 H100                        -> starts
          + web a 2x1 H100 pods run_limit_s=100   -> starts 1 pod
        at 1
          ends r
          web -> starts 1 pod
    """)
    assert world.cycle(90.0).run_limits == (RunLimit("web", 100.0, False),)
    assert world.cycle(100.0).run_limits == (RunLimit("web", 100.0, True),)
