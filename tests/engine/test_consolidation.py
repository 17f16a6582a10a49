"""Replicas that move together, as tables (see scenario.py)."""

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import PodPlacement, Policy
from tests.engine.scenario import job, node, play

SCENARIOS = {
    "a replica fills all that is free on another node, its own is emptied later": """
        nodes  H100: 4 4
        quota  a H100 64
        policy best-effort-fifo, consolidation=yes, min_runtime_s=0
        at 0
          + full a 4x1 H100 pods kind=inference -> starts on n0
          + rest a 2x1 H100 pods kind=inference -> starts on n1
        at 100
          pod-ends full 3
          rest -> moves 1 from n1 to n0
        at 101
          pod-gone rest 1
          rest -> starts on n0
        at 110
          pod-ends full 2
        at 161
          rest -> moves 0 from n1 to n0
        at 162
          pod-gone rest 0
          rest -> starts on n0
    """,
    "a job that waits gets the emptied node once the replica has left it": """
        nodes  H100: 4 4
        quota  a H100 64
        policy best-effort-fifo, consolidation=yes, min_runtime_s=0
        at 0
          + long  a 2x1 H100 pods kind=inference -> starts on n0
          + short a 1x2 H100                     -> starts on n0
          + alone a 1x2 H100 pods kind=inference -> starts on n1
          + whole a 1x4 H100                     -> InsufficientGpus
        at 100
          ends short
          alone -> moves 0 from n1 to n0
          whole -> WaitingForPreemption
        at 101
          pod-gone alone 0
          alone -> starts on n0
          whole -> starts on n1
    """,
    "what must stay stays": """
        nodes  H100: 8 8
        quota  a H100 64
        policy best-effort-fifo, consolidation=yes, min_runtime_s=0
        at 0
          + hold   a 1x6 H100                                    -> starts on n0
          + train  a 1x1 H100 pods                               -> starts on n0
          + end    a 1x1 H100                                    -> starts on n0
          + fixed  a 1x1 H100 pods kind=inference fixed          -> starts on n1
          + gang   a 1x1 H100 kind=inference                     -> starts on n1
          + spread a 1x1 H100 pods kind=inference strategy=spread -> starts on n1
          + kept   a 1x1 H100 pods kind=inference                -> starts on n1
          budget kept 0
        at 100
          ends end
        at 200
          budget kept 1
          kept -> moves 0 from n1 to n0
    """,
    "a replica has been in its place for a while before it moves": """
        nodes  H100: 4 4
        quota  a H100 64
        policy best-effort-fifo, consolidation=yes, min_runtime_s=500
        at 0
          + hold a 1x3 H100                     -> starts on n0
          + end  a 1x1 H100                     -> starts on n0
          + kept a 1x1 H100 pods kind=inference -> starts on n1
        at 400
          ends end
        at 499
        at 500
          kept -> moves 0 from n1 to n0
    """,
    "pods of a job go one at a time, and not where it may have no more": """
        nodes  H100: 4 4 4
        quota  a H100 64
        policy best-effort-fifo, consolidation=yes, min_runtime_s=0
        at 0
          + hold  a 1x2 H100                                     -> starts on n0
          + end   a 1x2 H100                                     -> starts on n0
          + apart a 2x2 H100 pods kind=inference max_per_node=1  -> starts on n1 n2
          + half  a 1x1 H100                                     -> starts on n1
        at 100
          ends end
          apart -> moves 1 from n2 to n0
        at 160
        at 161
          pod-gone apart 1
          apart -> starts on n0
        at 170
          ends hold
        at 250
          ends half
          + full a 1x1 H100 -> starts on n0
          + more a 1x1 H100 -> starts on n0
    """,
    "the place on a node that is lost meanwhile is looked for anew": """
        nodes  H100: 4 4 4
        quota  a H100 64
        policy best-effort-fifo, consolidation=yes, min_runtime_s=0
        at 0
          + hold a 1x3 H100                     -> starts on n0
          + end  a 1x1 H100                     -> starts on n0
          + one  a 1x1 H100 pods kind=inference -> starts on n1
        at 100
          ends end
          one -> moves 0 from n1 to n0
        at 101
          node-lost n0
        at 102
          pod-gone one 0
          one -> starts on n1
    """,
    "nothing moves unless the policy says so": """
        nodes  H100: 4 4
        quota  a H100 64
        policy best-effort-fifo, min_runtime_s=0
        at 0
          + hold a 1x3 H100                     -> starts on n0
          + end  a 1x1 H100                     -> starts on n0
          + one  a 1x1 H100 pods kind=inference -> starts on n1
        at 100
          ends end
        at 200
          policy best-effort-fifo, consolidation=yes, min_runtime_s=0
          one -> moves 0 from n1 to n0
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_moves(name: str) -> None:
    play(SCENARIOS[name])


def test_a_running_job_of_a_strategy_that_nobody_knows_disturbs_nobody():
    state = SchedulerState(policy=Policy(consolidation=True, min_runtime_s=0))
    odd = job("odd", "a", "1x1 H100", "pods", "kind=inference", "strategy=gone")
    deltas = [d.NodeChanged(node("n0", 4)), d.NodeChanged(node("n1", 4))]
    deltas.append(d.JobRestored(odd, (PodPlacement(0, 0, "n0", (0,), 1000),), 0.0))
    assert not run_cycle(state, deltas, 100.0).moved
