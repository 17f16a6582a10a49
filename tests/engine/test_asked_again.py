"""A cycle's decisions do not depend on how often it runs: a second cycle at the same instant starts
nothing (see scenario.py)."""

import pytest

from scheduling.engine.cycle import SchedulerState
from scheduling.engine.memo import Memo
from tests.engine.scenario import World, play

# Each scenario names what changes during the walk, behind a job that it matters to.
AT_ITS_LIMIT = {  # `small` starts and brings its tenant to its limit: now `first` waits too
    "a job that waits for quota comes to wait for a limit": """
        nodes  H100: 8 | L4: 4
        quota  a H100 4 shared | b H100 4 shared | a L4 4 shared | b L4 4 shared
        tenant a max_running=2
        policy backfill, backfill_after_s=40{more}
        at 0
          + r1 a 1x2 H100 s=100 -> starts
          + r2 b 1x6 H100 s=100 -> starts
        at 10
          + head   b 1x8 H100 s=100
          + first  a 1x8 H100 s=100 -> WaitingForQuota
          + small  a 1x1 L4 s=100 -> starts
          + second a 1x8 H100 s=100
    """,
    "so does the first of those that accept several models": """
        nodes  H100: 8 | L4: 4 | T4: 8
        quota  a H100 4 shared | b H100 4 shared | a T4 4 shared | b T4 4 shared | a L4 4 shared
        tenant a max_running=3
        policy backfill, backfill_after_s=40{more}
        at 0
          + r1 a 1x2 H100 s=100 -> starts
          + r2 b 1x6 H100 s=100 -> starts
          + r3 a 1x2 T4 s=100 -> starts
          + r4 b 1x6 T4 s=100 -> starts
        at 10
          + head   b 1x8 H100 s=100
          + other  b 1x8 T4 s=100
          + first  a 1x8 H100|T4 s=100 -> WaitingForQuota
          + small  a 1x1 L4 s=100 -> starts
    """,
    "the limit is that of a department": """
        nodes  H100: 8 | L4: 4
        tree   a < dept | c < dept
        quota  a H100 4 shared | b H100 4 shared | c L4 4 shared
        tenant dept max_running=2
        policy backfill, backfill_after_s=40{more}
        at 0
          + r1 a 1x2 H100 s=100 -> starts
          + r2 b 1x6 H100 s=100 -> starts
        at 10
          + head  b 1x8 H100 s=100
          + first a 1x8 H100 s=100 -> WaitingForQuota
          + small c 1x1 L4 s=100 -> starts
    """,
}

GETS_ITS_TURN = {  # `old` gets its turn for H100 GPUs and from then on is ahead of `kept`
    "a turn given in the walk puts a job before another that has its turn": """
        nodes  H100: 8 | L4: 4
        quota  a H100 64 | a L4 64 | b L4 64 | c H100 64 | c L4 64
        policy best-effort-fifo, fair_share=yes{more}
        at 0
          + c1 c 1x8 H100 -> starts
          + c2 c 1x3 L4 -> starts
          + old a 1x1+1x0.5 H100+L4 pods
          hold old
        at 1
          + kept b 1x2 L4 -> InsufficientGpus kept_nodes=1
          + c3   c 1x1 L4
          + c4   c 1x1 H100
        at 2
          release old
          old -> starts 1 pod
    """,
    "among users": """
        nodes  H100: 8 | L4: 4
        quota  a H100 64 | a L4 64
        policy best-effort-fifo, fair_share=yes, fair_users=yes{more}
        at 0
          + c1 a 1x8 H100 user=c -> starts
          + c2 a 1x3 L4 user=c -> starts
          + old a 1x1+1x0.5 H100+L4 pods user=a
          hold old
        at 1
          + kept a 1x2 L4 user=b -> InsufficientGpus kept_nodes=1
          + c3   a 1x1 L4 user=c
          + c4   a 1x1 H100 user=c
        at 2
          release old
          old -> starts 1 pod
    """,
    "among the queues of a tenant": """
        nodes  H100: 8 | L4: 4
        quota  t H100 64 | t L4 64
        queue  t/a weight=1
        queue  t/b weight=1
        queue  t/c weight=1
        policy best-effort-fifo{more}
        at 0
          + c1 t 1x8 H100 queue=c -> starts
          + c2 t 1x3 L4 queue=c -> starts
          + old t 1x1+1x0.5 H100+L4 pods queue=a
          hold old
        at 1
          + kept t 1x2 L4 queue=b -> InsufficientGpus kept_nodes=1
          + c3   t 1x1 L4 queue=c
          + c4   t 1x1 H100 queue=c
        at 2
          release old
          old -> starts 1 pod
    """,
}

PARTS = {  # use since the cycle began gives `big` a turn
    "the part of a queue grows with what starts": """
        quota  t H100 64
        queue  t/a weight=1
        queue  t/b weight=1
        policy best-effort-fifo{more}
        at 0
          + b0  t 1x4 H100 queue=b
          + big t 1x6 H100 queue=a
          + b1  t 1x5 H100 queue=b
        at 10
          nodes  H100: 8
          b0 -> starts
          big -> InsufficientGpus kept_nodes=1
    """,
}

LOSES_ITS_TURN = {
    "who can never run has no turn any more": """
        nodes  H100: 8 8
        quota  a H100 64 | b H100 64
        policy best-effort-fifo, fair_share=yes{more}
        at 0
          + b0   b 1x8 H100 -> starts
          + b1   b 1x4 H100 -> starts
        at 1
          + kept a 1x8 H100
          + b2   b 1x4 H100 -> starts
          + b3   b 1x4 H100
          kept -> InsufficientGpus kept_nodes=1
        at 10
          quota  a H100 0 isolated | b H100 64
          kept -> ExceedsMaxQuota
    """,
}

ALONE = ("", ", preemption=reclaim")
CASES = [
    pytest.param(text.format(more=more), id=f"{name}{more}")
    for table, every in (
        (AT_ITS_LIMIT, (*ALONE, ", fair_share=yes")),
        (GETS_ITS_TURN, ALONE),
        (LOSES_ITS_TURN, ALONE),
        (PARTS, (*ALONE, ", fair_share=yes")),
    )
    for name, text in table.items()
    for more in every
]


@pytest.mark.parametrize("remembers", [True, False], ids=["memory", "anew"])
@pytest.mark.parametrize("text", CASES)
def test_asking_again_decides_nothing(text: str, *, remembers: bool) -> None:
    state = SchedulerState(memo=Memo(check_share=1.0) if remembers else Memo.off())
    world = play(text, World(state))
    turns = list(state.turns)
    for _ in range(3):
        state.dirty = True  # otherwise the cycle considers no job
        again = world.cycle(state.cluster.now)
        assert not again.started
        assert not again.preempted
        assert not again.reservations
        assert not again.wrong
        assert list(state.turns) == turns
