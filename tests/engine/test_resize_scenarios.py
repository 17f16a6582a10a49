"""Jobs whose number of pods changes (deltas.JobChanged), as tables (scenario.py)."""

import pytest

from scheduling.engine import deltas as d
from tests.engine.cycles import job
from tests.engine.scenario import play

RESIZES = {
    "a service that runs gets more pods, as quota and room allow": """
        nodes  H100: 8
        quota  a H100 6 isolated
        policy best-effort-fifo
        at 0
          + web a 2x1 H100 pods -> starts 2 pods
        at 1
          resize web 7
          web -> starts 4 pods
          web -> WaitingForQuota left=0
        at 2
          resize web 6
        at 3
          pod-fails web 0
          web -> starts 1 pod
    """,
    "pods that are too many keep their places until they are gone": """
        nodes  H100: 4
        quota  a H100 64
        policy best-effort-fifo
        at 0
          + web   a 4x1 H100 pods -> starts 4 pods
          + other a 1x2 H100      -> InsufficientGpus free=0
        at 1
          resize web 2
          other -> InsufficientGpus free=0
        at 2
          pod-fails web 3
          other -> InsufficientGpus
        at 3
          pod-fails web 2
          other -> starts
    """,
    "made larger again while they go, it misses those that are gone": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo
        at 0
          + web a 4x1 H100 pods -> starts 4 pods
        at 1
          resize web 1
        at 2
          pod-fails web 3
          resize web 3
        at 3
          pod-fails web 2
          web -> starts 1 pod
    """,
    "what has ended counts while it is within the count": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo
        at 0
          + web a 4x1 H100 pods -> starts 4 pods
        at 1
          pod-ends web 3
        at 2
          resize web 5
          web -> starts 1 pod
        at 3
          resize web 3
        at 4
          pod-fails web 0
        at 5
          pod-fails web 1
          web -> starts 1 pod
    """,
    "a pod that made room does not come back where fewer are asked for": """
        nodes  H100: 4
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + web  a 4x1 H100 pods -> starts 4 pods
        at 1
          + high a 1x1 H100 p9   -> WaitingForPreemption
          web -> preempted 1 pod
        at 2
          resize web 3
          pod-gone web 3
          high -> starts
        at 3
          ends high
        at 4
          resize web 4
          web -> starts 1 pod
    """,
    "a pod that is being moved does not arrive where fewer are asked for": """
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
          resize rest 1
        at 102
          pod-gone rest 1
        at 103
          resize rest 2
          rest -> starts on n0
    """,
    "an elastic gang grows to the count of now, and not beyond": """
        nodes  H100: 8
        quota  a H100 64
        policy strict-fifo
        at 0
          + train a 2x1 H100 min=2 -> starts 2 pods
        at 1
          resize train 5
          train -> starts 3 pods
        at 2
          resize train 3
          pod-fails train 4
          pod-fails train 3
        at 3
          resize train 4
          train -> starts 1 pod
    """,
    "a gang that waits asks for less and starts; the reservation is that of now": """
        nodes  H100: 8 8
        quota  a H100 64
        policy backfill
        at 0
          + r     a 1x8 H100 s=100 -> starts
          + r2    a 1x4 H100 s=50  -> starts
          + train a 2x8 H100       -> InsufficientGpus
        at 1
          resize train 1
          train -> InsufficientGpus
        at 50
          ends r2
          train -> starts 1 pod
    """,
    "places that are held for another number of pods are given up": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo, preemption=priority, min_runtime_s=0
        at 0
          + low   a 8x1 H100 pods -> starts 8 pods
        at 1
          + train a 4x1 H100 p9   -> WaitingForPreemption pods_leaving=4
          low -> preempted 4 pods
        at 2
          resize train 2
          train -> WaitingForPreemption
        at 3
          pod-gone low 4
          pod-gone low 5
          pod-gone low 6
          pod-gone low 7
          train -> starts 2 pods
          low -> starts 2 pods
    """,
    "a service of several sets is made smaller in one and larger in the other": """
        nodes  H100: 8 | L4: 4
        quota  a H100 64 | a L4 64
        policy best-effort-fifo
        at 0
          + web a 4x1+1x1 H100+L4 pods -> starts 5 pods
        at 1
          resize web 1
        at 2
          pod-fails web 0
        at 3
          pod-fails web 1
          pod-fails web 2
          pod-fails web 3
          web -> starts 1 pod
    """,
}


@pytest.mark.parametrize("name", RESIZES)
def test_resizing(name: str) -> None:
    play(RESIZES[name])


def test_it_is_held_and_starts_not_before_as_until_now() -> None:
    world = play("""
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo
        at 0
          + later a 4x1 H100
          hold later
          later -> OnHold
    """)
    world.pending = [d.JobSubmitted(job("due", "a", "1x1 H100"), not_before=50)]
    world.cycle(1)
    world.pending = [d.JobChanged(job(n, "a", "2x1 H100")) for n in ("later", "due", "nobody")]
    assert world.cycle(2).started == ()
    assert sorted(world.state.jobs) == ["due", "later"]
    (start,) = world.cycle(50).started
    assert (start.job_id, len(start.placements)) == ("due", 2)
