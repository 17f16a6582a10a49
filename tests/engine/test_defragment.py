"""Jobs that move at a price so that fewer nodes are partly used, as tables (see scenario.py)."""

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.running.last_look import KEPT_S, MoveBudget
from scheduling.engine.types import PodPlacement, Policy
from tests.engine.scenario import job, node, play

# `rest` runs so that there is a move budget; `end` leaves a hole; `one` is alone on its node.
HOLE = """
        nodes  H100: 8 8 8
        quota  a H100 64
        policy best-effort-fifo, defrag_loss={loss}{more}
        at 0
          + rest a 1x8 H100 -> starts on n0
          + hold a 1x7 H100 -> starts on n1
          + end  a 1x1 H100 -> starts on n1
          + one  a 1x1 H100 -> starts on n2
        at 100
          ends end
"""
MOVES = """
          one -> moves 0 from n2 to n1
"""


def hole(loss=1, min_runtime_s=0, **more):
    words = {"min_runtime_s": min_runtime_s, **more}
    return HOLE.format(loss=loss, more="".join(f", {k}={v}" for k, v in words.items()))


SCENARIOS = {
    "a job moves and starts anew in the place that was kept for it": hole()
    + MOVES
    + """
          + next a 1x8 H100 -> WaitingForPreemption
        at 101
          gone one
          one -> starts on n1
          next -> starts on n2
    """,
    "not one that has not run for long enough": hole(min_runtime_s=500)
    + """
        at 499
        at 561
    """
    + MOVES,
    "not for more than the budget bears, and then what has saved its work": hole(0.01)
    + """
        at 200
        at 300
        at 400
          saves one
    """
    + MOVES,
    "not where few enough nodes are partly used": hole(defrag_above=0.9)
    + """
        at 200
        at 300
          policy best-effort-fifo, defrag_loss=1, min_runtime_s=0, defrag_above=0.5
    """
    + MOVES,
    "not where no job may move at once": hole(defrag_moves=0)
    + """
        at 200
    """,
    "its new node is lost while it moves: it waits as after a preemption": hole()
    + MOVES
    + """
        at 101
          node-lost n1
        at 102
          gone one
          one -> starts on n2
    """,
    "it is cancelled while it moves": hole()
    + MOVES
    + """
        at 101
          ends one
        at 102
          + next a 1x1 H100 -> starts on n1
    """,
    "what must stay stays": """
        nodes  H100: 8 8 8
        quota  a H100 64
        policy best-effort-fifo, defrag_loss=1, min_runtime_s=0
        at 0
          + rest   a 1x8 H100                 -> starts on n0
          + hold   a 1x6 H100 fixed           -> starts on n1
          + end    a 1x2 H100                 -> starts on n1
          + fixed  a 1x1 H100 fixed           -> starts on n2
          + gang   a 2x1 H100                 -> starts on n2
          + pods   a 1x1 H100 pods            -> starts on n2
          + spread a 1x1 H100 strategy=spread -> starts on n2
          + budget a 1x1 H100                 -> starts on n2
          budget budget 0
        at 100
          ends end
        at 1000
          budget budget 1
        at 1100
          + late a 1x1 H100 -> starts on n1
          budget -> moves 0 from n2 to n1
    """,
    "one replica of a service moves at a time: its node is not emptied of two": """
        nodes  H100: 8 8 8
        quota  a H100 64
        policy best-effort-fifo, defrag_loss=1, min_runtime_s=0
        at 0
          + rest a 1x8 H100                     -> starts on n0
          + hold a 1x5 H100 fixed               -> starts on n1
          + end  a 1x3 H100                     -> starts on n1
          + svc  a 2x1 H100 pods kind=inference -> starts on n2
        at 100
          ends end
        at 1000
    """,
    "one replica of a service moves at a time: two fill no node together": """
        nodes  H100: 8 8 8
        quota  a H100 64
        policy best-effort-fifo, defrag_loss=1, min_runtime_s=0
        at 0
          + rest a 1x8 H100                     -> starts on n0
          + hold a 1x6 H100 fixed               -> starts on n1
          + end  a 1x2 H100                     -> starts on n1
          + stay a 1x4 H100 fixed               -> starts on n2
          + svc  a 2x1 H100 pods kind=inference -> starts on n2
        at 100
          ends end
        at 1000
    """,
    "replicas of two services move together": """
        nodes  H100: 8 8 8
        quota  a H100 64
        policy best-effort-fifo, defrag_loss=1, min_runtime_s=0
        at 0
          + rest a 1x8 H100                     -> starts on n0
          + hold a 1x6 H100 fixed               -> starts on n1
          + end  a 1x2 H100                     -> starts on n1
          + one  a 1x1 H100 pods kind=inference -> starts on n2
          + two  a 1x1 H100 pods kind=inference -> starts on n2
        at 100
          ends end
          one -> moves 0 from n2 to n1
          two -> moves 0 from n2 to n1
    """,
    "two fill a node together, if so many may move at once": """
        nodes  H100: 8 8 8 8
        quota  a H100 64
        policy best-effort-fifo, defrag_loss=1, min_runtime_s=0, defrag_moves=1
        at 0
          + rest  a 2x8 H100       -> starts on n0 n1
          + hold  a 1x6 H100       -> starts on n2
          + end   a 1x2 H100       -> starts on n2
          + fixed a 1x2 H100 fixed -> starts on n3
        at 90
          + first a 1x1 H100       -> starts on n3
          + other a 1x1 H100       -> starts on n3
        at 100
          ends end
        at 200
        at 300
          policy best-effort-fifo, defrag_loss=1, min_runtime_s=0
          first -> moves 0 from n3 to n2
          other -> moves 0 from n3 to n2
    """,
    "replicas move for nothing": """
        nodes  H100: 8 8
        quota  a H100 64
        policy best-effort-fifo, defrag_loss=0.000001, min_runtime_s=0
        at 0
          + hold a 1x7 H100 fixed               -> starts on n0
          + end  a 1x1 H100                     -> starts on n0
          + one  a 1x1 H100 pods kind=inference -> starts on n1
        at 100
          ends end
          one -> moves 0 from n1 to n0
        at 101
          pod-gone one 0
          one -> starts on n0
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_moves(name: str) -> None:
    play(SCENARIOS[name])


def test_a_move_tells_its_price_and_the_cheapest_goes_first():
    state = SchedulerState(policy=Policy(defrag_loss=1.0, defrag_moves=1, min_runtime_s=0))
    deltas = [d.NodeChanged(node(f"n{i}", 8)) for i in range(4)]
    for name, where, gpus, since in (
        *(("full", "n0", 8, 0.0), ("hold", "n1", 7, 0.0)),
        *(("old", "n2", 1, 0.0), ("young", "n3", 1, 600.0), ("fixed", "n3", 1, 0.0)),
    ):
        words = ("fixed",) if name in {"hold", "fixed"} else ()
        place = PodPlacement(0, 0, where, tuple(range(gpus)), 1000)
        if name == "fixed":
            place = place._replace(devices=(7,))
        deltas.append(d.JobRestored(job(name, "a", f"1x{gpus} H100", *words), (place,), since))
    assert not run_cycle(state, deltas, 700.0).moved  # the budget is still empty
    assert state.look.budget.left_gpu_s == 0.0
    (move,) = run_cycle(state, (), 1700.0).moved
    # Moving `old` would cost 1,700 and free two nodes, moving `young` 1,100 and free one.
    assert (move.job_id, move.target, move.whole, move.cost_gpu_s) == ("old", "n1", True, 1700.0)
    assert state.look.budget.left_gpu_s == pytest.approx(18 * 1000 - 1700)
    record = state.jobs["old"]
    assert (record.started_at, record.preemptions) == (None, 0)
    run_cycle(state, [d.JobRequeued("old", 1730.0)], 1730.0)
    assert (record.started_at, set(record.pods)) == (1730.0, {(0, 0)})


@pytest.mark.parametrize("told", [False, True])
def test_whom_moves_have_cost_much_before_is_dearer_than_others(told: bool):
    state = SchedulerState(policy=Policy(defrag_loss=1.0, defrag_moves=1, min_runtime_s=0))
    deltas = [d.NodeChanged(node(f"n{i}", 8)) for i in range(4)]
    for name, where, device, gpus in (
        *(("full", "n0", 0, 8), ("hold", "n1", 0, 7)),
        *(("once", "n2", 0, 1), ("never", "n3", 0, 1)),
    ):
        place = PodPlacement(0, 0, where, tuple(range(device, device + gpus)), 1000)
        words = ("fixed",) if name == "hold" else ()
        deltas.append(d.JobRestored(job(name, "a", f"1x{gpus} H100", *words), (place,), 0.0))
    if told:  # by the previous scheduler
        deltas.append(d.JobHistory("once", lost_gpu_s=5000.0))
    run_cycle(state, deltas, 100.0)
    state.jobs["once"].started_at = 500.0  # it restarted after losing 5,000 GPU-seconds
    if not told:
        state.jobs["once"].moved(5000.0)
    moves = run_cycle(state, (), 1100.0).moved
    assert [(move.job_id, move.cost_gpu_s) for move in moves] == [("never", 1100.0)]


@pytest.mark.parametrize(
    ("used", "lost", "moves"), [(0.0, 0.0, 0), (300_000.0, 0.0, 1), (300_000.0, 2900.0, 0)]
)
def test_who_decides_next_goes_on_with_what_may_still_be_lost(used, lost, moves):
    state = SchedulerState(policy=Policy(defrag_loss=0.01, min_runtime_s=0))
    deltas = [d.NodeChanged(node(f"n{i}", 8)) for i in range(2)]
    for name, where, gpus, words in (("hold", "n0", 7, ("fixed",)), ("one", "n1", 1, ())):
        place = PodPlacement(0, 0, where, tuple(range(gpus)), 1000)
        deltas.append(d.JobRestored(job(name, "a", f"1x{gpus} H100", *words), (place,), 0.0))
    result = run_cycle(state, [*deltas, d.MovesBefore(used, lost)], 100.0)
    assert len(result.moved) == moves  # it costs 100, and a sixteenth pays for two nodes fewer
    assert state.look.budget.left_gpu_s == max(0.0, used * 0.01 - lost) - 100.0 * moves


def test_a_budget_grows_with_what_is_used_and_not_without_end():
    budget = MoveBudget()
    budget.pass_time(100.0, 80_000, 0.01)
    budget.pass_time(200.0, 40_000, 0.01)
    assert budget.left_gpu_s == pytest.approx(80)
    budget.pass_time(300.0, 40_000, 0.01)
    assert budget.left_gpu_s == pytest.approx(120)
    budget.pass_time(300.0 + 10 * KEPT_S, 40_000, 0.01)
    assert budget.left_gpu_s == pytest.approx(0.4 * KEPT_S)
