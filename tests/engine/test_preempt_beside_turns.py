"""A job that may preempt while nodes are kept for the turn of another job.

On the kept nodes it does not pass that job. Elsewhere it takes places as if the kept nodes were out
of service (see scenario.py).
"""

from dataclasses import replace

import numpy as np
import pytest

from scheduling.engine import deltas as d
from tests.cases import seeds
from tests.engine.scenario import World, job, node, play

POLICY = "best-effort-fifo, fair_share=yes, min_runtime_s=0"
# b borrows. a1, which preempts nobody, waits for n3, which is half free.
SCENE = """
    nodes  H100: 4 4 4 4 | L4: 2
    quota  a H100 4 | b H100 4 | c H100 8 | c L4 2 | b L4 0
    tree   a < org | b < org | c < org
    policy {policy}, preemption={kind}
    at 0
      + c1 c 1x4 H100 -> starts on n0
      + b1 b 1x2 H100 -> starts on n1
      + b2 b 1x2 H100 -> starts on n1
      + b3 b 1x2 H100 -> starts on n2
      + b4 b 1x2 H100 -> starts on n2
      + b5 b 1x2 H100 -> starts on n3
      + b6 b 1x2 L4 -> starts
    at 100
      + a1 a 1x4 H100 p5 preempts=no -> InsufficientGpus
    at 101
      + c2 c {asked} p5
      a1 -> InsufficientGpus kept_nodes=1
"""
VARIANTS = {
    "who reclaims": ("reclaim", "1x2 H100", "b1 -> preempted for c2"),
    "who has the higher priority": ("priority", "1x2 H100", "b1 -> preempted for c2"),
    "a gang": ("reclaim", "2x2 H100", "b1 -> preempted for c2"),
    "pods that are no gang": ("reclaim", "2x1 H100 pods", "b1 -> preempted for c2"),
    "of two models": ("reclaim", "1x2 L4|H100", "b6 -> preempted for c2"),
}


@pytest.mark.parametrize(("kind", "asked", "expected"), VARIANTS.values(), ids=VARIANTS)
def test_who_may_preempt_does_so_beside_a_turn(kind: str, asked: str, expected: str) -> None:
    play(SCENE.format(policy=POLICY, kind=kind, asked=asked) + expected)


ASKED = ("1x2", "1x4", "2x2", "2x4", "3x1", "2x3", "1x1", "4x2")
WORDS = ("", "", "required_level=leaf", "max_per_node=1", "pods")


def _crowd(rng: np.random.Generator) -> World:
    """Nodes on which a borrowing tenant runs small jobs, with some GPUs free."""
    world, count = World(), int(rng.integers(3, 7))
    for at in range(count):
        topology = (f"l{at // 2}", "s0", "")
        world.pending.append(d.NodeChanged(replace(node(f"n{at}", 4), topology=topology)))
    kind = rng.choice(("reclaim", "priority", "reclaim+priority"))
    play(
        f"""
        quota  a H100 {count} | b H100 {count} | c H100 {2 * count}
        tree   a < org | b < org | c < org
        policy {POLICY}, preemption={kind}
        at 0
          + c0 c 1x{min(4, count)} H100 -> starts
        """,
        world,
    )
    for at in range(4 * count):
        shape, *words = rng.choice(("1x1", "1x2", "1x3", "2x2", "2x2 pods")).split()
        world.pending.append(d.JobSubmitted(job(f"b{at}", "b", f"{shape} H100", *words)))
    world.cycle(1.0)
    waiting = [name for name in world.state.jobs if name not in world.where]
    ended = [name for name in world.where if name != "c0" and rng.random() < 0.2]
    world.pending += [d.JobEnded(name, succeeded=False) for name in [*waiting, *ended]]
    world.cycle(2.0)
    return world


def _gets_places(world: World, name: str) -> bool:
    result = world.cycle(101.0)
    taken = {start.job_id for start in result.started} | {lost.by for lost in result.preempted}
    return name in taken


@pytest.mark.parametrize("seed", seeds(480))
def test_kept_nodes_are_to_it_as_nodes_out_of_service(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world, other = (_crowd(np.random.default_rng(seed)) for _ in range(2))
    first = job("a1", "a", f"{rng.choice(ASKED)} H100", "p5", "preempts=no", at=100.0)
    asked = job("c2", "c", f"{rng.choice(ASKED)} H100", "p5", *rng.choice(WORDS).split(), at=101.0)
    world.pending.append(d.JobSubmitted(first))
    world.cycle(100.0)
    world.pending.append(d.JobSubmitted(asked))
    found = _gets_places(world, "c2")
    turns = [record.turn for record in world.state.turns.values()]
    for name in {name for turn in turns if turn is not None for name in turn.nodes}:
        node_kept = replace(other.state.cluster.node(name), schedulable=False)
        other.pending.append(d.NodeChanged(node_kept))
    other.pending.append(d.JobSubmitted(asked))
    assert found or not (turns and _gets_places(other, "c2"))
